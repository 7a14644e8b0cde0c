"""RadixDiskTier in a running vLLM, under its own tiering manager and CPU tier; on a CPU the tests
supply the worker and nothing else. Tokens equal the cold run's from host, from disk in the same
process, from disk after a restart of all processes, over damaged files and after a reset.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.models import GEMMA3, LLAMA, Model
from tests.vllm.rig import Engine, EngineFailed, Outcome, prompt
from tests.vllm.scenario import same_logprobs

Start = Callable[..., Engine]
BLOCK_TOKENS = 32
LENGTH = 300
REACHABLE = LENGTH // BLOCK_TOKENS * BLOCK_TOKENS
LIMIT_BYTES = 256 << 20
# The bytes of all workers of one block, as vLLM's host pool keeps them.
ROW_BYTES = {LLAMA.name: 32 << 10, GEMMA3.name: 32 << 10}
DISK = "vllm:radix_disk_tier_"


def tiering(directory: Path, rows: int, model: Model = LLAMA, **given: Any) -> dict[str, Any]:
    """The connector's configuration with our tier under a host pool of so many rows."""
    entry = {
        "type": "RadixDiskTier",
        "module_path": "radix.engines.vllm",
        "directory": str(directory),
        "limit_bytes": LIMIT_BYTES,
    }
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "tests.vllm.cputiering",
            "offload_prompt_only": False,
            "cpu_bytes_to_use": rows * ROW_BYTES[model.name],
            "secondary_tiers": [entry | given],
        },
    }


def tokens(outcomes: list[Outcome]) -> list[tuple[int, ...]]:
    """What was generated."""
    return [outcome.tokens for outcome in outcomes]


def ours(told: dict[str, float], name: str) -> float:
    """What a metric of the tier says; it is there once there is something to say."""
    return told.get(DISK + name, 0)


def cached(outcomes: list[Outcome]) -> int:
    """How many tokens of the prompts came from somewhere."""
    return sum(outcome.cached_tokens for outcome in outcomes)


def test_prompts_beyond_the_host_pool_come_from_disk_until_a_reset_and_after_a_restart(
    start: Start, tmp_path: Path
) -> None:
    connector = tiering(tmp_path / "kept", 20)
    asked = [prompt(number, LENGTH) for number in range(4)]
    with start(LLAMA, connector) as engine:
        cold = [engine.generate([one], 12) for one in asked]
        assert sum(map(cached, cold)) == 0
        assert engine.reset()
        again = [engine.generate([one], 12) for one in asked]
        told = engine.metrics()
        assert list(map(tokens, again)) == list(map(tokens, cold))
        assert sum(map(cached, again)) >= 4 * REACHABLE
        assert ours(told, "loaded_blocks") >= 4 * REACHABLE // BLOCK_TOKENS - 20
        assert ours(told, "faults") == ours(told, "failed_load_blocks") == 0
        assert engine.reset(connector=True)
        after = engine.generate(asked[:1], 12)
        assert (tokens(after), cached(after)) == (tokens(cold[0]), 0), "hidden by the reset"
    with start(LLAMA, connector) as engine:
        warm = [engine.generate([one], 12) for one in asked]
        told = engine.metrics()
    assert list(map(tokens, warm)) == list(map(tokens, cold))
    assert sum(map(cached, warm)) >= 4 * REACHABLE, "a new start loads the weights of before"
    assert ours(told, "loaded_blocks") >= 4 * REACHABLE // BLOCK_TOKENS
    assert told["vllm:external_prefix_cache_hits"] == sum(map(cached, warm))


def test_a_window_model_in_processes_of_its_own_is_warm_after_a_restart(
    start: Start, tmp_path: Path
) -> None:
    connector = tiering(tmp_path / "kept", 64, GEMMA3)
    asked = [prompt(number, LENGTH) for number in range(2)]
    with start(GEMMA3, connector, processes=True) as engine:
        cold = engine.generate(asked, 12, logprobs=True)
        assert cached(cold) == 0
    with start(GEMMA3, connector, processes=True) as engine:
        warm = engine.generate(asked, 12, logprobs=True)
        told = engine.metrics()
        # A hinted request has all its blocks offered to the directory, in whichever tier they are.
        assert engine.reset()
        hinted = engine.generate(asked, 12, hints={"keep_for": 60})
        engine.generate([prompt(2, 40)], 1)
        counted = engine.metrics()
    assert tokens(warm) == tokens(cold) == tokens(hinted)
    assert same_logprobs(GEMMA3, cold, warm)
    assert min(cached(warm), cached(hinted)) >= 2 * REACHABLE
    assert ours(told, "loaded_blocks") > 0 and ours(told, "failed_load_blocks") == 0
    assert (ours(counted, "hints_taken"), ours(counted, "faults")) == (2, 0)


def test_damaged_files_give_fewer_hits_and_the_same_tokens(start: Start, tmp_path: Path) -> None:
    connector = tiering(tmp_path / "kept", 48)
    asked = [prompt(number, LENGTH) for number in range(3)]
    with start(LLAMA, connector) as engine:
        cold = engine.generate(asked, 12)
    rng = random.Random(11)
    for path in (tmp_path / "kept").rglob("slab*"):
        data = bytearray(path.read_bytes())
        written = [at for at in range(0, len(data), ROW_BYTES["llama"]) if any(data[at : at + 64])]
        for at in rng.sample(written, len(written) // 3):
            data[at + rng.randrange(ROW_BYTES["llama"] // 2)] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))
    with start(LLAMA, connector) as engine:
        warm = engine.generate(asked, 12)
        told = engine.metrics()
        assert tokens(warm) == tokens(cold), "seed 11"
        assert cached(warm) < 3 * REACHABLE
        assert ours(told, "corrupt_blocks") > 0
        assert engine.reset()
        healed = engine.generate(asked, 12)
        assert tokens(healed) == tokens(cold)
        assert cached(healed) >= 3 * REACHABLE


def test_a_crashed_engine_leaves_a_warm_directory(start: Start, tmp_path: Path) -> None:
    connector = tiering(tmp_path / "kept", 48)
    asked = [prompt(0, LENGTH), prompt(1, LENGTH)]
    with start(LLAMA, connector, processes=True) as engine:
        cold = engine.generate(asked, 12)
        engine.generate([prompt(2, 40)], 1)
        engine.kill()
    with start(LLAMA, connector, processes=True) as engine:
        warm = engine.generate(asked, 12)
    assert tokens(warm) == tokens(cold)
    assert cached(warm) > 0


def test_hashes_from_a_random_seed_are_refused_at_the_start(start: Start, tmp_path: Path) -> None:
    connector = tiering(tmp_path / "kept", 48)
    with pytest.raises(EngineFailed, match="sha256_cbor"):
        with start(LLAMA, connector, prefix_caching_hash_algo="xxhash"):
            pass
    assert not (tmp_path / "kept").exists()
