"""What a persistent tier kept over a restart becomes part of the tree again: linked by key, the
oldest first; what cannot be linked, and what groups or pages of another meaning left there (C30),
is given back to the tier, so that it can be reclaimed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.flatresidency import FlatResidency
from radix.groups import path_group
from radix.namespaces import Namespaces
from radix.residency import Residency
from radix.tier import Restored
from radix.tree import NO_SLOT, TreeCore


def adopt(residency: Residency, spaces: Namespaces) -> list[int]:
    """Links what the tiers kept; the numbers of those that kept anything. Cost: the records."""
    builds, _ = path_group(residency.rules)
    lasting = []
    for number, tier in enumerate(residency.tiers):
        found = list(tier.restore())
        lasting += [number] * bool(found)
        # blocks that stand alone link to pages that others bring
        found.sort(
            key=lambda each: (each.group != builds, not residency.rules[each.group].everywhere)
        )
        for each in found:
            _adopt(residency, spaces, number, each)
    return lasting


def _adopt(residency: Residency, spaces: Namespaces, tier: int, found: Restored) -> None:
    """Links one namespace and group of what was found. Cost: the records."""
    records, tree = found.records, residency.tree
    linked = np.zeros(len(found.slots), np.bool_)
    pages, (builds, told) = records.pages, path_group(residency.rules)
    fits = pages is not None and records.keys.shape[1] == 16 and spaces.owns(records.namespace)
    if fits and pages is not None and pages.shape[1] == tree.page_bytes * told:
        root = spaces.root_of(records.namespace)
        column = tree.column(found.group, tier)
        if told > 1 and found.group == builds:
            linked = _linked_whole(tree, root, column, found, told)
        else:
            own = pages[:, : tree.page_bytes]
            linked = tree.restore(root, column, records.keys, records.parents, own, found.slots)
        _tell(residency, root, tier, found.group)
    if not linked.all():
        residency.tiers[tier].free(found.group, found.slots[~linked])
    name = residency.tiers[tier].name
    residency.metrics.add(("restore", "blocks", name), int(linked.sum()))
    residency.metrics.add(("restore", "unlinked", name), int((~linked).sum()))


def _linked_whole(
    tree: TreeCore, root: int, column: int, found: Restored, told: int
) -> npt.NDArray[np.bool_]:
    """Links blocks of ``told`` pages whose records have all of these; which were. Cost: the pages,
    and a call a record.
    """
    count, width = len(found.slots), tree.page_bytes
    pages = np.ascontiguousarray(found.records.pages).reshape(count, told, width)
    parents = np.empty((count, told, 16), np.uint8)
    parents[:, 0] = found.records.parents
    keys = np.empty_like(parents)
    rows, above, out = (ffi.from_buffer("uint8_t[]", each) for each in (pages, parents, keys))
    for i in range(count):
        at = i * told
        lib.rdx_keys_chain(above + at * 16, rows + at * width, told, width, out + at * 16)
    parents[:, 1:] = keys[:, :-1]
    true = (keys[:, -1] == found.records.keys).all(axis=1)
    slots = np.full((count, told), NO_SLOT, np.int32)
    slots[:, -1] = found.slots
    linked = np.zeros(count, np.bool_)
    linked[true] = tree.restore(
        *(root, column, keys[true].reshape(-1, 16), parents[true].reshape(-1, 16)),
        *(pages[true].reshape(-1, width), slots[true].reshape(-1)),
        each_page=True,
    ).reshape(-1, told)[:, -1]
    return linked


def _tell(residency: Residency, root: int, tier: int, group: int) -> None:
    if residency.events is None:
        return
    for node in residency.tree.nodes(root):
        residency.events += residency.of_node(root, node, group, tier)


def adopt_keys(residency: FlatResidency, spaces: Namespaces, key_bytes: int) -> list[int]:
    """The same for opaque keys of so many bytes. Cost: the records."""
    lasting = []
    for number, tier in enumerate(residency.tiers):
        for found in tier.restore():
            lasting.append(number)
            records, linked = found.records, np.zeros(len(found.slots), np.bool_)
            if records.pages is None and records.keys.shape[1] == key_bytes:
                root = spaces.root_of(records.namespace)
                column = residency.tree.column(found.group, number)
                kept = residency.core(root).insert(records.keys, column, found.slots)
                linked = kept == found.slots
                keys, positions = records.keys[linked], records.positions[linked]
                residency.tell_stored(root, found.group, number, keys, positions)
            if not linked.all():
                tier.free(found.group, found.slots[~linked])
            residency.metrics.add(("restore", "blocks", tier.name), int(linked.sum()))
            residency.metrics.add(("restore", "unlinked", tier.name), int((~linked).sum()))
    return lasting
