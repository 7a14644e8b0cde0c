"""A prompt whose state was offloaded is served from it: from host after the device forgot it, from
disk after a restart of the whole process, with the tokens of the cold run. One process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vllm import scenario
from tests.vllm.models import MODELS, Model
from tests.vllm.rig import Engine, Outcome, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_is_served_from_host_and_after_a_restart_from_disk(
    name: str, start: Callable[..., Engine], tmp_path: Path, record: Record
) -> None:
    """At least 1,472 of 1,500 tokens (Llama, Gemma3) and 1,280 (Qwen3-Next), from either tier."""
    model = MODELS[name]
    connector = offloading(
        host_bytes=64 * MIB, directory=str(tmp_path / "kept"), disk_bytes=512 * MIB
    )
    asked = scenario.prompts(1)
    with start(model, connector) as engine:
        counted = Counted(engine)
        cold = engine.generate(asked, logprobs=True)
        assert cold[0].cached_tokens == 0
        assert scenario.varied(cold)
        record(scenario.row("cold", model, "one process", counted, equal=True)[0])
        assert engine.reset()
        again = engine.generate(asked, logprobs=True)
        _check("from host", model, counted, record, cold, again)
    with start(model, connector) as engine:
        counted = Counted(engine)
        again = engine.generate(asked, logprobs=True)
        _check("from disk after a restart", model, counted, record, cold, again)
        # And once more, now from the host tier that the disk filled.
        assert engine.reset()
        again = engine.generate(asked, logprobs=True)
        _check("from host after that", model, counted, record, cold, again)


def _check(
    told: str,
    model: Model,
    counted: Counted,
    record: Record,
    cold: list[Outcome],
    again: list[Outcome],
) -> None:
    """The same tokens as cold, as likely, for as many hits as can be, on both counts."""
    equal = scenario.same_tokens(cold, again)
    row, grown = scenario.row(told, model, "one process", counted, equal=equal)
    record(row)
    assert equal, (cold, again)
    assert scenario.same_logprobs(model, cold, again), (cold, again)
    assert again[0].cached_tokens >= REACHABLE[model.name]
    assert row.vllm_hits == again[0].cached_tokens
    assert row.our_hits == row.vllm_hits, grown
