"""The conformance suite for tiers, public: an adapter written anywhere subclasses it under pytest.

    from tiers.testing import TierConformance

    class TestMyTier(TierConformance):
        def make_tier(self, groups, blocks):
            return MyTier(...)          # room for about `blocks` blocks of every group

It drives the adapter through the protocol alone, with real bytes, small pools and a model of a few
dictionaries, and looks at the books after each step. What it holds: reserve is all or nothing, a
slot has one owner (I7, I8), wrong frees change nothing (I11), what was stored comes back byte for
byte (I24), a transfer is acknowledged once and a failed one leaves no trace (I22), modes, close,
limits (I25), parts of blocks (``tiers.testing_parts``), and for a persistent tier: what was durable
is there after a restart. It imports no test framework; ``pytest.register_assert_rewrite`` of
"tiers.testing", "tiers.testing_parts" and "tiers.rig" makes its failures speak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.errors import (
    CacheError,
    ClosedError,
    TierError,
    TierFullError,
    TierUnavailableError,
)
from radix.groups import Group
from radix.tier import (
    Slots,
    Tier,
    TierMode,
)
from tiers.rig import PAGE_BYTES, Rig, content_of, groups_of_odd_sizes, records_of, refused
from tiers.testing_parts import PartConformance


class TierConformance(PartConformance):
    """Subclass it, say what the adapter is, and give ``make_tier``.

    ``first``: it is the uppermost tier of a cache; ``moves_bytes``: False for slots without bytes;
    ``steps``: how long the random run is.
    """

    first = False
    moves_bytes = True
    steps = 150

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        """A new tier, not attached, with room for about ``blocks`` blocks of every group; a
        persistent one in a place of its own that ``reopen_tier`` finds again.
        """
        raise NotImplementedError

    def reopen_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        """The persistent tier that ``make_tier`` made and that was closed since."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Nothing is open yet."""
        self._rigs: list[Rig] = []

    def teardown_method(self) -> None:
        """Closes what the test opened."""
        for rig in self._rigs:
            rig.close()

    def rig(
        self,
        blocks: int = 8,
        make: Callable[..., Tier] | None = None,
        groups: tuple[Group, ...] | None = None,
    ) -> Rig:
        """A tier beside its neighbour."""
        groups = groups or groups_of_odd_sizes()
        tier = (make or self.make_tier)(groups, blocks)
        rig = Rig(tier, groups, self.first)
        self._rigs.append(rig)
        return rig

    # ------------------------------------------------------------------ slots
    def test_reserve_is_all_or_nothing(self) -> None:
        """More than there is takes nothing, and says that waiting may help."""
        tier = self.rig().tier
        for group in range(4):
            free = tier.free_blocks(group)
            assert 0 < free <= tier.capacity_blocks(group)
            assert 0 < tier.capacity_blocks(group, [1] * 4) <= tier.capacity_blocks(group)
            try:
                tier.reserve(group, tier.capacity_blocks(group) + 1)
            except TierFullError as error:
                assert error.retryable and error.tier == tier.name
            else:
                raise AssertionError("more than the capacity was given")
            assert tier.free_blocks(group) == free
            slots = tier.reserve(group, free)
            assert slots.dtype == np.int32 and len(slots) == free
            assert len(set(slots.tolist())) == free and slots.min() >= 0
            with refused(TierFullError):
                tier.reserve(group, 1)
            tier.check()
            tier.abort(group, slots)
            assert tier.free_blocks(group) == free
            tier.check()

    def test_reserving_nothing_gives_nothing(self) -> None:
        """No block is a number of blocks too."""
        tier = self.rig().tier
        assert len(tier.reserve(0, 0)) == 0
        with refused(ValueError):
            tier.reserve(0, -1)
        tier.check()

    def test_wrong_moves_of_slots_change_nothing(self) -> None:
        """I11: freed twice, never given, named twice, null: each is refused whole."""
        tier = self.rig().tier
        mine, fine = tier.reserve(1, 2), tier.reserve(1, 2)
        tier.commit(1, mine)
        before = (tier.free_blocks(1), tier.usage())
        wrong: list[tuple[Callable[[int, Slots], None], Any]] = [
            (tier.free, [mine[0], mine[0]]),
            (tier.free, [mine[0], -1]),
            (tier.free, [mine[0], 1 << 30]),
            (tier.free, [mine[0], fine[0]]),
            (tier.commit, [fine[0], mine[0]]),
            (tier.abort, [fine[0], mine[0]]),
            (tier.commit, [fine[0], fine[0]]),
            (tier.lift, [mine[0]]),
        ]
        for call, slots in wrong:
            with refused(TierError):
                call(1, np.array(slots, np.int32))
            assert (tier.free_blocks(1), tier.usage()) == before
            tier.check()
        tier.free(1, mine)
        tier.abort(1, fine)
        with refused(TierError):
            tier.free(1, mine)
        tier.check()

    def test_fenced_slots_are_not_given_out(self) -> None:
        """Given up is not free: nothing reuses them before the fence is lifted."""
        tier = self.rig().tier
        at_first = tier.free_blocks(0)
        slots = tier.reserve(0, at_first)
        tier.commit(0, slots)
        tier.fence(0, slots[:2])
        with refused(TierFullError):
            tier.reserve(0, 1)
        tier.check()
        tier.lift(0, slots[:2])
        tier.flush()
        again = tier.reserve(0, 2)
        assert set(again.tolist()) == set(slots[:2].tolist())
        tier.fence(0, again)
        tier.lift(0, again)
        tier.free(0, slots[2:])
        tier.flush()
        assert tier.free_blocks(0) == at_first
        tier.check()

    # ------------------------------------------------------------------ bytes
    def test_what_was_stored_comes_back(self) -> None:
        """I24 for every size of block, in any order of slots, also when slots are used again."""
        rig = self.rig()
        for turn in range(2):
            for group, kind in enumerate(rig.groups):
                count = min(6, rig.tier.free_blocks(group))
                slots = rig.tier.reserve(group, count)[::-1].copy()
                content = content_of(turn, group, count, kind.block_bytes)
                done = rig.write(group, slots, content)
                assert done.good.all() and not done.corrupt.any() and done.error is None
                rig.tier.commit(group, slots)
                if self.moves_bytes:
                    assert done.nbytes == count * kind.block_bytes
                    assert np.array_equal(rig.read(group, slots), content)
                    assert np.array_equal(rig.read(group, slots[1:3]), content[1:3])
                rig.tier.free(group, slots)
                rig.tier.flush()
                rig.tier.check()

    def test_blocks_beside_a_copied_one_keep_their_bytes(self) -> None:
        """A copy writes its own slot and not a byte more."""
        rig = self.rig()
        for group, kind in enumerate(rig.groups):
            slots = rig.tier.reserve(group, 5)
            content = content_of(7, group, 5, kind.block_bytes)
            rig.write(group, slots, content)
            rig.tier.commit(group, slots)
            rig.tier.free(group, slots[2:3])
            rig.tier.flush()
            middle = rig.tier.reserve(group, 1)
            rig.write(group, middle, content_of(8, group, 1, kind.block_bytes))
            rig.tier.commit(group, middle)
            kept = np.array([0, 1, 3, 4])
            if self.moves_bytes:
                assert np.array_equal(rig.read(group, slots[kept]), content[kept])
            rig.tier.free(group, slots[kept])
            rig.tier.free(group, middle)

    def test_many_jobs_at_once_end_once_each(self) -> None:
        """I22: whatever order they end in, each job is acknowledged once with its own blocks."""
        rig = self.rig()
        kind = rig.groups[2]
        count = min(6, rig.tier.free_blocks(2))
        slots = rig.tier.reserve(2, count)
        content = content_of(3, 2, count, kind.block_bytes)
        rig.rows[2][:count] = content
        rows = np.arange(count, dtype=np.int32)
        jobs = [rig.start(2, rows[i : i + 1], slots[i : i + 1], into=True) for i in range(count)]
        assert rig.mover.pending() == count
        came = rig.settle()
        assert sorted(done.job for done in came) == jobs
        assert all(len(done.good) == 1 and done.good.all() for done in came)
        rig.tier.commit(2, slots)
        if self.moves_bytes:
            assert np.array_equal(rig.read(2, slots), content)

    def test_a_cancelled_job_ends_once_and_leaves_no_trace(self) -> None:
        """I22: it is acknowledged all the same, and its slots go back as if it had never been."""
        rig = self.rig()
        at_first = [rig.tier.free_blocks(group) for group in range(4)]
        for group in range(4):
            slots = rig.tier.reserve(group, 4)
            rows = np.arange(4, dtype=np.int32)
            job = rig.start(group, rows, slots, into=True)
            rig.mover.cancel(job)
            rig.mover.cancel(job + 1000)
            (done,) = rig.settle()
            assert done.job == job and len(done.good) == 4
            if done.good.any():
                rig.tier.commit(group, slots[done.good])
                rig.tier.free(group, slots[done.good])
            rig.tier.abort(group, slots[~done.good])
            rig.tier.flush()
            assert rig.tier.free_blocks(group) == at_first[group]
            rig.tier.check()

    # ------------------------------------------------------------------ modes, limits, end
    def test_modes_stop_what_they_name(self) -> None:
        """Read-only gives and takes nothing new, off gives nothing, on is as before."""
        rig = self.rig()
        tier = rig.tier
        slots, more = tier.reserve(0, 2), tier.reserve(0, 2)
        rig.write(0, slots, content_of(1, 0, 2, 100))
        tier.commit(0, slots)
        assert tier.mode is TierMode.ON
        for mode in (TierMode.READ_ONLY, TierMode.OFF):
            tier.set_mode(mode)
            assert tier.mode is mode
            assert tier.free_blocks(0) == 0
            with refused(TierUnavailableError):
                tier.reserve(0, 1)
            if not self.first:
                with refused(TierUnavailableError):
                    rig.start(0, np.arange(2, dtype=np.int32), more, into=True)
            if mode is TierMode.READ_ONLY:
                rig.read(0, slots) if self.moves_bytes else None
            elif not self.first:
                with refused(TierUnavailableError):
                    rig.start(0, np.arange(2, dtype=np.int32), slots, into=False)
            assert rig.mover.pending() == 0
            tier.check()
        tier.set_mode(TierMode.ON)
        tier.abort(0, more)
        if self.moves_bytes:
            assert np.array_equal(rig.read(0, slots), content_of(1, 0, 2, 100))
        tier.free(0, slots)

    def test_usage_stays_within_limits(self) -> None:
        """I25: bytes and blocks in use are counted, and never pass the limit."""
        tier = self.rig().tier
        empty = tier.usage()
        assert empty.used_blocks == (0, 0, 0, 0)
        held: list[tuple[int, Slots]] = []
        for group in range(4):
            count = max(1, tier.free_blocks(group) // 2)
            held.append((group, tier.reserve(group, count)))
            tier.commit(*held[-1])
            usage = tier.usage()
            assert usage.used_blocks[group] == count <= tier.capacity_blocks(group)
            assert 0 < usage.used_bytes <= usage.limit_bytes or not self.moves_bytes
        for group, slots in held:
            tier.free(group, slots)
        tier.flush()
        assert tier.usage().used_blocks == (0, 0, 0, 0)

    def test_close_is_final_and_may_be_repeated(self) -> None:
        """With work under way too; afterwards every call says that the tier is closed."""
        rig = self.rig()
        slots = rig.tier.reserve(1, 2)
        rig.start(1, np.arange(2, dtype=np.int32), slots, into=True)
        rig.close()
        rig.tier.close()
        calls: list[Callable[[], object]] = [
            lambda: rig.tier.reserve(1, 1),
            lambda: rig.tier.commit(1, slots),
            lambda: rig.tier.poll(),
            lambda: rig.tier.set_mode(TierMode.OFF),
            lambda: rig.tier.flush(),
        ]
        for call in calls:
            with refused(ClosedError):
                call()

    def test_attaching_twice_is_refused(self) -> None:
        """A tier belongs to one cache; the refusal leaves it in use there."""
        rig = self.rig()
        upper = None if self.first else rig.neighbour
        with refused(CacheError):
            rig.tier.attach(rig.groups, PAGE_BYTES, upper)
        rig.tier.abort(0, rig.tier.reserve(0, 1))
        rig.tier.check()

    # ------------------------------------------------------------------ a long random run
    def test_random_runs_agree_with_a_dictionary(self) -> None:
        """I7, I8, I22, I24 over seeded random calls: slots, bytes and counts as the model says."""
        for seed in range(3):
            _RandomRun(self.rig(blocks=12), seed, self.moves_bytes).play(self.steps)

    # ------------------------------------------------------------------ restart
    def test_a_restart_finds_what_was_durable(self) -> None:
        """I24 after reopening: what was stored and kept is there, what was freed is not."""
        rig = self.rig()
        if not rig.tier.capability.persistent:
            assert list(rig.tier.restore()) == []
            return
        rig.tier.restore()
        kept: dict[bytes, tuple[int, npt.NDArray[np.uint8]]] = {}
        gone: set[bytes] = set()
        for group, kind in enumerate(rig.groups):
            slots = rig.tier.reserve(group, 5)
            content = content_of(11, group, 5, kind.block_bytes)
            done = rig.write(group, slots, content)
            assert done.good.all(), f"{done}"
            rig.tier.commit(group, slots)
            rig.tier.free(group, slots[3:])
            keys = records_of(rig.jobs, group, 5).keys
            for i in range(5):
                if i < 3:
                    kept[keys[i].tobytes()] = (group, content[i])
                else:
                    gone.add(keys[i].tobytes())
        rig.tier.flush()
        rig.close()
        again = self.rig(make=self.reopen_tier)
        found: set[bytes] = set()
        for part in again.tier.restore():
            assert part.records.namespace == b"conformance"
            for key, slot in zip(part.records.keys, part.slots, strict=True):
                group, content_row = kept[key.tobytes()]
                assert group == part.group
                row = again.read(group, np.array([slot], np.int32))[0]
                assert np.array_equal(row, content_row)
                found.add(key.tobytes())
        assert found == set(kept) and not found & gone
        again.tier.check()


class _RandomRun:
    """Random calls on one tier beside a model: who holds which slot, and which bytes are in it."""

    def __init__(self, rig: Rig, seed: int, moves_bytes: bool) -> None:
        self.rig, self.tier = rig, rig.tier
        self.rng = np.random.default_rng(seed)
        self.seed, self.moves_bytes = seed, moves_bytes
        self.used: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
        self.reserved: set[tuple[int, int]] = set()
        self.fenced: set[tuple[int, int]] = set()
        self.at_first = [self.tier.free_blocks(group) for group in range(4)]
        self.steps: list[Callable[[int], None]] = [
            *[self.take] * 4,
            *[self.fill] * 6,
            *[self.look] * 5,
            *[self.drop] * 3,
            *[self.give_back, self.fence, self.lift, self.overreach, self.misuse],
        ]

    def play(self, steps: int) -> None:
        """That many calls, a look at the books after each, then everything is given back."""
        for _ in range(steps):
            group = int(self.rng.integers(4))
            self.steps[int(self.rng.integers(len(self.steps)))](group)
            self.check()
        for group in range(4):
            self.give(self.tier.abort, group, self.of(self.reserved, group))
            self.give(self.tier.free, group, self.of(self.used, group))
            self.give(self.tier.lift, group, self.of(self.fenced, group))
        self.tier.flush()
        assert [self.tier.free_blocks(group) for group in range(4)] == self.at_first
        self.tier.check()

    def check(self) -> None:
        """The tier's own check, and its counts against the model."""
        self.tier.check()
        usage = self.tier.usage()
        for group in range(4):
            mine = [self.of(table, group) for table in (self.used, self.reserved, self.fenced)]
            held = sum(len(slots) for slots in mine)
            assert held + self.tier.free_blocks(group) <= self.tier.capacity_blocks(group)
            assert usage.used_blocks[group] >= len(mine[0])
        assert usage.used_bytes <= usage.limit_bytes

    def of(self, table: Any, group: int) -> Slots:
        """The slots of a group that a table names."""
        return np.array([slot for g, slot in table if g == group], np.int32)

    def some(self, table: Any, group: int) -> Slots:
        """A few of them."""
        slots = self.of(table, group)
        self.rng.shuffle(slots)
        return slots[: int(self.rng.integers(0, 4))]

    def give(self, call: Callable[[int, Slots], None], group: int, slots: Slots) -> None:
        """Gives slots back, if there are any."""
        if len(slots):
            call(group, slots)

    # ------------------------------------------------------------------ the calls
    def take(self, group: int) -> None:
        """Reserve; new slots are nobody's."""
        count = int(self.rng.integers(0, self.tier.free_blocks(group) // 2 + 1))
        for slot in self.tier.reserve(group, count).tolist():
            place = (group, slot)
            assert place not in self.used and place not in self.reserved
            assert place not in self.fenced
            self.reserved.add(place)

    def fill(self, group: int) -> None:
        """Copy bytes into reserved slots and commit them."""
        slots = self.some(self.reserved, group)
        if not len(slots):
            return
        nbytes = self.rig.groups[group].block_bytes
        content = content_of(int(self.rng.integers(1 << 30)), group, len(slots), nbytes)
        done = self.rig.write(group, slots, content)
        assert done.good.all(), f"{done}"
        self.tier.commit(group, slots)
        for slot, row in zip(slots.tolist(), content, strict=True):
            self.reserved.remove((group, slot))
            self.used[group, slot] = row

    def look(self, group: int) -> None:
        """Copy some back and compare."""
        slots = self.some(self.used, group)
        if len(slots) and self.moves_bytes:
            expected = np.stack([self.used[group, slot] for slot in slots.tolist()])
            assert np.array_equal(self.rig.read(group, slots), expected), f"seed {self.seed}"

    def drop(self, group: int) -> None:
        """Free some."""
        slots = self.some(self.used, group)
        self.give(self.tier.free, group, slots)
        for slot in slots.tolist():
            del self.used[group, slot]

    def give_back(self, group: int) -> None:
        """Abort some."""
        slots = self.some(self.reserved, group)
        self.give(self.tier.abort, group, slots)
        self.reserved -= {(group, slot) for slot in slots.tolist()}

    def fence(self, group: int) -> None:
        """Quarantine some."""
        slots = self.some(self.used, group)
        self.give(self.tier.fence, group, slots)
        for slot in slots.tolist():
            del self.used[group, slot]
            self.fenced.add((group, slot))

    def lift(self, group: int) -> None:
        """End the quarantine of some."""
        slots = self.some(self.fenced, group)
        self.give(self.tier.lift, group, slots)
        self.fenced -= {(group, slot) for slot in slots.tolist()}

    def overreach(self, group: int) -> None:
        """Ask for one more than there is."""
        with refused(TierFullError):
            self.tier.reserve(group, self.tier.capacity_blocks(group) + 1)

    def misuse(self, group: int) -> None:
        """Free what is only reserved."""
        slots = self.some(self.reserved, group)
        if len(slots):
            with refused(TierError):
                self.tier.free(group, slots)
