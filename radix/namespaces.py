"""The namespaces of one cache: each a root of its own in the tree, found by canonical bytes (I1).
Empty ones go when many have come.
"""

from __future__ import annotations

from collections.abc import Sequence

from radix.groups import Group
from radix.keys import Namespace, root_key
from radix.tree import TreeCore

_FIRST_SWEEP = 64


class Namespaces:
    """Find: ``root``, ``root_of``. Ask: ``canonical``. ``names`` and ``keys`` are by root."""

    def __init__(self, tree: TreeCore, groups: Sequence[Group], page_tokens: int) -> None:
        self.names: dict[int, bytes] = {}
        self.keys: dict[int, bytes] = {}
        self._tree = tree
        self._roots: dict[bytes, int] = {}
        self._known: dict[Namespace | None, int] = {}
        self._sweep_at = _FIRST_SWEEP
        self._layout = b"".join(
            len(group.name.encode()).to_bytes(2, "big")
            + group.name.encode()
            + group.layout.fingerprint
            for group in groups
        ) + page_tokens.to_bytes(4, "big")

    def canonical(self, namespace: Namespace | None) -> bytes:
        """Canonical bytes: the groups' layouts and the page size are always in them."""
        base = namespace if namespace is not None else Namespace()
        if not isinstance(base, Namespace):
            raise TypeError(f"namespace must be a Namespace, not {type(base).__name__}")
        layout = len(base.layout).to_bytes(4, "big") + base.layout + self._layout
        return Namespace(base.model, base.adapter, layout, base.salt, base.content).canonical()

    def root(self, namespace: Namespace | None) -> int:
        """The root of a namespace, made if it is new. Cost: O(1) once it is known."""
        root = self._known.get(namespace)
        if root is None:
            root = self.root_of(self.canonical(namespace))
            self._known[namespace] = root
        return root

    def root_of(self, canonical: bytes) -> int:
        """The root of a namespace by its canonical bytes, made if it is new."""
        root = self._roots.get(canonical)
        if root is None:
            if len(self._roots) >= self._sweep_at:
                self._sweep()
            key = root_key(canonical)
            root = self._tree.root(key)
            self._roots[canonical] = root
            self.names[root] = canonical
            self.keys[root] = key
        return root

    def _sweep(self) -> None:
        """Lets empty namespaces go (I1). Cost: the namespaces, spread over as many new ones."""
        self._known.clear()
        for canonical, root in list(self._roots.items()):
            if self._tree.drop_root(root):
                del self._roots[canonical], self.names[root], self.keys[root]
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._roots))
