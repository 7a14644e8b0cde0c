"""FlatCore: sets of opaque keys over a TreeCore. Each key is one page under one root, so that
lists, leases, slots and ``check`` are literally the tree's (I7, I12-I18). One crossing a call,
however many keys; what can fail is tried before anything changes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.hints import Said
from radix.tier import Keys, Slots
from radix.tree import TreeCore, raise_status

Handles = npt.NDArray[np.uint64]


class FlatCore:
    """The keys of one namespace.

    Look: ``find``, ``slots``. Change: ``insert``, ``touch``, ``drop``. Pin: ``lease``, ``release``.
    Evict through the tree: the keys of all namespaces share its lists.
    """

    def __init__(self, tree: TreeCore, root: int) -> None:
        if tree.check_ids:
            raise ValueError("tree must have opaque keys (check_ids=False)")
        self.tree = tree
        self.root = root

    def _keys(self, keys: Keys) -> object:
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != self.tree.page_bytes:
            raise ValueError(
                f"keys must be uint8 of shape (n, {self.tree.page_bytes}), "
                f"not {keys.dtype} {keys.shape}"
            )
        return ffi.from_buffer(np.ascontiguousarray(keys))

    def find(self, keys: Keys) -> Handles:
        """The node of each key, 0 where it is not there; changes nothing. Cost: the keys."""
        out = np.empty(len(keys), np.uint64)
        raise_status(
            lib.rdx_flat_find(
                self.tree.native, self.root, self._keys(keys), len(keys), _handles(out)
            )
        )
        return out

    def slots(self, nodes: Handles, column: int) -> Slots:
        """The slot of each node in a column, -1 where none."""
        out = np.empty(len(nodes), np.int32)
        raise_status(
            lib.rdx_flat_slots(self.tree.native, _handles(nodes), len(nodes), column, _i32(out))
        )
        return out

    def lease(self, nodes: Handles) -> Handles:
        """A lease for each node; all or none (``StaleError`` if one is gone)."""
        out = np.empty(len(nodes), np.uint64)
        if not len(nodes):
            return out
        raise_status(
            lib.rdx_flat_lease(self.tree.native, _handles(nodes), len(nodes), _handles(out))
        )
        return out

    def release(self, leases: Handles, *, stamp: bool = True) -> None:
        """Gives leases back in order, the last becoming the most recently used.

        ``stamp`` False leaves the order as it is (the pins of a transfer). All or none:
        ``LeaseError`` if one is not held, or stands twice.
        """
        raise_status(
            lib.rdx_flat_release(self.tree.native, _handles(leases), len(leases), int(stamp))
        )

    def insert(self, keys: Keys, column: int, slots: Slots) -> Slots:
        """Gives keys slots in a column, all or none; returns the slots that count from now on.

        Where one differs from what was given the key was there, and the caller keeps its slot.
        The last key becomes the most recently used. Cost: the keys.
        """
        given = np.ascontiguousarray(slots, np.int32)
        if len(given) != len(keys):
            raise ValueError(f"slots must be one a key: {len(given)} for {len(keys)}")
        out = np.empty(len(keys), np.int32)
        raise_status(
            lib.rdx_flat_insert(
                self.tree.native,
                self.root,
                self._keys(keys),
                len(keys),
                column,
                _i32(given),
                _i32(out),
            )
        )
        return out

    def attach(self, nodes: Handles, column: int, slots: Slots) -> Slots:
        """Gives nodes slots in a column (a finished copy) and stamps nothing, all or none.

        Returns the slots that count from now on; ``StaleError`` if a node is gone.
        """
        given = np.ascontiguousarray(slots, np.int32)
        if len(given) != len(nodes):
            raise ValueError(f"slots must be one a node: {len(given)} for {len(nodes)}")
        out = np.empty(len(nodes), np.int32)
        raise_status(
            lib.rdx_flat_attach(
                self.tree.native, _handles(nodes), len(nodes), column, _i32(given), _i32(out)
            )
        )
        return out

    def touch(self, nodes: Handles) -> None:
        """Makes nodes the most recently used, in order; those that are gone are passed over."""
        raise_status(lib.rdx_flat_touch(self.tree.native, _handles(nodes), len(nodes)))

    def hint(self, nodes: Handles, said: Said) -> None:
        """Notes what a request says of nodes; those that are gone are passed over."""
        row = ffi.new("rdx_hint *", said)
        raise_status(lib.rdx_flat_hint(self.tree.native, _handles(nodes), len(nodes), row))

    def drop(self, nodes: Handles, column: int) -> Slots:
        """Takes each node's block out of a column; its slot, -1 where there was none.

        A lease does not hinder it: what is leased is the key.
        """
        out = np.empty(len(nodes), np.int32)
        raise_status(
            lib.rdx_flat_drop(self.tree.native, _handles(nodes), len(nodes), column, _i32(out))
        )
        return out


def evict(tree: TreeCore, column: int, count: int) -> tuple[Slots, Keys, Handles]:
    """Evicts up to ``count`` blocks of all namespaces, least recently used first.

    Their slots, keys (n, page_bytes) and roots. Cost: the blocks freed.
    """
    slots = np.empty(count, np.int32)
    keys = np.empty((count, tree.page_bytes), np.uint8)
    roots = np.empty(count, np.uint64)
    freed = ffi.new("uint32_t *")
    if tree.before_choice is not None:
        tree.before_choice(column)
    raise_status(
        lib.rdx_flat_evict(
            tree.native,
            column,
            count,
            _i32(slots),
            ffi.from_buffer("uint8_t[]", keys),
            _handles(roots),
            freed,
        )
    )
    return slots[: freed[0]], keys[: freed[0]], roots[: freed[0]]


def _handles(array: Handles) -> object:
    """A C view of handles; ``array`` must outlive the call."""
    if array.dtype != np.uint64:
        raise TypeError(f"handles must be uint64, not {array.dtype}")
    return ffi.from_buffer("uint64_t[]", array)


def _i32(array: Slots) -> object:
    return ffi.from_buffer("int32_t[]", array)
