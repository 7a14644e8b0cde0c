"""A rank that dies takes its step with it: every poll says so, the books stay whole, what needs no
rank goes on, and the cache can be closed. A step whose answer was lost is taken once more, and does
nothing twice (I22).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.events import RequestState
from radix.ranks import Orders, Ranks
from radix.reports import Values
from radix.shards import Parallelism, shards_of
from tests.cacherig import ORDER, build
from tests.rankprocs import BLOCKS, DEVICE, HOST_BYTES, SEGMENT, Mine, model
from tests.shardrig import P
from tiers.host import HostTier
from tiers.index import IndexTier

PROMPT = np.arange(BLOCKS * P + 1, dtype=np.int32)


class Line:
    """One rank in this process, and the line to it, which may break before or behind a step."""

    def __init__(self) -> None:
        self.broken = ""
        self.steps = 0
        name = f"radix-gone-{os.getpid()}"
        self.plans = Ranks(self.exchange)
        host = self.plans.host(HostTier(HOST_BYTES, file_name=name, segment_bytes=SEGMENT))
        self.cache = PrefixCache(
            model(), [self.plans.device(IndexTier(DEVICE)), host], page_tokens=P
        )
        self.rank = Mine(0, shards_of(model(), Parallelism(1)))
        self.rank.open(name, None)

    def exchange(self, orders: Orders, values: Values) -> Values:
        """One step; what it raises is what a process group raises."""
        if self.broken == "before":
            raise ConnectionError("rank 0 is gone")
        assert self.rank.worker is not None
        said = self.rank.worker.step(orders)
        self.steps += 1
        if self.broken == "behind" and self.steps % 2:
            raise ConnectionError("the answer of rank 0 is lost")
        return np.minimum(said, values)

    def poll(self) -> None:
        """Polls, whether the line breaks or not; the books are whole."""
        try:
            self.cache.poll()
        except ConnectionError:
            assert self.broken
        self.cache.check()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.cache.close()
    assert made.rank.worker is not None
    made.rank.worker.close()


def _serve(line: Line) -> object:
    request = line.cache.admit(PROMPT)
    for group in (0, 1):
        slots = request.slots(group)[:BLOCKS].tolist()
        line.rank.write(group, slots, range(BLOCKS))
    line.rank.write(2, [request.running(2)], [BLOCKS - 1])
    request.snapshot(BLOCKS * P)
    line.poll()
    request.computed(BLOCKS * P)
    return request


def test_rank_that_dies_with_jobs_under_way_is_told_at_each_poll(line: Line) -> None:
    request = _serve(line)
    assert line.cache.transfers.jobs
    line.broken = "before"
    for _ in range(3):
        with pytest.raises(ConnectionError, match="rank 0 is gone"):
            line.cache.poll()
        line.cache.check()
    request.finish()
    assert request.state is RequestState.FINALIZED, "its stores never end"
    other = line.cache.admit([5] * 4)
    other.abort()
    line.cache.check()
    line.cache.close()


def test_step_whose_answer_was_lost_is_taken_again_and_does_nothing_twice(line: Line) -> None:
    """The same orders came once more: jobs that were over were forgotten twice, and those that had
    begun were begun again, refused as being under way, and reported as failed.
    """
    line.broken = "behind"
    request = _serve(line)
    request.finish()
    for _ in range(4000):
        line.poll()
        if request.state is RequestState.RELEASED:
            break
    assert line.cache.metrics.total("store", "failed") == 0
    assert line.cache.metrics.total("store", "blocks") == 2 * BLOCKS + 1
    for group in range(3):
        line.cache.evict(group, 100)
    again = line.cache.admit(PROMPT)
    for _ in range(4000):
        line.poll()
        if again.ready:
            break
    assert again.hit_tokens == BLOCKS * P
    for group in (0, 1):
        slots = again.slots(group)[:BLOCKS].tolist()
        assert line.rank.holds(group, slots, range(BLOCKS))
    assert line.rank.holds(2, [again.running(2)], [BLOCKS - 1])
    again.abort()


def test_replica_whose_agreement_breaks_goes_on_where_it_was() -> None:
    """Nothing has changed where ``agree`` raises: the next poll takes the step that was not."""
    broken = [False]

    def agree(values: Values) -> Values:
        if broken[0]:
            raise ConnectionError("a rank is gone")
        return values

    rig = build(below=(16,), agree=agree)
    rig.serve([1, 2, 3, 4, 5])
    live = rig.until_ready(rig.admit([7] * 8))
    rig.compute(live, 8)
    rig.end(live)
    broken[0] = True
    for _ in range(3):
        with pytest.raises(ConnectionError, match="a rank is gone"):
            rig.cache.poll()
        rig.cache.check()
    broken[0] = False
    rig.settle()
    assert rig.states[live.request.id] == list(ORDER)
    assert rig.cache.metrics.total("store", "blocks") == 3
    broken[0] = True
    rig.cache.close()
