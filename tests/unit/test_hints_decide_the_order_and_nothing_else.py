"""What requests say decides which blocks go first, as the policy says that goes by it, and nothing
else: wrong hints and reservations of everything cost hits, never an admission (I17, I19).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from radix import FlatStore, PrefixCache
from radix.errors import UnsupportedError
from radix.groups import Cost, Group, Retention, Rule
from radix.hints import Hints, Said
from radix.keysets import hash_keys
from radix.request import Request
from radix.tree import Cursor, TreeCore
from radix.treeparts import Price
from tiers.index import IndexTier

PAGE, ROOM = 4, 8
SECOND = 1_000_000_000


class World:
    """A cache of eight pages of four tokens, and its clock in seconds."""

    def __init__(self, policy: str = "priority", *, clocked: bool = True, room: int = ROOM) -> None:
        self.now, self.step = 0.0, 0
        self.cache = PrefixCache(
            [replace(Group.full("kv", 1), cost=Cost(1.0, 0.0))],
            [IndexTier(room)],
            page_tokens=PAGE,
            policy=policy,
            clock=(lambda: round(self.now * SECOND)) if clocked else None,
        )

    def prompt(self, name: int, pages: int) -> list[int]:
        return [name] * (PAGE * pages)

    def admit(self, name: int, pages: int = 2, hints: Hints | None = None) -> Request:
        """A request that has computed its prompt, a page longer than what is kept."""
        request = self.cache.admit(self.prompt(name, pages), hints=hints)
        assert request.ready
        request.computed(PAGE * pages)
        return request

    def serve(self, name: int, pages: int = 2, hints: Hints | None = None) -> None:
        self.admit(name, pages).finish(hints=hints)
        self.cache.poll()
        self.cache.check()

    def pages(self, name: int) -> int:
        """Pages of a prompt that are there."""
        return self.cache.match(self.prompt(name, ROOM), leave=0)[0].structural_pages

    def there(self) -> set[int]:
        return {name for name in range(40) if self.pages(name)}


@pytest.mark.parametrize("policy", ["priority", "lru", "hit_density"])
def test_what_is_over_goes_first(policy: str) -> None:
    world = World(policy)
    world.serve(1)
    world.serve(2)
    world.serve(3, hints=Hints(ended=True))
    world.serve(4)
    world.serve(5)
    assert world.there() == {1, 2, 4, 5}
    world.serve(2)  # used since, so that nothing is said of it any more
    world.serve(4, hints=Hints(ended=True))
    world.serve(4)
    world.serve(6)
    assert 4 in world.there()


@pytest.mark.parametrize("policy", ["priority", "lru", "hit_density"])
def test_what_others_go_on_from_is_not_over(policy: str) -> None:
    """Two sessions share a beginning; one of them ends."""
    world = World(policy)
    shared = [9] * PAGE
    for last in (1, 2):
        request = world.cache.admit(shared + [last] * PAGE)
        request.computed(2 * PAGE)
        request.finish(hints=Hints(ended=True) if last == 2 else None)
    world.serve(3, 5)  # three pages and the one that is over fit no more than eight
    world.serve(4, 1)
    assert world.cache.match(shared + [1] * PAGE, leave=0)[0].structural_pages == 2
    assert world.cache.match(shared + [2] * PAGE, leave=0)[0].structural_pages == 1


def test_what_is_expected_last_goes_first_and_what_is_late_grows_old() -> None:
    world = World()
    for name, seconds in ((1, 50), (2, 20), (3, 90), (4, 10)):
        world.serve(name, hints=Hints(expects_return=seconds))
    world.serve(5, hints=Hints(expects_return=5))
    assert world.there() == {1, 2, 4, 5}, "3 was 90 seconds away"
    world.now = 22
    world.serve(6, hints=Hints(expects_return=30))
    assert world.there() == {2, 4, 5, 6}, "1 comes in 28 s; 5 is 17 s late, 4 12 s, 2 2 s"
    world.now = 60
    world.serve(7)
    assert world.there() == {2, 4, 6, 7}, "5 is 55 s late, 6 8 s"


def test_a_priority_holds_and_a_reservation_ends() -> None:
    world = World()
    world.serve(1, hints=Hints(priority=1))
    world.serve(2, hints=Hints(keep_for=10))
    world.serve(3, hints=Hints(priority=-1))
    world.serve(4)
    world.serve(5)
    assert world.there() == {1, 2, 4, 5}
    world.serve(6)
    world.serve(7)
    assert world.there() == {1, 2, 6, 7}, "ordinary ones before both"
    world.now = 10
    world.serve(8)
    world.serve(9)
    world.serve(10)
    assert world.there() == {1, 8, 9, 10}, "a reservation that is over makes no difference"


def test_an_ended_session_that_is_reserved_goes_first_afterwards() -> None:
    world = World()
    for name in (1, 2, 3):
        world.serve(name)
    world.serve(4, hints=Hints(keep_for=10, ended=True))
    world.serve(5)
    assert world.there() == {2, 3, 4, 5}
    world.now = 11
    world.serve(6)
    assert world.there() == {2, 3, 5, 6}


def test_reservations_of_everything_keep_nobody_out() -> None:
    """A request that fits alone is admitted, whatever was said."""
    world = World()
    for name in range(1, 30):
        kept = Hints(keep_for=1e6, priority=100 if name % 3 else None)
        world.serve(name, 1 + name % ROOM, hints=kept)
    world.serve(30, ROOM)
    assert world.pages(30) == ROOM


def test_steps_are_seconds_where_there_is_no_clock() -> None:
    world = World(clocked=False)
    world.serve(1, hints=Hints(keep_for=3))
    for name in (2, 3, 4, 5, 6):
        world.serve(name)
    assert 1 in world.there()
    world.cache.passed(3)
    for name in (7, 8, 9, 10):
        world.serve(name)
    assert 1 not in world.there()


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_hints_of_the_admission_hold_however_it_ends(end: str) -> None:
    world = World()
    request = world.admit(1, hints=Hints(priority=5))
    getattr(request, end)()
    world.cache.poll()
    for name in (2, 3, 4, 5, 6):
        world.serve(name)
    assert 1 in world.there()
    if end == "preempt":
        request.finish(hints=Hints(ended=True))  # it holds nothing any more: nothing is said
    world.cache.poll()
    world.cache.check()


def test_a_lease_says_it_where_an_engine_keeps_its_own_tables() -> None:
    world = World()
    for name in (1, 2, 3, 4, 5):
        found, cursor = world.cache.match(world.prompt(name, 2), leave=0)
        assert not found.structural_pages
        lease = world.cache.lease(cursor)
        world.cache.insert(world.prompt(name, 2), lease)
        lease.release(hints=Hints(priority=int(name == 1)))
        assert lease.released
    assert world.there() == {1, 3, 4, 5}
    world.cache.check()


def test_a_flat_store_hears_them_at_release_and_touch() -> None:
    now = [0]
    clock = lambda: now[0] * SECOND  # noqa: E731  # one line that reads a list
    with FlatStore([Group.full("kv", 1)], [IndexTier(4)], policy="priority", clock=clock) as store:
        keys = hash_keys([bytes([n]) for n in range(8)], "xxh3")
        store.commit(store.reserve(keys[:4]))
        store.touch(keys[:1], hints=Hints(keep_for=10))
        with pytest.raises(TypeError, match="hints must be Hints"):
            store.touch(keys[:1], hints={"ended": True})  # type: ignore[arg-type]  # the point
        lease = store.lease(keys[3:4])
        store.release(lease, hints=Hints(ended=True))
        store.commit(store.reserve(keys[4:6]))
        assert (store.has(keys) >= 0).tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
        now[0] = 11
        store.touch(keys[4:6])
        store.commit(store.reserve(keys[6:8]))
        assert (store.has(keys) >= 0).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        store.check()


def test_a_flat_store_without_a_clock_refuses_seconds_and_positions_costs() -> None:
    with FlatStore([Group.full("kv", 1)], [IndexTier(4)], policy="priority") as store:
        keys = hash_keys([b"a"], "xxh3")
        store.commit(store.reserve(keys))
        with pytest.raises(ValueError, match="no clock"):
            store.touch(keys, hints=Hints(keep_for=1))
        store.touch(keys, hints=Hints(priority=1, ended=True))
    with pytest.raises(UnsupportedError, match="positions"):
        FlatStore([Group.full("kv", 1)], [IndexTier(4)], policy="cost")


@pytest.mark.parametrize(
    ("said", "error", "what"),
    [
        ({"expects_return": -1}, ValueError, "expects_return is -1"),
        ({"expects_return": float("nan")}, ValueError, "expects_return is nan"),
        ({"keep_for": 1e10}, ValueError, "keep_for is 1"),
        ({"keep_for": "5"}, TypeError, "keep_for must be a number of seconds, not str"),
        ({"keep_for": True}, TypeError, "keep_for must be a number of seconds, not bool"),
        ({"priority": 101}, ValueError, "priority is 101, expected -100 to 100"),
        ({"priority": 1.0}, TypeError, "priority must be an int or None, not float"),
        ({"ended": 1}, TypeError, "ended must be a bool, not int"),
        ({"ended": True, "expects_return": 5}, ValueError, "ended: no request is expected"),
    ],
)
def test_hints_that_say_nothing_are_refused_by_name(
    said: dict[str, object], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        Hints(**said)  # type: ignore[arg-type]  # that is what is tried


def test_bad_hints_change_nothing() -> None:
    world = World()
    request = world.admit(1)
    with pytest.raises(TypeError, match="hints must be Hints or None, not int"):
        request.finish(hints=5)  # type: ignore[arg-type]  # the point
    assert request.ready
    with pytest.raises(TypeError, match="hints must be Hints or None, not str"):
        world.cache.admit([1, 2, 3], hints="soon")  # type: ignore[arg-type]  # the point
    tree = TreeCore(4, groups=1, tiers=1, policy="priority")
    for bad in (
        Said(1 << 54, 0, 0, 0),
        Said(0, 1 << 54, 0, 0),
        Said(0, 0, 101, 1),
        Said(0, 0, 0, 4),
    ):
        with pytest.raises(ValueError, match=r"."):
            tree.hint(Cursor(tree.root(), 0, 0), bad)


# ---------------------------------------------------------------- what a block saves
def test_a_group_without_a_cost_is_named() -> None:
    with pytest.raises(ValueError, match="group 'kv' says no cost"):
        PrefixCache([Group.full("kv", 1)], [IndexTier(4)], policy="cost")


@pytest.mark.parametrize("seed", range(6))
def test_snapshots_go_by_what_they_save(seed: int) -> None:
    """A full group beside one with snapshots at the ends of paths, against a plain list: the least
    FLOPs from the snapshot before on the path to this one, a byte, on top of the last victim's key.
    """
    random = np.random.default_rng(seed)
    page, linear, quadratic, size = 4, 5.0, 0.75, 96
    rules = (Rule(0, 1, 0, 0, True, page), Rule(3, 1, 0, 0, True, page))
    tree = TreeCore(4 * page, groups=rules, tiers=1, page_tokens=page, policy="cost")
    tree.price([Price(linear, quadratic, 11, 0), Price(linear, quadratic, size, 1)])
    root, age, clock = tree.root(), 0, 0
    kept: dict[tuple[int, ...], tuple[int, int, int]] = {}  # path -> key, last use, slot

    def key_of(path: tuple[int, ...]) -> int:
        ends = [len(p) for p in kept if len(p) < len(path) and path[: len(p)] == p]
        first, end = max(ends, default=0) * page, len(path) * page
        flops = (end - first) * (linear + quadratic * (first + end - 1) / 2)
        return age + int(flops / size * 4096)

    for number in range(300):
        path = tuple(int(n) for n in random.integers(0, 2, random.integers(1, 9)))
        run = np.repeat(np.array(path, np.int32), page)
        if path in kept and random.random() < 0.5:
            found = tree.match(root, run, 0)
            lease = tree.lease(Cursor(root, found.node, len(path)))[0]
            tree.release(lease)
            clock += 1
            kept[path] = (key_of(path), clock, kept[path][2])
        elif path not in kept:
            slots = np.full((2, len(path)), -1, np.int32)
            slots[0], slots[1, -1] = np.arange(len(path)), number
            tree.insert(Cursor(root, root, 0), run, np.arange(2, dtype=np.uint32), slots)
            clock += 1
            kept[path] = (0, clock, number)
            kept[path] = (key_of(path), clock, number)
        if len(kept) > 20 or (kept and random.random() < 0.2):
            gone = np.zeros(1, np.int32)
            assert tree.evict(1, gone) == 1
            least = min(kept, key=lambda p: kept[p][:2])
            age = max(age, kept[least][0])
            assert int(gone[0]) == kept.pop(least)[2]
        tree.check()
        assert tree.column_stats(1).resident == len(kept)
    assert age


def test_a_window_goes_by_all_that_it_saves() -> None:
    """What was computed for long behind the window before is worth more than what follows closely,
    whichever was used last; of a window in two runs the lower one is worth what both save.
    """
    rules = (Rule(0, 1, 0, 0, True, 1), Rule(1, 1, 2, 0, True, 1))
    tree = TreeCore(4, groups=rules, tiers=1, page_tokens=1, policy="cost")
    tree.price([Price(1.0, 0.0, 8, 0), Price(1.0, 0.0, 8, 0)])
    root, slot = tree.root(), 0

    def ends(path: list[int], *places: int) -> None:
        nonlocal slot
        slots = np.full((2, len(path)), -1, np.int32)
        slots[0] = np.arange(len(path))
        for place in places:
            slots[1, place - 2 : place] = slot, slot + 1
            slot += 2
        run = np.array(path, np.int32)
        tree.insert(Cursor(root, root, 0), run, np.arange(2, dtype=np.uint32), slots)
        tree.check()

    ends(list(range(1, 31)), 30)  # 0 and 1: thirty tokens
    ends([*range(1, 11), 99], 11)  # splits it; 2 and 3: eleven
    ends([50, 51, 52, 53], 4)  # 4 and 5: four
    run = np.arange(1, 31, dtype=np.int32)
    gone = np.zeros(6, np.int32)
    assert tree.evict(1, gone[:2]) == 2
    assert gone[:2].tolist() == [4, 5]  # though used last
    tree.touch(Cursor(root, tree.match(root, run[:10], 0).node, 10))
    assert tree.evict(1, gone) == 4
    assert gone[:4].tolist() == [3, 2, 0, 1]
    tree.check()


def test_groups_of_a_model_with_windows_are_compared_by_what_they_save() -> None:
    """Blocks of all its groups go by one order, where before the windows' had those of all compared
    by last use: a long prompt's go after those of a short one that was used later.
    """
    cost = Cost(1.0, 0.5)
    groups = [
        replace(Group.full("kv", 64), cost=cost),
        replace(Group("near", Group.full("kv", 64).layout, Retention("window", 8)), cost=cost),
    ]
    tiers = [IndexTier(limit_bytes=64 * 48)]
    with PrefixCache(groups, tiers, page_tokens=4, policy="cost") as cache:
        for first, count in ((0, 120), (1000, 32), (2000, 32), (3000, 32)):
            prompt = np.arange(first, first + count, dtype=np.int32)
            with cache.lease(cache.match(prompt)[1]) as lease:
                cache.insert(prompt, lease)
            cache.check()
        long, short = (np.arange(n, n + c, dtype=np.int32) for n, c in ((0, 121), (1000, 33)))
        assert cache.match(long)[0].hit_pages == 30
        assert cache.match(short)[0].hit_pages < 8
