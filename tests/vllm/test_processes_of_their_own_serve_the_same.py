"""vLLM's default, an engine core and workers in processes of their own, and two ranks: tokens are
those of the cold run from host, after a restart from disk, over a damaged slab file with fewer hits
only, and after requests were aborted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import scenario
from tests.vllm.models import MODELS
from tests.vllm.rig import Engine, Outcome, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record

MODES: dict[str, dict[str, Any]] = {
    "default processes": {},
    # Left to itself vLLM wants a memory node of its own for each rank.
    "two ranks": {
        "tensor_parallel_size": 2,
        "environment": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    },
}
CASES = [*((name, "default processes") for name in MODELS), ("llama", "two ranks")]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_restart_damage_and_abort_leave_the_tokens_as_they_were(
    name: str, mode: str, start: Callable[..., Engine], tmp_path: Path, record: Record
) -> None:
    """Three lives of one directory: filled, opened again, opened again damaged."""
    model, full = MODELS[name], 2 * REACHABLE[name]
    kept = tmp_path / "kept"
    connector = offloading(host_bytes=64 * MIB, directory=str(kept), disk_bytes=512 * MIB)
    asked = scenario.prompts(1, 2)

    def again(told: str, engine: Engine, counted: Counted, cold: list[Outcome]) -> int:
        warm = engine.generate(asked)
        equal = scenario.same_tokens(cold, warm)
        row, grown = scenario.row(told, model, mode, counted, equal=equal, requests=2)
        record(row)
        assert equal, (cold, warm)
        assert row.vllm_hits == scenario.hits(warm)
        assert row.our_hits == row.vllm_hits, grown
        return row.vllm_hits

    with start(model, connector, processes=True, **MODES[mode]) as engine:
        counted = Counted(engine)
        cold = engine.generate(asked)
        assert scenario.varied(cold)
        _abort(engine)
        assert engine.reset()
        counted.look()
        assert again("from host", engine, counted, cold) == full
        assert scenario.all_released(engine.metrics())
    with start(model, connector, processes=True, **MODES[mode]) as engine:
        counted = Counted(engine)
        assert again("from disk after a restart", engine, counted, cold) == full
    assert scenario.damage(kept, 0.1) > 0
    with start(model, connector, processes=True, **MODES[mode]) as engine:
        counted = Counted(engine)
        assert again("from a damaged disk", engine, counted, cold) < full
        assert engine.metrics().get("vllm:radix_corrupt_blocks", 0) > 0
        # What was computed instead is kept again, whole.
        assert engine.reset()
        assert again("once it was mended", engine, counted, cold) == full


def _abort(engine: Engine) -> None:
    """Abort requests before their first step, after their prompt, and amid their text."""
    for after in (0, 1, 5):
        engine.abort(scenario.prompts(7, 8), max_tokens=200, after=after)
    engine.generate(scenario.prompts(9), max_tokens=2)
