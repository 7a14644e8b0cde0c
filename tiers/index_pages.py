"""Whether the pages of an index hold together, before LMDB walks them. LMDB has no checksums and
believes what it maps: a page of zeros aborts the process, a file that was cut short kills it with
SIGBUS, at every start anew. So each page that it could follow is read here first, by calls that
return an error, and what is no tree makes the index one that cannot be read. Keeps I24's and I22's
ground: a medium that returns other bytes costs hits, not the process.

    meta (the newer of two) --> free list, main table --> each table --> branches --> leaves
    page    number 8 | pad 2 | kind 2 | lower 2 | upper 2 | places of nodes, 2 each | ... | nodes
    node    size or page below, 4 | flags, or more of that page, 2 | key bytes 2 | key | value
    value   inline; or 8: the first of some pages of its own (flag 1); 48: a table (flag 2)

What it does not look at: values that have pages of their own under ``payload-``, which are blocks
with checksums in their records, and many.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

_META = np.dtype(
    [
        ("page", "<u8"),
        ("pad", "<u2"),
        ("kind", "<u2"),
        ("bounds", "<u4"),
        ("magic", "<u4"),
        ("version", "<u4"),
        ("address", "<u8"),
        ("map_bytes", "<u8"),
        ("free", "V48"),
        ("main", "V48"),
        ("last_page", "<u8"),
        ("txn", "<u8"),
    ]
)
_TABLE = np.dtype(
    [
        ("pad", "<u4"),
        ("flags", "<u2"),
        ("depth", "<u2"),
        ("pages", "<u8", (3,)),
        ("entries", "<u8"),
        ("root", "<u8"),
    ]
)
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _KINDS = 0x01, 0x02, 0x04, 0x6F
_BIG, _SUB = 0x01, 0x02
_NOWHERE = (1 << 64) - 1
_HEAD_BYTES = 16
_NODE_BYTES = 8
_MOST_DEPTH = 32
_CHUNK = 1024  # pages at once
_PAGES_AT_ONCE = 1 << 20  # of values, by number alone
Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class _DamageError(Exception):
    """What does not hold together."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A tree of pages. ``plain``: neither the main table nor the list of free pages."""

    name: bytes
    root: int
    depth: int
    entries: int
    plain: bool

    @classmethod
    def of(cls, name: bytes, raw: bytes, *, plain: bool) -> _Table:
        fields = np.frombuffer(raw, _TABLE)[0]
        if (plain or not name) and fields["flags"]:  # those of the free list say other things
            raise _DamageError(f"table {name!r} is of another kind")
        root = int(fields["root"])
        return cls(name, root, int(fields["depth"]), int(fields["entries"]), plain)


@dataclass(frozen=True, slots=True)
class _Leaves:
    """The nodes of some leaves, in order of their keys. ``rows`` and ``places``: where each begins
    in ``raw``, its page and the byte in it; ``sizes``: of its value; ``firsts``: the first page of
    a value that has its own, else -1.
    """

    raw: Bytes
    rows: Numbers
    places: Numbers
    flags: Numbers
    key_bytes: Numbers
    sizes: Numbers
    firsts: Numbers

    def value(self, node: int) -> bytes:
        """An inline value."""
        begin = int(self.places[node] + _NODE_BYTES + self.key_bytes[node])
        return self.raw[self.rows[node], begin : begin + int(self.sizes[node])].tobytes()

    def key(self, node: int) -> bytes:
        """Its key."""
        begin = int(self.places[node]) + _NODE_BYTES
        return self.raw[self.rows[node], begin : begin + int(self.key_bytes[node])].tobytes()


