"""FlatStore against dictionaries: sets of keys over one to three tiers of 8 to 32 slots, with
leases and reservations open from step to step. Every block is where the model says, every victim
is the one used longest ago that nothing protects, and the store's own check (I7, I8, I12-I18, I22)
finds nothing after any step. Copies are settled after each step, so that the model needs no time.
"""

from __future__ import annotations

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

from radix.errors import CacheError, CapacityError, NeverFitsError
from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import FetchState, FlatLease, Reservation
from radix.store import FlatStore
from tiers.index import IndexTier

WIDTH = 8
KEYS = 24
SPACES = (None, Namespace(salt=b"other"))
Key = tuple[int, int]  # namespace, number

numbers = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=9, unique=True)
spaces = st.sampled_from((0, 0, 0, 1))
groups = st.sampled_from((0, 0, 0, 1))
pick = st.integers(0, 1 << 16)


def rows(run: list[int]) -> np.ndarray:
    """Keys that differ in the last byte only."""
    out = np.zeros((len(run), WIDTH), np.uint8)
    out[:, -1] = run
    return out


class StoreModel:
    """Which tier holds what, found by scanning; a key was used at a time, in all its blocks."""

    def __init__(self, capacities: list[int], groups: int) -> None:
        self.capacities = capacities
        self.held: list[list[set[Key]]] = [[set() for _ in range(groups)] for _ in capacities]
        self.reserved: list[set[Key]] = [set() for _ in range(groups)]
        self.used: dict[Key, int] = {}
        self.pins: list[set[Key]] = []
        self.clock = 0

    def use(self, run: list[Key]) -> None:
        """The deepest first: it is the oldest of them."""
        for key in reversed(run):
            self.clock += 1
            self.used[key] = self.clock

    def there(self, key: Key) -> bool:
        """Whether any tier holds any block of the key, or somebody leased it."""
        return any(key in held for tier in self.held for held in tier) or self.pinned(key)

    def pinned(self, key: Key) -> bool:
        return any(key in pin for pin in self.pins)

    def where(self, group: int, key: Key) -> int:
        """The first tier with the block, -1 where none."""
        for tier, held in enumerate(self.held):
            if key in held[group]:
                return tier
        return -1

    def free(self, tier: int, group: int) -> int:
        taken = len(self.held[tier][group]) + (len(self.reserved[group]) if tier == 0 else 0)
        return self.capacities[tier] - taken

    def evictable(self, tier: int, group: int) -> list[Key]:
        """What may go, the one used longest ago first."""
        may = [key for key in self.held[tier][group] if not self.pinned(key)]
        return sorted(may, key=lambda key: self.used[key])

    def make_room(self, tier: int, group: int, count: int) -> bool:
        """Evicts what has to go; False, and nothing gone, where that does not help."""
        short = count - self.free(tier, group)
        victims = self.evictable(tier, group)
        if short > len(victims):
            return False
        for key in victims[: max(0, short)]:
            self.held[tier][group].remove(key)
        return True

    def down(self, group: int, tier: int, run: list[Key]) -> None:
        """Write-through: each tier below gets what it lacks, of which the deepest may not fit."""
        if tier == len(self.held):
            return
        lacks = [key for key in run if key not in self.held[tier][group]]
        self.pins.append(set(lacks))
        room = self.free(tier, group) + len(self.evictable(tier, group))
        lacks = lacks[: max(0, min(len(lacks), room))]
        assert self.make_room(tier, group, len(lacks))
        self.held[tier][group].update(lacks)
        self.pins[-1] = set(lacks)
        self.down(group, tier + 1, lacks)
        self.pins.pop()

    def up(self, group: int, run: list[Key]) -> None:
        """As many keys as fit into the first tier, the first ones first, a tier higher at a time;
        only what is under way is protected.
        """
        self.pins.append({key for key in run if self.where(group, key) >= 0})
        left = [key for key in run if self.where(group, key) > 0]
        left = [key for key in left if key not in self.reserved[group]]
        left = left[: max(0, self.free(0, group) + len(self.evictable(0, group)))]
        moved = True
        while moved:
            moved = False
            left = [key for key in left if self.where(group, key) > 0]
            self.pins[-1] = set(left)
            plan = [(key, self.where(group, key)) for key in left]
            for tier in range(1, len(self.held)):
                wanted = [key for key, where in plan if where == tier]
                room = self.free(tier - 1, group) + len(self.evictable(tier - 1, group))
                wanted = wanted[: max(0, room)]
                assert self.make_room(tier - 1, group, len(wanted))
                self.held[tier - 1][group].update(wanted)
                moved = moved or bool(wanted)
        self.pins.pop()


