"""What goes first is what was used longest ago, page by page, however the edges lie (I16-I18)."""

from __future__ import annotations

import numpy as np
import pytest

from radix.tree import Cursor, StaleError, TreeCore

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


def test_page_above_a_dropped_one_may_go_although_something_lies_deeper() -> None:
    """I16: a leaf is what has no child with data; above a hole that is an inner node, of no age."""
    cache = Cache(tiers=2)
    end = cache.put(1, 2, 3)
    for depth in (1, 2):  # a node a page, of which only the last is in the list
        lease, _, _ = cache.tree.lease(end._replace(pages=depth))
        cache.tree.release(lease, stamp=False)
    cache.tree.attach(end, 1, 0, np.array([10, 20, 30], np.int32))
    assert cache.tree.drop(end, 1, 1) == 20
    cache.tree.check()
    slots = np.empty(3, np.int32)
    assert slots[: cache.tree.evict(1, slots)].tolist() == [10, 30]
    cache.tree.check()


def test_split_behind_the_last_resident_page_makes_a_leaf_of_the_upper_half() -> None:
    cache = Cache(tiers=2)
    trunk = cache.put(1, 2, 3, 4)
    children = [cache.put(1, 2, 3, 4, token) for token in (5, 6)]
    cache.tree.attach(trunk, 1, 0, np.array([10, 20], np.int32))
    for child, slot in zip(children, (50, 60), strict=True):
        cache.tree.attach(child, 1, 4, np.array([slot], np.int32))
    slots = np.empty(3, np.int32)
    assert slots[: cache.tree.evict(1, slots[:1])].tolist() == [50]  # the trunk left the list
    lease, _, _ = cache.tree.lease(cache.find(1, 2, 3, 4)._replace(pages=3))
    cache.tree.check()
    cache.tree.release(lease, stamp=False)
    cache.tree.check()
    lease, _, _ = cache.tree.lease(cache.find(1, 2, 3, 4)._replace(pages=2))
    cache.tree.release(lease, stamp=False)
    cache.tree.check()
    assert sorted(slots[: cache.tree.evict(1, slots)].tolist()) == [10, 20, 60]


def test_next_victim_is_told_without_taking_it() -> None:
    cache = Cache()
    assert cache.tree.next_victim(0) is None
    cache.put(1)
    cache.put(1, 2)
    first = cache.tree.next_victim(0)
    cache.put(3)
    assert first is not None
    assert cache.tree.next_victim(0) == first
    lease = cache.lease(1, 2)
    assert cache.tree.next_victim(0) == first + 1
    assert cache.evict(1) == [3]
    assert cache.tree.next_victim(0) is None
    cache.tree.release(lease)
    assert cache.tree.next_victim(7) is None
    assert cache.evict(2) == [2, 1]


def test_column_that_does_not_exist_and_page_that_is_gone_are_refused() -> None:
    cache = Cache()
    end = cache.put(1, 2)
    slots, none = np.zeros(1, np.int32), np.empty(0, np.int32)
    tree = cache.tree
    before = tree.stats()._replace(bytes=0), tree.order(0)
    for call in (
        lambda: tree.attach(end, 1, 0, slots),
        lambda: tree.slots(end, 1, 0, 1),
        lambda: tree.drop(end, 1, 0),
        lambda: tree.interval(end.node, 1),
        lambda: tree.evict(1, slots),
        lambda: tree.forget(end, 1, 0, slots, None),
        lambda: tree.order(1),
    ):
        with pytest.raises(ValueError, match="range"):
            call()
    gone = end._replace(root=12345, node=12345)
    for call in (
        lambda: tree.attach(end, 0, 2, slots),
        lambda: tree.attach(gone, 0, 0, none),
        lambda: tree.slots(end, 0, 1, 2),
        lambda: tree.keys(end, 2, 1),
        lambda: tree.pages(gone, 0, 1),
        lambda: tree.drop(end, 0, 2),
        lambda: tree.touch(gone),
        lambda: tree.forget(gone, 0, 0, slots, None),
        lambda: tree.lease(gone),
        lambda: tree.interval(12345, 0),
        lambda: tree.nodes(12345),
        lambda: tree.match(end.node, np.zeros(1, np.int32)),
        lambda: tree.drop_root(end.node),
    ):
        with pytest.raises(StaleError):
            call()
    assert (tree.stats()._replace(bytes=0), tree.order(0)) == before
    assert tree.resolve(gone).pages == 0


@pytest.mark.parametrize("place", [0, 1, 50, 98, 99])
def test_pin_given_back_without_a_stamp_returns_to_its_place(place: int) -> None:
    """The place is sought from both ends of the list, wherever it lies and whoever is equal."""
    cache = Cache()
    for token in range(100):
        cache.put(token)
    pin = cache.lease(place)
    cache.tree.release(pin, stamp=False)
    assert cache.evict(100) == list(range(100))
