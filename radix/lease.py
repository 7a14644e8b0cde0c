"""Leases: the only pin. An opaque object that names its end, released exactly once, by hand or as
a context manager (I13, I14). One that is dropped without release is put on a list that the owner
drains; it is given back then, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType

from radix._native import lease_take
from radix.arguments import number_below
from radix.errors import LeaseError
from radix.gate import Gate
from radix.plan import Cursor
from radix.tree import BY_RULE, EVERY_GROUP, TreeCore

_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


def mask_of(groups: Sequence[object], count: int) -> int:
    """Numbers of some of ``count`` groups as bits; ``ValueError`` or ``TypeError`` for others."""
    mask = 0
    for group in groups:
        mask |= 1 << number_below("group", group, count)
    return mask


class Lease:
    """Pages [0, ``pages``) of one path stay resident until ``release``.

    Made by ``PrefixCache.lease``; never by hand.
    """

    __slots__ = ("_dropped", "_id", "_owner", "_tree", "cursor")

    def __init__(
        self,
        tree: TreeCore,
        cursor: Cursor,
        dropped: deque[int],
        owner: Gate,
        mask: int = EVERY_GROUP,
    ) -> None:
        self._id = 0  # what __del__ reads if the tree refuses
        self._tree = tree
        self._dropped = dropped
        self._owner = owner
        self._id, node, pages = lease_take(tree.capsule, cursor, mask, BY_RULE)
        self.cursor = _tuple(Cursor, (cursor[0], node, pages))

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
        if tree is not self._tree:
            raise LeaseError("the lease belongs to another cache")
        return self._id

    def release(self) -> None:
        """Gives it back; its path becomes the most recently used. ``LeaseError`` if done before,
        ``BusyError`` while another thread's call runs. A closed cache holds nothing any more.
        """
        number = self.native(self._tree)
        if not self._owner.closed:
            with self._owner:
                self._tree.release(number)
        self._id = 0

    def narrow(self, groups: Sequence[int]) -> None:
        """Lets go of what it pins of other groups than these, but for groups of which every block
        counts: those are pinned on its whole path to the end.
        """
        with self._owner:
            self._tree.narrow(self.native(self._tree), mask_of(groups, self._tree.groups))

    def move(self, cursor: Cursor) -> None:
        """Ends it elsewhere on its path; the new end is pinned before the old one is let go."""
        with self._owner:
            self._tree.move(self.native(self._tree), cursor)
            self.cursor = self._tree.lease_end(cursor.root, self._id)

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
            self._dropped.append(self._id)


def drain(tree: TreeCore, dropped: deque[int]) -> int:
    """Gives back the leases that were dropped; how many. Called by the owner."""
    count = 0
    while dropped:
        tree.release(dropped.popleft())
        count += 1
    return count
