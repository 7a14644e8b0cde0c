"""A rank says how a job ended in numbers of which the element-wise minimum is what every rank has:
of blocks that count in order the shortest run, of windows and states the intersection, what one
rank found wrong is wrong (design: a minimum of counts would free slots in use). And what ranks kept
over a restart is found the same way.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.agreement import Agreement
from radix.cache import PrefixCache
from radix.errors import CorruptBlockError, TierError, UnsupportedError
from radix.groups import Group
from radix.joining import joined
from radix.ranks import RankWorker
from radix.reports import FAILED, PENDING, heard_of, said_of
from radix.shards import Parallelism, shards_of
from radix.tier import Records, Restored, TransferDone
from tests.ranksrig import Meeting, replicated
from tests.shardrig import every_group
from tests.ticktier import TickTier
from tiers.device import DeviceTier
from tiers.host import HostTier


def _done(rng: random.Random, blocks: int) -> TransferDone:
    good = np.array([rng.random() < 0.8 for _ in range(blocks)])
    corrupt = ~good & np.array([rng.random() < 0.5 for _ in range(blocks)])
    good |= rng.random() < 0.4
    corrupt &= ~good
    return TransferDone(1, good, corrupt, rng.randrange(1 << 40), rng.randrange(99), None)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", range(200))
def test_the_minimum_is_what_all_ranks_have(seed: int, prefix: bool) -> None:
    rng = random.Random(seed)
    blocks = rng.randint(1, 9)
    ranks = [_done(rng, blocks) for _ in range(rng.randint(1, 4))]
    rows = [said_of(done, blocks, prefix) for done in ranks]
    heard = heard_of(np.minimum.reduce(rows), 1, blocks, prefix, "host")
    what = f"seed {seed}"
    assert heard is not None, what
    every = np.logical_and.reduce([done.good for done in ranks])
    wrong = np.logical_or.reduce([done.corrupt for done in ranks])
    if prefix:
        every = np.logical_and.accumulate(every)
        assert np.flatnonzero(heard.corrupt).tolist() == np.flatnonzero(wrong)[:1].tolist(), what
    else:
        assert (heard.corrupt == wrong).all(), what
    assert (heard.good == every).all(), what
    assert not (heard.good & heard.corrupt).any(), what
    assert heard.nbytes == min(done.nbytes for done in ranks), what
    assert isinstance(heard.error, CorruptBlockError) == bool(heard.corrupt.any()), what
    assert (heard.error is None) == bool(every.all()), what


@pytest.mark.parametrize("prefix", [True, False])
def test_a_job_is_pending_while_one_rank_has_no_end_of_it(prefix: bool) -> None:
    for seed in range(20):
        done = _done(random.Random(seed), 4)
        rows = [said_of(done, 4, prefix), said_of(None, 4, prefix)]
        assert rows[1][0] == PENDING
        assert heard_of(np.minimum.reduce(rows), 1, 4, prefix, "host") is None, f"seed {seed}"


def test_the_number_of_a_job_is_as_it_is_written_down() -> None:
    """0 pending, 1 failed, 2+k good up to block k."""
    none = np.zeros(3, np.bool_)
    for good, number in (([0, 1, 1], FAILED), ([1, 0, 1], 2 + 0), ([1, 1, 1], 2 + 2)):
        mask = np.array(good, np.bool_)
        assert said_of(TransferDone(1, mask, none, 0, 0, None), 3, True)[0] == number


def test_an_answer_of_another_shape_is_refused() -> None:
    short = Agreement(lambda values: values[1:], [], lambda: 0)
    with pytest.raises(ValueError, match="agree gave int64"):
        short.minimum(np.arange(3))
    floats = Agreement(lambda values: values / 2, [], lambda: 0)
    with pytest.raises(ValueError, match="agree gave float64"):
        floats.minimum(np.arange(3))


# ---------------------------------------------------------------------- a restart
def _kept(rng: random.Random, names: list[int], group: int, namespace: bytes) -> Restored:
    keys = np.zeros((len(names), 16), np.uint8)
    for row, name in zip(keys, names, strict=True):
        row[:] = np.frombuffer(random.Random(name * 7 + group).randbytes(16), np.uint8)
    positions = np.array(names, np.int64)
    slots = np.array(rng.sample(range(1 << 20), len(names)), np.int32)
    return Restored(group, Records(namespace, keys, keys, keys[:, :4], positions), slots)


@pytest.mark.parametrize("seed", range(8))
def test_what_ranks_kept_is_what_all_of_them_kept_in_one_order(seed: int) -> None:
    """Each rank's disk lost other blocks and lists the rest in another order."""
    world = random.Random(seed)
    ranks, most = world.randint(2, 4), world.choice((3, 40, 700))
    groups = world.randint(1, 3)
    lost = [{(g, n) for g in range(groups) for n in range(most) if world.random() < 0.1}
            for _ in range(ranks)]  # fmt: skip

    def one(rank: int, meeting: Meeting) -> list[object]:
        rng, found, freed = random.Random(100 * seed + rank), [], []
        for group in range(groups):
            names = [name for name in range(most) if (group, name) not in lost[rank]]
            if rng.random() < 0.5:
                rng.shuffle(names)
            found.append(_kept(rng, names, group, b"space"))
        rng.shuffle(found)
        some = joined(
            found, meeting.agree(rank), lambda group, slots: freed.extend((group, s) for s in slots)
        )
        kept = [(g.group, slot) for g in some for slot in g.slots]
        every = sorted((g.group, slot) for g in found for slot in g.slots)
        assert sorted(kept + freed) == every, f"seed {seed}: a slot is lost or twice"
        return [(each.group, each.records.positions.tolist()) for each in some]

    told = replicated(ranks, one)
    assert all(each == told[0] for each in told), f"seed {seed}"
    gone = set().union(*lost)
    wanted = {(g, n) for g in range(groups) for n in range(most)} - gone
    here = {(group, name) for group, names in told[0] for name in names}
    assert here <= wanted, f"seed {seed}"
    assert len(here) >= 0.99 * len(wanted), f"seed {seed}: {len(wanted) - len(here)} missed"


def test_a_tier_that_opens_on_one_rank_only_opens_on_none() -> None:
    def one(rank: int, meeting: Meeting) -> str:
        below = TickTier(4, "host") if rank else HostTier(4096, segment_bytes=1 << 20)
        tiers = [DeviceTier(blocks=4, device="cpu"), below]
        with pytest.raises((ValueError, TierError)) as raised:
            PrefixCache([Group.full("kv", 64)], tiers, agree=meeting.agree(rank))
        return str(raised.value)

    told = replicated(2, one)
    assert "too small" in str(told[0]) and "did not open on another rank" in str(told[1])


def test_what_no_rank_could_do_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="agree must be callable, not int"):
        PrefixCache([Group.full("kv", 64)], [TickTier(4, "host")], agree=3)
    heads = every_group()["eight heads"]
    shards = shards_of((heads,), Parallelism(2, context=2))
    with pytest.raises(UnsupportedError, match="'eight heads': rank 0 has no share"):
        RankWorker(0, shards, TickTier(4, "device"), TickTier(4, "host"))
