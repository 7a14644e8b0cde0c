"""Tests of SGLang run on stand-ins for what a GPU machine would have. They change what the whole
process can import, so who asks for all tests does not get them, and ``make test`` asks for them
alone. Tests inside vLLM need its environment, and are left out alike.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APART = ("sglang", "vllm")
ONE = "tests/sglang/test_the_published_package_is_imported.py"
OTHER = "tests/tidy/test_engines_on_standins_run_apart.py"


def _collected(*paths: str) -> set[str]:
    """Return the files of which pytest would run something."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}


def test_who_asks_for_all_tests_does_not_get_them() -> None:
    others = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]
    looked_at = {"tidy", *APART}
    ignored = [f"--ignore={path}" for path in others if path.name not in looked_at]
    found = _collected("tests", *ignored)
    assert OTHER in found
    assert not [
        path for path in found if path.startswith(tuple(f"tests/{name}/" for name in APART))
    ]
    assert _collected(ONE) == {ONE}


def test_make_test_asks_for_them_alone() -> None:
    text = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert recipe and "\n\t$(PYTEST) -n 2 --dist loadfile tests/sglang\n" in "\n" + recipe[1]
