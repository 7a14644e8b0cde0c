"""What runs in each worker process: it maps the host pool whose slots the scheduler gives out, and
copies between its own tensors and its own piece of every slot. The engine has no word for a failed
copy: one that fails ends the engine. Keeps its half of I22: a job owns its blocks and slots until
it is reported, once.

    job 7: group 0, blocks 4 5 9, first at logical block 3; two blocks a chunk; slots 11 12

    slot 11   |         | block 4 |      a chunk entered at its second block
    slot 12   | block 5 | block 9 |
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import LoadStoreSpec, OffloadingWorker, TransferResult

from radix._native import lib
from radix.engines.vllm.geometry import Geometry, Published
from radix.errors import LayoutMismatchError, TierError, TierFullError, UnsupportedError
from radix.groups import Group
from radix.tier import Urgency
from tiers.copies import MOVER_POLL_S, plane_array
from tiers.device import DeviceTier
from tiers.host import HostTier
from tiers.transfer import Planes, TransferEngine, status_text

Rows = npt.NDArray[np.int32]
_WAIT_S = 0.05
_MOST_ROWS = 1 << 31


class Slots(LoadStoreSpec):  # type: ignore[misc]  # the engine's classes have no types here
    """Slots of the host pool, one a key, in the order of the keys: what crosses processes.

    ``groups``: our group of each, (n,) int16; ``slots``: its number in that group, (n,) int32.
    """

    def __init__(self, groups: Sequence[int] | npt.NDArray[np.int16], slots: npt.ArrayLike) -> None:
        """Both are copied. ``ValueError`` for rows of unequal length."""
        self.groups = np.array(groups, np.int16)
        self.slots = np.array(slots, np.int32)
        if self.groups.shape != self.slots.shape or self.slots.ndim != 1:
            raise ValueError(
                f"groups of {self.groups.shape} and slots of {self.slots.shape}: expected one of "
                "each for a key"
            )

    def __len__(self) -> int:
        return len(self.slots)

    def __repr__(self) -> str:
        return f"Slots(groups={self.groups.tolist()}, slots={self.slots.tolist()})"


@dataclass(frozen=True, slots=True)
class Lower:
    """Where one group's blocks lie in this worker's piece of the pool: block ``sub`` of slot ``s``
    is row ``s * slot_rows + sub * block_rows`` of the one plane.
    """

    planes: Planes
    slot_rows: int
    block_rows: int

    def rows(self, slots: Rows, subs: Rows) -> Rows:
        """The row of each block. Cost: the blocks."""
        return slots * np.int32(self.slot_rows) + subs * np.int32(self.block_rows)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The blocks of one group of a job."""

    job: int
    group: int
    blocks: Rows
    rows: Rows
    storing: bool


@dataclass(slots=True)
class _Job:
    copies: int
    started_s: float
    nbytes: int


