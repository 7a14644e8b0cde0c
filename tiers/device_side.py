"""What the device does for its tier: it gathers and scatters blocks of torch tensors behind what
the caller has queued, and copies them to and from host memory. On the CPU the same calls run at
once. Keeps the device's half of I22: what a copy uses lives until its mark has passed.

    slots --index_select--> rows --bus--> host     the next rows are gathered meanwhile
    slots <--index_copy_--- rows <--bus-- host
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radix.tier import Slots
from tiers.staging import Event, Run
from tiers.views import Offsets

_MOST_CUTS = 1024
_CUDA: Any = torch.cuda  # much of it is untyped
_EVERY_DEVICE = 1  # cudaHostRegisterPortable
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor in one block."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def words_of(tensor: torch.Tensor) -> torch.Tensor:
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
        return [_Piece(words, 0, row_bytes(words), True) for words in tensors]
    pieces: list[_Piece] = []
    start = 0
    for words in tensors:
        size = row_bytes(words)
        for offset, nbytes in ranges.tolist():
            lo, hi = max(offset, start), min(offset + nbytes, start + size)
            if lo < hi:
                pieces.append(_piece(words, lo - start, hi - lo))
        start += size
    return pieces


def _piece(words: torch.Tensor, first: int, nbytes: int) -> _Piece:
    if nbytes == row_bytes(words):
        return _Piece(words, 0, nbytes, True)
    try:
        rows = words.view(words.size(0), -1).view(torch.uint8)
    except RuntimeError:  # rows in several runs: they are moved whole on the device, and cut there
        return _Piece(words, first, nbytes, False)
    return _Piece(words_of(rows.narrow(1, first, nbytes)), 0, nbytes, True)


class TorchSide:
    """Gathers and scatters blocks on streams of its own; on the CPU at once.

    What touches slots first waits for what the caller's current stream holds, so a block is never
    read before its kernel wrote it, nor written while a queued kernel may still read it. What goes
    over the bus runs beside, on a stream for each direction, while the next blocks are gathered.
    """

    def __init__(self, groups: tuple[tuple[torch.Tensor, ...], ...], device: torch.device) -> None:
        self._device = device
        self._words = [[words_of(tensor) for tensor in tensors] for tensors in groups]
        self._whole = [[words_of(tensor) for tensor in stacked(tensors)] for tensors in groups]
        self._cuts: dict[tuple[int, bytes], list[_Piece]] = {}
        self._stream: Any = None  # touches slots
        self._out: Any = None
        self._in: Any = None
        if device.type == "cuda":
            self._stream, self._out, self._in = (_CUDA.Stream(device) for _ in range(3))

    def after(self, event: Any) -> None:
        """Slots are touched after ``event`` from now on."""
        if self._stream is not None:
            self._stream.wait_event(event)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies blocks inside the tensors, on the caller's stream."""
        with torch.inference_mode():
            index, to = self._index(sources), self._index(targets)
            for words in self._words[group]:
                words.index_copy_(0, to, words.index_select(0, index))

    def gather(
        self, group: int, slots: Slots, runs: Sequence[Run], ranges: Offsets | None = None
    ) -> Event:
        """Starts copying ``slots``, or ``ranges`` of them, to the runs of rows."""
        with self._turn():
            index = self._index(slots)
            rows = [
                piece.narrow(
                    piece.words.index_select(0, index).reshape(len(slots), -1).view(torch.uint8)
                )
                for piece in self._pieces(group, ranges)
            ]
            blocks = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
            with self._beside(self._out):
                first = 0
                for address, count in runs:
                    host = _host_rows(address, count, blocks.size(1))
                    host.copy_(blocks[first : first + count], non_blocking=True)
                    first += count
                return self._mark(self._out, index, blocks)

    def scatter(
        self, group: int, slots: Slots, runs: Sequence[Run], ranges: Offsets | None = None
    ) -> Event:
        """Starts copying the runs of rows to ``slots``, or to ``ranges`` of them."""
        with self._turn():
            index = self._index(slots)
            pieces = self._pieces(group, ranges)
            sizes = [piece.nbytes for piece in pieces]
            blocks = self._fetched(runs, len(slots), sum(sizes))
            for piece, rows in zip(pieces, torch.split(blocks, sizes, dim=1), strict=True):
                words = piece.words
                if not piece.is_whole:
                    mine = words.index_select(0, index).reshape(len(slots), -1).view(torch.uint8)
                    piece.narrow(mine).copy_(rows)
                elif len(pieces) == 1:
                    mine = rows
                else:
                    # A copy of its own starts at a multiple of every word, whatever stood before.
                    mine = torch.empty_like(rows, memory_format=torch.contiguous_format)
                    mine.copy_(rows)
                mine = mine.view(words.dtype)
                words.index_copy_(0, index, mine.reshape(len(slots), *words.shape[1:]))
            return self._mark(self._stream, index, blocks)

    def _fetched(self, runs: Sequence[Run], count: int, nbytes: int) -> torch.Tensor:
        """The rows on the device, for the stream that scatters. They are in no slot yet, so nothing
        is waited for; the mark holds them, so that the stream which they belong to does not use
        their memory again before.
        """
        with nullcontext() if self._in is None else _CUDA.stream(self._in):
            blocks = torch.empty((count, nbytes), dtype=torch.uint8, device=self._device)
            first = 0
            for address, rows in runs:
                host = _host_rows(address, rows, nbytes)
                blocks[first : first + rows].copy_(host, non_blocking=True)
                first += rows
        if self._stream is not None:
            self._stream.wait_stream(self._in)
        return blocks

    def _pieces(self, group: int, ranges: Offsets | None) -> list[_Piece]:
        """The tensors that these bytes of a block lie in, in order, cut to them."""
        key = (group, b"" if ranges is None else ranges.tobytes())
        pieces = self._cuts.get(key)
        if pieces is None:
            if len(self._cuts) >= _MOST_CUTS:
                self._cuts.clear()
            words = self._whole[group] if ranges is None else self._words[group]
            pieces = self._cuts[key] = _pieces_of(words, ranges)
        return pieces

    def register(self, address: int, nbytes: int) -> bool:
        """Page-locks host memory for direct copies; False where CUDA refuses."""
        if self._stream is None:
            return True
        return int(_CUDA.cudart().cudaHostRegister(address, nbytes, _EVERY_DEVICE)) == 0

    def unregister(self, address: int) -> None:
        """Takes that back; nothing may be on its way."""
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
            try:
                with _CUDA.stream(self._stream):
                    yield
            except RuntimeError:
                # Half of it may be queued, and whoever is told may give the memory to others.
                for stream in (self._stream, self._out, self._in):
                    stream.synchronize()
                raise

    @contextmanager
    def _beside(self, stream: Any) -> Iterator[None]:
        """Behind what this turn has queued so far, but the next turn does not wait for it."""
        if stream is None:
            yield
            return
        stream.wait_stream(self._stream)
        with _CUDA.stream(stream):
            yield

    def _index(self, slots: Slots) -> torch.Tensor:
        index = torch.from_numpy(slots.astype(np.int64))
        if self._stream is None:
            return index
        # From pageable memory torch would wait here for all that is queued.
        return index.pin_memory().to(self._device, non_blocking=True)

    def _mark(self, stream: Any, *held: torch.Tensor) -> _Mark:
        if stream is None:
            return _Mark(None, held)
        event = _CUDA.Event()
        event.record(stream)
        return _Mark(event, held)


