"""FlatStore over tiers that refuse, fail, lose, corrupt, flip bits, go off and answer late and in
any order, and which is told that blocks are wrong, or purged, or reset: what it says is in the
first tier, or arrived in a lent row, holds the bytes of its namespace and key, and none of before
that (I24, I31); each call is answered once (I22); every slot has one owner after each step (I7,
I8); and once all has ended nothing is under way, so that nothing is tried for ever.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radix.errors import CapacityError, LeaseError, NeverFitsError
from radix.events import Event, KeysDone
from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import FlatLease, Reservation
from radix.ownership import Ownership
from radix.policy.limits import Breaker, Limits, Patience
from radix.store import FlatStore
from radix.tier import Tier, TierMode, Transfer
from tests.oracle import expand
from tests.ticktier import peek
from tiers.faults import Call, Fault, FaultPlan, FaultyTier
from tiers.host import AdoptedTier, HostTier

WIDTH = 8
BLOCK = 64
KEYS = 12
ROWS = 8
SPACES = (None, Namespace(salt=b"other"))
MODES = (TierMode.ON,) * 8 + (TierMode.READ_ONLY, TierMode.OFF)
STORE_FAULTS = (Fault.REFUSE, Fault.FAIL, Fault.LOSE, Fault.PART, Fault.CORRUPT)
LOAD_FAULTS = (Fault.REFUSE, Fault.FAIL, Fault.LOSE, Fault.PART, Fault.CORRUPT)


def rates(last: bool) -> dict[Call, dict[Fault, float]]:
    """Bits turn over in the last tier alone: a copy of such a block to a tier below would be a good
    copy of wrong bytes, which only a checksum that goes along with the bytes could tell.
    """
    return {
        "reserve": {Fault.REFUSE: 0.05},
        "store": dict.fromkeys(STORE_FAULTS, 0.06) | {Fault.FLIP: 0.1 * last},
        "load": dict.fromkeys(LOAD_FAULTS, 0.08) | {Fault.OFF: 0.02},
    }


numbers = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=8, unique=True)
spaces = st.integers(0, 1)
pick = st.integers(0, 1 << 16)


def keys(run: list[int]) -> np.ndarray:
    """Keys that differ in the last byte only."""
    out = np.zeros((len(run), WIDTH), np.uint8)
    out[:, -1] = run
    return out


def content(space: int, run: list[int], ages: list[int]) -> np.ndarray:
    """What the blocks of keys must hold; ``ages``: how often each was lost before."""
    seeds = [age << 40 | space << 32 | n for n, age in zip(run, ages, strict=True)]
    return expand(seeds, BLOCK)


class PromptTier(HostTier):
    """Its copies have ended when the call that starts them returns, so that the same steps do the
    same whatever its thread does; the faults around it decide what is told when.
    """

    def store(self, transfer: Transfer, upper: Tier) -> None:
        super().store(transfer, upper)
        self._finish()

    def load(self, transfer: Transfer, upper: Tier) -> None:
        super().load(transfer, upper)
        self._finish()

    def _finish(self) -> None:
        while self._running:
            self._engine.wait(1.0)
            self._progress()


class Machine(RuleBasedStateMachine):
    """What both ways of using a store have in common: memory at the top, faults below."""

    ownership = Ownership.OWNED

    @initialize(
        seed=pick,
        delay=st.integers(0, 3),
        blocks=st.tuples(*[st.integers(8, 16)] * 2),
        patience=st.sampled_from((None, 0, 1, 2)),
        most=st.sampled_from((None, None, 1)),
    )
    def build(
        self,
        seed: int,
        delay: int,
        blocks: tuple[int, int],
        patience: int | None,
        most: int | None,
    ) -> None:
        self.rows = np.zeros((ROWS, BLOCK), np.uint8)
        self.lower = [
            FaultyTier(
                PromptTier(count * 4096, name, verify=True),
                FaultPlan(rates=rates(i == 1), seed=seed + i, delay_polls=delay, reorder=True),
            )
            for i, (name, count) in enumerate(zip(("near", "far"), blocks, strict=True))
        ]
        self.store = FlatStore(
            [Group.full("kv", BLOCK)],
            [AdoptedTier([[self.rows]], "rows"), *self.lower],
            key_bytes=WIDTH,
            ownership=self.ownership,
            limits=Limits(
                load_deadline=Patience(polls=patience),
                stores=most,
                loads=most,
                breaker=Breaker(0),
            ),
        )
        self.leases: list[FlatLease] = []
        self.asked: dict[int, tuple[int, list[int], list[int]]] = {}
        self.lost: Counter[tuple[int, int]] = Counter()
        self.begin()
        for first in (0, 6):  # something to load from the start
            self.bring(first, 0, 6)

    def begin(self) -> None:
        """What a machine keeps beside that."""

    def bring(self, first: int, space: int, turns: int) -> None:
        """Stores a run of keys, and lets some of it happen."""

    def ages(self, space: int, run: list[int]) -> list[int]:
        """How often each key was lost."""
        return [self.lost[space, number] for number in run]

    def content(self, space: int, run: list[int]) -> np.ndarray:
        """What the blocks of keys must hold now."""
        return content(space, run, self.ages(space, run))

    def hear(self, events: list[Event]) -> None:
        """Each call is answered once, by as many answers as it had keys."""
        for event in events:
            if isinstance(event, KeysDone):
                space, run, lent = self.asked.pop(event.number)
                assert len(event.good) == len(run)
                self.answered(space, run, lent, event.good)

    def answered(self, space: int, run: list[int], lent: list[int], good: np.ndarray) -> None:
        """What follows from an answer."""

    def below(self, space: int, choice: int) -> list[int]:
        """Some keys that the last tier has: a load of them has a long way to go."""
        every, last = list(range(KEYS)), len(self.store.tiers) - 1
        slots = self.store.slots(keys(every), tier=last, namespace=SPACES[space])
        known = np.flatnonzero(slots >= 0).tolist()
        return known[choice % (len(known) + 1) :][:8]

    # ------------------------------------------------------------ what both do
    @rule(run=numbers, space=spaces)
    def has(self, run: list[int], space: int) -> None:
        found = self.store.has(keys(run), namespace=SPACES[space])
        assert found.min() >= -1 and found.max() < len(self.store.tiers)

    @rule(run=numbers, space=spaces)
    def lease(self, run: list[int], space: int) -> None:
        if len(self.leases) < 2:
            self.leases.append(self.store.lease(keys(run), namespace=SPACES[space]))

    @precondition(lambda self: self.leases)
    @rule(choice=pick)
    def release(self, choice: int) -> None:
        self.leases.pop(choice % len(self.leases)).release()

    @rule(turns=st.integers(1, 4))
    def poll(self, turns: int) -> None:
        for _ in range(turns):
            self.hear(self.store.poll())

    @rule(run=numbers, space=spaces)
    def forget(self, run: list[int], space: int) -> None:
        self.store.forget(keys(run[:3]), namespace=SPACES[space])
        self.lost.update((space, number) for number in run[:3])

    @rule(space=spaces, most=st.sampled_from((1, 1000)), whole=st.integers(0, 3))
    def purge(self, space: int, most: int, whole: int) -> None:
        """Seldom of everything."""
        spaces = range(len(SPACES)) if whole == 0 else [space]
        if whole == 0:
            self.store.reset()
        else:
            after: int | None = 0
            root = self.store.root_of(SPACES[space])
            while after is not None:
                _, after = self.store.purge(root, after, most)
        self.lost.update((each, number) for each in spaces for number in range(KEYS))

    @rule(tier=st.sampled_from(("near", "far")), mode=st.sampled_from(MODES))
    def switch(self, tier: str, mode: TierMode) -> None:
        self.store.set_mode(tier, mode)

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        if hasattr(self, "store"):
            self.store.check()

    @invariant()
    def tier_below_holds_the_right_bytes(self) -> None:
        """But the last one, where bits turn over."""
        if not hasattr(self, "store"):
            return
        every, near = list(range(KEYS)), self.lower[0].inner
        for space, namespace in enumerate(SPACES):
            number = len(self.store.tiers) - 2
            slots = self.store.slots(keys(every), tier=number, namespace=namespace)
            for key in np.flatnonzero(slots >= 0).tolist():
                held = peek(near, 0, int(slots[key]))
                assert np.array_equal(held, self.content(space, [key])[0])

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for lease in self.leases:
            lease.release()
        for _ in range(4):
            self.hear(self.store.flush())
        assert not self.asked, "a call was never answered"
        assert not self.store.transfers.jobs
        self.store.check()
        self.store.close()


class OwnedMachine(Machine):
    """The store owns the rows: reserve, fill, commit; fetch."""

    def begin(self) -> None:
        self.open: list[tuple[int, Reservation]] = []

    @rule(run=numbers, space=spaces)
    def reserve(self, run: list[int], space: int) -> None:
        try:
            got = self.store.reserve(keys(run), namespace=SPACES[space])
        except (CapacityError, NeverFitsError):
            return
        self.open.append((space, got))

    @precondition(lambda self: self.open)
    @rule(choice=pick, bits=st.one_of(st.just((1 << 16) - 1), pick), abort=st.integers(0, 3))
    def finish(self, choice: int, bits: int, abort: int) -> None:
        space, got = self.open.pop(choice % len(self.open))
        good = np.array([bits >> i & 1 == 1 for i in range(len(got))], np.bool_)
        run = got.keys[:, -1].tolist()
        self.rows[got.slots] = 0xEE
        self.rows[got.slots[good]] = self.content(space, run)[good]
        with suppress(LeaseError):  # it ended with a reset
            if abort == 0:
                self.store.abort(got)
            else:
                self.store.commit(got, good)

    @rule(first=st.integers(0, KEYS - 1), space=spaces, turns=st.integers(0, 6))
    def bring(self, first: int, space: int, turns: int) -> None:
        before = len(self.open)
        self.reserve([(first + i) % KEYS for i in range(7)], space)
        if len(self.open) > before:
            self.finish(before, (1 << 16) - 1, 1)
        self.poll(turns)

    @rule(run=numbers, space=spaces)
    def fetch(self, run: list[int], space: int) -> None:
        fetch = self.store.fetch(keys(run), namespace=SPACES[space])
        self.asked[fetch.number] = (space, run, [])

    @rule(space=spaces, choice=pick, turns=st.integers(0, 6))
    def fetch_what_is_below(self, space: int, choice: int, turns: int) -> None:
        self.fetch(self.below(space, choice), space)
        self.poll(turns)

    @invariant()
    def first_tier_holds_the_right_bytes(self) -> None:
        if not hasattr(self, "store"):
            return
        for space, namespace in enumerate(SPACES):
            every = list(range(KEYS))
            slots = self.store.slots(keys(every), namespace=namespace)
            here = np.flatnonzero(slots >= 0)
            assert np.array_equal(self.rows[slots[here]], self.content(space, here.tolist()))

    def teardown(self) -> None:
        for _, got in getattr(self, "open", []):
            with suppress(LeaseError):
                self.store.abort(got)
        super().teardown()


class BorrowedMachine(Machine):
    """The engine lends rows: store from them, load into them."""

    ownership = Ownership.BORROWED

    def begin(self) -> None:
        self.spare = list(range(ROWS))
        self.then: dict[int, int] = {}  # by row: how old its key was when its load began

    def lend(self, run: list[int]) -> list[int]:
        """Rows for as many of the keys as there are rows."""
        lent, self.spare = self.spare[: len(run)], self.spare[len(run) :]
        return lent

    @rule(run=numbers, space=spaces)
    def store_rows(self, run: list[int], space: int) -> None:
        lent = self.lend(run)
        run = run[: len(lent)]
        self.rows[lent] = self.content(space, run)
        number = self.store.store(keys(run), np.array(lent, np.int32), namespace=SPACES[space])
        self.asked[number] = (space, run, lent)

    @rule(run=numbers, space=spaces, purge=st.booleans(), turns=st.integers(0, 6))
    def lose_what_is_being_stored(
        self, run: list[int], space: int, purge: bool, turns: int
    ) -> None:
        """Two stores, of which the second waits where one is the most at once."""
        for part in (run[::2], run[1::2]):
            if part and self.spare:
                self.store_rows(part, space)
        if purge:
            self.purge(space, 1000, 1)
        else:
            self.forget(run, space)
        self.poll(turns)
        self.load_what_is_below(space, 0, turns)

    @rule(run=numbers, space=spaces)
    def load_rows(self, run: list[int], space: int) -> None:
        lent = self.lend(run)
        run = run[: len(lent)]
        self.rows[lent] = 0xEE
        self.then.update(zip(lent, self.ages(space, run), strict=True))
        load = self.store.load(keys(run), np.array(lent, np.int32), namespace=SPACES[space])
        self.asked[load.number] = (space, run, lent)

    @rule(first=st.integers(0, KEYS - 1), space=spaces, turns=st.integers(0, 6))
    def bring(self, first: int, space: int, turns: int) -> None:
        self.store_rows([(first + i) % KEYS for i in range(7)], space)
        self.poll(turns)

    @rule(space=spaces, choice=pick, turns=st.integers(0, 6))
    def load_what_is_below(self, space: int, choice: int, turns: int) -> None:
        self.load_rows(self.below(space, choice), space)
        self.poll(turns)

    @rule(run=numbers, space=spaces)
    def fetch(self, run: list[int], space: int) -> None:
        fetch = self.store.fetch(keys(run), namespace=SPACES[space])
        self.asked[fetch.number] = (space, run, [])

    def answered(self, space: int, run: list[int], lent: list[int], good: np.ndarray) -> None:
        self.spare += lent
        if lent:
            for number, row, arrived in zip(run, lent, good.tolist(), strict=True):
                since = self.then.pop(row, None)
                if since is not None and arrived:  # as it was when the load began, or later
                    ages = range(since, self.lost[space, number] + 1)
                    wanted = [content(space, [number], [age])[0].tobytes() for age in ages]
                    assert self.rows[row].tobytes() in wanted


def test_what_the_store_owns_holds_the_right_bytes() -> None:
    run_state_machine_as_test(
        OwnedMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )


def test_what_arrives_in_lent_rows_is_right() -> None:
    run_state_machine_as_test(
        BorrowedMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )
