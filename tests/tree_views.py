"""What a test can see of a TreeCore without trusting its lists: where edges begin and end, which
slot every page has in every column, and what follows from that by the definitions of the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radix.tree import NO_SLOT, Cursor, NodeView, TreeCore
from tests.model import Page, Path


@dataclass(frozen=True)
class Edge:
    """One node: the path to its end and the pages before it."""

    path: Path
    view: NodeView

    @property
    def places(self) -> list[Path]:
        """The pages of the edge, each named by its path."""
        first = self.view.start + 2
        return [self.path[:length] for length in range(first, len(self.path) + 1)]


def path_of(tree: TreeCore, at: Cursor) -> list[Page]:
    """The pages that lead to a cursor, as the tree has them."""
    rows = tree.pages(at, 0, at.pages)
    return [tuple(row.view(np.int32).tolist()) for row in rows]


def edges_of(tree: TreeCore, roots: dict[str, int]) -> list[Edge]:
    """Every edge of every namespace."""
    found = []
    for name, root in roots.items():
        for view in tree.nodes(root)[1:]:
            at = Cursor(root, view.node, view.start + view.pages)
            found.append(Edge((name, *path_of(tree, at)), view))
    return found


def by_page(edges: list[Edge]) -> dict[Path, Edge]:
    """The edge that each page lies on."""
    return {place: edge for edge in edges for place in edge.places}


def slots_of(tree: TreeCore, roots: dict[str, int]) -> dict[tuple[Path, int], int]:
    """The slot of every page in every column; -1 in column -1 marks the page itself."""
    found: dict[tuple[Path, int], int] = {}
    for edge in edges_of(tree, roots):
        view = edge.view
        at = Cursor(roots[str(edge.path[0])], view.node, view.start + view.pages)
        for place in edge.places:
            found[place, -1] = view.protect
        for column in range(tree.groups * tree.tiers):
            slots = tree.slots(at, column, view.start, view.pages)
            for place, slot in zip(edge.places, slots.tolist(), strict=True):
                if slot != NO_SLOT:
                    found[place, column] = slot
    return found


def dump(tree: TreeCore, roots: dict[str, int]) -> object:
    """Everything that can be asked about a tree, but for the bytes that it has in hand."""
    columns = range(tree.groups * tree.tiers)
    nodes = [view for root in roots.values() for view in tree.nodes(root)]
    cells = [(view.node, c, tree.interval(view.node, c)) for view in nodes for c in columns]
    orders = [tree.order(column) for column in columns]
    return nodes, cells, orders, tree.stats()._replace(bytes=0), slots_of(tree, roots)
