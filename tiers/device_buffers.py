"""A rank's torch tensors as blocks: each is tagged with the layout and with what of it the rank
holds, its dimensions are named by the caller, and the shape is only checked against both: nothing
is inferred from it. The rows that come out are views of the same memory in the order of the stored
bytes, so that a device tier that holds the rank's view gathers and scatters them as they are, on
the CPU and on CUDA. Torch itself is not imported here.

    stored block      [piece 0: heads 0 1 of token 0, of token 1][piece 1: heads 2 3 of ...]
    rank 0 of 1       token 0: heads 0 1 2 3, token 1: heads 0 1 2 3
                      rows: [:, token, heads 0 1], [:, token, heads 2 3]
    rank 1 of 2       token 0: heads 2 3, token 1: heads 2 3
                      rows: [:, token, heads 2 3]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from radix.errors import LayoutMismatchError
from radix.layout import LAYER, Layout, Part
from radix.shards import Shards

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """One rank's tensor of one part, and its tag; made by ``buffer_of``.

    ``layout``: a fingerprint; ``part``: a name; ``layers`` of the group and store ``shards``, the
    ranges [first, end) that it holds; ``axes``: names of the dimensions behind the slot.
    """

    layout: bytes
    part: str
    layers: tuple[int, int]
    shards: tuple[int, int]
    axes: tuple[str, ...]
    tensor: torch.Tensor


def buffer_of(
    tensor: torch.Tensor, axes: Sequence[str], part: str, shards: Shards, rank: int
) -> Buffer:
    """What ``rank`` holds of ``part`` in ``tensor``: dimension 0 is the slot, ``axes`` name the
    others, in any order, the layer among them unless there is only one. The memory stays the
    caller's.

    Raises: ``LayoutMismatchError`` where the layout has no such part, its dtype or sizes are
    others, or the rank's stage has none of its layers; ``ValueError`` for another number of axes.
    """
    if tensor.dim() != len(axes) + 1:
        raise ValueError(
            f"axes of part {part!r}: {len(axes)} names {tuple(axes)} for a tensor of shape "
            f"{tuple(tensor.shape)}, whose first dimension is the slot"
        )
    layout, name = shards.group.layout, f"group {shards.group.name!r}"
    found = next((p for p in layout.parts if p.name == part), None)
    if found is None:
        raise LayoutMismatchError(f"{name}: its layout has no part {part!r}")
    if str(tensor.dtype) != f"torch.{found.dtype}":
        raise LayoutMismatchError(
            f"{name}: part {part!r} is of {found.dtype}, the tensor of {tensor.dtype}"
        )
    held, own, span = shards.layers_of(rank), found.layers, shards.span(rank)
    layers = max(held[0], own[0]), min(held[1], own[1])
    if layers[0] >= layers[1]:
        raise LayoutMismatchError(
            f"{name}: rank {rank} holds layers {held}, part {part!r} has layers {own}"
        )
    expected = dict(found.axes) | {LAYER: layers[1] - layers[0]}
    if found.shard_axis is not None:
        first, end = _slices(layout, found, span)
        expected[found.shard_axis] = _width(layout, found) * (end - first)
    given = {LAYER: 1} | dict(zip(axes, tensor.shape[1:], strict=True))
    if given != expected or len(set(axes)) != len(axes):
        raise LayoutMismatchError(
            f"{name}: axes {dict(sorted(given.items()))} of part {part!r} on rank {rank} must be "
            f"{dict(sorted(expected.items()))}"
        )
    return Buffer(layout.fingerprint, part, layers, span, tuple(axes), tensor)


def rows_of(
    layout: Layout, view: npt.NDArray[np.void], buffers: Sequence[Buffer]
) -> list[torch.Tensor]:
    """Views of the tensors whose rows, one after another, are the runs of ``view`` in order
    (``Shards.reads`` of the rank, or less): what ``DeviceTier(tensors=, views=)`` takes.

    Raises: ``LayoutMismatchError`` naming the part where a buffer is of another layout, or where
    no buffer holds what the view needs. Cost: the runs times their parts, once a configuration.
    """
    for buffer in buffers:
        if buffer.layout != layout.fingerprint:
            raise LayoutMismatchError(
                f"buffer of part {buffer.part!r}: its layout is {buffer.layout.hex()}, not "
                f"{layout.fingerprint.hex()}"
            )
    rows = []
    for run in view:
        piece, layer = int(run["piece"]), int(run["layer"])
        span = layout.spans[piece]
        for part in layout.contents(piece, layer):
            rows.append(_row(layout, part, _holder(buffers, part, layer, span), layer, span))
    return rows


def _width(layout: Layout, part: Part) -> int:
    """The size of the shard axis in one stored slice."""
    size = dict(part.axes)[part.shard_axis] if part.shard_axis is not None else 1
    return size // part.slices(layout.store_shards)


def _slices(layout: Layout, part: Part, shards: tuple[int, int]) -> tuple[int, int]:
    """The stored slices [first, end) of a part that overlap these store shards."""
    width = layout.store_shards // part.slices(layout.store_shards)
    return shards[0] // width, -(-shards[1] // width)


def _holder(buffers: Sequence[Buffer], part: Part, layer: int, span: tuple[int, int]) -> Buffer:
    for buffer in buffers:
        overlap = buffer.shards[0] < span[1] and span[0] < buffer.shards[1]
        if buffer.part == part.name and overlap and buffer.layers[0] <= layer < buffer.layers[1]:
            return buffer
    raise LayoutMismatchError(
        f"part {part.name!r}: no buffer holds layer {layer} of store shards [{span[0]}, {span[1]})"
    )


def _row(
    layout: Layout, part: Part, buffer: Buffer, layer: int, span: tuple[int, int]
) -> torch.Tensor:
    """One stored slice of one layer in a buffer, its axes in the order of the part."""
    row, names = buffer.tensor, ["", *buffer.axes]
    if LAYER in names:
        at = names.index(LAYER)
        row = row.select(at, layer - buffer.layers[0])
        del names[at]
    if part.shard_axis is not None:
        width = _width(layout, part)
        index = _slices(layout, part, span)[0] - _slices(layout, part, buffer.shards)[0]
        row = row.narrow(names.index(part.shard_axis), index * width, width)
    order = [names.index(name) for name, _ in part.axes if name != LAYER]
    return row.permute(0, *order)
