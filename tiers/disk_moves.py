"""Where the bytes of one disk transfer lie in memory, and the native parts that move them. Memory
of the tier above is read and written in place where its blocks are single runs that the file
system accepts; else the bytes go through rows of our own. Keeps I22: a move holds its memory to the
end.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.tier import Slots, Tier, Transfer
from tiers.copies import plane_array
from tiers.slab import ALIGNMENT_BYTES, stride_bytes
from tiers.transfer import OP, PLANE, Ops, Planes

Statuses = npt.NDArray[np.int32]


class Rows:
    """Aligned memory for blocks on their way, one after the other at their stride."""

    def __init__(self, count: int, block_bytes: int) -> None:
        stride = stride_bytes(block_bytes)
        self.count = count
        self._map = mmap.mmap(-1, max(1, count) * stride)
        self._view = ffi.from_buffer(self._map)
        self.planes = plane_array([(int(ffi.cast("uintptr_t", self._view)), stride, block_bytes)])
        self.slots: Slots = np.arange(count, dtype=np.int32)

    def close(self) -> None:
        """Unmaps it; nothing may be on its way."""
        ffi.release(self._view)
        self._map.close()


@dataclass(slots=True)
class Move:
    """One transfer on its way. ``planes`` and ``slots`` name the single run of memory that is read
    from or written to the file for each block; ``statuses`` holds an RDX status for each block.
    """

    transfer: Transfer
    upper: Tier
    storing: bool
    planes: Planes
    slots: Slots
    rows: Rows | None
    statuses: Statuses
    sums: npt.NDArray[np.uint64]
    ops: Ops = field(default_factory=lambda: np.zeros(0, OP))
    nbytes: int = 0

    @property
    def count(self) -> int:
        """Blocks of the transfer."""
        return len(self.slots)

    def release(self) -> None:
        """Gives its rows back."""
        if self.rows is not None:
            self.rows.close()
            self.rows = None


def make_move(
    transfer: Transfer, upper: Tier, block_bytes: int, pieces: int, *, storing: bool, aligned: bool
) -> Move:
    """Chooses the memory of a transfer. ``aligned``: the file takes whole 4 KiB pages only, so
    that the padding of a block is moved with it.
    """
    slots = np.ascontiguousarray(transfer.upper_slots, np.int32)
    count = len(slots)
    rows: Rows | None = None
    planes: Planes = np.zeros(0, PLANE)
    if upper.capability.address_mapped:
        planes = np.ascontiguousarray(upper.planes(transfer.group))
    if not _in_place(planes, block_bytes, aligned):
        rows = Rows(count, block_bytes)
        planes, slots = rows.planes, rows.slots
    return Move(
        transfer=transfer,
        upper=upper,
        storing=storing,
        planes=planes,
        slots=slots,
        rows=rows,
        statuses=np.full(count, lib.RDX_ECANCELED, np.int32),
        sums=np.zeros((count, pieces), np.uint64),
    )


def _in_place(planes: Planes, block_bytes: int, aligned: bool) -> bool:
    if len(planes) != 1 or int(planes["bytes"][0]) != block_bytes:
        return False
    base, stride = int(planes["base"][0]), int(planes["stride"][0])
    if not aligned:
        return True
    whole = base % ALIGNMENT_BYTES == 0 and stride % ALIGNMENT_BYTES == 0
    return whole and stride >= stride_bytes(block_bytes)


def file_ops(
    move: Move,
    chosen: npt.NDArray[np.int64],
    fds: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.uint64],
    *,
    aligned: bool,
) -> Ops:
    """The parts that move the blocks ``chosen``, one a piece; ``fds`` and ``offsets`` say where
    each of them lies. A piece alone in its block is padded to 4 KiB where ``aligned``.
    """
    block_bytes = int(move.planes["bytes"][0])
    pieces = move.sums.shape[1]
    piece_bytes = block_bytes // pieces
    ops = np.zeros((len(chosen), pieces), OP)
    step = np.arange(pieces, dtype=np.uint64) * np.uint64(piece_bytes)
    memory = (
        move.planes["base"][0] + move.slots[chosen].astype(np.uint64) * move.planes["stride"][0]
    )
    ops["kind"] = lib.RDX_OP_WRITE if move.storing else lib.RDX_OP_READ
    ops["fd"] = fds[:, None]
    ops["offset"] = offsets[:, None] + step
    ops["memory"] = memory[:, None] + step
    ops["bytes"] = stride_bytes(piece_bytes) if aligned else piece_bytes
    ops["payload_bytes"] = piece_bytes
    ops["checksum"] = move.sums[chosen]
    ops["block"] = chosen[:, None]
    return ops.reshape(-1)


def settle_ops(move: Move) -> None:
    """Takes statuses, and for a store checksums, from the parts that have ended."""
    pieces = move.sums.shape[1]
    ops = move.ops.reshape(-1, pieces)
    if not len(ops):
        return
    blocks = ops["block"][:, 0].astype(np.int64)
    bad = ops["status"] != lib.RDX_OK
    first = np.argmax(bad, axis=1)
    found = ops["status"][np.arange(len(ops)), first]
    move.statuses[blocks] = np.where(bad.any(axis=1), found, lib.RDX_OK)
    if move.storing:
        move.sums[blocks] = ops["checksum"]


def views_of(move: Move, chosen: npt.NDArray[np.int64]) -> list[memoryview]:
    """The blocks ``chosen`` as views of memory, for LMDB to copy from."""
    base, stride = int(move.planes["base"][0]), int(move.planes["stride"][0])
    size = int(move.planes["bytes"][0])
    addresses = (base + stride * int(slot) for slot in move.slots[chosen])
    return [memoryview(ffi.buffer(ffi.cast("char *", place), size)) for place in addresses]
