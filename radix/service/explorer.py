"""The tree of a cache or store, looked at a piece at a time: namespaces, and below each its nodes.
Every answer is bounded, however large the tree is, and looking changes nothing: no stamp, no count.
Token ids are never told; a node is named by the first bytes of its chained page key.

Called by the thread that owns the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radix.errors import CacheError
from radix.keys import Namespace
from radix.service.status import Facade
from radix.tree import Cursor, NodeView

MOST = 200
_MARK_BYTES = 8


class ExplorerError(CacheError, ValueError):
    """A question that names no such store or place."""


def look(stores: Mapping[str, Facade], asked: Mapping[str, str]) -> dict[str, Any]:
    """Answers what the admin page asks, as JSON.

    ``asked``: nothing: the stores' names; ``store``: its namespaces; ``root`` and ``node`` (as told
    before): the node's children. ``after``: go on behind this one; ``most``: at most so many, and
    never more than 200. Raises ``ExplorerError`` for a place that is not there, ``StaleError`` for
    one that has gone. Cost: what is returned.
    """
    if "store" not in asked:
        return {"stores": sorted(stores)}
    store = stores.get(asked["store"])
    if store is None:
        raise ExplorerError(f"store: {asked['store']!r} is not one of {sorted(stores)}")
    most = min(MOST, max(1, _number(asked, "most", 50)))
    after = _number(asked, "after", 0)
    if "node" not in asked:
        return _namespaces(store, after, most)
    root, node = _number(asked, "root", 0), _number(asked, "node", 0)
    if root not in store.namespaces():
        raise ExplorerError(f"root: {root} is no namespace of this store")
    found = store.tree.children(node, after, most)
    return {
        "nodes": [_node(store, root, view) for view in found],
        "next": str(found[-1].node) if len(found) == most else None,
    }


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) >> 64:
        raise ExplorerError(f"{name}: expected a number, got {text[:40]!r}")
    return int(text)


def _namespaces(store: Facade, after: int, most: int) -> dict[str, Any]:
    roots = sorted(store.namespaces().items())
    shown = [(root, canonical) for root, canonical in roots if root > after][:most]
    return {
        "namespaces": [_namespace(store, root, canonical) for root, canonical in shown],
        "total": len(roots),
        "next": str(shown[-1][0]) if len(shown) == most else None,
    }


def _namespace(store: Facade, root: int, canonical: bytes) -> dict[str, Any]:
    name = Namespace.parse(canonical)
    return {
        "root": str(root),  # beyond what a browser's numbers hold
        "model": name.model,
        "revision": name.revision,
        "adapter": name.adapter,
        "tenant": name.salt.decode("ascii") if name.salt.isascii() else name.salt.hex(),
        "empty": not store.tree.children(root, most=1),
    }


def _node(store: Facade, root: int, view: NodeView) -> dict[str, Any]:
    tiers: dict[str, int] = {}
    for number, tier in enumerate(store.tiers):
        pages = 0
        for group in range(len(store.groups)):
            lo, hi = store.tree.interval(view.node, store.tree.column(group, number))
            pages = max(pages, hi - lo)
        tiers[tier.name] = pages
    return {
        "node": str(view.node),
        "mark": _mark(store, root, view),
        "start": view.start,
        "pages": view.pages,
        "children": view.children,
        "pinned": bool(view.protect),
        "tiers": tiers,
    }


def _mark(store: Facade, root: int, view: NodeView) -> str:
    at = Cursor(root, view.node, view.start + 1)
    if store.tree.key_bytes:
        key = store.tree.keys(at, view.start, 1)
    elif not store.tree.check_ids:  # the pages are keys themselves, as engines made them
        key = store.tree.pages(at, view.start, 1)
    else:
        return ""
    return key[0, :_MARK_BYTES].tobytes().hex()
