"""What a request says of its blocks, in its custom parameters under ``radix_hints``, decides what
the radix cache evicts; what is no hint is counted and left out, and nothing is raised.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix.engines.sglang import backend
from radix.engines.sglang.backend import RadixBackend
from tests.sglang.driving import Traffic
from tests.sglang.scheduling import Run, Scheduler

LENGTH = 32
ROOM = 6  # prompts
BAD: tuple[object, ...] = (
    {"priority": 101},
    {"priority": 2.5},
    {"keep_for": float("nan")},
    {"expects_return": 1, "ended": True},
    {"keepfor": 60},
    {"ended": "yes"},
    ["priority"],
    7,
)


class Clock:
    """Nanoseconds, as the test says."""

    def __init__(self) -> None:
        self.seconds = 1.0

    def __call__(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(backend, "monotonic_ns", made)
    return made


def scheduler_of(page: int, policy: str, **more: Any) -> Scheduler:
    return Scheduler(RadixBackend, page, ROOM * LENGTH // page, policy=policy, **more)


def begun(scheduler: Scheduler, number: int, hints: object = None, more: int = 0) -> Run:
    """A prompt of its own for each number, and so many tokens that go on from it."""
    run = scheduler.start(scheduler.request([number] * LENGTH + [0] * more, hints=hints))
    assert run is not None
    return run


def served(scheduler: Scheduler, number: int, hints: object = None) -> None:
    scheduler.finish(begun(scheduler, number, hints))
    scheduler.cache.sanity_check()


def kept(scheduler: Scheduler, *numbers: int) -> list[int]:
    """Which of these prompts are there still, wholly or in part; asked last, for asking is use."""
    return [n for n in numbers if scheduler.cache.match_prefix(_asked(n)).device_prefix_len]


def _asked(number: int) -> Any:
    return MatchPrefixParams(key=RadixKey(array("q", [number] * LENGTH), None))


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("policy", ["lru", "priority"])
def test_what_is_said_to_be_over_goes_before_what_is_older(policy: str, page: int) -> None:
    scheduler = scheduler_of(page, policy)
    served(scheduler, 1)
    served(scheduler, 2, {"ended": True})
    served(scheduler, 3)
    scheduler.evict(LENGTH)
    assert kept(scheduler, 1, 2, 3) == [1, 3]


@pytest.mark.parametrize("page", [1, 16])
def test_reserved_blocks_stay_while_all_others_go_until_their_time_has_come(
    page: int, clock: Clock
) -> None:
    scheduler = scheduler_of(page, "priority")
    served(scheduler, 1, {"keep_for": 60})
    served(scheduler, 2, {"priority": 5})
    for number in range(10, 10 + 2 * ROOM):
        clock.seconds += 1
        served(scheduler, number)
    assert kept(scheduler, 1, 2) == [1, 2]
    clock.seconds += 60
    for number in range(40, 40 + 2 * ROOM):
        served(scheduler, number)
    assert kept(scheduler, 1, 2) == [2]


def test_a_reservation_ends_by_the_time_of_the_eviction_and_not_of_the_last_request(
    clock: Clock,
) -> None:
    scheduler = scheduler_of(1, "priority")
    served(scheduler, 1, {"keep_for": 60})
    served(scheduler, 2)
    clock.seconds += 61
    scheduler.evict(LENGTH)
    assert kept(scheduler, 1, 2) == [2]


@pytest.mark.parametrize("use", ["match", "touch", "lock"])
def test_a_use_counts_from_its_own_time(use: str, clock: Clock) -> None:
    """What returns in 50 s goes before what was used 5 s ago, and not before what was used 105 s
    ago.
    """
    scheduler = scheduler_of(1, "priority")
    served(scheduler, 1)
    run = begun(scheduler, 1, more=2) if use == "lock" else None
    served(scheduler, 2, {"expects_return": 155})
    clock.seconds += 100
    if run is not None:
        scheduler.retract(run)
    elif use == "match":
        scheduler.cache.match_prefix(_asked(1))
    else:
        scheduler.cache.touch_prefix(_asked(1).key)
    clock.seconds += 5
    scheduler.evict(LENGTH)
    assert kept(scheduler, 1, 2) == [1]


def test_of_two_sessions_that_return_the_later_goes_first(clock: Clock) -> None:
    scheduler = scheduler_of(1, "priority")
    served(scheduler, 1, {"expects_return": 500})
    served(scheduler, 2, {"expects_return": 5})
    clock.seconds += 1
    scheduler.evict(LENGTH)
    assert kept(scheduler, 1, 2) == [2]


def test_seconds_are_left_out_where_ranks_must_decide_alike_and_all_else_holds() -> None:
    scheduler = scheduler_of(1, "priority", ranks=2)
    served(scheduler, 1, {"keep_for": 3600})
    served(scheduler, 2, {"priority": 5})
    for number in range(10, 10 + 2 * ROOM):
        served(scheduler, number)
    assert kept(scheduler, 1, 2) == [2]
    assert scheduler.cache.metrics.snapshot() == {"hints.refused": 1, "hints.taken": 1}


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_no_hint_is_counted_and_the_request_goes_on_without(bad: object) -> None:
    scheduler = scheduler_of(1, "priority")
    served(scheduler, 1, bad)
    assert scheduler.cache.metrics.snapshot() == {"hints.refused": 1}
    assert kept(scheduler, 1) == [1]
    for number in range(10, 10 + 2 * ROOM):
        served(scheduler, number)
    scheduler.check()
    assert kept(scheduler, 1) == []


def test_only_the_end_of_a_request_says_anything_and_an_abort_is_one() -> None:
    scheduler = scheduler_of(1, "lru")
    served(scheduler, 1)
    scheduler.retract(begun(scheduler, 1, {"ended": True}, more=2))
    assert scheduler.cache.metrics.snapshot() == {}
    served(scheduler, 2)
    run = begun(scheduler, 2, {"ended": True}, more=2)
    run.req.finished_reason = FINISH_ABORT()
    scheduler.retract(run)  # what SGLang does with it: nothing new is shared
    assert scheduler.cache.metrics.snapshot() == {"hints.taken": 1}
    scheduler.evict(LENGTH)
    assert kept(scheduler, 1, 2) == [1]


def test_hints_of_a_request_that_outlived_a_reset_mean_no_other_path() -> None:
    """A path of the new tree may have the number that the request's had in the old one."""
    scheduler = scheduler_of(1, "lru")
    run = begun(scheduler, 1, {"ended": True})
    scheduler.share(run)
    scheduler.cache.reset()
    scheduler.allocator.clear()
    for number in (2, 3, 2):
        scheduler.finish(begun(scheduler, number))
    run.req.finished_reason = FINISH_ABORT()
    scheduler.cache.unlock(run.req.lock)
    scheduler.cache.on_release(run.req, checkpointed=False)
    assert scheduler.cache.metrics.snapshot() == {"hints.taken": 1}
    scheduler.cache.evict(EvictParams(num_tokens=LENGTH))
    scheduler.cache.sanity_check()
    assert kept(scheduler, 2, 3) == [2]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("page", [1, 16])
def test_without_hints_priority_evicts_what_lru_evicts(page: int, ranks: int) -> None:
    ours = [
        Scheduler(RadixBackend, page, 300 // page, policy=policy, ranks=ranks)
        for policy in ("lru", "priority")
    ]
    traffic = Traffic(3, ours, 200)
    for step in range(300):
        traffic.step()
        assert ours[0].sizes() == ours[1].sizes(), step
        assert ours[0].hits() == ours[1].hits(), step
    assert any(freed for name, freed in ours[0].log if name == "evict")
    assert sum(ours[0].hits()) > 0