class Worker(OffloadingWorker):  # type: ignore[misc]  # the engine's classes have no types here
    """One worker's copies between its tensors and the host pool.

    On CUDA they run on streams of their own, behind what the engine has queued; on the CPU in
    native threads. ``device``, ``host``: the tiers that they run between.
    """

    def __init__(
        self,
        kv_caches: Any,
        geometry: Geometry,
        host: HostTier,
        rank: int,
        *,
        published: Published | None = None,
        staged: bool | None = None,
    ) -> None:
        """``kv_caches``: the engine's CanonicalKVCaches; ``host``: made by ``geometry``, not
        attached, ours from now on, as is ``published``. ``staged``: copy through buffers as a
        device without addresses needs it.
        Raises: ``TierUnavailableError`` where the memory is not to be had, ``LayoutMismatchError``,
        ``UnsupportedError``.
        """
        if not 0 <= rank < geometry.world:
            raise LayoutMismatchError(f"rank {rank} of {geometry.world} workers")
        self._geometry, self._rank = geometry, rank
        self._published = published
        self.host = host
        self.device = _device_tier(kv_caches, geometry, staged)
        self._copier = TransferEngine()
        host.attach(geometry.groups(), 1, self.device)
        self._lower = [self._lower_of(group) for group in range(len(geometry.pages))]
        self._waiting: dict[Urgency, deque[_Copy]] = {u: deque() for u in Urgency}
        self._running: dict[int, _Copy] = {}
        self._jobs: dict[int, _Job] = {}
        self._finished: list[TransferResult] = []
        self._numbers = 0
        self._closed = False

    def _lower_of(self, group: int) -> Lower:
        (slab,) = self.host.planes(group)
        base, stride = int(slab["base"]), int(slab["stride"])
        block, chunk = self._geometry.block_bytes[group], self._geometry.chunk_bytes[group]
        parted = self._geometry.blocks_per_chunk > 1
        row = math.gcd(stride, block) if parted else stride
        if self.host.limit_bytes // row >= _MOST_ROWS:
            raise UnsupportedError(
                f"blocks of {block} bytes in a pool of {self.host.limit_bytes}: more rows than can "
                "be numbered; set blocks_per_chunk 1, or a smaller host_bytes"
            )
        planes = plane_array([(base + self._rank * chunk, row, block)])
        return Lower(planes, stride // row, block // row if parted else 0)

    # ------------------------------------------------------------------ starting
    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Starts copying blocks of the device into slots. Always True. Cost here: the blocks."""
        self._submit(job_id, src_spec, dst_spec, storing=True)
        return True

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        """Starts copying slots into blocks of the device; ``expedited`` or not, loads go before
        stores. Always True. Cost here: the blocks.
        """
        self._submit(job_id, dst_spec, src_spec, storing=False)
        return True

    def _submit(self, job: int, blocks: Any, slots: Slots, *, storing: bool) -> None:
        if job in self._jobs:
            raise ValueError(f"job {job} is under way already")
        copies = [
            self._copy(job, group, ids, first, slots.slots[slots.groups == group], storing)
            for group, ids, first in _by_group(blocks)
        ]
        copies = [copy for copy in copies if len(copy.blocks)]
        self._jobs[job] = _Job(len(copies), time.monotonic(), 0)
        self._waiting[Urgency.STORE if storing else Urgency.DEMAND].extend(copies)
        if not copies:
            self._end(job)
        self._start()

    def _copy(
        self, job: int, group: int, blocks: Rows, first: int, slots: Rows, storing: bool
    ) -> _Copy:
        per_chunk = self._geometry.blocks_per_chunk
        which, subs = places(len(blocks), len(slots), first, per_chunk, whole=storing)
        lower = self._lower[group]
        self._check_inside(group, blocks, slots)
        rows = lower.rows(slots[which], subs)
        if storing and len(subs) and subs[0]:
            self._blank(group, int(slots[0]), int(subs[0]))
        if not storing:  # block 0 stands for none
            blocks, rows = blocks[blocks != 0], rows[blocks != 0]
        return _Copy(job, group, blocks, rows, storing)

    def _check_inside(self, group: int, blocks: Rows, slots: Rows) -> None:
        """What lies outside would be written all the same: it is memory of somebody else."""
        last = self.host.limit_bytes // (self._lower[group].slot_rows * self._row_bytes(group))
        for what, numbers, end in (
            ("block", blocks, len(self.device.tensors[group][0])),
            ("slot", slots, last),
        ):
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
                raise LayoutMismatchError(
                    f"group {self._geometry.group_ids[group]}: {what}s {numbers.min()} to "
                    f"{numbers.max()}, there are {end}"
                )

    def _row_bytes(self, group: int) -> int:
        return int(self._lower[group].planes["stride"][0])

    def _blank(self, group: int, slot: int, blocks: int) -> None:
        """The blocks of a chunk that a store leaves out hold zeros, not what lay there before."""
        lower = self._lower[group]
        start = int(lower.planes["base"][0]) + slot * lower.slot_rows * self._row_bytes(group)
        ctypes.memset(start, 0, blocks * self._geometry.block_bytes[group])

    def _start(self) -> None:
        """Starts what waits, loads first, as much as there is room for."""
        for urgency, queue in self._waiting.items():
            while queue and self._begin(queue[0], urgency):
                queue.popleft()

    def _begin(self, copy: _Copy, urgency: Urgency) -> bool:
        number = self._numbers + 1
        lower = self._lower[copy.group].planes
        if self.device.capability.address_mapped:
            mine = (self.device.planes(copy.group), copy.blocks)
            theirs = (lower, copy.rows)
            ends = (*theirs, *mine) if copy.storing else (*mine, *theirs)
            status = self._copier.submit_copy(number, urgency, *ends, keep=self.device)
            if status == lib.RDX_EBUSY:
                return False
            if status != lib.RDX_OK:
                raise self._failure(copy, int(status))
        else:
            move = self.device.copy_out if copy.storing else self.device.copy_in
            try:
                move(number, copy.group, copy.blocks, lower, copy.rows, urgency)
            except TierFullError:
                return False
        self._numbers = number
        self._running[number] = copy
        return True

    # ------------------------------------------------------------------ ending
    def get_finished(self) -> list[TransferResult]:
        """Jobs that have ended since the last call, each once. Raises ``TierError`` for a copy that
        failed: the engine asks for nothing but success, and must not go on with what it has.
        """
        self._progress()
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until these jobs have ended; ``get_finished`` still tells of them. Raises as it
        does.
        """
        while not self._jobs.keys().isdisjoint(job_ids):
            self._progress()
            if self._jobs.keys().isdisjoint(job_ids):
                return
            if self.device.capability.address_mapped:
                self._copier.wait(_WAIT_S)
            else:
                time.sleep(MOVER_POLL_S)

    def _progress(self) -> None:
        mapped = self.device.capability.address_mapped
        for end in self._copier.poll() if mapped else self.device.moved():
            copy = self._running.pop(end.job)
            if end.status != lib.RDX_OK:
                raise self._failure(copy, end.status)
            job = self._jobs[copy.job]
            job.copies -= 1
            job.nbytes += end.nbytes
            if not job.copies:
                self._end(copy.job)
        self._start()

    def _end(self, number: int) -> None:
        job = self._jobs.pop(number)
        seconds = time.monotonic() - job.started_s
        self._finished.append(
            TransferResult(
                job_id=number, success=True, transfer_size=job.nbytes, transfer_time=seconds
            )
        )

    def _failure(self, copy: _Copy, status: int) -> TierError:
        way = "device to host" if copy.storing else "host to device"
        return TierError(
            "host",
            f"job {copy.job}: copying {len(copy.blocks)} blocks from {way} on rank {self._rank} "
            f"failed: {status_text(status)}",
        )

    def shutdown(self) -> None:
        """Ends what is under way, then lets go of pool and tensors. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._copier.close()
        self.device.close()
        self.host.close()
        if self._published is not None:
            self._published.close()


def places(
    blocks: int, slots: int, first: int, per_chunk: int, *, whole: bool
) -> tuple[Rows, Rows]:
    """For each of ``blocks`` blocks, of which the first has the logical number ``first``, which of
    ``slots`` chunks it lies in and where in it. ``whole``: no chunk but the first may lack any.

    Raises ``LayoutMismatchError`` where they do not make up these chunks: which of its blocks a
    chunk lacks could only be guessed.
    """
    at = first % per_chunk + np.arange(blocks, dtype=np.int32)
    which, subs = np.divmod(at, np.int32(per_chunk))
    end = first % per_chunk + blocks if blocks else 0
    lacking = whole and end % per_chunk and (blocks, slots) != (1, 1)
    if -(-end // per_chunk) != slots or lacking:
        raise LayoutMismatchError(
            f"{blocks} blocks from logical block {first} on are not {slots} chunks of {per_chunk} "
            "blocks: set blocks_per_chunk 1"
        )
    return which, subs


def _by_group(spec: Any) -> list[tuple[int, Rows, int]]:
    """(group, block ids, logical number of the first) of what the engine names, without those that
    are empty.
    """
    ids = np.asarray(spec.block_ids, np.int32)
    ends = np.cumsum(spec.group_sizes).tolist()
    starts = [0, *ends[:-1]]
    return [
        (group, ids[start:end], int(spec.block_indices[group]))
        for group, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]


# ---------------------------------------------------------------------- tensors
def geometry_of(config: Any, kv_caches: Any, facts: tuple[tuple[str, str], ...] = ()) -> Geometry:
    """The geometry of the tensors that the engine registers. ``LayoutMismatchError`` where they are
    not what the engine's configuration describes.
    """
    pages = []
    for references in kv_caches.group_data_refs:
        for reference in references:
            tensor = kv_caches.tensors[reference.tensor_idx].tensor
            if tensor.dtype != torch.int8 or tensor.dim() != 2 or tensor.stride(1) != 1:
                raise LayoutMismatchError(
                    f"a tensor of {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}: "
                    "expected int8 (blocks, page bytes) with contiguous pages"
                )
            if reference.page_size_bytes > tensor.shape[1]:
                raise LayoutMismatchError(
                    f"a page of {reference.page_size_bytes} bytes in rows of {tensor.shape[1]}"
                )
        pages.append(tuple(int(reference.page_size_bytes) for reference in references))
    return Geometry(
        config.parallel.world_size,
        config.cache.blocks_per_chunk,
        tuple(group.group_id for group in config.groups),
        tuple(pages),
        facts,
    )


def _device_tier(kv_caches: Any, geometry: Geometry, staged: bool | None) -> DeviceTier:
    """The engine's tensors as a tier of its blocks: a row of each is a page without its padding."""
    groups = [
        Group.full(f"group-{number}", size)
        for number, size in zip(geometry.group_ids, geometry.block_bytes, strict=True)
    ]
    tensors = {
        group.name: [
            kv_caches.tensors[reference.tensor_idx].tensor[:, : reference.page_size_bytes]
            for reference in references
        ]
        for group, references in zip(groups, kv_caches.group_data_refs, strict=True)
    }
    device = DeviceTier(tensors, owned=False, staged=staged)
    device.attach(tuple(groups), 1, None)
    return device
