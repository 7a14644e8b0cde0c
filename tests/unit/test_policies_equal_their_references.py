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
from radix.tree import TreeCore
from tests.policypair import STEPS, Pair, some_hints
from tests.refpolicies import REFERENCES

T = TypeVar("T")


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
        elif kind < 0.85:
            pair.finish(int(random.integers(9)), bool(random.random() < 0.8))
        elif kind < 0.9:
            pair.hint(prompt, some_hints(random))
            pair.tell(int(random.integers(5)))
        else:
            pair.touch(prompt)
        while len(pair.open) > 3:
            pair.finish(0, True)
    pair.check()


def test_a_victim_that_gave_a_block_is_not_the_next_for_that() -> None:
    """The victim that was found last was kept while it had blocks, though with one less of them
    the once used took no more than their share, so that the other segment's turn had come.
    """
    pair = Pair("arc", 10)
    pair.begin((2, 0, 0, 0, 0, 0, 0))
    pair.serve((0,))
    pair.evict(1)
    pair.serve((2, 0))
    pair.serve((0, 0, 0, 0))  # its first page is back: the once used may take one block
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
