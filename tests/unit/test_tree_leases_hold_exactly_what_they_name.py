"""A lease pins its path and nothing else, once, however nodes split meanwhile (I13, I14, I19)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)


class Cache:
    """A tree with one column; pages of ``page_tokens`` tokens, slots counted up."""

    def __init__(self, page_tokens: int = 1) -> None:
        self.tree = TreeCore(4 * page_tokens, groups=1, tiers=1)
        self.root = self.tree.root()
        self.page_tokens = page_tokens
        self.given = 0

    def find(self, tokens: list[int]) -> Cursor:
        """Where a prompt ends, as far as it is there."""
        found = self.tree.match(self.root, np.array(tokens, np.int32), 0)
        return Cursor(self.root, found.node, found.structural_pages)

    def put(self, tokens: list[int], at: Cursor | None = None, lease: int = 0) -> list[int]:
        """Inserts tokens behind ``at``; the slots that count."""
        count = len(tokens) // self.page_tokens
        slots = np.arange(self.given, self.given + count, dtype=np.int32)
        self.given += count
        canonical = np.empty(count, np.int32)
        at = at or Cursor(self.root, self.root, 0)
        self.tree.insert(at, np.array(tokens, np.int32), COLUMN, slots, canonical, lease)
        self.tree.check()
        return canonical.tolist()

    def evict(self, count: int = 99) -> list[int]:
        """The slots that go."""
        slots = np.empty(count, np.int32)
        gone = slots[: self.tree.evict(0, slots)].tolist()
        self.tree.check()
        return gone

    def pinned(self) -> int:
        """Blocks that cannot go."""
        return self.tree.column_stats(0).protected


def test_release_touches_only_what_its_own_lease_pinned() -> None:
    """C1 (sglang#27038): a lock's boundary was lost, so a release unpinned nodes of others.

    A lease is one opaque number that knows its end; without it nothing can be released.
    """
    cache = Cache()
    for tokens in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        cache.put(tokens)
    middle, _, _ = cache.tree.lease(cache.find([1, 2, 3, 4]))
    deep, _, _ = cache.tree.lease(cache.find([1, 2, 3, 4, 5, 6]))
    cache.tree.release(deep)
    with pytest.raises(LeaseError):
        cache.tree.release(deep)
    assert cache.pinned() == 4
    assert len(cache.evict()) == 2
    assert cache.find([1, 2, 3, 4]).pages == 4
    cache.tree.release(middle)
    assert cache.pinned() == 0


def test_a_lease_never_given_is_refused() -> None:
    cache = Cache()
    cache.put([1])
    lease, _, _ = cache.tree.lease(cache.find([1]))
    for wrong in (0, lease + 1, lease + (1 << 32), 7):
        with pytest.raises(LeaseError):
            cache.tree.release(wrong)
        with pytest.raises(LeaseError):
            cache.tree.move(wrong, cache.find([1]))
    assert cache.pinned() == 1
    cache.tree.check()


def test_second_computation_of_the_same_pages_gets_the_first_ones_slots() -> None:
    """C3 (mini-sglang#142): own copies were freed while the request still named them.

    The canonical slots come back from the insert, already pinned: remap, then free one's own.
    """
    cache = Cache()
    assert cache.put([1, 2, 3, 4]) == [0, 1, 2, 3]
    lease, _, _ = cache.tree.lease(Cursor(cache.root, cache.root, 0))
    assert cache.put([1, 2, 3, 4], lease=lease) == [0, 1, 2, 3]
    assert cache.evict() == []
    cache.tree.release(lease)
    assert cache.evict() == [3, 2, 1, 0]


def test_chunks_relocked_while_another_request_splits_leave_no_pin() -> None:
    """C4 (sglang#24153): counts went below zero where a node split between lock and unlock."""
    cache = Cache()
    prompt = list(range(1, 13))
    lease, _, _ = cache.tree.lease(Cursor(cache.root, cache.root, 0))
    for start in (0, 4, 8):
        at = cache.tree.lease_end(cache.root, lease)
        cache.put(prompt[start : start + 4], at=at, lease=lease)
        other, _, _ = cache.tree.lease(cache.find(prompt[: start + 2]))
        cache.put([*prompt[: start + 1], 99])
        assert cache.pinned() == start + 4
        cache.tree.release(other)
    assert cache.pinned() == 12
    cache.tree.release(lease)
    assert cache.pinned() == 0
    assert len(cache.evict()) == 15


def test_leases_released_in_any_order_leave_no_pin() -> None:
    """C12 (sglang#38045): counters are recomputed from the tree after each step."""
    rng = random.Random(38045)
    cache = Cache()
    prompt = list(range(20))
    cache.put(prompt)
    leases = [cache.tree.lease(cache.find(prompt[: rng.randrange(21)]))[0] for _ in range(40)]
    cache.tree.check()
    rng.shuffle(leases)
    for lease in leases:
        cache.tree.release(lease)
        cache.tree.check()
    assert cache.pinned() == 0
    assert cache.tree.stats().leases == 0
    assert cache.evict() == list(range(19, -1, -1))
    assert cache.tree.stats().nodes == 1


def test_room_for_a_request_is_never_made_from_its_own_prefix() -> None:
    """C10 (vllm#42948): new blocks were taken from the list's head, which was the hit itself."""
    cache = Cache()
    cache.put([1, 2, 3, 4])
    cache.put([8])
    cache.put([9])
    found = cache.tree.match(cache.root, np.array([1, 2, 3, 4, 5, 6], np.int32), 1)
    assert found.hit_pages == 4
    lease, node, pages = cache.tree.lease(Cursor(cache.root, found.node, found.hit_pages))
    assert cache.evict(2) == [4, 5]
    cache.put([5, 6], at=Cursor(cache.root, node, pages), lease=lease)
    assert cache.find([1, 2, 3, 4, 5, 6]).pages == 6
    cache.tree.release(lease)


def test_lease_on_a_whole_edge_holds_both_halves_of_a_split() -> None:
    """C32 (sglang#38138): the new parent got no lock, and the boundary stayed behind."""
    cache = Cache()
    cache.put([1, 2, 3, 4])
    lease, _, _ = cache.tree.lease(cache.find([1, 2, 3, 4]))
    inner, _, _ = cache.tree.lease(cache.find([1, 2, 3]))
    assert cache.pinned() == 4
    assert cache.tree.order(0) == []
    cache.tree.release(lease)
    assert cache.pinned() == 3
    assert cache.evict() == [3]
    cache.tree.release(inner)
    assert cache.pinned() == 0


def test_narrowed_lease_gives_up_exactly_the_rest() -> None:
    cache = Cache(page_tokens=2)
    cache.put([1, 1, 2, 2, 3, 3, 4, 4])
    lease, _, _ = cache.tree.lease(cache.find([1, 1, 2, 2, 3, 3, 4, 4]))
    assert cache.tree.move(lease, cache.find([1, 1])) == 1
    assert cache.evict() == [3, 2, 1]
    assert cache.tree.move(lease, Cursor(cache.root, cache.root, 0)) == 0
    assert cache.evict() == [0]
    cache.tree.release(lease)


def test_namespace_stays_while_a_lease_is_on_its_root() -> None:
    """I1: a root goes when it has neither child nor lease."""
    cache = Cache()
    lease, _, _ = cache.tree.lease(Cursor(cache.root, cache.root, 0))
    assert not cache.tree.drop_root(cache.root)
    cache.tree.release(lease)
    cache.put([1])
    assert not cache.tree.drop_root(cache.root)
    cache.evict()
    assert cache.tree.drop_root(cache.root)
    assert cache.tree.stats().roots == 0
    cache.tree.check()
