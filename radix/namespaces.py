"""The namespaces of one cache: each a root of its own in the tree, found by canonical bytes (I1).
In them stands, whatever the caller says, what the bytes of a block mean: the groups' layouts, where
their blocks stand, the page size and what a page is in the tree (C30). Empty ones go when many have
come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from radix.groups import Group
from radix.keys import Namespace, root_key
from radix.shares import Shares
from radix.tree import TreeCore

_FIRST_SWEEP = 64


class Namespaces:
    """Find: ``root``, ``root_of``. Ask: ``canonical``, ``owns``; by root: ``names``, ``keys``.
    ``revision``: of the weights in namespaces that name none; ``retired``: roots of older ones;
    ``known``: roots by namespace, of those asked for lately.
    """

    def __init__(
        self,
        tree: TreeCore,
        groups: Sequence[Group],
        page_tokens: int,
        *,
        scheme: int = 0,
        placed: bool = True,
    ) -> None:
        """``scheme``: what a page is in the tree, of ``PageKeys``; 0: its tokens. ``placed``:
        whether a block's place follows from its group (not so where the caller's keys name it).
        """
        self.shares: Shares | None = None  # where tenants are told apart
        self.names: dict[int, bytes] = {}
        self.keys: dict[int, bytes] = {}
        self.revision = ""
        self.retired: set[int] = set()
        self._tree = tree
        self._roots: dict[bytes, int] = {}
        self.known: dict[Namespace | None, int] = {}  # roots that need no look at the encoding
        self._sweep_at = _FIRST_SWEEP
        self._layout = b"".join(
            len(group.name.encode()).to_bytes(2, "big")
            + group.name.encode()
            + (_fingerprint(group, page_tokens) if placed else group.layout.fingerprint)
            for group in groups
        ) + (scheme << 24 | page_tokens).to_bytes(4, "big")

    def canonical(self, namespace: Namespace | None) -> bytes:
        """Canonical bytes: the groups' layouts and the page size are always in them."""
        base = namespace if namespace is not None else Namespace()
        if not isinstance(base, Namespace):
            raise TypeError(f"namespace must be a Namespace, not {type(base).__name__}")
        layout = len(base.layout).to_bytes(4, "big") + base.layout + self._layout
        revision = base.revision or self.revision
        return replace(base, layout=layout, revision=revision).canonical()

    def owns(self, canonical: bytes) -> bool:
        """Whether a namespace found on a persistent tier could be one of this cache's: its groups,
        page size and kind of page are these. What is foreign must not be linked.
        """
        try:
            layout = Namespace.parse(canonical).layout
        except ValueError:
            return False
        return layout[4 + int.from_bytes(layout[:4], "big") :] == self._layout

    def root(self, namespace: Namespace | None) -> int:
        """The root of a namespace, made if it is new. Cost: O(1) once it is known."""
        root = self.known.get(namespace)
        if root is None:
            root = self.root_of(self.canonical(namespace))
            self.known[namespace] = root
        return root

    def root_of(self, canonical: bytes) -> int:
        """The root of a namespace by its canonical bytes, made if it is new."""
        root = self._roots.get(canonical)
        if root is None:
            if len(self._roots) >= self._sweep_at:
                self._sweep()
            key = root_key(canonical)
            root = self._tree.root(key)
            if self.shares is not None:
                self._assign(self.shares, root, canonical)
            self._roots[canonical] = root
            self.names[root] = canonical
            self.keys[root] = key
        return root

    def _assign(self, shares: Shares, root: int, canonical: bytes) -> None:
        try:
            shares.assign(root, canonical)
        except BaseException:
            self._tree.drop_root(root)
            raise

    def _gone(self, root: int) -> None:
        """A root that the tree has no more."""
        del self._roots[self.names.pop(root)], self.keys[root]
        self.retired.discard(root)
        if self.shares is not None:
            self.shares.release(root)

    def revise(self, revision: str) -> None:
        """From now on the weights are these: roots of the revision before are retired, and the
        namespaces that name none get others. Cost: the namespaces.
        """
        if revision == self.revision:
            return
        self.known.clear()
        for canonical, root in self._roots.items():
            if Namespace.parse(canonical).revision == self.revision:
                self.retired.add(root)
            elif Namespace.parse(canonical).revision == revision:
                self.retired.discard(root)
        self.revision = revision

    def drop_retired(self) -> None:
        """Lets retired roots go that are empty by now. Cost: them."""
        for root in sorted(self.retired):
            if self._tree.drop_root(root):
                self._gone(root)

    def _sweep(self) -> None:
        """Lets empty namespaces go (I1). Cost: the namespaces, spread over as many new ones."""
        self.known.clear()
        for root in list(self.names):
            if self._tree.drop_root(root):
                self._gone(root)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._roots))


def _fingerprint(group: Group, page_tokens: int) -> bytes:
    """16 bytes for what a block of the group is. A block a page, all of them kept: the layout's own
    fingerprint, as ever; else where blocks stand and which counts too, for with another grid or
    lookahead the block of the same page holds other tokens.
    """
    rule, grid = group.retention.rule, group.grid_tokens or page_tokens
    plain = rule == "full" and not group.per_sequence
    if plain and grid == page_tokens and not group.lookahead:
        return group.layout.fingerprint
    text = (
        f"radix-group-1;{rule};{group.retention.tokens};{grid};"
        f"{group.lookahead};{int(group.per_sequence)}"
    )
    return hashlib.sha256(text.encode() + b"|" + group.layout.fingerprint).digest()[:16]
