"""With ``verify`` a block that is no longer what was stored is reported and never handed up."""

from __future__ import annotations

import numpy as np

from radix.errors import CorruptBlockError
from radix.groups import Group
from radix.tier import Transfer, TransferDone, Urgency
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import AdoptedTier, HostTier

GROUPS = (Group.full("kv", 5000),)
FLIPPING = FaultPlan(script={"store": {2: Fault.FLIP}}, seed=3)


class _Pair:
    """A host tier whose second store turns a bit over, and an engine's rows above it."""

    def __init__(self, verify: bool) -> None:
        self.rows = np.zeros((8, 5000), np.uint8)
        self.engine = AdoptedTier([[self.rows]])
        self.engine.attach(GROUPS, 64, None)
        self.tier = FaultyTier(HostTier(8 * 8192, verify=verify), FLIPPING)
        self.tier.attach(GROUPS, 64, self.engine)
        self.slots = self.tier.reserve(0, 8)
        self.content = np.random.default_rng(2).integers(0, 256, (8, 5000), dtype=np.uint8)
        for job, part in enumerate((slice(0, 4), slice(4, 8)), 1):
            self.rows[part] = self.content[part]
            upper = np.arange(8, dtype=np.int32)[part]
            transfer = Transfer(job, 0, upper, self.slots[part], Urgency.STORE, None)
            self.tier.store(transfer, self.engine)
            self.end()
            self.tier.commit(0, self.slots[part])
        self.rows[:] = 0

    def end(self) -> TransferDone:
        self.tier.wait(10.0)
        (done,) = self.tier.poll()
        return done

    def load(self) -> TransferDone:
        upper = np.arange(8, dtype=np.int32)
        self.tier.load(Transfer(9, 0, upper, self.slots, Urgency.DEMAND, None), self.engine)
        return self.end()


def test_a_flipped_bit_is_reported_and_stays_below() -> None:
    pair = _Pair(verify=True)
    done = pair.load()
    assert isinstance(done.error, CorruptBlockError)
    assert np.count_nonzero(done.corrupt) == 1 and not done.corrupt[:4].any()
    assert np.array_equal(done.good, ~done.corrupt)
    assert done.verified_blocks == 7 and done.nbytes == 7 * 5000
    assert np.array_equal(pair.rows[done.good], pair.content[done.good])
    assert not pair.rows[done.corrupt].any(), "bytes known to be wrong were handed up"
    pair.tier.close()


def test_a_load_of_nothing_but_corrupt_blocks_ends_too() -> None:
    pair = _Pair(verify=True)
    (victim,) = np.flatnonzero(pair.load().corrupt)
    one = slice(int(victim), int(victim) + 1)
    upper = np.zeros(1, np.int32)
    pair.tier.load(Transfer(10, 0, upper, pair.slots[one], Urgency.DEMAND, None), pair.engine)
    done = pair.end()
    assert done.corrupt.all() and not done.good.any() and done.nbytes == 0
    pair.tier.close()


def test_without_verification_nothing_claims_to_be_verified() -> None:
    pair = _Pair(verify=False)
    done = pair.load()
    assert done.good.all() and done.verified_blocks == 0
    assert np.count_nonzero((pair.rows != pair.content).any(axis=1)) == 1
    pair.tier.close()


def test_what_a_lower_tier_wrote_is_covered_from_its_commit() -> None:
    """Blocks that come up from below never pass ``store`` here; the checksum starts at commit."""
    host = HostTier(4 * 8192, verify=True)
    rows = np.zeros((4, 5000), np.uint8)
    engine = AdoptedTier([[rows]])
    engine.attach(GROUPS, 64, None)
    host.attach(GROUPS, 64, engine)
    below = AdoptedTier([[np.full((4, 5000), 7, np.uint8)]], "below")
    below.attach(GROUPS, 64, host)
    slots = host.reserve(0, 4)
    order = np.arange(4, dtype=np.int32)
    below.load(Transfer(1, 0, slots, order, Urgency.DEMAND, None), host)
    below.wait(10.0)
    assert below.poll()[0].good.all()
    host.commit(0, slots)
    host.load(Transfer(2, 0, order, slots, Urgency.DEMAND, None), engine)
    host.wait(10.0)
    assert host.poll()[0].verified_blocks == 4
    assert (rows == 7).all()
    below.close()
    host.close()
