"""Which records of a reopened disk still hold: those that this layout can mean, the newest where
two claim one place or one key, and no more of them than the limit allows. Pure: what comes out is a
mask of rows. Keeps I7 (a slot has one owner) and I25 (bytes <= limit) over a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from tiers.copies import plane_array
from tiers.disk_books import headroom_blocks
from tiers.lmdb_index import Records as Rows
from tiers.slab import SlabAllocator
from tiers.views import checksums

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """What of the rows decides whether they stay, each column in one piece. In order of ids."""

    ids: npt.NDArray[np.uint64]
    slots: Numbers
    groups: Numbers
    segments: Numbers


def columns_of(found: Rows, slab: SlabAllocator) -> Columns:
    """The columns of rows. Cost: the rows."""
    groups = np.minimum(found["group"], len(slab.classes) - 1).astype(np.int64)
    slots = found["slot"].astype(np.int64)
    per_segment = np.array([kind.per_segment for kind in slab.classes], np.int64)
    # What is out of range is not sound, and must not be out of range here.
    segments = np.maximum(slots, 0) // per_segment[groups]
    return Columns(found["id"].astype(np.uint64), slots, groups, segments)


def sound(
    found: Rows,
    groups: tuple[Group, ...],
    epoch: int,
    names: dict[int, bytes],
) -> Mask:
    """Rows that this layout, epoch and table of namespaces can mean, with every shard piece there:
    a block of which one is missing is missing for all.
    """
    group = found["group"].astype(np.int64)
    keep = (group < len(groups)) & (found["slot"] >= 0) & (found["epoch"] == epoch)
    keep &= np.isin(found["namespace"], np.array(list(names), np.uint32))
    lengths = np.array([item.block_bytes for item in groups])
    whole = np.array([(1 << item.layout.pieces) - 1 for item in groups])
    group = np.minimum(group, len(groups) - 1)
    keep &= (found["length"] == lengths[group]) & (found["present"] == whole[group])
    return np.asarray(keep & (found["key_bytes"] <= 32), np.bool_)


def newest_alone(found: Rows, keep: Mask, columns: Columns) -> Mask:
    """Where two records name one slot, one key or one segment for two groups, the newer holds:
    the older is one whose removal was not durable yet.
    """
    keep = keep.copy()
    chosen = np.flatnonzero(keep)
    if not len(chosen):
        return keep
    segments, groups = columns.segments[chosen], columns.groups[chosen]
    newest = np.zeros(int(segments.max()) + 1, np.int64)
    newest[segments] = groups
    keep[chosen] = newest[segments] == groups
    chosen = np.flatnonzero(keep)
    _keep_last(keep, chosen, columns.groups[chosen] << 32 | columns.slots[chosen])
    chosen = np.flatnonzero(keep)
    if _may_repeat(_first_words(found)[chosen]):
        names = np.zeros(len(chosen), [("namespace", "<u4"), ("group", "<u4"), ("key", "V32")])
        for field in ("namespace", "group"):
            names[field] = found[field][chosen]
        names["key"] = np.ascontiguousarray(found["key"][chosen]).view("V32").ravel()
        plane = plane_array([(names.ctypes.data, names.itemsize, names.itemsize)])
        _keep_last(keep, chosen, checksums(plane, np.arange(len(chosen), dtype=np.int32)))
    return keep


def _first_words(found: Rows) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of each key: where they all differ, so do the keys."""
    fields = found.dtype.fields
    offset = fields["key"][1] if fields is not None else 0
    words = np.dtype(
        {"names": ["w"], "formats": ["<u8"], "offsets": [offset], "itemsize": found.itemsize}
    )
    return np.asarray(found.view(words)["w"], np.uint64)


def _may_repeat(values: npt.NDArray[Any]) -> bool:
    ordered = np.sort(values)
    return bool((ordered[1:] == ordered[:-1]).any())


def _keep_last(keep: Mask, chosen: Numbers, values: npt.NDArray[Any]) -> None:
    """Of rows with one value only the last stays."""
    if _may_repeat(values):
        _, first = np.unique(values[::-1], return_index=True)
        keep[chosen] = False
        keep[chosen[len(chosen) - 1 - first]] = True


def within_limit(keep: Mask, columns: Columns, slab: SlabAllocator) -> Mask:
    """Keeps of each group the segment with the newest records, and of the other segments the
    newest, as many as leave one for each group without any; drops the oldest blocks of a group
    beyond its capacity. What a tier held under this limit stays: it lends by the same rule.
    """
    segments = columns.segments[keep]
    counts = np.bincount(segments)
    live = np.flatnonzero(counts)
    more = slab.segments - len(slab.classes)  # segments that no group is sure of
    ages = np.bincount(segments, columns.ids[keep].astype(np.float64))[live] / counts[live]
    live = live[np.argsort(-ages, kind="stable")]
    owners = np.zeros(len(counts), np.int64)
    owners[segments] = columns.groups[keep]
    _, first = np.unique(owners[live], return_index=True)
    others = np.delete(live, first)
    if len(others) > more:
        stay = np.zeros(len(counts), np.bool_)
        stay[live[first]] = stay[others[:more]] = True
        keep = keep.copy()
        keep[keep] = stay[segments]
    for group in range(len(slab.classes)):
        capacity = slab.capacity(group)
        mine = np.flatnonzero(keep & (columns.groups == group))
        surplus = len(mine) - (capacity - headroom_blocks(capacity))
        if surplus > 0:
            keep = keep.copy()
            keep[mine[:surplus]] = False
    return keep
