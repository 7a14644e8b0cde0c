"""A device cache too small for what runs, a host tier too small for the working set, aborted
requests and a reset of everything: fewer hits, the same tokens, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.vllm import scenario
from tests.vllm.models import LLAMA
from tests.vllm.rig import Engine, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record

MANAGER = "scheduler.connector.connector_scheduler.manager"
PROMPTS = (1, 2, 3, 4)
BLOCKS = 96  # two prompts of 47 blocks, and not what they generate
TEXT = 24


def test_preemption_a_small_host_tier_aborts_and_a_full_reset_keep_the_tokens(
    start: Callable[..., Engine], record: Record
) -> None:
    """Four prompts of 1.5 MiB each over 2 MiB of host memory and room for two on the device."""
    with start(
        LLAMA,
        offloading(host_bytes=2 * MIB),
        num_gpu_blocks_override=BLOCKS,
        max_model_len=2048,
    ) as engine:
        counted = Counted(engine)
        asked = scenario.prompts(*PROMPTS)
        alone = [engine.generate([one], TEXT)[0] for one in asked]
        record(scenario.row("one by one", LLAMA, "one process", counted, equal=True)[0])
        assert engine.reset()
        together = engine.generate(asked, TEXT)
        equal = scenario.same_tokens(alone, together)
        row, grown = scenario.row(
            "preempted, little host", LLAMA, "one process", counted, equal=equal
        )
        record(row)
        assert equal, (alone, together)
        assert grown["vllm:num_preemptions"] > 0
        assert grown["vllm:radix_evicted_blocks"] > 0
        for after in (0, 1, 5):
            engine.abort(scenario.prompts(5, 6), max_tokens=200, after=after)
        assert engine.reset()
        last = engine.generate(asked[-1:], TEXT)
        assert last[0].tokens == alone[-1].tokens
        assert engine.ask(f"{MANAGER}.check()") == "None"
        counted.look()
        assert engine.reset(connector=True)
        after_all = engine.generate(asked[-1:], TEXT)
        equal = scenario.same_tokens(alone[-1:], after_all)
        row, grown = scenario.row(
            "reset with connector", LLAMA, "one process", counted, equal=equal
        )
        record(row)
        assert equal
        assert row.vllm_hits == 0
        assert grown["vllm:radix_resets"] == 1
        # The step that tells a request's end runs with the next request here.
        engine.generate(scenario.prompts(9), 2)
        engine.generate(scenario.prompts(10), 2)
        assert engine.ask(f"{MANAGER}.check()") == "None"
        assert engine.ask(f"{MANAGER}.lives.alive").count("Life(") <= 1


def test_a_canary_compares_half_of_the_hits_and_finds_no_mismatch(
    start: Callable[..., Engine], record: Record
) -> None:
    """Blocks that are computed again are those that were kept."""
    with start(LLAMA, offloading(host_bytes=64 * MIB, canary=0.5)) as engine:
        counted = Counted(engine)
        asked = scenario.prompts(*PROMPTS)
        cold = engine.generate(asked)
        counted.look()
        for _ in range(3):
            assert engine.reset()
            warm = engine.generate(asked)
            equal = scenario.same_tokens(cold, warm)
            row, grown = scenario.row(
                "canary of one half", LLAMA, "one process", counted, equal=equal
            )
            record(row)
            assert equal, (cold, warm)
        engine.generate(scenario.prompts(9), 2)
        told = engine.metrics()
        assert told.get("vllm:radix_canary_blocks{outcome=compared}", 0) > 0, grown
        assert told.get("vllm:radix_canary_blocks{outcome=mismatched}", 0) == 0


def test_a_working_set_beyond_the_host_tier_is_served_from_disk(
    start: Callable[..., Engine], tmp_path: Path, record: Record
) -> None:
    """Four prompts of 1.5 MiB each over 4 MiB of host memory: what was evicted comes from disk."""
    connector = offloading(
        host_bytes=4 * MIB, directory=str(tmp_path / "kept"), disk_bytes=512 * MIB
    )
    with start(LLAMA, connector) as engine:
        counted = Counted(engine)
        asked = scenario.prompts(*PROMPTS)
        cold = [engine.generate([one])[0] for one in asked]
        engine.generate(scenario.prompts(9), 2)
        counted.look()
        assert engine.reset()
        warm = [engine.generate([one])[0] for one in asked]
        equal = scenario.same_tokens(cold, warm)
        row, grown = scenario.row(
            "beyond the host", LLAMA, "one process", counted, equal=equal, requests=4
        )
        record(row)
        assert equal, (cold, warm)
        assert row.vllm_hits == scenario.hits(warm) == len(PROMPTS) * REACHABLE["llama"]
        assert row.our_hits == row.vllm_hits, grown
        assert grown["vllm:radix_loaded_blocks{tier=disk}"] > 0
