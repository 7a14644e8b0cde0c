"""Leases: the only pin. An opaque object that names its end, released exactly once, by hand or as
a context manager (I13, I14). One that is dropped without release is put on a list that the owner
drains; it is given back then, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType

from radix._native import lease_release, lease_take
from radix.arguments import number_below
from radix.errors import LeaseError
from radix.gate import Gate
from radix.hints import Hints, Time, check_hints, said_of
from radix.plan import Cursor
from radix.steps import CursorRows, of_request
from radix.tree import BY_RULE, EVERY_GROUP, TreeCore

_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_new = object.__new__  # a class that is called takes three times as long


def mask_of(groups: Sequence[object], count: int) -> int:
    """Numbers of some of ``count`` groups as bits; ``ValueError`` or ``TypeError`` for others."""
    mask = 0
    for group in groups:
        mask |= 1 << number_below("group", group, count)
    return mask


class Home:
    """What all leases of a cache share: its tree, the list of those that were dropped, its gate,
    and its time.
    """

    __slots__ = ("capsule", "dropped", "gate", "time", "tree")

    def __init__(self, tree: TreeCore, dropped: deque[int], gate: Gate, time: Time) -> None:
        self.tree = tree
        self.capsule = tree.capsule
        self.dropped = dropped
        self.gate = gate
        self.time = time


class Lease:
    """Pages [0, ``pages``) of one path stay resident until ``release``.

    Made by ``PrefixCache.lease`` and ``lease_many`` (``lease_of``, ``leases_of``); never by hand.
    """

    __slots__ = ("_home", "_id", "cursor")

    _home: Home
    _id: int
    cursor: Cursor

    @property
    def pages(self) -> int:
        """Pages from the root that are pinned."""
        return self.cursor.pages

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self._id == 0

    def native(self, tree: TreeCore) -> int:
        """The number under which ``tree`` knows it. ``LeaseError`` once released, or for a lease of
        another cache.
        """
        if self._id == 0:
            raise LeaseError("the lease was released already")
        if tree is not self._home.tree:
            raise LeaseError("the lease belongs to another cache")
        return self._id

    def release(self, *, hints: Hints | None = None) -> None:
        """Gives it back; its path becomes the most recently used. ``hints``: what is said of it.
        ``LeaseError`` if done before, ``BusyError`` while another thread's call runs. A closed
        cache holds nothing any more.
        """
        home, number = self._home, self._id
        if not number:
            self.native(home.tree)
        gate = home.gate
        said = None if hints is None else check_hints(hints)
        if not gate.closed:
            if not gate.take(False):
                gate.refuse()
            try:
                if said is None:
                    lease_release(home.capsule, number, 1)
                else:
                    self._release_hinted(number, said)
            finally:
                gate.leave()
        self._id = 0

    def _release_hinted(self, number: int, said: Hints) -> None:
        tree, now = self._home.tree, self._home.time.now()
        tree.tell_time(now)
        end = tree.lease_end(self.cursor.root, number)
        lease_release(tree.capsule, number, 1)
        self._id = 0
        tree.hint(end, said_of(said, now))

    def narrow(self, groups: Sequence[int]) -> None:
        """Lets go of what it pins of other groups than these, but for groups of which every block
        counts: those are pinned on its whole path to the end.
        """
        tree = self._home.tree
        with self._home.gate:
            tree.narrow(self.native(tree), mask_of(groups, tree.groups))

    def move(self, cursor: Cursor) -> None:
        """Ends it elsewhere on its path; the new end is pinned before the old one is let go."""
        tree = self._home.tree
        with self._home.gate:
            tree.move(self.native(tree), cursor)
            self.cursor = tree.lease_end(cursor.root, self._id)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._id:
            self.release()

    def __del__(self) -> None:
        # any thread may end here: appending to a deque takes no lock, the owner drains it
        if self._id:
            self._home.dropped.append(self._id)


def drain(tree: TreeCore, dropped: deque[int]) -> int:
    """Gives back the leases that were dropped; how many. Called by the owner."""
    count = 0
    while dropped:
        tree.release(dropped.popleft())
        count += 1
    return count


def lease_of(home: Home, cursor: Cursor, mask: int = EVERY_GROUP) -> Lease:
    """Pins the path to ``cursor``. The caller holds the gate."""
    lease = _new(Lease)
    lease._id = 0  # what __del__ reads if the tree refuses
    number, node, pages = lease_take(home.capsule, cursor, mask, BY_RULE)
    lease._home = home
    if node == cursor[1] and pages == cursor[2] and type(cursor) is Cursor:
        lease.cursor = cursor
    else:
        lease.cursor = _tuple(Cursor, (cursor[0], node, pages))
    lease._id = number
    return lease


def leases_of(home: Home, cursors: CursorRows, mask: int) -> list[Lease]:
    """A lease for each cursor, all or none, in one crossing; what it pins ends where it ends."""
    taken, ends = home.tree.lease_many(cursors, mask)
    numbers, leases = taken.tolist(), []
    try:
        for number, end in zip(numbers, ends.tolist(), strict=True):
            lease = _new(Lease)
            lease._id = 0
            lease._home, lease.cursor = home, _tuple(Cursor, end)
            leases.append(lease)
            lease._id = number  # its own from here on: dropped with it
    except BaseException:
        held = {lease._id for lease in leases}
        home.dropped.extend(number for number in numbers if number not in held)
        raise
    return leases


def numbers_of(home: Home, leases: Sequence[Lease]) -> list[int]:
    """What the tree knows them by. ``LeaseError`` names one that is released, another cache's, or
    stands twice.
    """
    tree, found = home.tree, []
    try:
        for lease in leases:
            found.append(lease.native(tree))
        if len(set(found)) < len(found):
            found = found[: next(at for at, one in enumerate(found) if one in found[:at])]
            raise LeaseError("the lease stands twice")
    except LeaseError as error:
        raise of_request(error, len(found)) from None
    return found


def release_all(home: Home, leases: Sequence[Lease]) -> None:
    """Gives leases back, all or none, in one crossing: ``PrefixCache.release_many``."""
    numbers = numbers_of(home, leases)
    if not home.gate.closed:
        with home.gate:
            home.tree.release_many(numbers)
    for lease in leases:
        lease._id = 0
