"""A rank's torch tensors as tagged buffers: what a tensor holds is said by the group's layout and
the rank's place, its dimensions are named by the caller, and its shape is only checked against
both. Torch itself is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from radix.buffers import Buffer
from radix.errors import LayoutMismatchError
from radix.shards import Shards

if TYPE_CHECKING:
    import torch


def buffer_of(
    tensor: torch.Tensor, axes: Sequence[str], part: str, shards: Shards, rank: int
) -> Buffer:
    """What ``rank`` holds of ``part`` in ``tensor``: dimension 0 is the slot, ``axes`` name the
    others in the tensor's order. The tensor stays the caller's and must outlive the buffer.

    Raises: ``LayoutMismatchError`` where the layout has no such part, its dtype is another or the
    rank's stage has none of its layers; ``ValueError`` for another number of axes. That the sizes
    fit is checked where planes are made. Cost: the axes.
    """
    if tensor.dim() != len(axes) + 1:
        raise ValueError(
            f"axes of part {part!r}: {len(axes)} names {tuple(axes)} for a tensor of shape "
            f"{tuple(tensor.shape)}, whose first dimension is the slot"
        )
    layout, name = shards.group.layout, shards.group.name
    found = next((p for p in layout.parts if p.name == part), None)
    if found is None:
        raise LayoutMismatchError(f"group {name!r}: its layout has no part {part!r}")
    if str(tensor.dtype) != f"torch.{found.dtype}":
        raise LayoutMismatchError(
            f"group {name!r}: part {part!r} is of {found.dtype}, the tensor of {tensor.dtype}"
        )
    held, own = shards.layers_of(rank), found.layers
    layers = max(held[0], own[0]), min(held[1], own[1])
    if layers[0] >= layers[1]:
        raise LayoutMismatchError(
            f"group {name!r}: rank {rank} holds layers {held}, part {part!r} has layers {own}"
        )
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()[1:]]
    return Buffer(
        layout=layout.fingerprint,
        part=part,
        layers=layers,
        shards=shards.span(rank),
        address=tensor.data_ptr(),
        slot_stride=tensor.stride(0) * size,
        axes=tuple(zip(axes, tensor.shape[1:], strides, strict=True)),
    )
