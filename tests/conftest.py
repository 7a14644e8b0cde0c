"""Which tests run here, and what happens to a test that would be skipped.

Tests marked ``gpu``, ``traces`` or ``long`` are deselected where their need is not met, and the run
ends with what was left out and why. Under RADIX_NO_SKIP=1 a test or module that would be skipped
fails instead: continuous integration must not pass because something was missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test may depend on how fast the machine is today.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

_APART = [Path(__file__).parent / engine for engine in ("sglang", "vllm")]
_LEFT_OUT = pytest.StashKey[Counter[str]]()


def _left_out(config: pytest.Config) -> Counter[str]:
    """Return the counter of deselected tests by reason that this session fills."""
    return config.stash.setdefault(_LEFT_OUT, Counter())


@cache
def _has_cuda() -> bool:
    """Tell whether torch sees a GPU; torch, slow to load, is asked only where a driver is."""
    if not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg")):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _why_not(item: pytest.Item) -> str | None:
    """Return why a test cannot run here, None when it can."""
    if item.get_closest_marker("gpu") and not _has_cuda():
        return "gpu: no CUDA device"
    if item.get_closest_marker("traces") and not _trace_folder_exists():
        return "traces: RADIX_TRACES names no folder"
    asked_for = "long" in item.config.getoption("markexpr")
    if item.get_closest_marker("long") and not asked_for:
        return "long: run by make test-long"
    return None


def _trace_folder_exists() -> bool:
    """Tell whether RADIX_TRACES names a folder."""
    return os.path.isdir(os.environ.get("RADIX_TRACES", ""))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of an engine that need a process or an environment of their own, unless
    they alone are asked for.
    """
    if collection_path not in _APART:
        return None
    asked = [Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args]
    return not all(path.is_relative_to(collection_path) for path in asked)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what cannot run here and remember why."""
    reasons = [(item, _why_not(item)) for item in items]
    for _, reason in reasons:
        if reason is not None:
            _left_out(config)[reason] += 1
    dropped = [item for item, reason in reasons if reason is not None]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item, reason in reasons if reason is None]


def _fails_on_skip() -> bool:
    """Tell whether a skip is a failure in this run."""
    return os.environ.get("RADIX_NO_SKIP") == "1"


def _turn_skip_into_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a report of a skip one of a failure that keeps the reason of the skip.

    An expected failure that ran stays what it is; one that was not run counts as a skip.
    """
    expected: str | None = getattr(report, "wasxfail", None)
    if report.outcome != "skipped" or (expected is not None and "[NOTRUN]" not in expected):
        return
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    if expected is not None:
        delattr(report, "wasxfail")
        text = expected
    report.outcome = "failed"
    report.longrepr = f"RADIX_NO_SKIP=1, but {report.nodeid} would be skipped: {text}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under RADIX_NO_SKIP=1 a skipped test is a failed one."""
    report = yield
    if _fails_on_skip():
        _turn_skip_into_failure(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Under RADIX_NO_SKIP=1 a module that skips itself (importorskip, say) is an error."""
    report = yield
    if _fails_on_skip():
        _turn_skip_into_failure(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process of pytest-xdist hands its list to the process that reports."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["radix_left_out"] = dict(_left_out(session.config))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's list; every worker collects all tests, so the lists are equal."""
    left_out = _left_out(node.config)
    for reason, number in getattr(node, "workeroutput", {}).get("radix_left_out", {}).items():
        left_out[reason] = max(left_out[reason], number)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """End with what did not run and why."""
    lines = [f"{number} deselected: {why}" for why, number in sorted(_left_out(config).items())]
    skips: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        is_triple = isinstance(report.longrepr, tuple)
        why = report.longrepr[2] if is_triple else str(report.longrepr)
        skips[f"{report.nodeid}: {why.removeprefix('Skipped: ')}"] += 1
    lines += [f"skipped: {where}" for where in sorted(skips)]
    terminalreporter.section("what did not run, and why")
    for line in lines or ["nothing: every test ran"]:
        terminalreporter.line(line)
