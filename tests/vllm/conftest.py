"""Tests inside a real vLLM: what they share, and the table at their end.

They are collected only where vLLM is installed, which is ``.venv-vllm``; ``make test-vllm`` builds
that environment and runs them. Elsewhere this folder is passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm import models
from tests.vllm.rig import Engine

collect_ignore_glob = [] if find_spec("vllm") is not None else ["*"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[models.Model], Path]:
    """Where a tiny model lies; it is built at the first question."""
    parent = tmp_path_factory.mktemp("models")
    return lambda model: models.build(model, parent)


@pytest.fixture
def start(model_folder: Callable[[models.Model], Path], tmp_path: Path) -> Callable[..., Engine]:
    """Make an engine over a tiny model: ``with start(LLAMA, offloading(...)) as engine``."""
    numbers = itertools.count(1)

    def start_one(model: models.Model, connector: dict | None = None, **settings: object) -> Engine:
        log = tmp_path / f"engine-{next(numbers)}.log"
        return Engine(model, model_folder(model), connector, log=log, **settings)

    return start_one
