"""What goes first is what was used longest ago, page by page, however the edges lie (I16-I18)."""

from __future__ import annotations

import numpy as np
import pytest

from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)


class Cache:
    """A tree of one-token pages whose slot of the page that ends with token k is k."""

    def __init__(self, tiers: int = 1) -> None:
        self.tree = TreeCore(4, groups=1, tiers=tiers)
        self.root = self.tree.root()

    def find(self, *tokens: int) -> Cursor:
        """Where a prompt ends, as far as it is there."""
        found = self.tree.match(self.root, np.array(tokens, np.int32), 0)
        return Cursor(self.root, found.node, found.structural_pages)

    def put(self, *tokens: int, lease: int = 0, at: Cursor | None = None) -> Cursor:
        """Inserts a prompt, or what follows ``at``."""
        run = np.array(tokens, np.int32)
        at = at or Cursor(self.root, self.root, 0)
        end = self.tree.insert(at, run, COLUMN, run, None, lease)
        self.tree.check()
        return Cursor(self.root, end.node, end.pages)

    def lease(self, *tokens: int) -> int:
        """Pins a prompt that is there."""
        at = self.find(*tokens)
        assert at.pages == len(tokens)
        return self.tree.lease(at)[0]

    def evict(self, count: int) -> list[int]:
        """The tokens of the pages that go."""
        slots = np.empty(count, np.int32)
        gone = slots[: self.tree.evict(0, slots)].tolist()
        self.tree.check()
        return gone


def test_prefix_inserted_again_leaves_what_lies_behind_it_old() -> None:
    """The whole edge was stamped where the inserted run ended inside it."""
    cache = Cache()
    cache.put(1, 2, 3, 4)
    cache.put(5, 6)
    cache.put(1, 2)
    assert cache.evict(6) == [4, 3, 6, 5, 2, 1]


def test_prefix_touched_leaves_what_lies_behind_it_old() -> None:
    """As above, by touch and by a copy that arrives for a prefix."""
    cache = Cache(tiers=2)
    cache.put(1, 2, 3, 4)
    cache.put(5, 6)
    cache.tree.touch(cache.find(1, 2))
    cache.put(7)
    cache.tree.attach(cache.find(5), 1, 0, np.array([50], np.int32), touch=True)
    assert cache.evict(7) == [4, 3, 6, 2, 1, 7, 5]


def test_lease_moved_up_to_the_root_leaves_its_path_used_now() -> None:
    """Starts of nodes were compared, and both start at 0."""
    cache = Cache()
    cache.put(1)
    cache.put(2)
    lease = cache.lease(1)
    cache.put(3)
    cache.tree.move(lease, Cursor(cache.root, cache.root, 0))
    assert cache.evict(3) == [2, 3, 1]
    cache.tree.release(lease)


def test_child_evicted_under_a_pinned_parent_hands_its_stamp_on() -> None:
    """The parent came back with its own, older stamp when its pin went without one."""
    cache = Cache()
    cache.put(1)
    cache.put(4)
    pins = [cache.lease(1), cache.lease(4)]
    cache.put(1, 2)
    assert cache.evict(3) == [2]
    for pin in pins:
        cache.tree.release(pin, stamp=False)
    assert cache.evict(2) == [4, 1]


def test_newest_child_dropped_leaves_its_stamp_to_its_parent() -> None:
    """A parent with another, older child forgot that it was used by the one that was dropped."""
    cache = Cache()
    cache.put(1, 2)
    cache.put(5)
    young = cache.put(1, 3)
    cache.put(6)
    assert cache.tree.drop(young, 0, 1) == 3
    assert cache.evict(4) == [2, 5, 1, 6]


def test_pages_inserted_under_a_lease_are_used_at_the_insert() -> None:
    """A leaf that grew kept the stamp of its first pages when the lease went without one."""
    cache = Cache()
    cache.put(1)
    cache.put(5)
    lease = cache.lease(1)
    cache.put(2, lease=lease, at=cache.tree.lease_end(cache.root, lease))
    cache.put(6)
    cache.tree.release(lease, stamp=False)
    assert cache.evict(4) == [5, 2, 1, 6]


def test_pin_of_a_transfer_changes_no_order() -> None:
    cache = Cache()
    cache.put(1, 2)
    cache.put(3, 4)
    cache.put(5)
    pins = [cache.lease(*path) for path in ((1,), (3, 4), (1, 2))]
    for pin in reversed(pins):
        cache.tree.release(pin, stamp=False)
    assert cache.evict(5) == [2, 1, 4, 3, 5]


def test_release_in_any_order_gives_the_order_of_the_releases() -> None:
    cache = Cache()
    for token in range(1, 6):
        cache.put(9, token)
    leases = {token: cache.lease(9, token) for token in range(1, 6)}
    assert cache.evict(9) == []
    for token in (3, 1, 5, 2, 4):
        cache.tree.release(leases[token])
    assert cache.evict(9) == [3, 1, 5, 2, 4, 9]


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_order_is_the_same_however_many_go_at_once(step: int) -> None:
    """C76: every call frees exactly what was asked for while there is as much."""
    cache = Cache()
    for start in (10, 20, 30):
        cache.put(1, start, start + 1, start + 2)
    gone: list[int] = []
    while step <= 10 - len(gone):
        victims = cache.evict(step)
        assert len(victims) == step
        gone += victims
    gone += cache.evict(step)
    assert gone == [12, 11, 10, 22, 21, 20, 32, 31, 30, 1]
    assert cache.evict(1) == []


def test_insert_tells_exactly_what_it_attached() -> None:
    """New pages without a slot were taken off the count of old pages that got one."""
    cache = Cache(tiers=2)
    cache.put(1, 2)
    cache.tree.drop(cache.find(1, 2), 0, 1)
    cache.put(1, 2)
    host = np.array([1], np.uint32)
    run = np.array([1, 2, 3, 4], np.int32)
    slots = np.array([[70, 71, 72, -1]], np.int32)
    result = cache.tree.insert(Cursor(cache.root, cache.root, 0), run, host, slots)
    assert (result.existing, result.created, result.attached, result.duplicates) == (2, 2, 2, 0)
    result = cache.tree.insert(Cursor(cache.root, cache.root, 0), run, host, slots)
    assert (result.existing, result.created, result.attached, result.duplicates) == (3, 1, 0, 3)
