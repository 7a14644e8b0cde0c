"""What the native tree tells and takes besides its calls: statuses as errors, counters and nodes as
tuples, rules as rows. Every status of the tree has one class of radix/errors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radix._native import ffi, lib, set_raiser
from radix.errors import STATUS_CLASSES, CacheError, InvariantError
from radix.groups import Rule

# What the tree says more precisely than the status's own text; all its classes take one text.
_TEXTS: dict[int, str] = {
    lib.RDX_ENOMEM: "the tree could not grow",
    lib.RDX_ETOKEN: "tokens hold an id outside [0, 2^31)",
    lib.RDX_ESTALE: "the node, root or page named is gone",
    lib.RDX_ELEASE: "the lease was released already, was never given, or ends elsewhere",
    lib.RDX_EPINNED: "a lease protects it",
}


def raise_status(status: int) -> None:
    """Raises the class that stands for a native status of the tree; RDX_OK raises nothing."""
    if status == lib.RDX_OK:
        return
    text = _TEXTS.get(status) or ffi.string(lib.rdx_status_text(status)).decode()
    name = ffi.string(lib.rdx_status_name(status)).decode()
    if name == "RDX_EINVARIANT":
        raise InvariantError("native", text)
    raise STATUS_CLASSES.get(name, CacheError)(text)


set_raiser(raise_status)


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


def rows_of(rules: Sequence[Rule]) -> object:
    """The rules as an array of rdx_group, as bytes."""
    rows = ffi.new("rdx_group[]", len(rules))
    for row, rule in zip(rows, rules, strict=True):
        row.rule, row.block_pages = rule.code, rule.block_pages
        row.reach_tokens, row.lookahead_pages = rule.reach_tokens, rule.lookahead_pages
        row.lookup = int(rule.lookup)
    return bytes(ffi.buffer(rows))
