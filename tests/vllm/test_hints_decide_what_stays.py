"""What a request says of its blocks reaches the order of eviction: in ``kv_transfer_params`` under
``radix_hints``. What is no hint is counted and left out, and no request ever fails of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from vllm.v1.kv_offload.base import OffloadPolicy, ReqContext

from tests.vllm import scenario
from tests.vllm.models import LLAMA, MODELS
from tests.vllm.offloadrig import HIT, MISS, OffloadRig, context_of, keys_of
from tests.vllm.rig import Engine, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record

MANAGER = "scheduler.connector.connector_scheduler.manager"
ROOM = 8
TEXT = 24
BAD: tuple[object, ...] = (
    {"priority": 101},
    {"priority": 5.0},
    {"priority": True},
    {"priority": "high"},
    {"priority": 10**30},
    {"keep_for": float("nan")},
    {"keep_for": float("inf")},
    {"keep_for": -1},
    {"expects_return": "soon"},
    {"expects_return": 1, "ended": True},
    {"ended": 1},
    {"keepfor": 60},
    {1: 2},
    ["priority"],
    "priority",
    7,
)


def served(rig: OffloadRig, keys: Sequence[bytes], hints: object = None) -> None:
    """A request computes these blocks and ends."""
    request = rig.request(keys, hints=hints)
    rig.keep(keys, request)
    rig.step()
    rig.offload.on_request_finished(request)


def fill(rig: OffloadRig, first: int, blocks: int) -> None:
    """Other requests bring so many blocks, two each."""
    for number in range(first, first + blocks, 2):
        served(rig, keys_of(number, number + 1))


def there(rig: OffloadRig, keys: Sequence[bytes]) -> list[Any]:
    """Whether blocks are kept; asking is a use of them."""
    found = rig.look(keys, rig.request(keys))
    rig.step()
    return found


def test_reserved_blocks_stay_while_all_others_go_until_their_time_has_come() -> None:
    rig = OffloadRig(ROOM, policy="priority")
    served(rig, keys_of(1, 2), {"keep_for": 60})
    served(rig, keys_of(3, 4))
    fill(rig, 100, 2 * ROOM)
    assert there(rig, keys_of(1, 2, 3, 4)) == [HIT, HIT, MISS, MISS]
    rig.now_s += 61
    fill(rig, 200, 2 * ROOM)
    assert there(rig, keys_of(1, 2)) == [MISS, MISS]


def test_what_is_said_to_be_over_goes_before_what_is_older() -> None:
    rig = OffloadRig(ROOM)
    served(rig, keys_of(1, 2))
    fill(rig, 100, ROOM - 4)
    served(rig, keys_of(3, 4), {"ended": True})
    fill(rig, 200, 2)
    assert there(rig, keys_of(1, 2, 3, 4)) == [HIT, HIT, MISS, MISS]


def test_blocks_that_are_stored_after_the_end_are_what_the_request_said() -> None:
    """Copies of the last blocks end after the engine has told a request's end."""
    rig = OffloadRig(ROOM)
    served(rig, keys_of(1, 2))
    fill(rig, 100, ROOM - 4)
    request = rig.request(keys_of(3, 4), hints={"ended": True})
    out = rig.offload.prepare_store(keys_of(3, 4), request)
    assert out is not None
    rig.offload.on_request_finished(request)
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(out.keys_to_store), request)
    fill(rig, 200, 2)
    assert there(rig, keys_of(1, 2, 3, 4)) == [HIT, HIT, MISS, MISS]


def test_while_a_request_runs_its_priority_holds_and_nothing_is_over() -> None:
    rig = OffloadRig(ROOM, policy="priority")
    kept, over = keys_of(1, 2), keys_of(3, 4)
    high = rig.request(kept, hints={"priority": 9})
    rig.keep(kept, high)
    fill(rig, 100, ROOM)
    ending = rig.request(over, hints={"ended": True})
    rig.keep(over, ending)
    fill(rig, 200, 2)
    assert there(rig, kept + over) == [HIT] * 4
    rig.offload.on_request_finished(ending)
    rig.offload.on_request_finished(high)
    fill(rig, 300, 2)
    assert there(rig, kept + over) == [HIT, HIT, MISS, MISS]


def test_a_load_that_ends_after_its_request_is_no_use_of_what_is_over() -> None:
    """A request that is aborted while it loads has said that its blocks are over; the end of the
    load gave them back as the most recently used.
    """
    rig = OffloadRig(ROOM)
    served(rig, keys_of(1, 2))
    fill(rig, 100, ROOM - 2)
    request = rig.request(keys_of(1, 2), hints={"ended": True})
    assert rig.look(keys_of(1, 2), request) == [HIT, HIT]
    rig.offload.prepare_load(keys_of(1, 2), request)
    rig.step()
    rig.offload.on_request_finished(request)
    rig.offload.complete_load(set(keys_of(1, 2)), request)
    fill(rig, 200, 2)
    assert there(rig, keys_of(1, 2)) == [MISS, MISS]
    assert there(rig, keys_of(100, 101)) == [HIT, HIT]


