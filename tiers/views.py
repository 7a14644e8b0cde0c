"""Which bytes of a block a transfer moves, and where they lie on both of its sides. A stored block
is a row of runs, one for each (shard piece, layer) of its layout; a tier that holds a view keeps
some of them, one after the other. Here a part becomes offsets and planes, and each run gets its
checksum. Arithmetic over arrays, no Python for each run. Leans on ``Layout.view``; I24 rests on the
sums.

    stored block     | s0 l0 | s0 l1 | s1 l0 | s1 l1 | r l0 | r l1 |     r: held by every rank
    a rank's block           | s1 l0 | s1 l1 | r l0 | r l1 |             view: shard 1, all layers
    a part of both                   | s1 l1 |      | r l1 |             view: shard 1, layer 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.groups import Group
from radix.layout import Layout
from radix.tier import Slots, View
from tiers.transfer import PLANE, Planes, status_text

Offsets = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]
Span = tuple[int, int]

_MOST_CUTS = 4096  # remembered; a model has layers times degrees of them
_MOST_NUMBER = (1 << 31) - 1


def runs_of(layout: Layout) -> int:
    """Checksums of a block: pieces times layers, empty runs among them."""
    return int(layout.runs.shape[0] * layout.runs.shape[1])


def whole_of(layout: Layout) -> View:
    """The view that covers every run."""
    return View((0, layout.layers), (0, layout.store_shards))


def check_view(view: object, group: Group, what: str) -> View:
    """``view``, if the layout of the group has it. ``TypeError``, ``ValueError`` name ``what``."""
    if not isinstance(view, View):
        raise TypeError(f"{what} must be a View, not {type(view).__name__}")
    layout = group.layout
    limits = (
        ("layers", view.layers, layout.layers),
        ("shards", view.shards, layout.store_shards),
    )
    for name, span, end in limits:
        if span[1] > end:
            raise ValueError(
                f"{what}: {name} {span} go beyond group {group.name!r}, which has {end}"
            )
    if not len(layout.view(view.layers, view.shards)):
        raise ValueError(f"{what}: no bytes of group {group.name!r} lie in it")
    return view


def views_of(
    views: Sequence[View | None] | None, groups: Sequence[Group], name: str
) -> tuple[View | None, ...]:
    """The views of tier ``name``, one a group; None: all of each.

    Raises: ``ValueError``, ``TypeError`` for another number of them, or one that a layout lacks.
    """
    if views is None:
        return (None,) * len(groups)
    if len(views) != len(groups):
        raise ValueError(f"tier {name!r}: {len(views)} views, the cache has {len(groups)} groups")
    for view, group in zip(views, groups, strict=True):
        if view is not None:
            check_view(view, group, f"tier {name!r} view")
    return tuple(views)


def view_bytes(layout: Layout, view: View | None) -> int:
    """Bytes of a block of a tier that holds the view."""
    if view is None:
        return layout.block_bytes
    return int(layout.view(view.layers, view.shards)["bytes"].sum())


@dataclass(frozen=True, slots=True)
class Cut:
    """The runs that a transfer moves, in the order of the stored block.

    ``view``: what they are; ``chosen``: their numbers, piece * layers + layer; ``layer`` of each;
    ``above``, ``below``: where each lies in a block of the upper and of the lower tier; ``sizes``:
    bytes of each; ``nbytes``: of all. ``whole``: it is every run of the block; ``all_above``,
    ``all_below``: every run that this side holds.
    """

    view: View
    chosen: Indices
    layer: Indices
    above: Offsets
    below: Offsets
    sizes: Offsets
    nbytes: int
    whole: bool
    all_above: bool
    all_below: bool

    def planes_above(self, planes: Planes) -> Planes:
        """Planes of the upper tier, cut to these runs."""
        return planes if self.all_above else cut_planes(planes, self.above, self.sizes)

    def planes_below(self, planes: Planes) -> Planes:
        """Planes of the lower tier, cut to these runs."""
        return planes if self.all_below else cut_planes(planes, self.below, self.sizes)

    def ranges_above(self) -> Offsets | None:
        """(offset, bytes) of these runs in a block of the upper tier, joined where they touch; None
        where that is all of it.
        """
        return None if self.all_above else np.stack(_joined(self.above, self.sizes), axis=1)

    def by_layer(self) -> list[Cut]:
        """One cut for each layer of the view, ascending; a layer without bytes has no runs."""
        return [self._of_layer(layer) for layer in range(*self.view.layers)]

    def _of_layer(self, layer: int) -> Cut:
        mine = self.layer == layer
        if mine.all():
            return self
        sizes = self.sizes[mine]
        return Cut(
            view=View((layer, layer + 1), self.view.shards),
            chosen=self.chosen[mine],
            layer=self.layer[mine],
            above=self.above[mine],
            below=self.below[mine],
            sizes=sizes,
            nbytes=int(sizes.sum()),
            whole=False,
            all_above=False,
            all_below=False,
        )


class Cuts:
    """The cuts of the groups of one tier, remembered."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._groups = groups
        self._known: dict[tuple[int, View | None, View | None, View | None, bool], Cut] = {}

    def find(
        self,
        group: int,
        part: View | None,
        above: View | None,
        below: View | None,
        what: str,
        *,
        storing: bool = False,
    ) -> Cut:
        """What moves of a block of the group between tiers that hold ``above`` and ``below``.

        ``part`` None: all that both hold. ``storing``: of it only the pieces that begin in its
        shards, so that the stores of all shards bring every run once. Raises: ``TypeError``,
        ``ValueError`` for a part that the layout does not have, of which nothing moves, or that one
        of the two does not hold; ``what`` names the transfer. Cost: O(1) for one that was asked for
        before.
        """
        key = (group, part, above, below, storing)
        cut = self._known.get(key)
        if cut is None:
            cut = _cut_of(self._groups[group], part, above, below, what, storing)
            if len(self._known) >= _MOST_CUTS:
                self._known.clear()
            self._known[key] = cut
        return cut


