"""What tests/conftest.py promises: RADIX_NO_SKIP=1 lets no skip pass, and the run ends by naming
what did not run. Each case is a small suite, run by pytest in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPS = {
    "mark": "@pytest.mark.skip(reason='the tin is empty')\ndef test_one(): pass\n",
    "condition": "@pytest.mark.skipif(True, reason='the tin is empty')\ndef test_one(): pass\n",
    "call": "def test_one(): pytest.skip('the tin is empty')\n",
    "import": "def test_one(): pytest.importorskip('no_such_module', reason='the tin is empty')\n",
    "module": "pytest.skip('the tin is empty', allow_module_level=True)\ndef test_one(): pass\n",
    "fixture": "@pytest.fixture\ndef tin(): pytest.skip('the tin is empty')\n"
    "def test_one(tin): pass\n",
    "unittest": "import unittest\nclass TestTin(unittest.TestCase):\n"
    "    def test_one(self): self.skipTest('the tin is empty')\n",
    "not_run": "@pytest.mark.xfail(run=False, reason='the tin is empty')\ndef test_one(): pass\n",
}


def _run(
    folder: Path, modules: dict[str, str], *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest over some modules beside our conftest and our settings."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, body in modules.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"import pytest\n{body}")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RADIX_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "."]
    return subprocess.run(
        command, cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=120
    )


def test_every_kind_of_skip_fails_and_keeps_its_reason(tmp_path: Path) -> None:
    modules = {f"test_{kind}.py": body for kind, body in SKIPS.items()}
    strict = _run(tmp_path, modules, "--continue-on-collection-errors", RADIX_NO_SKIP="1")
    assert strict.returncode != 0, strict.stdout
    assert "skipped" not in strict.stdout.splitlines()[-1]
    for kind in SKIPS:
        said = [line for line in strict.stdout.splitlines() if f"but test_{kind}.py" in line]
        assert any("would be skipped" in line and "the tin is empty" in line for line in said), kind


def test_a_skip_is_allowed_otherwise_and_named_at_the_end(tmp_path: Path) -> None:
    lenient = _run(tmp_path, {"test_module.py": SKIPS["call"] + "def test_two(): pass\n"})
    assert lenient.returncode == 0, lenient.stdout
    end = lenient.stdout.split("what did not run, and why")[1]
    assert "test_module.py::test_one: the tin is empty" in end


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    body = "@pytest.mark.xfail(reason='known')\ndef test_one(): assert False\n"
    strict = _run(tmp_path, {"test_module.py": body}, RADIX_NO_SKIP="1")
    assert strict.returncode == 0, strict.stdout
    assert "1 xfailed" in strict.stdout and "every test ran" in strict.stdout


MARKED = """
@pytest.mark.traces
def test_traces(): pass
@pytest.mark.long
def test_long(): pass
def test_plain(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_marked_tests_are_deselected_and_named_in_the_end(
    workers: list[str], tmp_path: Path
) -> None:
    run = _run(tmp_path, {"test_module.py": MARKED}, *workers, RADIX_NO_SKIP="1")
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout
    end = run.stdout.split("what did not run, and why")[1]
    assert "1 deselected: traces: RADIX_TRACES names no folder" in end
    assert "1 deselected: long: run by make test-long" in end


def test_marked_tests_run_where_their_need_is_met(tmp_path: Path) -> None:
    with_traces = _run(tmp_path, {"test_module.py": MARKED}, RADIX_TRACES=str(tmp_path))
    assert "2 passed" in with_traces.stdout
    only_long = _run(tmp_path, {"test_module.py": MARKED}, "-m", "long")
    assert "1 passed" in only_long.stdout


def test_a_mark_that_nobody_declared_is_an_error(tmp_path: Path) -> None:
    run = _run(tmp_path, {"test_module.py": "@pytest.mark.slwo\ndef test_one(): pass\n"})
    assert run.returncode != 0 and "slwo" in run.stdout


def test_two_files_of_one_name_do_not_clash(tmp_path: Path) -> None:
    body = "def test_one(): pass\n"
    run = _run(tmp_path, {"left/test_same.py": body, "right/test_same.py": body})
    assert "2 passed" in run.stdout, run.stdout
