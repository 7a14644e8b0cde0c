"""vLLM's source distributions, fetched once into this environment, and its own tests run from them
against ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vllm.rig import ENVIRONMENT, ROOT
from tests.vllm.table import Upstream

HERE = Path(__file__).parent
FOLDER = Path(sys.prefix) / "upstream"
FETCH_S = 300
TESTS_S = 800


def source(version: str) -> Path:
    """Where the sources of a vLLM release lie; they are fetched if they are not there yet."""
    subprocess.run(
        [sys.executable, str(HERE / "fetch_source.py"), version, str(FOLDER)],
        check=True,
        timeout=FETCH_S,
        stdout=subprocess.DEVNULL,
    )
    return FOLDER / f"vllm-{version}"


@dataclass(frozen=True)
class Ran:
    """What one run of pytest told: what passed, and by name what did not, with its last words."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    skipped: tuple[str, ...]
    seconds: float
    output: str

    def row(self, told: str, reasons: Mapping[str, str]) -> Upstream:
        """The row of the table; ``reasons``: of tests that cannot pass, by their names."""
        wrong = tuple(name for name in self.failed if bare(name) not in reasons)
        differs = tuple(f"{bare(n)}: {reasons[bare(n)]}" for n in self.failed if n not in wrong)
        return Upstream(told, len(self.passed), wrong, differs, self.seconds)


def bare(name: str) -> str:
    """A test's name without its module and its parameters."""
    return name.split("::")[-1].split("[")[0]


def run(version: str, stand_in: str, files: Sequence[str], report: Path) -> Ran:
    """Run files of a release's tests, by their paths in its source, with a plugin of ``standins``.

    What is tested beside ours is the installed vLLM; of the sources only the tests are seen.
    """
    folder = source(version) / "tests"
    settings = report.with_name("pytest.ini")
    settings.write_text("[pytest]\nmarkers =\n    skip_global_cleanup\n")
    started = time.monotonic()
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE / "standins")}
    done = subprocess.run(
        [
            *[sys.executable, "-c", _START, str(ROOT), str(folder.parent / "tests")],
            *["-q", "-p", "no:cacheprovider", "-p", stand_in, "--timeout=120"],
            *["-c", str(settings), f"--junitxml={report}"],
            *[str(folder / file) for file in files],
        ],
        cwd=report.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TESTS_S,
    )
    return _read(report, time.monotonic() - started, done.stdout + done.stderr)


# The sources hold a package ``tests`` as we do, and a part of ``vllm``: only the first is to be
# found there, and by that name.
_START = """
import sys, types
import pytest
root, tests = sys.argv[1:3]
package = types.ModuleType("tests")
package.__path__ = [tests]
sys.modules["tests"] = package
sys.exit(pytest.main(sys.argv[3:]))
"""


def _read(report: Path, seconds: float, output: str) -> Ran:
    """What pytest wrote of each test."""
    passed: list[str] = []
    skipped: list[str] = []
    failed: dict[str, str] = {}
    if not report.exists():
        raise AssertionError(f"pytest wrote no report:\n{output[-4000:]}")
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
        wrong = [child for child in case if child.tag in ("failure", "error")]
        if wrong:
            failed[name] = (wrong[0].get("message") or "")[:300]
        elif any(child.tag == "skipped" for child in case):
            skipped.append(name)
        else:
            passed.append(name)
    return Ran(tuple(passed), failed, tuple(skipped), seconds, output)
