"""An insert of a cache that owns slots without bytes: slots, pages and lease in one crossing, where
step by step (``radix.inserting``) each takes several. What is not as simple is left to the steps,
and nothing has changed: whatever is inserted here stands as if it had gone through them (I7, I11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix._native import Insert, ffi, lib, tree_insert_pooled
from radix.errors import CapacityError
from radix.inserting import Inserted, Inserting
from radix.keys import Tokens
from radix.lease import Lease
from radix.plan import Cursor
from radix.tier import Slots
from radix.tree import NO_SLOT, raise_status

_INT32 = np.dtype(np.int32)  # what names it is looked up each time
_NONE = np.empty(0, _INT32)
_empty = np.empty
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


@runtime_checkable
class PooledSlots(Protocol):
    """A tier whose slots are states in pools and nothing else: no bytes, no budget."""

    def pools(self) -> npt.NDArray[np.uint64] | None:
        """Addresses of its pools, by group; None while it gives no slots, or where ``reserve``,
        ``commit`` and ``abort`` do more than to move slots in these.
        """
        ...


def pooled_insert(inserting: Inserting) -> PooledInsert | None:
    """The short way of one cache; None where it never is one: pages are keys, each block is told to
    the stream, tenants are told apart, or the first tier does more than to count slots.
    """
    residency = inserting.residency
    tier = residency.tiers[0]
    if not isinstance(tier, PooledSlots) or residency.events is not None:
        return None
    simple = residency.tree.check_ids and residency.quotas is None
    return PooledInsert(inserting, tier) if simple else None


class PooledInsert:
    """``insert``, for one cache."""

    def __init__(self, inserting: Inserting, tier: PooledSlots) -> None:
        self._inserting = inserting
        self._residency = inserting.residency
        self._tree = inserting.residency.tree
        self._transfers = inserting.transfers
        self._tier = tier
        self._groups = len(inserting.columns)
        self._page_tokens = inserting.page_tokens
        out = ffi.new("rdx_pools **")
        raise_status(lib.rdx_pools_new(self._groups, out))
        self._books = ffi.gc(out[0], lib.rdx_pools_free)
        self._address = int(ffi.cast("uintptr_t", self._books))
        self._pools: npt.NDArray[np.uint64] | None = None  # those that the books know

    def insert(
        self, run: Tokens, lease: Lease, number: int, boundaries: Sequence[object]
    ) -> Inserted | None:
        """The new pages of a prompt behind ``lease``, which the tree knows by ``number``; None, and
        at most something old was evicted, where it has to go step by step. Cost: the new pages.
        """
        pools, at, page, groups = self._tier.pools(), lease.cursor, self._page_tokens, self._groups
        count = len(run) // page - at[2]
        boundary = self._boundary(boundaries) if boundaries else 0
        if pools is None or count <= 0 or boundary is None:
            return None
        if pools is not self._pools:
            self._take_up(pools)
        kept = _empty(groups * count, _INT32)
        done = self._insert(at, run, boundary, number, kept)
        if not done[0]:
            again = self._again(done, at, run, boundary, number, kept)
            if again is None:
                return None
            done = again
        lease.cursor = end = _tuple(Cursor, (at[0], done[0], done[1]))
        if self._transfers.deepest > 0:
            self._inserting.send_down(end, at[2], count)
        if groups == 1:
            rows, twice = [kept], [_NONE]
        else:
            rows = [kept[lo : lo + count] for lo in range(0, groups * count, count)]
            twice = [_NONE] * groups
        if done[5]:
            offered = ffi.buffer(self._books.slots, groups * count * 4)
            twice = [
                row[(row != mine) & (row != NO_SLOT)]
                for row, mine in zip(
                    np.frombuffer(offered, np.int32).reshape(groups, count), rows, strict=True
                )
            ]
        return _tuple(Inserted, (done[2], done[3], rows, twice))

    def _take_up(self, pools: npt.NDArray[np.uint64]) -> None:
        """Goes on with these. What is evicted meanwhile nobody has to be told but the counters: no
        keeper of what goes, no copies to be made first, no policy of somebody's own.
        """
        residency, books = self._residency, self._books
        for group, address in enumerate(pools.tolist()):
            books.pools[group] = ffi.cast("rdx_pool *", address)
        told = residency.evictor is not None or residency.shares is not None
        books.evicts = not told and not self._tree.key_bytes and self._tree.before_choice is None
        self._pools = pools

    def _insert(self, at: Cursor, run: Tokens, boundary: int, number: int, kept: Slots) -> Insert:
        """One crossing; what it evicted is counted, whatever came of it."""
        try:
            done = tree_insert_pooled(
                self._tree.capsule, at, run, self._address, boundary, number, kept
            )
        except BaseException:
            self._evicted()
            raise
        if done[4]:
            self._evicted()
        return done

    def _evicted(self) -> None:
        """Counts what the last call evicted."""
        residency, evicted = self._residency, self._books.evicted
        for number, group in enumerate(residency.groups):
            if went := evicted[number]:
                evicted[number] = 0
                residency.metrics.add(
                    ("evict", "blocks", residency.tiers[0].name, group.name), went
                )

    def _again(
        self, done: Insert, at: Cursor, run: Tokens, boundary: int, number: int, kept: Slots
    ) -> Insert | None:
        """The same where a pool is short: each group's room is made by the steps."""
        for _ in range(self._groups):
            if done[1] == self._groups or not self._made_room(done[1], done[2]):
                return None
            done = self._insert(at, run, boundary, number, kept)
            if done[0]:
                return done
        return None

    def _boundary(self, boundaries: Sequence[object]) -> int | None:
        """The one length in pages that is named; None where more is to be looked at."""
        position = boundaries[0]
        if len(boundaries) > 1 or type(position) is not int or not 0 < position < 1 << 32:
            return None
        if position % self._inserting.align_tokens:
            return None
        return position // self._page_tokens

    def _made_room(self, group: int, count: int) -> bool:
        try:
            self._residency.make_room(0, group, count)
        except CapacityError:
            return False  # said again, with what it needs, by the steps
        return True
