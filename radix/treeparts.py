"""What the native tree tells and takes besides its calls: statuses as errors, counters and nodes as
tuples, rules as rows. Every status of the tree has one class of radix/errors.py.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from radix._native import Insert, Match, ffi, know_array, lib, set_raiser
from radix.errors import STATUS_CLASSES, CacheError, InvariantError
from radix.groups import Rule
from radix.plan import Cursor

NOBODY = 0xFFFFFFFF  # no request of a batch, or all of them
# What the tree says more precisely than the status's own text; all its classes take one text.
_TEXTS: dict[int, str] = {
    lib.RDX_ENOMEM: "the tree could not grow",
    lib.RDX_ETOKEN: "tokens hold an id outside [0, 2^31)",
    lib.RDX_ESTALE: "the node, root or page named is gone",
    lib.RDX_ELEASE: "the lease was released already, was never given, or ends elsewhere",
    lib.RDX_EPINNED: "a lease protects it",
}


def raise_status(status: int, index: int = NOBODY) -> None:
    """Raises the class that stands for a native status of the tree; RDX_OK raises nothing.
    ``index``: which request of a batch it is about.
    """
    if status == lib.RDX_OK:
        return
    text = _TEXTS.get(status) or ffi.string(lib.rdx_status_text(status)).decode()
    name = ffi.string(lib.rdx_status_name(status)).decode()
    if name == "RDX_EINVARIANT":
        raise InvariantError("native", text)
    if index != NOBODY and status != lib.RDX_ENOMEM:
        text = f"request {index} of the batch: {text}"
    raise STATUS_CLASSES.get(name, CacheError)(text)


def _hash(found: tuple[int, ...]) -> int:
    return hash(tuple(found))


set_raiser(raise_status)
# From CPython 3.14 on a tuple keeps its hash; the tree's answers are made so that it reads as 0.
Match.__hash__ = Insert.__hash__ = _hash  # type: ignore[method-assign,assignment]  # made in C
# Arrays of these kinds are read where they lie; where numpy lays them out otherwise, by buffers.
READ_IN_PLACE = all(
    know_array(np.zeros((2, 3), kind)) for kind in (np.int32, np.uint32, np.uint8, np.uint64)
)


def set_policy(native: Any, name: str) -> None:
    """Says what goes first in a tree that has no pages yet. ``ValueError`` for an unknown name."""
    number = getattr(lib, f"RDX_POLICY_{name.upper()}", None)
    if number is None:
        raise ValueError(f"policy {name!r} is not known to the tree")
    raise_status(lib.rdx_policy_set(native, number))


class Price(NamedTuple):
    """What the blocks of one column save: FLOPs of a token, ``quadratic`` more for each before it,
    for ``block_bytes`` that a block takes. Columns of one ``pool`` make room for each other.
    """

    linear: float
    quadratic: float
    block_bytes: int
    pool: int


class NodeView(NamedTuple):
    """One node, for iteration: ``start`` pages lie before its edge of ``pages``."""

    node: int
    parent: int
    start: int
    pages: int
    protect: int
    children: int


class TreeStats(NamedTuple):
    """Counters of the whole tree; ``bytes`` counts nodes, buffers, tables and columns."""

    nodes: int
    pages: int
    buffers: int
    bytes: int
    roots: int
    leases: int
    clock: int
    splits: int
    compactions: int
    removed_nodes: int


class ColumnStats(NamedTuple):
    """Blocks resident and protected in a column, and nodes in its list."""

    resident: int
    protected: int
    listed: int


class Heads:
    """Looks at the next victim of a column and leaves it where it is."""

    MOST_KNOWN = 1 << 16

    def __init__(self, native: Any) -> None:
        self._native = native
        self._view = ffi.new("rdx_node_view *")
        self._handle = ffi.new("rdx_handle *")
        self._u32 = ffi.new("uint32_t[3]")
        self._known: dict[int, int] = {}  # node -> its root: a node never changes it

    def of(self, column: int, roots: Container[int], node: int = 0) -> tuple[Cursor, int, int]:
        """Where the node ends that the next victim is of, and the pages [first, first + count) that
        the column holds of it. There must be one. ``node``: it is known already. Cost: O(1), but
        for nodes seen for the first time their depth.
        """
        u32 = self._u32
        if not node:
            lib.rdx_evict_peek(self._native, column)  # unlinks what only looks like a leaf
            raise_status(lib.rdx_order_nodes(self._native, column, self._handle, 1, u32))
            node = int(self._handle[0])
        raise_status(lib.rdx_node_interval(self._native, node, column, u32 + 1, u32 + 2))
        lo, hi = int(u32[1]), int(u32[2])
        parent, start = self._look(node)
        root = self._root(node, parent, roots)
        return Cursor(root, node, start + hi), start + lo, hi - lo

    def _look(self, node: int) -> tuple[int, int]:
        raise_status(lib.rdx_tree_nodes(self._native, node, self._view, 1, self._u32))
        return int(self._view.parent), int(self._view.start)

    def _root(self, node: int, parent: int, roots: Container[int]) -> int:
        way = [node]
        while parent not in roots and parent not in self._known:
            way.append(parent)
            parent, _ = self._look(parent)
        root = self._known.get(parent, parent)
        if len(self._known) + len(way) > self.MOST_KNOWN:
            self._known.clear()
        self._known.update(dict.fromkeys(way, root))
        return root


def rows_of(rules: Sequence[Rule]) -> object:
    """The rules as an array of rdx_group, as bytes."""
    rows = ffi.new("rdx_group[]", len(rules))
    for row, rule in zip(rows, rules, strict=True):
        row.rule, row.block_pages = rule.code, rule.block_pages
        row.reach_tokens, row.lookahead_pages = rule.reach_tokens, rule.lookahead_pages
        row.lookup = int(rule.lookup)
    return bytes(ffi.buffer(rows))
