"""What tests of layouts, shards and replicas stand on: groups of every kind of layout, and ranks
whose torch tensors are cut from one whole model state with plain indexing, the oracle that the
arithmetic under test is held against. Each rank has its own order of axes, as engines do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from radix._native import ffi, lib
from radix.groups import Group, Retention
from radix.layout import DTYPE_BYTES, Layout, Part
from radix.shards import Shards
from tiers.device import planes_of
from tiers.device_buffers import Buffer, buffer_of, rows_of
from tiers.transfer import Planes
from tiers.views import cut_planes

P = 4
DEGREES = (1, 2, 4, 8)


def latent(layers: int = 4, first: int = 0) -> tuple[Part, ...]:
    """An MLA latent and its rotary keys, of different width: every rank holds them whole."""
    return tuple(
        Part(name, "bfloat16", (("layer", layers), ("token", P), ("dim", dim)), first_layer=first)
        for name, dim in (("latent", 6), ("rope", 2))
    )


def heads(count: int, layers: int = 4, first: int = 0) -> tuple[Part, ...]:
    """Keys and values of ``count`` KV heads."""
    axes = (("layer", layers), ("token", P), ("head", count), ("dim", 4))
    return tuple(
        Part(name, "bfloat16", axes, "head", count, first_layer=first) for name in ("key", "value")
    )


def recurrent(distinct: int = 8) -> tuple[Part, ...]:
    """A convolution's state in bfloat16 beside a recurrence in float32, different on each rank."""
    return (
        Part(
            "conv", "bfloat16", (("layer", 4), ("width", 3), ("channel", 16)), "channel", distinct
        ),
        Part(
            "state",
            "float32",
            (("layer", 4), ("head", 8), ("row", 2), ("dim", 3)),
            "head",
            distinct,
        ),
    )


def group(name: str, parts: tuple[Part, ...], store_shards: int = 8) -> Group:
    """A group of pages; one that has a recurrent state is of snapshots."""
    state = any(part.name == "state" for part in parts)
    retention = Retention("state" if state else "full")
    return Group(name, Layout(parts, store_shards), retention, per_sequence=state)


def every_group(store_shards: int = 8) -> dict[str, Group]:
    """One group of each kind of layout."""
    scale = Part("scale", "uint8", (("layer", 4), ("token", P)))
    fixed = Part("bc", "bfloat16", (("layer", 4), ("channel", 5)))
    parts = {
        "latent": latent(),
        "two heads": heads(2),
        "eight heads": heads(8),
        "recurrent": recurrent(),
        "latent and two-head layers": latent(2) + heads(2, 2, first=2),
        "recurrent with a shared part": (*recurrent(), fixed),
        "two heads with shared scales": (*heads(2), scale),
        "one layer": heads(8, 1)[:1],
    }
    return {name: group(name, some, store_shards) for name, some in parts.items()}


@dataclass
class Rank:
    """The tensors of one rank for ``slots`` blocks of a group."""

    shards: Shards
    number: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in all the tensors."""
        return sum(t[0].numel() * t.element_size() for t in self.tensors.values())


def whole_state(group: Group, blocks: int, seed: int) -> dict[str, torch.Tensor]:
    """Random bytes for each part, unsharded, (blocks, *axes) of its dtype's bytes."""
    rng = np.random.default_rng(seed)
    state = {}
    for part in group.layout.parts:
        shape = (blocks, *(size for _, size in part.axes), DTYPE_BYTES[part.dtype])
        data = torch.from_numpy(rng.integers(0, 256, shape, np.uint8))
        state[part.name] = data.view(getattr(torch, part.dtype)).squeeze(-1)
    return state


def share(shards: Shards, rank: int, part: Part, whole: torch.Tensor) -> torch.Tensor | None:
    """The oracle: what a rank holds of a whole part, by plain indexing; None if nothing."""
    first, end = shards.layers_of(rank)
    low, high = max(first, part.layers[0]), min(end, part.layers[1])
    if low >= high:
        return None
    names = [name for name, _ in part.axes]
    if "layer" in names:
        axis = 1 + names.index("layer")
        whole = whole.narrow(axis, low - part.first_layer, high - low)
    tensor = shards.parallelism.tensor
    if part.shard_axis is not None:
        axis = 1 + names.index(part.shard_axis)
        cut = min(tensor, part.distinct_shards)
        width = whole.shape[axis] // cut
        index = shards.parallelism.place(rank)[2] * cut // tensor
        whole = whole.narrow(axis, index * width, width)
    return whole


def rank_of(
    shards: Shards, number: int, whole: dict[str, torch.Tensor], seed: int, *, filled: bool
) -> Rank:
    """A rank whose tensors hold its share of ``whole``, or zeros; the order of their axes is
    random, and so are gaps between slots.
    """
    rng = np.random.default_rng(seed)
    rank = Rank(shards, number)
    for part in shards.group.layout.parts:
        held = share(shards, number, part, whole[part.name])
        if held is None:
            continue
        order = [0, *(1 + rng.permutation(held.dim() - 1))]
        cut = held.permute(order)
        gap = int(rng.integers(0, 2))
        tensor = torch.zeros((cut.shape[0], cut.shape[1] + gap, *cut.shape[2:]), dtype=held.dtype)
        tensor = tensor[:, gap:]
        if filled:
            tensor.copy_(cut)
        names = [part.axes[dim - 1][0] for dim in order[1:]]
        rank.tensors[part.name] = tensor.permute(*np.argsort(order))
        rank.buffers.append(buffer_of(tensor, names, part.name, shards, number))
    return rank


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are the same byte for byte, whatever NaNs they hold."""
    ends = [t.contiguous().unsqueeze(-1).view(torch.uint8) for t in (left, right)]
    return torch.equal(*ends)


def flip(tensor: torch.Tensor, *index: int) -> None:
    """Changes one bit of one bfloat16 element, whatever it is."""
    tensor.view(torch.int16)[index] ^= 1


def buffer_planes(layout: Layout, view: np.ndarray, buffers: list[Buffer]) -> Planes:
    """The planes of a rank's tensors that are the runs of ``view``."""
    return planes_of(rows_of(layout, view, buffers))


def store_planes(planes: Planes, view: np.ndarray) -> Planes:
    """The planes of a store of whole blocks that are the runs of ``view``."""
    return cut_planes(planes, view["offset"], view["bytes"])


def copy(target: Planes, targets: np.ndarray, source: Planes, sources: np.ndarray) -> int:
    """One native copy between planes; the bytes that it moved."""
    slots = [
        ffi.from_buffer("int32_t[]", np.ascontiguousarray(s, np.int32)) for s in (targets, sources)
    ]
    status = lib.rdx_copy_blocks(
        *(ffi.from_buffer("rdx_plane[]", target), len(target), slots[0]),
        *(ffi.from_buffer("rdx_plane[]", source), len(source), slots[1]),
        len(sources),
    )
    assert status == lib.RDX_OK, status
    return int(source["bytes"].sum()) * len(sources)


def checksums(planes: Planes, slots: np.ndarray) -> np.ndarray:
    """xxh3-64 of each of these slots, over its planes in order."""
    out = np.empty(len(slots), np.uint64)
    status = lib.rdx_checksum_blocks(
        *(ffi.from_buffer("rdx_plane[]", planes), len(planes)),
        *(ffi.from_buffer("int32_t[]", np.ascontiguousarray(slots, np.int32)), len(slots)),
        ffi.from_buffer("uint64_t[]", out),
    )
    assert status == lib.RDX_OK, status
    return out