def _cut_of(
    group: Group,
    part: View | None,
    above: View | None,
    below: View | None,
    what: str,
    storing: bool,
) -> Cut:
    layout = group.layout
    held = [whole_of(layout) if view is None else view for view in (above, below)]
    if part is not None:
        check_view(part, group, f"{what} part")
        for side, view in zip(("upper", "lower"), held, strict=True):
            if not (_within(part.layers, view.layers) and _within(part.shards, view.shards)):
                raise ValueError(
                    f"{what} part {_text(part)} of group {group.name!r}: the {side} tier holds "
                    f"{_text(view)} only"
                )
    else:
        layers, shards = (
            (max(mine[0], theirs[0]), min(mine[1], theirs[1]))
            for mine, theirs in (
                (held[0].layers, held[1].layers),
                (held[0].shards, held[1].shards),
            )
        )
        if layers[0] >= layers[1] or shards[0] >= shards[1]:
            raise ValueError(
                f"{what}: of group {group.name!r} the upper tier holds {_text(held[0])}, the lower "
                f"{_text(held[1])}, which have nothing in common"
            )
        part = View(layers, shards)
    runs = layout.view(part.layers, part.shards, beginning=storing)
    if not len(runs):
        raise ValueError(
            f"{what} {_text(part)} of group {group.name!r}: no piece begins there, another shard "
            "writes what this one holds"
        )
    everything = int(np.count_nonzero(layout.runs[:, :, 1]))
    upper, lower = (_places(layout, view, runs) for view in held)
    return Cut(
        view=part,
        chosen=runs["piece"].astype(np.int64) * layout.layers + runs["layer"],
        layer=runs["layer"].astype(np.int64),
        above=upper[0],
        below=lower[0],
        sizes=runs["bytes"].astype(np.uint64),
        nbytes=int(runs["bytes"].sum()),
        whole=len(runs) == everything,
        all_above=len(runs) == upper[1],
        all_below=len(runs) == lower[1],
    )


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _text(view: View) -> str:
    return f"layers {view.layers} shards {view.shards}"


def _places(layout: Layout, held: View, runs: npt.NDArray[np.void]) -> tuple[Offsets, int]:
    """Where the runs lie in a block of a tier that holds ``held``, and how many it holds."""
    mine = layout.view(held.layers, held.shards)
    starts = np.cumsum(mine["bytes"], dtype=np.uint64) - mine["bytes"]
    return starts[np.searchsorted(mine["offset"], runs["offset"])], len(mine)


