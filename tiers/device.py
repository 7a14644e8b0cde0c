"""The first tier: blocks in torch tensors, an engine's own or ours, on CUDA or on the CPU as the
device. On the CPU its blocks are addresses and native threads copy them; on CUDA they are gathered
and scattered on a side stream behind whatever the caller has queued. Keeps the tier side of I7, I8
and I22. The only module of the data plane that imports torch.

    tensor [blocks, 2, heads, dim], a view whose halves lie apart     two planes a block
    tensor [blocks, layer bytes] for each layer                       a plane a layer
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radix._native import lib
from radix.errors import LayoutMismatchError, TierError, UnsupportedError
from radix.groups import Group
from radix.pool import FREE, USED, SlotPool
from radix.tier import Capability, Slots, Tier, Urgency, View
from tiers.copies import Moved, plane_array
from tiers.pools import PooledTier, blocks_of_groups
from tiers.staging import Event, StagedMover
from tiers.transfer import Planes
from tiers.views import Offsets, view_bytes, views_of

MAX_PLANES = 4096
_MOST_CUTS = 1024
_CUDA: Any = torch.cuda  # much of it is untyped
_EVERY_DEVICE = 1  # cudaHostRegisterPortable
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)

Tensors = Sequence[torch.Tensor] | Mapping[str, Sequence[torch.Tensor]]


class DeviceTier(PooledTier):
    """Blocks in torch tensors: block i of a group is row i of each of its tensors, in order.

    Of a rank or a pipeline stage, the runs of its ``views`` one after the other. Beside the
    protocol: ``owned``, ``device``, ``tensors``; ``adopt`` for slots that an engine gave out;
    ``after`` for work that copies must wait for; and, where the tensors have no addresses,
    ``copy_out``, ``copy_in``, ``moved``, ``register``, ``unregister`` for the tier below.
    """

    def __init__(
        self,
        tensors: Tensors | None = None,
        *,
        blocks: int | Sequence[int] | None = None,
        device: str | torch.device = "auto",
        name: str = "device",
        owned: bool = True,
        staged: bool | None = None,
        views: View | Sequence[View | None] | None = None,
    ) -> None:
        """Either adopts ``tensors`` or allocates ``blocks`` a group at ``attach``.

        ``tensors``: those of the one group, or group name -> tensors; dimension 0 is the block, any
        strides; held as long as the tier lives, their bytes are the engine's. ``device``: "auto" is
        CUDA where there is one, for tensors it is theirs. ``owned`` False: the engine gives out the
        slots, ``reserve`` refuses and ``adopt`` takes them over. ``staged``: copies go through the
        device's own stream and buffers; by default only where it has no addresses. ``views``: the
        part of each block that it holds, one a group or one for the only group; None: all.
        Raises: ``ValueError`` unless exactly one of tensors and blocks is given, or below 1 block.
        """
        if (tensors is None) == (blocks is None):
            raise ValueError("give either tensors or blocks")
        if blocks is not None:
            blocks_of_groups(blocks, None, f"tier {name!r}: blocks")
        self._given = tensors
        self._blocks = blocks if blocks is None or isinstance(blocks, int) else tuple(blocks)
        self._asked_views = [views] if isinstance(views, View) else views
        self.owned = owned
        self.device = _device_of(tensors, device)
        mapped = self.device.type == "cpu" and not staged
        super().__init__(
            name,
            Capability(
                persistent=False,
                shared=False,
                layer_wise=False,
                address_mapped=mapped,
                shares_bytes=False,
                holds_bytes=True,
            ),
        )
        self.tensors: tuple[tuple[torch.Tensor, ...], ...] = ()
        self._planes: list[Planes] = []
        self._side: _Side | None = None
        self._mover: StagedMover | None = None

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        if upper is not None:
            raise UnsupportedError(f"tier {self.name!r} must be the first tier of a cache")
        views = views_of(self._asked_views, groups, self.name)
        sizes = [view_bytes(group.layout, view) for group, view in zip(groups, views, strict=True)]
        if self._given is None:
            counts = blocks_of_groups(self._blocks or 0, len(groups), f"tier {self.name!r}: blocks")
            chosen: list[tuple[torch.Tensor, ...]] = [
                (_allocate(count, size, self.device),)
                for size, count in zip(sizes, counts, strict=True)
            ]
        else:
            chosen = _by_group(self._given, groups, self.name)
        for group, size, tensors in zip(groups, sizes, chosen, strict=True):
            _check_rows(group, size, tensors, self.name)
        self._views = views
        self.tensors = tuple(chosen)
        if self.capability.address_mapped:
            self._planes = [planes_of(tensors) for tensors in self.tensors]
        else:
            self._side = _Side(self.tensors, self.device)
            self._mover = StagedMover(self.name, self._side, max(sizes))
        return [SlotPool(len(tensors[0])) for tensors in self.tensors]

    def planes(self, group: int) -> Planes:
        """Where the blocks lie in memory. ``TierError`` where copies are staged."""
        self._open_or_raise()
        if not self.capability.address_mapped:
            raise TierError(self.name, f"group {group} is not mapped into addresses")
        return self._planes[group]

    # ------------------------------------------------------------------ slots
    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing; refused where the engine gives them out. Cost: count."""
        self._may_reserve()
        if not self.owned:
            raise UnsupportedError(f"the slots of tier {self.name!r} are given out by the engine")
        return super().reserve(group, count)

    def adopt(self, group: int, slots: Slots) -> None:
        """Slots that the engine gave out now hold blocks of the cache; ``free`` gives them back.

        Cost: the slots. Raises: ``TierError`` for one that is the cache's already (none changes),
        ``UnsupportedError`` where the tier owns its slots.
        """
        if self.owned:
            raise UnsupportedError(f"the slots of tier {self.name!r} are its own: reserve them")
        self._move(group, slots, FREE, USED)

    # ------------------------------------------------------------------ copies for the tier below
    def after(self, event: Any) -> None:
        """Copies started from now on wait for ``event`` (a ``torch.cuda.Event`` recorded behind
        the kernels that write or read their slots). On the CPU there is no queue to wait for.
        """
        self._staged()
        if self._side is not None:
            self._side.after(event)

    def copy_out(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying ``slots`` to rows ``lower`` of ``planes``, behind what is queued on the
        current stream; of ``ranges`` only these bytes. Cost here: the slots. Raises
        ``TierFullError`` (retryable).
        """
        self._staged().submit(job, group, slots, planes, lower, urgency, ranges, outward=True)

    def copy_in(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying rows ``lower`` of ``planes`` to ``slots``; as ``copy_out``."""
        self._staged().submit(job, group, slots, planes, lower, urgency, ranges, outward=False)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies blocks inside the tier: on the CPU at once, on CUDA on the current stream, so
        before every copy that is started later. ``TierError`` where the device refuses it.

        Cost: the bytes, on the device.
        """
        if self.capability.address_mapped:
            super().clone(group, sources, targets)
            return
        self._check_clone(group, sources, targets)
        if self._side is not None and len(sources):
            try:
                self._side.clone(group, sources, targets)
            except RuntimeError as error:
                raise TierError(self.name, f"clone: {error}", retryable=True) from error

    def moved(self) -> list[Moved]:
        """Copies that have ended since the last call, each once. Never blocks."""
        return self._staged().moved()

    def register(self, address: int, nbytes: int) -> bool:
        """Page-locks memory of the tier below for direct copies; False where CUDA refuses."""
        return self._staged().register(address, nbytes)

    def unregister(self, address: int) -> None:
        """Takes that back; ``close`` has done so already."""
        if not self._closed:
            self._staged().unregister(address)

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a copy; it still ends once."""
        self._open_or_raise()
        if self._mover is not None:
            self._mover.cancel(job)

    def close(self) -> None:
        """Waits for copies that have begun. Idempotent. The tensors live on with the tier."""
        if self._mover is not None and not self._closed:
            self._mover.close()
        super().close()

    def _staged(self) -> StagedMover:
        self._open_or_raise()
        if self._mover is None:
            raise UnsupportedError(f"tier {self.name!r} is mapped: the tier below copies it")
        return self._mover


# ---------------------------------------------------------------------- tensors
def planes_of(tensors: Sequence[torch.Tensor]) -> Planes:
    """The planes of blocks whose rows are ``tensors[.][i]``, in the order of their indices.

    A row that is not contiguous becomes a plane for each contiguous run.
    Raises: ``ValueError`` for more than 4,096 planes. Cost: the planes.
    """
    planes: list[tuple[int, int, int]] = []
    for tensor in tensors:
        size = tensor.element_size()
        run, split = 1, tensor.dim()
        while split > 1 and tensor.stride(split - 1) in (run, _any_if_single(tensor, split - 1)):
            split -= 1
            run *= tensor.size(split)
        outer = [range(tensor.size(d)) for d in range(1, split)]
        if math.prod(len(o) for o in outer) > MAX_PLANES - len(planes):
            raise ValueError(f"a block in more than {MAX_PLANES} pieces: {tuple(tensor.shape)}")
        for index in itertools.product(*outer):
            offset = sum(i * tensor.stride(d) for d, i in enumerate(index, 1))
            base = tensor.data_ptr() + offset * size
            planes.append((base, tensor.stride(0) * size, run * size))
    return plane_array(planes)


def _any_if_single(tensor: torch.Tensor, dim: int) -> int:
    """The stride of a dimension of one entry is never used, so it may be anything."""
    return tensor.stride(dim) if tensor.size(dim) == 1 else -1


def _row_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _device_of(tensors: Tensors | None, device: str | torch.device) -> torch.device:
    if tensors is None:
        if device != "auto":
            return torch.device(device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lists = tensors.values() if isinstance(tensors, Mapping) else [tensors]
    every = [tensor for some in lists for tensor in some]
    for tensor in every:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors must hold torch.Tensor, not {type(tensor).__name__}")
    places = {tensor.device for tensor in every}
    if len(places) != 1:
        raise ValueError(f"tensors must lie on one device, not {sorted(map(str, places))}")
    place = places.pop()
    if device != "auto" and torch.device(device).type != place.type:
        raise ValueError(f"the tensors lie on {place}, device is {device!r}")
    return place


def _by_group(
    tensors: Tensors, groups: tuple[Group, ...], name: str
) -> list[tuple[torch.Tensor, ...]]:
    names = [group.name for group in groups]
    if not isinstance(tensors, Mapping):
        if len(groups) != 1:
            raise ValueError(f"tier {name!r}: give tensors by group name, there are {names}")
        return [tuple(tensors)]
    if set(tensors) != set(names):
        raise ValueError(f"tier {name!r}: tensors for {sorted(tensors)}, the groups are {names}")
    return [tuple(tensors[group]) for group in names]


def _check_rows(group: Group, size: int, tensors: Sequence[torch.Tensor], name: str) -> None:
    what = f"tier {name!r} group {group.name!r}"
    counts = {tensor.size(0) if tensor.dim() else 0 for tensor in tensors}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"{what}: tensors must have one count of blocks >= 1, not {counts}")
    total = sum(_row_bytes(tensor) for tensor in tensors)
    if total != size:
        raise LayoutMismatchError(f"{what}: rows of {total} bytes, its layout says {size}")
    for tensor in tensors:
        if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError(f"{what}: blocks of an expanded tensor share their bytes")


def _allocate(blocks: int, block_bytes: int, device: torch.device) -> torch.Tensor:
    tensor = torch.empty((blocks, block_bytes), dtype=torch.uint8, device=device)
    if device.type == "cpu":
        lib.rdx_prefault(tensor.data_ptr(), tensor.numel(), 2)
    return tensor


def _words_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, the widest that its strides allow: gathering bytes is slow,
    and small floats have no gather of their own.
    """
    tensor = tensor.detach()
    size, base = tensor.element_size(), tensor.data_ptr()
    places = (tensor.stride(d) for d in range(tensor.dim() - 1))
    steps = [*places, tensor.storage_offset(), tensor.size(-1)]
    for word in _WORDS:
        width = word.itemsize
        if width == size:
            return tensor.view(word)
        wider = width > size and tensor.dim() > 1 and tensor.stride(-1) == 1
        aligned = all(step * size % width == 0 for step in steps) and not base % width
        if wider and aligned:
            return tensor.view(word)
    raise ValueError(f"elements of {size} bytes cannot be moved")


# ---------------------------------------------------------------------- the device's own copies
@dataclass(frozen=True, slots=True)
class _Mark:
    """A CUDA event, and what must live until it has passed: the allocator would hand the memory
    of a temporary to the next one that asks.
    """

    event: Any
    held: tuple[torch.Tensor, ...]

    def query(self) -> bool:
        """Whether everything before it is done."""
        return self.event is None or bool(self.event.query())


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes [first, first + nbytes) of each row of a tensor of words."""

    words: torch.Tensor
    first: int
    nbytes: int
    is_whole: bool

    def narrow(self, rows: torch.Tensor) -> torch.Tensor:
        """Its columns of whole rows of bytes."""
        return rows if self.is_whole else rows.narrow(1, self.first, self.nbytes)


def _pieces_of(tensors: Sequence[torch.Tensor], ranges: Offsets | None) -> list[_Piece]:
    if ranges is None:
        return [_Piece(words, 0, _row_bytes(words), True) for words in tensors]
    pieces: list[_Piece] = []
    start = 0
    for words in tensors:
        size = _row_bytes(words)
        for offset, nbytes in ranges.tolist():
            lo, hi = max(offset, start), min(offset + nbytes, start + size)
            if lo < hi:
                pieces.append(_piece(words, lo - start, hi - lo))
        start += size
    return pieces


def _piece(words: torch.Tensor, first: int, nbytes: int) -> _Piece:
    if nbytes == _row_bytes(words):
        return _Piece(words, 0, nbytes, True)
    try:
        rows = words.view(words.size(0), -1).view(torch.uint8)
    except RuntimeError:  # rows in several runs: they are moved whole on the device, and cut there
        return _Piece(words, first, nbytes, False)
    return _Piece(_words_of(rows.narrow(1, first, nbytes)), 0, nbytes, True)


class _Side:
    """Gathers and scatters blocks on a stream of its own; on the CPU at once.

    The stream first waits for what the caller's current stream holds, so a block is never read
    before its kernel wrote it, nor written while a queued kernel may still read it.
    """

    def __init__(self, groups: tuple[tuple[torch.Tensor, ...], ...], device: torch.device) -> None:
        self._device = device
        self._words = [[_words_of(tensor) for tensor in tensors] for tensors in groups]
        self._cuts: dict[tuple[int, bytes], list[_Piece]] = {}
        self._stream = _CUDA.Stream(device) if device.type == "cuda" else None

    def after(self, event: Any) -> None:
        if self._stream is not None:
            self._stream.wait_event(event)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        with torch.inference_mode():
            index, to = self._index(sources), self._index(targets)
            for words in self._words[group]:
                words.index_copy_(0, to, words.index_select(0, index))

    def gather(
        self, group: int, slots: Slots, address: int, ranges: Offsets | None = None
    ) -> Event:
        with self._turn():
            index = self._index(slots)
            rows = [
                piece.narrow(
                    piece.words.index_select(0, index).reshape(len(slots), -1).view(torch.uint8)
                )
                for piece in self._pieces(group, ranges)
            ]
            blocks = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
            host = _host_rows(address, len(slots), blocks.size(1))
            host.copy_(blocks, non_blocking=True)
            return self._mark(index, blocks, host)

    def scatter(
        self, group: int, slots: Slots, address: int, ranges: Offsets | None = None
    ) -> Event:
        with self._turn():
            index = self._index(slots)
            pieces = self._pieces(group, ranges)
            sizes = [piece.nbytes for piece in pieces]
            host = _host_rows(address, len(slots), sum(sizes))
            blocks = host.to(self._device, non_blocking=True)
            for piece, rows in zip(pieces, torch.split(blocks, sizes, dim=1), strict=True):
                words = piece.words
                if piece.is_whole:
                    # A copy of its own starts at a multiple of every word, whatever stood before.
                    mine = torch.empty_like(rows, memory_format=torch.contiguous_format)
                    mine.copy_(rows)
                else:
                    mine = words.index_select(0, index).reshape(len(slots), -1).view(torch.uint8)
                    piece.narrow(mine).copy_(rows)
                mine = mine.view(words.dtype)
                words.index_copy_(0, index, mine.reshape(len(slots), *words.shape[1:]))
            return self._mark(index, blocks, host)

    def _pieces(self, group: int, ranges: Offsets | None) -> list[_Piece]:
        """The tensors that these bytes of a block lie in, in order, cut to them."""
        key = (group, b"" if ranges is None else ranges.tobytes())
        pieces = self._cuts.get(key)
        if pieces is None:
            if len(self._cuts) >= _MOST_CUTS:
                self._cuts.clear()
            pieces = self._cuts[key] = _pieces_of(self._words[group], ranges)
        return pieces

    def register(self, address: int, nbytes: int) -> bool:
        if self._stream is None:
            return True
        return int(_CUDA.cudart().cudaHostRegister(address, nbytes, _EVERY_DEVICE)) == 0

    def unregister(self, address: int) -> None:
        if self._stream is not None:
            _CUDA.cudart().cudaHostUnregister(address)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # An engine may have made its tensors in inference mode: only there can they be written.
        with torch.inference_mode():
            if self._stream is None:
                yield
                return
            self._stream.wait_stream(_CUDA.current_stream(self._device))
            with _CUDA.stream(self._stream):
                yield

    def _index(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots.astype(np.int64)).to(self._device)

    def _mark(self, *held: torch.Tensor) -> _Mark:
        if self._stream is None:
            return _Mark(None, held)
        event = _CUDA.Event()
        event.record(self._stream)
        return _Mark(event, held)


def _host_rows(address: int, rows: int, row_bytes: int) -> torch.Tensor:
    """Host memory as a (rows, row_bytes) uint8 tensor. The memory is the caller's."""
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)
