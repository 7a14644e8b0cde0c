"""Between a rank's tensors and the bytes of a stored block: both sides become planes (base, stride,
bytes), which the native copies gather and scatter in one call. Every buffer carries its layout and
what it holds of it as a tag, and axes are matched by name: nothing is inferred from a shape.

    stored block      [piece 0: heads 0 1 of token 0, of token 1][piece 1: heads 2 3 of ...]
    rank 0 of 1       token 0: heads 0 1 2 3, token 1: heads 0 1 2 3
                      4 planes: heads 0 1 of token 0, of token 1, heads 2 3 of token 0, of token 1
    rank 1 of 2       token 0: heads 2 3, token 1: heads 2 3
                      1 plane, against one plane of the store: piece 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.errors import LayoutMismatchError
from radix.layout import DTYPE_BYTES, LAYER, Layout, Part

Planes = npt.NDArray[np.void]
# rdx_plane of the native header.
PLANE = np.dtype([("base", "<u8"), ("stride", "<u8"), ("bytes", "<u8")])


@dataclass(frozen=True, slots=True)
class Buffer:
    """One rank's tensor of one part, for many slots.

    The tag: ``layout`` (a fingerprint), ``part`` (a name), ``layers`` and ``shards``, the layers
    [first, end) of the group and the store shards [first, end) that it holds. The memory, the
    caller's: slot i begins at ``address + i * slot_stride``; ``axes`` are (name, size, stride in
    bytes) in any order, a layer axis among them unless the part has one layer here.
    """

    layout: bytes
    part: str
    layers: tuple[int, int]
    shards: tuple[int, int]
    address: int
    slot_stride: int
    axes: tuple[tuple[str, int, int], ...]


def buffer_planes(layout: Layout, view: npt.NDArray[np.void], buffers: Sequence[Buffer]) -> Planes:
    """Planes of the tensors that concatenate to the runs of ``view`` (``Layout.view``), in order.

    A copy between them and ``cut_planes`` of a store moves exactly the bytes of the view.
    Raises: ``LayoutMismatchError`` naming the part where a buffer is of another layout, its axes
    are not those of the part at what its tag says, or no buffer holds what the view needs.
    Cost: the planes; they hold for every block, so a caller makes them once.
    """
    places = _places(layout, buffers)
    found: list[Planes] = []
    for run in view:
        piece, layer = int(run["piece"]), int(run["layer"])
        for part in layout.contents(piece, layer):
            buffer = _holder(places, part, layer, layout.spans[piece])
            found.append(_slice_planes(layout, part, buffer, layout.spans[piece], layer))
    return _merged(np.concatenate(found)) if found else np.empty(0, PLANE)


def cut_planes(planes: Planes, view: npt.NDArray[np.void]) -> Planes:
    """Of the planes of whole blocks (``Tier.planes``) those of the runs of ``view``, in order.

    Raises: ``ValueError`` where the view goes beyond the planes. Cost: both.
    """
    sizes = planes["bytes"].astype(np.uint64)
    ends = np.cumsum(sizes, dtype=np.uint64)
    starts = ends - sizes
    low, high = view["offset"], view["offset"] + view["bytes"]
    total = int(ends[-1]) if len(ends) else 0
    if len(view) and int(high.max()) > total:
        raise ValueError(f"view ends at byte {int(high.max())}, the planes at byte {total}")
    first = np.searchsorted(ends, low, side="right")
    counts = np.searchsorted(starts, high, side="left") - first
    run = np.repeat(np.arange(len(view)), counts)
    within = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    plane = first[run] + within
    begin = np.maximum(starts[plane], low[run])
    cut = np.empty(len(run), PLANE)
    cut["base"] = planes["base"][plane] + (begin - starts[plane])
    cut["stride"] = planes["stride"][plane]
    cut["bytes"] = np.minimum(ends[plane], high[run]) - begin
    return _merged(cut[cut["bytes"] > 0])


def _places(layout: Layout, buffers: Sequence[Buffer]) -> dict[str, list[Buffer]]:
    """The buffers of each part, each checked against its tag."""
    parts = {part.name: part for part in layout.parts}
    places: dict[str, list[Buffer]] = {name: [] for name in parts}
    for buffer in buffers:
        if buffer.layout != layout.fingerprint:
            raise LayoutMismatchError(
                f"buffer of part {buffer.part!r}: its layout is {buffer.layout.hex()}, not "
                f"{layout.fingerprint.hex()}"
            )
        if buffer.part not in parts:
            raise LayoutMismatchError(
                f"buffer of part {buffer.part!r}: the layout has no such part"
            )
        _check_axes(layout, parts[buffer.part], buffer)
        places[buffer.part].append(buffer)
    return places


def _check_axes(layout: Layout, part: Part, buffer: Buffer) -> None:
    (first, end), (low, high) = buffer.layers, buffer.shards
    (part_first, part_end), shards = part.layers, layout.store_shards
    if not part_first <= first < end <= part_end or not 0 <= low < high <= shards:
        raise LayoutMismatchError(
            f"buffer of part {part.name!r}: layers [{first}, {end}) and store shards "
            f"[{low}, {high}) are not within [{part_first}, {part_end}) and [0, {shards})"
        )
    expected = dict(part.axes)
    if part.shard_axis is not None:
        begin, stop = _slices(layout, part, buffer.shards)
        cut = part.slices(layout.store_shards)
        expected[part.shard_axis] = expected[part.shard_axis] // cut * (stop - begin)
    expected[LAYER] = end - first
    given = {LAYER: 1} | {name: size for name, size, _ in buffer.axes}
    if given != expected or len({name for name, _, _ in buffer.axes}) != len(buffer.axes):
        raise LayoutMismatchError(
            f"buffer of part {part.name!r}: axes {dict(sorted(given.items()))} are not "
            f"{dict(sorted(expected.items()))}, which layers [{first}, {end}) and store shards "
            f"[{low}, {high}) have"
        )


def _slices(layout: Layout, part: Part, shards: tuple[int, int]) -> tuple[int, int]:
    """The stored slices [first, end) of a part that overlap these store shards."""
    width = layout.store_shards // part.slices(layout.store_shards)
    return shards[0] // width, -(-shards[1] // width)


def _holder(
    places: dict[str, list[Buffer]], part: Part, layer: int, span: tuple[int, int]
) -> Buffer:
    for buffer in places[part.name]:
        overlap = buffer.shards[0] < span[1] and span[0] < buffer.shards[1]
        if overlap and buffer.layers[0] <= layer < buffer.layers[1]:
            return buffer
    raise LayoutMismatchError(
        f"part {part.name!r}: no buffer holds layer {layer} of store shards [{span[0]}, {span[1]})"
    )


def _slice_planes(
    layout: Layout, part: Part, buffer: Buffer, span: tuple[int, int], layer: int
) -> Planes:
    """Planes of one stored slice of one layer in a buffer, in C order of the part's axes."""
    strides = {name: stride for name, _, stride in buffer.axes}
    base = buffer.address + (layer - buffer.layers[0]) * strides.get(LAYER, 0)
    axes = []
    for name, size in part.axes:
        if name == LAYER:
            continue
        if name == part.shard_axis:
            width = span[1] - span[0]
            size //= layout.store_shards // width
            first = _slices(layout, part, buffer.shards)[0]
            base += (span[0] // width - first) * size * strides[name]
        axes.append((size, strides[name]))
    nbytes = DTYPE_BYTES[part.dtype]
    while axes and (axes[-1][1] == nbytes or axes[-1][0] == 1):
        nbytes *= axes.pop()[0]
    offsets = np.zeros(1, np.int64)
    for size, stride in axes:
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    planes = np.empty(len(offsets), PLANE)
    planes["base"] = offsets + base
    planes["stride"] = buffer.slot_stride
    planes["bytes"] = nbytes
    return planes


def _merged(planes: Planes) -> Planes:
    """The same bytes in as few planes as follow one another in memory."""
    ends = planes["base"] + planes["bytes"]
    apart = np.ones(len(planes), np.bool_)
    apart[1:] = (ends[:-1] != planes["base"][1:]) | (planes["stride"][:-1] != planes["stride"][1:])
    merged = planes[apart]
    if len(merged):
        merged["bytes"] = np.add.reduceat(planes["bytes"], np.nonzero(apart)[0])
    return merged