def _joined(offsets: Offsets, sizes: Offsets) -> tuple[Offsets, Offsets]:
    """Runs that touch as one."""
    ends = offsets + sizes
    first = np.append(True, offsets[1:] != ends[:-1])
    last = np.append(first[1:], True)
    return offsets[first], ends[last] - offsets[first]


def cut_planes(planes: Planes, offsets: Offsets, sizes: Offsets) -> Planes:
    """The planes of [offset, offset + size) of the concatenation of ``planes``, for runs that
    ascend. Cost: the runs and the planes that they touch.
    """
    offsets, sizes = _joined(offsets, sizes)
    ends = np.cumsum(planes["bytes"], dtype=np.uint64)
    starts = ends - planes["bytes"]
    first = np.searchsorted(ends, offsets, "right")
    counts = np.searchsorted(starts, offsets + sizes, "left") - first
    run = np.repeat(np.arange(len(offsets)), counts)
    plane = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts) + first[run]
    lo = np.maximum(starts[plane], offsets[run])
    hi = np.minimum(ends[plane], (offsets + sizes)[run])
    some = hi > lo  # planes of no bytes are left out
    out = np.zeros(int(np.count_nonzero(some)), PLANE)
    out["base"] = (planes["base"][plane] + lo - starts[plane])[some]
    out["stride"] = planes["stride"][plane][some]
    out["bytes"] = (hi - lo)[some]
    return out


# ---------------------------------------------------------------------- bytes
def copy_blocks(target: Planes, targets: Slots, source: Planes, sources: Slots) -> int:
    """Copies blocks at once, ``sources[i]`` to ``targets[i]``; a native status. Cost: the bytes, in
    the calling thread, without the GIL. Raises ``ValueError`` for another number of either.
    """
    if len(targets) != len(sources):
        raise ValueError(f"{len(sources)} sources, {len(targets)} targets")
    return int(
        lib.rdx_copy_blocks(
            ffi.from_buffer("rdx_plane[]", np.ascontiguousarray(target)),
            len(target),
            ffi.from_buffer("int32_t[]", np.ascontiguousarray(targets, np.int32)),
            ffi.from_buffer("rdx_plane[]", np.ascontiguousarray(source)),
            len(source),
            ffi.from_buffer("int32_t[]", np.ascontiguousarray(sources, np.int32)),
            len(sources),
        )
    )


def checksums(planes: Planes, slots: Slots) -> Sums:
    """xxh3-64 of each block. Cost: the bytes, in the calling thread, without the GIL."""
    slots = np.ascontiguousarray(slots, np.int32)
    out = np.empty(len(slots), np.uint64)
    status = lib.rdx_checksum_blocks(
        ffi.from_buffer("rdx_plane[]", planes),
        len(planes),
        ffi.from_buffer("int32_t[]", slots),
        len(slots),
        ffi.from_buffer("uint64_t[]", out),
    )
    if status != lib.RDX_OK:
        raise ValueError(status_text(status))
    return out


def run_sums(plane: Any, offsets: Offsets, sizes: Offsets, slots: Slots) -> Sums:
    """xxh3-64 of the runs of blocks that lie in one plane: (n, runs).

    Cost: the bytes, and one crossing for each size of run (there are a few).
    """
    base, stride = int(plane["base"]), int(plane["stride"])
    out = np.zeros((len(slots), len(sizes)), np.uint64)
    if len(sizes) == 1:
        out[:, 0] = checksums(_plane(base + int(offsets[0]), stride, int(sizes[0])), slots)
        return out
    if not out.size:
        return out
    # A run is a block too, where its number times a step common to all of them is its place.
    step = math.gcd(stride, *offsets.tolist()) or 1
    first = int(slots.min())
    places = (slots.astype(np.int64) - first)[:, None] * (stride // step)
    places = places + (offsets // np.uint64(step)).astype(np.int64)
    for size in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == size)
        numbers = places[:, mine]
        if numbers.max() <= _MOST_NUMBER:
            found = checksums(
                _plane(base + first * stride, step, size), numbers.astype(np.int32).reshape(-1)
            )
            out[:, mine] = found.reshape(numbers.shape)
            continue
        for run in mine.tolist():  # beyond the range of a number each run is a plane of its own
            out[:, run] = checksums(_plane(base + int(offsets[run]), stride, size), slots)
    return out


def _plane(base: int, stride: int, size: int) -> Planes:
    return np.array([(base, stride, size)], PLANE)