def damage_of(path: Path) -> str:
    """What is wrong with the file of an index that nobody has open; "" where LMDB can walk it, or
    says itself that it cannot. Cost: its pages are read once, but those of blocks.

    Raises ``OSError``, but for pages that the medium does not give back.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        _check(descriptor, os.fstat(descriptor).st_size)
    except _DamageError as damage:
        return str(damage)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return str(error)
    finally:
        os.close(descriptor)
    return ""


def _check(descriptor: int, size: int) -> None:
    first = np.frombuffer(
        os.pread(descriptor, _META.itemsize, 0).ljust(_META.itemsize, b"\0"), _META
    )[0]
    if first["magic"] != _MAGIC or first["version"] != _VERSION:
        return  # LMDB refuses it by name
    page_bytes = int(np.frombuffer(first["free"].tobytes(), _TABLE)[0]["pad"])
    if page_bytes not in (1 << bit for bit in range(9, 17)):
        raise _DamageError(f"pages of {page_bytes} bytes")
    second = os.pread(descriptor, _META.itemsize, page_bytes)
    if len(second) < _META.itemsize:
        raise _DamageError("it ends within its first pages")
    other = np.frombuffer(second, _META)[0]
    if other["magic"] != _MAGIC or other["version"] != _VERSION:
        return
    meta = other if other["txn"] > first["txn"] else first
    last = int(meta["last_page"])
    if not 1 <= last < min(1 << 48, int(meta["map_bytes"]) // page_bytes):
        raise _DamageError(f"its last page is {last}, beyond its map")
    pages = _Pages(descriptor, page_bytes, min(last + 1, -(-size // page_bytes)), size)
    main = _Table.of(b"", meta["main"].tobytes(), plain=False)
    tables = [each for leaves in pages.leaves_of(main) for each in _tables(leaves)]
    for table in tables:
        _check_table(pages, table)
    _check_free(pages, _Table.of(b"free", meta["free"].tobytes(), plain=False), last + 1)


def _tables(leaves: _Leaves) -> list[_Table]:
    if (leaves.flags != _SUB).any() or (leaves.sizes != _TABLE.itemsize).any():
        raise _DamageError("the main table names something that is no table")
    nodes = range(len(leaves.rows))
    return [_Table.of(leaves.key(node), leaves.value(node), plain=True) for node in nodes]


def _check_table(pages: _Pages, table: _Table) -> None:
    by_id = table.name.startswith((b"records-", b"payload-"))
    count, last = 0, -1
    for leaves in pages.leaves_of(table):
        count += len(leaves.rows)
        if (leaves.flags & _SUB).any():
            raise _DamageError(f"table {table.name!r} names a table")
        if by_id:
            last = _check_ids(leaves, last, table)
        big = leaves.firsts >= 0
        pages.take_values(
            leaves.firsts[big], leaves.sizes[big], look=not table.name.startswith(b"payload-")
        )
    if count != table.entries:
        raise _DamageError(f"table {table.name!r} has {count} entries, not {table.entries}")


def _check_ids(leaves: _Leaves, last: int, table: _Table) -> int:
    """Ids grow from node to node; the last of them."""
    if (leaves.key_bytes != 8).any():
        raise _DamageError(f"table {table.name!r} has a key that is no id")
    words = leaves.raw.view("<u2")  # nodes begin at even places
    at = leaves.rows * words.shape[1] + (leaves.places + _NODE_BYTES) // 2
    ids = words.reshape(-1)[at[:, None] + np.arange(4)].view(">u8").ravel()
    if int(ids[0]) <= last or (ids[1:] <= ids[:-1]).any():
        raise _DamageError(f"table {table.name!r} is out of order")
    return int(ids[-1])


def _check_free(pages: _Pages, table: _Table, count: int) -> None:
    """What is free is in no tree, and named once: else it would be written while it is read."""
    free = np.zeros(count, np.bool_)
    for leaves in pages.leaves_of(table):
        big = leaves.firsts >= 0
        pages.take_values(leaves.firsts[big], leaves.sizes[big], look=True)
        for node, first in enumerate(leaves.firsts.tolist()):
            size = int(leaves.sizes[node])
            value = leaves.value(node) if first < 0 else pages.value(first, size)
            numbers = np.frombuffer(value[: len(value) // 8 * 8], "<u8")
            if not len(numbers) or int(numbers[0]) >= len(numbers):
                raise _DamageError("the list of free pages is cut off")
            some = numbers[1 : 1 + int(numbers[0])]
            if len(some) and (some.min() < 2 or some.max() >= count):
                raise _DamageError("a page beyond the end is free")
            named = some.astype(np.int64)
            if free[named].any() or len(np.unique(named)) != len(named):
                raise _DamageError("a page is free twice")
            free[named] = True
    if (free[: len(pages.taken)] & pages.taken).any():
        raise _DamageError("a page that is in use is free")


class _Pages:
    """The pages of one file, each of which has one place: ``taken`` holds those that were met.

    ``count``: as many as may be met.
    """

    def __init__(self, descriptor: int, page_bytes: int, count: int, size: int) -> None:
        self._descriptor, self._page_bytes, self._size = descriptor, page_bytes, size
        self.taken = np.zeros(count, np.bool_)

    def leaves_of(self, table: _Table) -> Iterator[_Leaves]:
        """Walks a tree level by level; its leaves in order, some at once."""
        if table.root == _NOWHERE:
            return
        if not 1 <= table.depth <= _MOST_DEPTH or table.root > 1 << 48:
            raise _DamageError(f"table {table.name!r} is {table.depth} deep")
        level = np.array([table.root], np.int64)
        self._take(level)
        least = 2 if table.plain else 1
        for _ in range(table.depth - 1):
            below = []
            for at in range(0, len(level), _CHUNK):
                below.append(self._children(level[at : at + _CHUNK], least))
                self._take(below[-1])
            level = np.concatenate(below)
        least = 0 if table.name == b"free" else 1
        for at in range(0, len(level), _CHUNK):
            yield self._leaves(level[at : at + _CHUNK], least)

    def take_values(self, firsts: Numbers, sizes: Numbers, *, look: bool) -> None:
        """Values that have pages of their own take them; ``look``: reads how each begins. Cost:
        those pages, not the file's, for there may be many calls.
        """
        if not len(firsts):
            return
        if firsts.min() < 2 or firsts.max() >= len(self.taken):
            raise _DamageError("a value lies beyond the end or in another")
        counts = (_HEAD_BYTES - 1 + sizes) // self._page_bytes + 1
        if look:
            counts = self._counts(firsts, counts)
        order = np.argsort(firsts)
        begin, end = firsts[order], firsts[order] + counts[order]
        if (end > len(self.taken)).any() or (begin[1:] < end[:-1]).any():
            raise _DamageError("a value lies beyond the end or in another")
        if int(end[-1]) * self._page_bytes > self._size:
            raise _DamageError("it ends within a value")
        after = np.cumsum(end - begin)  # pages up to and with each value
        before = after - (end - begin)
        at = 0
        while at < len(begin):
            to = max(at + 1, int(np.searchsorted(after, before[at] + _PAGES_AT_ONCE, "right")))
            shift = np.repeat(begin[at:to] - before[at:to], (end - begin)[at:to])
            numbers = shift + np.arange(before[at], after[to - 1])
            if self.taken[numbers].any():
                raise _DamageError("a page of a value is in use already")
            self.taken[numbers] = True
            at = to

    def _counts(self, firsts: Numbers, least: Numbers) -> Numbers:
        """The pages of each value as its first one says: more than ``least``, those that it fills,
        where a longer one stood there before it in the same transaction.
        """
        found = []
        for at in range(0, len(firsts), _CHUNK):
            words = self._read(firsts[at : at + _CHUNK]).view("<u4")
            if (words[:, 2] >> 16 & _KINDS != _OVERFLOW).any():
                raise _DamageError("a value begins with a page of another kind")
            found.append(words[:, 3].astype(np.int64))
        counts = np.concatenate(found)
        if (counts < least).any():
            raise _DamageError("a value has too few pages")
        return counts

    def value(self, first: int, size: int) -> bytes:
        """A value that has pages of its own."""
        return os.pread(self._descriptor, size, first * self._page_bytes + _HEAD_BYTES)

    def _take(self, numbers: Numbers) -> None:
        if len(numbers) and (numbers.min() < 2 or numbers.max() >= len(self.taken)):
            raise _DamageError("a page lies beyond the end")
        if self.taken[numbers].any() or len(np.unique(numbers)) != len(numbers):
            raise _DamageError("a page has two places")
        self.taken[numbers] = True

    def _read(self, numbers: Numbers) -> Bytes:
        """These pages, each a row, if each says that it is the one. Neighbours in one call."""
        raw = np.empty((len(numbers), self._page_bytes), np.uint8)
        order = np.argsort(numbers)
        ordered = numbers[order]
        cuts = [0, *(np.flatnonzero(np.diff(ordered) != 1) + 1).tolist(), len(ordered)]
        for lo, hi in pairwise(cuts):
            at = int(ordered[lo]) * self._page_bytes
            if os.preadv(self._descriptor, [raw[lo:hi].data], at) != (hi - lo) * self._page_bytes:
                raise _DamageError("it ends within a page")
        if (ordered != numbers).any():
            raw = raw[np.argsort(order)]
        if (raw[:, :8].copy().view("<u8").ravel().astype(np.int64) != numbers).any():
            raise _DamageError("a page is another one")
        return raw

    def _nodes(self, raw: Bytes, kind: int, least: int) -> tuple[Numbers, Numbers, Numbers]:
        """Of pages of one kind: page and place of each node in order, and its four fields."""
        words = raw.view("<u2")
        lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
        if (words[:, 5] & _KINDS != kind).any():
            raise _DamageError("a page is of another kind")
        counts = (lower - _HEAD_BYTES) // 2
        bad = (lower % 2 != 0) | (counts < least) | (upper < lower) | (upper > self._page_bytes)
        if bad.any():
            raise _DamageError("a page has no such bounds")
        most = int(counts.max(initial=0))
        there = np.arange(most) < counts[:, None]
        rows = np.nonzero(there)[0]
        places = words[:, _HEAD_BYTES // 2 : _HEAD_BYTES // 2 + most][there].astype(np.int64)
        bad = (places % 2 != 0) | (places < upper[rows]) | (places > self._page_bytes - _NODE_BYTES)
        if bad.any():
            raise _DamageError("a node lies outside of its page")
        at = rows * (self._page_bytes // 2) + places // 2
        return rows, places, words.reshape(-1)[at[:, None] + np.arange(4)].astype(np.int64)

    def _fill_pages(self, raw: Bytes, rows: Numbers, places: Numbers, sizes: Numbers) -> None:
        """Nodes lie side by side from where the page says to its end."""
        upper = raw.view("<u2")[:, 7].astype(np.int64)
        order = np.lexsort((places, rows))
        row, begin = rows[order], places[order]
        end = begin + (sizes[order] + 1) // 2 * 2
        new = np.concatenate(([True], row[1:] != row[:-1])) if len(row) else row.astype(np.bool_)
        old = np.concatenate((new[1:], [True])) if len(row) else new
        bad = (begin[new] != upper[row[new]]).any() or (end[old] != self._page_bytes).any()
        if bad or (begin[1:] != end[:-1])[~new[1:]].any():
            raise _DamageError("the nodes of a page lie in each other")

    def _children(self, numbers: Numbers, least: int) -> Numbers:
        raw = self._read(numbers)
        rows, places, fields = self._nodes(raw, _BRANCH, least)
        self._fill_pages(raw, rows, places, _NODE_BYTES + fields[:, 3])
        return np.asarray(fields[:, 0] | fields[:, 1] << 16 | fields[:, 2] << 32, np.int64)

    def _leaves(self, numbers: Numbers, least: int) -> _Leaves:
        raw = self._read(numbers)
        rows, places, fields = self._nodes(raw, _LEAF, least)
        flags, key_bytes = fields[:, 2], fields[:, 3]
        sizes = fields[:, 0] | fields[:, 1] << 16
        if (flags & ~(_BIG | _SUB)).any():
            raise _DamageError("a node is of another kind")
        big = flags & _BIG != 0
        self._fill_pages(raw, rows, places, _NODE_BYTES + key_bytes + np.where(big, 8, sizes))
        firsts = np.full(len(rows), -1, np.int64)
        begin = places[big] + _NODE_BYTES + key_bytes[big]
        packed = raw[rows[big][:, None], begin[:, None] + np.arange(8)]
        firsts[big] = np.minimum(np.ascontiguousarray(packed).view("<u8").ravel(), 1 << 48)
        return _Leaves(raw, rows, places, flags, key_bytes, sizes, firsts)
