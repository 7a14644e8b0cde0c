"""What the disk tier writes beside the bytes of a store: one record a block, from what the cache
says of it, its checksums and where it lies; and which blocks of a store get one. Keeps the part of
I24 that rests on records: each names every run of its block with its checksum, and stands for a
block of which all have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.groups import Group
from radix.layout import Layout
from radix.tier import Records, Transfer
from tiers.arrivals import Arrivals
from tiers.copies import plane_array
from tiers.disk_moves import Move, views_of
from tiers.format import HAS_PAGES
from tiers.lmdb_index import Records as Rows
from tiers.views import copy_blocks, cut_planes, runs_of

_FIRST = np.zeros(1, np.int32)
Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class DiskCounts:
    """What happened since the tier was opened, in blocks. ``dropped``: found at opening and not
    kept (of another layout, beyond the limit, damaged). ``written_bytes``: into slab files, with
    the padding.
    """

    stored: int = 0
    loaded: int = 0
    corrupt: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    dropped: int = 0
    written_bytes: int = 0


def check_records(transfer: Transfer, page_bytes: int) -> None:
    """Raises ``ValueError`` where the records of a store do not fit its blocks."""
    records, count = transfer.records, len(transfer.lower_slots)
    if records is None:
        raise ValueError(f"job {transfer.job}: a persistent tier needs records")
    keys, pages = records.keys, records.pages
    if keys.ndim != 2 or len(keys) != count or not 1 <= keys.shape[1] <= 32:
        raise ValueError(f"records.keys must be ({count}, 1 to 32), not {keys.shape}")
    if records.parents.shape != (count, 16):
        raise ValueError(f"records.parents must be ({count}, 16), not {records.parents.shape}")
    if pages is not None and pages.shape != (count, page_bytes):
        raise ValueError(f"records.pages must be ({count}, {page_bytes}), not {pages.shape}")
    if records.positions.shape != (count,):
        raise ValueError(f"records.positions must be ({count},), not {records.positions.shape}")


def rows_of(
    dtype: np.dtype[np.void],
    transfer: Transfer,
    records: Records,
    chosen: Indices,
    sums: npt.NDArray[np.uint64],
    group: Group,
    *,
    epoch: int,
    namespace: int,
) -> Rows:
    """Rows of the blocks ``chosen``, without ids and guards; ``sums``: (chosen, runs)."""
    width, runs = records.keys.shape[1], sums.shape[1]
    rows = np.zeros(len(chosen), dtype)
    rows["position"] = records.positions[chosen]
    rows["epoch"] = epoch
    rows["slot"] = np.asarray(transfer.lower_slots)[chosen]
    rows["namespace"] = namespace
    rows["length"] = group.block_bytes
    rows["present"] = (1 << group.layout.pieces) - 1
    rows["group"] = transfer.group
    rows["key_bytes"] = width
    rows["key"][:, :width] = records.keys[chosen]
    rows["parent"] = records.parents[chosen]
    rows["checksums"][:, :runs] = sums
    if records.pages is not None:
        rows["flags"] = HAS_PAGES
        rows["page"] = records.pages[chosen]
    return rows


def whole_blocks(
    move: Move, arrivals: Arrivals, layout: Layout, *, in_values: bool
) -> tuple[Indices, npt.NDArray[np.uint64], Sequence[Any]]:
    """Which blocks of a store whose bytes are safe are there with all their runs now, the checksums
    of these (n, runs), and where LMDB keeps them (``in_values``) the blocks themselves. Enters what
    has come of the others. Cost: the blocks of a part, else O(1) beside the checksums.
    """
    group, cut = move.transfer.group, move.cut
    good = np.flatnonzero(move.statuses == lib.RDX_OK)
    slots = np.asarray(move.transfer.lower_slots)[good]
    if cut.whole:
        arrivals.forget(group, slots)
        sums = np.zeros((len(good), runs_of(layout)), np.uint64)
        sums[:, cut.chosen] = move.sums[good]
        return good, sums, views_of(move, good) if in_values else ()
    if in_values:
        source = cut_planes(move.planes, move.places, cut.sizes)
        for index, slot in zip(good.tolist(), slots.tolist(), strict=True):
            block = arrivals.block(group, slot)
            target = cut_planes(
                plane_array([(block.ctypes.data, 0, len(block))]), cut.below, cut.sizes
            )
            copy_blocks(target, _FIRST, source, move.slots[index : index + 1])
    whole = arrivals.add(group, slots, cut.chosen, move.sums[good])
    good, slots = good[whole], slots[whole]
    blocks = [arrivals.block(group, slot) for slot in slots.tolist()] if in_values else ()
    return good, arrivals.sums(group, slots), blocks
