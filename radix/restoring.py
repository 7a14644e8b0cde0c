"""What a persistent tier kept over a restart becomes part of the tree again: linked by key, the
oldest first; what cannot be linked, and what groups or pages of another meaning left there (C30),
is given back to the tier, so that it can be reclaimed.
"""

from __future__ import annotations

import numpy as np

from radix.flatresidency import FlatResidency
from radix.namespaces import Namespaces
from radix.residency import Residency
from radix.tier import Restored


def adopt(residency: Residency, spaces: Namespaces) -> None:
    """Links what the tiers kept. Cost: the records."""
    for number, tier in enumerate(residency.tiers):
        found = list(tier.restore())
        # blocks that stand alone link to pages that others bring
        found.sort(key=lambda each: not residency.rules[each.group].everywhere)
        for each in found:
            _adopt(residency, spaces, number, each)


def _adopt(residency: Residency, spaces: Namespaces, tier: int, found: Restored) -> None:
    """Links one namespace and group of what was found. Cost: the records."""
    records, tree = found.records, residency.tree
    linked = np.zeros(len(found.slots), np.bool_)
    pages = records.pages
    fits = pages is not None and records.keys.shape[1] == 16 and spaces.owns(records.namespace)
    if fits and pages is not None and pages.shape[1] == tree.page_bytes:
        root = spaces.root_of(records.namespace)
        column = tree.column(found.group, tier)
        linked = tree.restore(root, column, records.keys, records.parents, pages, found.slots)
        _tell(residency, root, tier, found.group)
    if not linked.all():
        residency.tiers[tier].free(found.group, found.slots[~linked])
    name = residency.tiers[tier].name
    residency.metrics.add(("restore", "blocks", name), int(linked.sum()))
    residency.metrics.add(("restore", "unlinked", name), int((~linked).sum()))


def _tell(residency: Residency, root: int, tier: int, group: int) -> None:
    if residency.events is None:
        return
    for node in residency.tree.nodes(root):
        residency.events += residency.of_node(root, node, group, tier)


def adopt_keys(residency: FlatResidency, spaces: Namespaces, key_bytes: int) -> None:
    """The same for opaque keys of so many bytes. Cost: the records."""
    for number, tier in enumerate(residency.tiers):
        for found in tier.restore():
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
