"""Each policy takes the same blocks in the same order as a naive rebuild of everything, under a
pressure where all of it turns over many times (I16, I17), while ``check`` finds nothing (I18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix._native import lib
from radix.flat import FlatCore, evict
from radix.tree import Cursor, TreeCore
from tests.refpolicies import REFERENCES, Pin, Prompt, Reference

T = TypeVar("T")
COLUMN = np.zeros(1, np.uint32)
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
STEPS = st.one_of(
    st.tuples(st.just("begin"), PROMPTS),
    st.tuples(st.just("finish"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("serve"), PROMPTS),
    st.tuples(st.just("touch"), PROMPTS),
    st.tuples(st.just("add"), PROMPTS),
    st.tuples(st.just("evict"), st.integers(1, 9)),
)


class Pair:
    """A native tree and a reference of ``room`` pages that are told the same."""

    def __init__(self, policy: str, room: int) -> None:
        self.tree = TreeCore(4, groups=1, tiers=1, policy=policy)
        self.reference: Reference = REFERENCES[policy]()
        self.root = self.tree.root()
        self.room, self.used, self.numbers = room, 0, 0
        self.open: list[tuple[Prompt, int, Cursor, Pin]] = []

    def begin(self, prompt: Prompt) -> None:
        """Pins what is there of a prompt."""
        cursor = self._find(prompt)
        lease, node, pages = self.tree.lease(cursor)
        pin = self.reference.lease(prompt)
        self.open.append((prompt, lease, Cursor(self.root, node, pages), pin))

    def finish(self, number: int, stamp: bool) -> None:
        """Inserts as much of an open prompt as fits, and releases it."""
        if not self.open:
            return
        prompt, lease, cursor, pin = self.open.pop(number % len(self.open))
        self._insert(prompt, lease, cursor, pin)
        self.tree.release(lease, stamp=stamp)
        self.reference.release(pin, stamp=stamp)

    def serve(self, prompt: Prompt) -> None:
        """A whole request."""
        self.begin(prompt)
        self.finish(-1, True)

    def add(self, prompt: Prompt) -> None:
        """Inserts without a lease, where that fits."""
        if self.used + len(prompt) <= self.room:
            self._insert(prompt, 0, Cursor(self.root, self.root, 0), None)

    def touch(self, prompt: Prompt) -> None:
        """Uses what is there."""
        cursor = self._find(prompt)
        if cursor.pages:
            self.tree.touch(cursor)
            self.reference.touch(prompt)

    def evict(self, count: int) -> int:
        """Both take the same slots in the same order."""
        slots = np.zeros(count, np.int32)
        before = self.tree.next_victim(0)
        freed = self.tree.evict(0, slots)
        assert slots[:freed].tolist() == self.reference.evict(count)
        assert (before is None) == (freed == 0)
        self.used -= freed
        return freed

    def _find(self, prompt: Prompt) -> Cursor:
        found = self.tree.match(self.root, np.array(prompt, np.int32), 0)
        assert found.structural_pages == self.reference.match(prompt)
        return Cursor(self.root, found.node, found.structural_pages)

    def _insert(self, prompt: Prompt, lease: int, cursor: Cursor, pin: Pin | None) -> None:
        while (short := self.used + len(prompt) - self.reference.match(prompt) - self.room) > 0:
            if not self.evict(short):
                prompt = prompt[:-short]  # nothing more may go
        count = len(prompt) - cursor.pages
        if count <= 0:
            return
        slots = np.arange(self.numbers, self.numbers + count, dtype=np.int32)
        self.numbers += count
        run = np.array(prompt[cursor.pages :], np.int32)
        made = self.tree.insert(cursor, run, COLUMN, slots[None, :], None, lease)
        added = self.reference.insert(prompt, pin, slots.tolist())
        assert made.created == added
        self.used += added

    def check(self) -> None:
        """Nothing is wrong with the native half, and both hold as much."""
        self.tree.check()
        assert self.tree.column_stats(0).resident == self.used
        assert sum(len(run.pages) for run in self.reference.runs()) == self.used


@pytest.mark.parametrize("policy", sorted(REFERENCES))
@settings(max_examples=150, deadline=None)
@given(st.integers(8, 32), st.lists(STEPS, max_size=80))
def test_a_policy_takes_what_its_reference_takes(
    policy: str, room: int, steps: list[tuple[object, ...]]
) -> None:
    pair = Pair(policy, room)
    for name, *given_ in steps:
        getattr(pair, str(name))(*given_)
        pair.check()
    while pair.open:
        pair.finish(0, True)
    pair.evict(room)
    assert pair.used == 0


@pytest.mark.parametrize("policy", sorted(REFERENCES))
@pytest.mark.parametrize("seed", range(8))
def test_a_policy_keeps_to_its_reference_over_a_long_run(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    pair = Pair(policy, int(random.integers(8, 33)))
    for _ in range(400):
        kind = random.random()
        prompt = tuple(int(n) for n in random.integers(0, 3, random.integers(1, 13)))
        if kind < 0.5:
            pair.serve(prompt)
        elif kind < 0.7:
            pair.begin(prompt)
        elif kind < 0.9:
            pair.finish(int(random.integers(9)), bool(random.random() < 0.8))
        else:
            pair.touch(prompt)
        while len(pair.open) > 3:
            pair.finish(0, True)
    pair.check()


@pytest.mark.parametrize("policy", sorted(REFERENCES))
@pytest.mark.parametrize("seed", range(4))
def test_keys_of_a_flat_store_go_as_the_reference_says(policy: str, seed: int) -> None:
    """Keys of two namespaces in one order; each is a run of one page, offered, used and pinned."""
    random = np.random.default_rng(seed)
    tree = TreeCore(8, groups=1, tiers=1, check_ids=False, keep_keys=False, policy=policy)
    cores = [FlatCore(tree, tree.root()) for _ in range(2)]
    reference, room = REFERENCES[policy](), int(random.integers(24, 120))
    kept: dict[int, int] = {}  # key -> slot
    for number in range(1500):
        key = int(min(random.geometric(0.02), 400))
        core, row = cores[key % 2], np.array([[key]], np.uint64).view(np.uint8)
        node = core.find(row)
        assert bool(node[0]) == (reference.match((key,)) == 1) == (key in kept)
        kind = random.random()
        if kind < 0.6:  # offered, or offered again
            if key not in kept and len(kept) == room:
                count = int(random.integers(1, 6))
                gone = reference.evict(count)
                assert evict(tree, 0, count)[0].tolist() == gone
                kept = {each: slot for each, slot in kept.items() if slot not in gone}
            reference.insert((key,), None, [number])
            assert core.insert(row, 0, np.array([number], np.int32))[0] == kept.get(key, number)
            kept.setdefault(key, number)
        elif key in kept and kind < 0.8:
            core.touch(node)
            reference.touch((key,))
        elif key in kept:
            lease, pin = core.lease(node), reference.lease((key,))
            gone = reference.evict(1)
            assert evict(tree, 0, 1)[0].tolist() == gone
            kept = {each: slot for each, slot in kept.items() if slot not in gone}
            core.release(lease)
            reference.release(pin, stamp=True)
        if number % 50 == 0:
            tree.check()
    tree.check()
    assert tree.column_stats(0).resident == len(kept)


@pytest.mark.parametrize("policy", [name for name in sorted(REFERENCES) if name != "lru"])
def test_a_call_that_lacks_memory_changes_nothing_a_policy_knows(policy: str) -> None:
    """I11: every allocation of every call fails once, and the call goes through afterwards."""
    pair = Pair(policy, 4000)
    failures = 0

    def through(call: Callable[[], T]) -> T:
        nonlocal failures
        for number in range(1, 20):
            lib.rdx_alloc_fail_at(number)
            try:
                return call()
            except MemoryError:
                failures += 1
                pair.tree.check()
            finally:
                lib.rdx_alloc_fail_at(0)
        raise AssertionError("memory never sufficed")

    for name in ("lease", "insert"):
        call = getattr(pair.tree, name)
        setattr(pair.tree, name, lambda *all_, call=call: through(lambda: call(*all_)))
    random = np.random.default_rng(3)
    for _ in range(300):
        pair.serve(tuple(int(n) for n in random.integers(0, 9, random.integers(1, 13))))
    pair.check()
    pair.evict(2000)
    assert failures > 200
    with pytest.raises(MemoryError):
        lib.rdx_alloc_fail_at(2)
        TreeCore(4, groups=1, tiers=1, policy=policy)
    lib.rdx_alloc_fail_at(0)