def test_a_hinted_request_has_all_its_blocks_offered_and_what_was_there_is_meant_too() -> None:
    """Of a request that loads a part the engine offers no block before it, unless asked to: of
    what was on the device already nobody would know the keys.
    """
    rig = OffloadRig(ROOM, policy="priority")
    plain, hinted = context_of("plain"), context_of("hinted", hints={"priority": 3})
    assert rig.offload.on_new_request(plain).policy is OffloadPolicy.CHUNK_LEVEL
    assert rig.offload.on_new_request(hinted).policy is OffloadPolicy.REQUEST_LEVEL
    served(rig, keys_of(1, 2, 3, 4))
    served(rig, keys_of(1, 2), {"priority": 3})
    running = rig.request(keys_of(3, 4), hints={"priority": 3})
    rig.keep(keys_of(3, 4), running)
    fill(rig, 100, 2 * ROOM)
    assert there(rig, keys_of(1, 2, 3, 4)) == [HIT] * 4


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_no_hint_is_counted_and_the_request_goes_on_without(bad: object) -> None:
    rig = OffloadRig(ROOM, policy="priority")
    served(rig, keys_of(1, 2), bad)
    assert (rig.count("hints.refused"), rig.count("hints.taken")) == (1, 0)
    assert there(rig, keys_of(1, 2)) == [HIT, HIT]
    fill(rig, 100, 2 * ROOM)
    assert there(rig, keys_of(1, 2)) == [MISS, MISS]


def test_other_parameters_of_a_request_are_left_alone() -> None:
    rig = OffloadRig(ROOM)
    for params in (None, {}, {"do_remote_decode": True}, {"radix_hints": None}, ["radix_hints"]):
        rig.offload.on_new_request(ReqContext("r", params))
    assert (rig.count("hints.refused"), rig.count("hints.taken")) == (0, 0)


def test_a_reset_and_the_end_of_the_engine_pass_over_hints() -> None:
    rig = OffloadRig(ROOM, policy="priority")
    one, two = (rig.request(keys_of(n), hints={"keep_for": 9}) for n in (1, 2))
    rig.keep(keys_of(1), one)
    rig.keep(keys_of(2), two)
    rig.offload.reset_cache()
    rig.offload.on_request_finished(one)
    rig.step()
    rig.close()
    rig.offload.on_request_finished(two)


def test_a_hinted_prompt_survives_in_a_real_engine_where_an_unhinted_one_goes(
    start: Callable[..., Engine], record: Record
) -> None:
    """Four prompts of 1.5 MiB each over 4 MiB of host memory; the first would be the first to go.
    What another says is no hint, and it is served all the same. Then all run at once, hinted, with
    room for two on the device.
    """
    with start(
        LLAMA,
        offloading(host_bytes=4 * MIB, policy="priority"),
        num_gpu_blocks_override=96,
        max_model_len=2048,
    ) as engine:
        counted = Counted(engine)
        kept, gone, *others = asked = scenario.prompts(1, 2, 3, 4)
        cold = engine.generate([kept], TEXT, hints={"keep_for": 3600})
        cold += engine.generate([gone], TEXT)
        cold += engine.generate([others[0]], TEXT, hints={"keepfor": 3600})
        cold += engine.generate([others[1]], TEXT)
        engine.generate(scenario.prompts(9), 2)
        assert engine.reset()
        counted.look()
        warm = engine.generate([kept], TEXT)
        equal = scenario.same_tokens(cold[:1], warm)
        row, grown = scenario.row("hinted", LLAMA, "one process", counted, equal=equal)
        record(row)
        assert equal, (cold, warm)
        assert row.vllm_hits == warm[0].cached_tokens == REACHABLE["llama"]
        assert row.our_hits == row.vllm_hits, grown
        again = engine.generate([gone], TEXT)
        equal = scenario.same_tokens(cold[1:2], again)
        row, _ = scenario.row("not hinted", LLAMA, "one process", counted, equal=equal)
        record(row)
        assert equal, (cold, again)
        assert row.vllm_hits == again[0].cached_tokens == 0
        told = engine.metrics()
        assert told["vllm:radix_hints{outcome=taken}"] == 1
        assert told["vllm:radix_hints{outcome=refused}"] == 1
        counted.look()
        together = engine.generate(asked, TEXT, hints={"expects_return": 30, "priority": 3})
        equal = scenario.same_tokens(cold, together)
        row, grown = scenario.row("hinted, preempted", LLAMA, "one process", counted, equal=equal)
        record(row)
        assert equal, (cold, together)
        assert grown["vllm:num_preemptions"] > 0
        assert engine.ask(f"{MANAGER}.check()") == "None"


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_a_hinted_request_of_windows_or_states_gets_the_tokens_of_the_cold_run(
    name: str, start: Callable[..., Engine], record: Record
) -> None:
    """A hinted request has blocks offered that came from the host or were on the device: windows
    and states among them, of which many are gone by then.
    """
    model = MODELS[name]
    asked = scenario.prompts(1)
    longer = [asked[0] + scenario.prompts(2)[0][:700]]
    hints = {"keep_for": 60, "priority": 3}
    with start(model, offloading(host_bytes=64 * MIB, policy="priority")) as engine:
        counted = Counted(engine)
        cold, cold_longer = engine.generate(asked, TEXT), engine.generate(longer, TEXT)
        assert engine.reset(connector=True)
        assert scenario.same_tokens(cold, engine.generate(asked, TEXT, hints=hints))
        counted.look()
        # Of the longer one the device has a part; then none, and the host all of it.
        for again in range(2):
            told = engine.generate(longer, TEXT, hints=hints)
            equal = scenario.same_tokens(cold_longer, told)
            assert equal, (again, cold_longer, told)
            assert told[0].cached_tokens >= REACHABLE[name], again
            assert engine.reset()
        row, grown = scenario.row(f"hinted {name}", model, "one process", counted, equal=equal)
        record(row)
        assert row.vllm_hits > 0, grown
        assert engine.ask(f"{MANAGER}.check()") == "None"