class StoreMachine(RuleBasedStateMachine):
    """Each rule does one thing to both sides; the invariant compares all that can be asked."""

    @initialize(capacities=st.lists(st.sampled_from((8, 8, 9, 12, 16, 32)), min_size=1, max_size=3))
    def build(self, capacities: list[int]) -> None:
        self.model = StoreModel(capacities, 2)
        self.store = FlatStore(
            [Group.full("a", 16), Group.full("b", 32)],
            [IndexTier(blocks, f"tier{i}") for i, blocks in enumerate(capacities)],
            key_bytes=WIDTH,
            events=True,
        )
        self.leases: list[tuple[FlatLease, set[Key]]] = []
        self.open: list[tuple[Reservation, list[Key]]] = []
        self.stream: dict[tuple[str, str], set[bytes]] = {}
        for first in (0, 7, 14):  # pressure from the start
            self.fill(first, 0, 0)

    def settle(self) -> None:
        """Ends all that is under way, and replays the events (I32)."""
        for event in self.store.flush():
            kind = type(event).__name__
            if kind not in ("BlocksStored", "BlocksRemoved"):
                continue
            ids = {row.tobytes() for row in event.keys}
            have = self.stream.setdefault((event.tier, event.group), set())
            assert len(ids) == len(event.keys)
            assert not ids & have if kind == "BlocksStored" else ids <= have
            self.stream[event.tier, event.group] = have ^ ids

    # ------------------------------------------------------------ asking
    @rule(run=numbers, space=spaces, group=groups)
    def has(self, run: list[int], space: int, group: int) -> None:
        keys = [(space, number) for number in run]
        found = self.store.has(rows(run), group, namespace=SPACES[space])
        assert found.tolist() == [self.model.where(group, key) for key in keys]
        self.model.use([key for key in keys if self.model.where(group, key) >= 0])

    @rule(runs=st.lists(numbers, max_size=4), space=spaces, group=groups)
    def valid_lengths(self, runs: list[list[int]], space: int, group: int) -> None:
        found = self.store.valid_lengths(
            [rows(run) for run in runs], group, namespace=SPACES[space]
        )
        for run, length in zip(runs, found.tolist(), strict=True):
            there = [self.model.where(group, (space, number)) >= 0 for number in run]
            assert length == (there.index(False) if False in there else len(there))

    @rule(run=numbers, space=spaces)
    def touch(self, run: list[int], space: int) -> None:
        self.store.touch(rows(run), namespace=SPACES[space])
        self.model.use([key for key in [(space, n) for n in run] if self.model.there(key)])

    # ------------------------------------------------------------ pinning
    @rule(run=numbers, space=spaces)
    def lease(self, run: list[int], space: int) -> None:
        keys = [(space, number) for number in run]
        lease = self.store.lease(rows(run), namespace=SPACES[space])
        assert lease.held.tolist() == [self.model.there(key) for key in keys]
        held = [key for key in keys if self.model.there(key)]
        self.leases.append((lease, held))
        self.model.pins.append(set(held))

    @precondition(lambda self: self.leases)
    @rule(choice=pick, dropped=st.booleans())
    def release(self, choice: int, dropped: bool) -> None:
        index = choice % len(self.leases)
        lease, held = self.leases.pop(index)
        self.model.pins.pop(index)
        if dropped:
            del lease  # the next call of the owner gives it back
            self.store.coming(rows([0]))
        else:
            self.store.release(lease)
        self.model.use(held)

    # ------------------------------------------------------------ bringing
    @rule(run=numbers, keep=numbers, space=spaces, group=groups)
    def reserve(self, run: list[int], keep: list[int], space: int, group: int) -> None:
        model = self.model
        keys = [(space, number) for number in run]
        there = [key in model.held[0][group] for key in keys]
        coming = [key in model.reserved[group] for key in keys]
        wanted = [k for k, a, b in zip(keys, there, coming, strict=True) if not a and not b]
        model.pins.append({*keys, *[(space, number) for number in keep]})
        fits = len(wanted) <= model.capacities[0] and model.make_room(0, group, len(wanted))
        model.pins.pop()
        try:
            got = self.store.reserve(rows(run), group, namespace=SPACES[space], keep=rows(keep))
        except CacheError as error:
            assert not fits
            never = len(wanted) > model.capacities[0]
            assert type(error) is (NeverFitsError if never else CapacityError)
            return
        assert fits
        assert (got.there.tolist(), got.coming.tolist()) == (there, coming)
        assert len(got.slots) == len(set(got.slots.tolist())) == len(wanted)
        assert np.array_equal(got.keys, rows([number for _, number in wanted]))
        model.reserved[group].update(wanted)
        model.use([key for key, here in zip(keys, there, strict=True) if here])
        self.open.append((got, wanted))

    @rule(run=numbers, space=spaces, group=groups)
    def bring(self, run: list[int], space: int, group: int) -> None:
        count = len(self.open)
        self.reserve(run, [], space, group)
        if len(self.open) > count:
            self.finish(count, 0, "commit")

    @precondition(lambda self: self.open)
    @rule(choice=pick, bits=pick, end=st.sampled_from(("commit", "part", "abort", "drop")))
    def finish(self, choice: int, bits: int, end: str) -> None:
        reservation, keys = self.open.pop(choice % len(self.open))
        group = reservation.group
        good = [end == "commit" or (end == "part" and bits >> i & 1 == 1) for i in range(len(keys))]
        if end == "commit":
            self.store.commit(reservation)
        elif end == "part":
            self.store.commit(reservation, np.array(good, np.bool_))
        elif end == "abort":
            self.store.abort(reservation)
        else:
            del reservation
            self.store.coming(rows([0]))
        self.model.reserved[group].difference_update(keys)
        kept = [key for key, fine in zip(keys, good, strict=True) if fine]
        self.model.held[0][group].update(kept)
        self.model.use(kept)
        self.model.down(group, 1, kept)
        self.settle()

    @rule(run=numbers, space=spaces, group=groups)
    def fetch(self, run: list[int], space: int, group: int) -> None:
        model = self.model
        keys = [(space, number) for number in run]
        before = [model.where(group, key) for key in keys]
        reserved = [key in model.reserved[group] for key in keys]
        states = self.store.fetch(rows(run), group, namespace=SPACES[space]).states
        for state, where, coming in zip(states.tolist(), before, reserved, strict=True):
            assert (state == FetchState.HERE) == (where == 0)
            assert (state == FetchState.ABSENT) == (where < 0 and not coming)
        model.use([key for key, where in zip(keys, before, strict=True) if where >= 0])
        model.up(group, keys)
        self.settle()

    @rule(shift=st.integers(0, KEYS - 1), space=spaces, group=groups)
    def fetch_what_is_known(self, shift: int, space: int, group: int) -> None:
        run = [(number + shift) % KEYS for number in range(KEYS)]
        self.fetch([n for n in run if self.model.where(group, (space, n)) >= 0][:10], space, group)

    @rule(first=st.integers(0, KEYS - 1), space=spaces, group=groups)
    def fill(self, first: int, space: int, group: int) -> None:
        self.bring([(first + i) % KEYS for i in range(7)], space, group)

    # ------------------------------------------------------------ comparing
    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        self.settle()
        self.store.check()
        for space, namespace in enumerate(SPACES):
            every = rows(list(range(KEYS)))
            for group in range(2):
                for tier in range(len(self.model.capacities)):
                    slots = self.store.slots(every, group, tier=tier, namespace=namespace)
                    held = self.model.held[tier][group]
                    assert {(space, int(n)) for n in np.flatnonzero(slots >= 0)} == {
                        key for key in held if key[0] == space
                    }
                coming = self.store.coming(every, group, namespace=namespace)
                assert {(space, int(n)) for n in np.flatnonzero(coming)} == {
                    key for key in self.model.reserved[group] if key[0] == space
                }
        for tier, blocks in enumerate(self.model.held):
            for group, name in enumerate("ab"):
                told = self.stream.get((f"tier{tier}", name), set())
                assert len(told) == len(blocks[group])

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def test_store_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=80, stateful_step_count=40)
    )