def _host_rows(address: int, rows: int, row_bytes: int) -> torch.Tensor:
    """Host memory as a (rows, row_bytes) uint8 tensor. The memory is the caller's."""
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)


def stacked(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same rows in fewer tensors: neighbours of one shape that lie at even distances in one
    memory, as the layers of a pool do, become one whose second dimension counts them. What took a
    launch for each takes one for all. The memory stays the caller's. Cost: the tensors.
    """
    found: list[torch.Tensor] = []
    rest = [tensor.detach() for tensor in tensors]
    while rest:
        count = _evenly_apart(rest)
        if count > 1:
            step = rest[1].storage_offset() - rest[0].storage_offset()
            shape = (rest[0].size(0), count, *rest[0].shape[1:])
            strides = (rest[0].stride(0), step, *rest[0].stride()[1:])
            found.append(rest[0].as_strided(shape, strides, rest[0].storage_offset()))
        else:
            found.append(rest[0])
        rest = rest[count:]
    return found


def _evenly_apart(tensors: Sequence[torch.Tensor]) -> int:
    """How many of the first tensors are alike, in one memory and at one distance upwards."""
    first = tensors[0]
    kind = (first.dtype, first.shape, first.stride(), first.untyped_storage().data_ptr())
    step, count = 1, 1
    for before, tensor in itertools.pairwise(tensors):
        distance = int(tensor.storage_offset()) - int(before.storage_offset())
        step = distance if count == 1 else step
        mine = (tensor.dtype, tensor.shape, tensor.stride(), tensor.untyped_storage().data_ptr())
        if mine != kind or distance != step or step <= 0:
            break
        count += 1
    return count
