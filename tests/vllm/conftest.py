"""Tests inside a real vLLM: what they share, and the table at their end.

They are collected only where vLLM is installed, which is ``.venv-vllm``; ``make test-vllm`` builds
that environment and runs them. Elsewhere this folder is passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import models, table
from tests.vllm.rig import Engine

collect_ignore_glob = [] if find_spec("vllm") is not None else ["*"]

_ROWS = pytest.StashKey[list[table.Row]]()
_UPSTREAM = pytest.StashKey[list[table.Upstream]]()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[models.Model], Path]:
    """Where a tiny model lies; it is built at the first question."""
    parent = tmp_path_factory.mktemp("models")
    return lambda model: models.build(model, parent)


@pytest.fixture
def start(model_folder: Callable[[models.Model], Path], tmp_path: Path) -> Callable[..., Engine]:
    """Make an engine over a tiny model: ``with start(LLAMA, offloading(...)) as engine``."""
    numbers = itertools.count(1)

    def start_one(
        model: models.Model, connector: dict[str, Any] | None = None, **settings: Any
    ) -> Engine:
        log = tmp_path / f"engine-{next(numbers)}.log"
        return Engine(model, model_folder(model), connector, log=log, **settings)

    return start_one


@pytest.fixture
def record(pytestconfig: pytest.Config) -> Callable[[table.Row], None]:
    """Put a row into the table at the end of the run."""
    return pytestconfig.stash.setdefault(_ROWS, []).append


@pytest.fixture
def record_upstream(pytestconfig: pytest.Config) -> Callable[[table.Upstream], None]:
    """Put a file of vLLM's own tests into the list at the end of the run."""
    return pytestconfig.stash.setdefault(_UPSTREAM, []).append


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """End with what the engines did, also when a test failed."""
    rows, upstream = config.stash.get(_ROWS, []), config.stash.get(_UPSTREAM, [])
    if not rows and not upstream:
        return
    terminalreporter.section("inside a real vLLM (tokens)")
    for line in table.lines(rows) if rows else []:
        terminalreporter.line(line)
    if upstream:
        terminalreporter.section("vLLM's own tests against ours")
        for line in table.upstream_lines(upstream):
            terminalreporter.line(line)
    terminalreporter.line(table.one_line(rows, upstream))
