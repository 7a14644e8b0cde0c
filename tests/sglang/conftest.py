"""Makes SGLang importable before the first of its tests is."""

from collections.abc import Iterator

import pytest

from bench.peers import standin

assert standin.STOOD_IN


@pytest.fixture(autouse=True)
def _configuration_of_its_own() -> Iterator[None]:
    """What a test publishes as the engine's configuration is none of the next one's."""
    yield
    from sglang.srt.runtime_context import reset_context

    reset_context()
