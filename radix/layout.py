"""What the bytes of a block are: a tuple of parts, where each of their slices lies, and the
fingerprint that tells two layouts apart. "Same" is decided here and nowhere else: two blocks are
the same only when their layouts have one fingerprint, never because they share a size. Keeps no
invariant of its own; I24, I25 and the namespace rules lean on it.

A part is cut along its shard axis into min(``store_shards``, ``distinct_shards``) equal slices,
each stored once; parts that are cut alike lie in the same *pieces*, finest first. One piece of one
layer is one *run* of bytes: it is stored, checksummed and read as a whole. Four store shards of a
recurrent state with 8 heads, keys of 2 KV heads and a latent that every rank holds:

    store shard      0         1         2         3
    state      | piece 0 | piece 1 | piece 2 | piece 3 |     2 heads in each
    keys       |      piece 4      |      piece 5      |     1 KV head in each
    latent     |                piece 6                |     the whole

    a block: piece 0 [layer 0][layer 1].. piece 1 [layer 0][layer 1].. ... piece 6 [layer 0]..

A reader of store shards [1, 2) of all layers needs pieces 1, 4 and 6, and nothing else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

LAYER = "layer"
# One run of a view: where it lies in the stored block. ``piece``, ``layer``: row and column of
# ``Layout.runs``; ``offset``, ``bytes``: bytes from the start of the block.
RUN = np.dtype([("piece", "<u4"), ("layer", "<u4"), ("offset", "<u8"), ("bytes", "<u8")])

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor's share of a block.

    ``axes`` are (name, size) pairs, outermost first, of the *unsharded* block; ``shard_axis``
    names the axis that ranks divide, ``distinct_shards`` into how many different slices at most
    (1: every rank holds the same bytes, a declared replica set). An axis named "layer" counts the
    layers of the group that the part belongs to, from ``first_layer`` on; without one it belongs
    to ``first_layer`` alone.
    """

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    shard_axis: str | None = None
    distinct_shards: int = 1
    first_layer: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("part name must not be empty")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(
                f"part {self.name!r}: dtype {self.dtype!r} is not one of "
                f"{', '.join(sorted(DTYPE_BYTES))}"
            )
        if not self.axes:
            raise ValueError(f"part {self.name!r}: a group without bytes (no axes)")
        for axis, size in self.axes:
            _positive(f"part {self.name!r} axis {axis!r}", size)
        _positive(f"part {self.name!r} distinct_shards", self.distinct_shards)
        first = self.first_layer
        if isinstance(first, bool) or not isinstance(first, int):
            raise TypeError(f"part {self.name!r}: first_layer must be an int, not {first!r}")
        if first < 0:
            raise ValueError(f"part {self.name!r}: first_layer must not be negative, not {first}")
        sizes = dict(self.axes)
        if len(sizes) != len(self.axes):
            raise ValueError(f"part {self.name!r}: two axes of one name")
        if self.shard_axis is None:
            if self.distinct_shards != 1:
                raise ValueError(f"part {self.name!r}: distinct_shards needs a shard_axis")
        elif self.shard_axis not in sizes:
            raise ValueError(f"part {self.name!r}: shard_axis {self.shard_axis!r} is not an axis")
        elif self.shard_axis == LAYER:
            raise ValueError(
                f"part {self.name!r}: shard_axis must not be {LAYER!r}: stages divide layers"
            )
        elif sizes[self.shard_axis] % self.distinct_shards:
            raise ValueError(
                f"part {self.name!r}: {self.distinct_shards} shards do not divide axis "
                f"{self.shard_axis!r} of {sizes[self.shard_axis]}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the unsharded part of one block."""
        total = DTYPE_BYTES[self.dtype]
        for _, size in self.axes:
            total *= size
        return total

    @property
    def layers(self) -> tuple[int, int]:
        """The layers [first, end) of the group that this part belongs to."""
        return self.first_layer, self.first_layer + dict(self.axes).get(LAYER, 1)

    def slices(self, degree: int) -> int:
        """How many different slices ``degree`` equal shards make of it: the lesser of ``degree``
        and ``distinct_shards``. ``ValueError`` where neither divides the other.
        """
        fewer, more = sorted((degree, self.distinct_shards))
        if more % fewer:
            raise ValueError(
                f"part {self.name!r}: its {self.distinct_shards} distinct shards over "
                f"{self.shard_axis!r} and {degree} shards do not divide each other"
            )
        return fewer


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a block, in order, and the finest degree at which blocks are kept.

    Where bytes lie: ``pieces``, ``layers``, ``runs``, ``view``, ``contents``. What is the same:
    ``fingerprint``, of the unsharded block and ``store_shards``, never of the degree of a run.
    Within a run the parts follow one another in their order, each in C order of its axes without
    the layer axis, the shard axis cut to its slice.
    """

    parts: tuple[Part, ...]
    store_shards: int = 1
    fingerprint: bytes = field(init=False, repr=False, compare=False)
    layers: int = field(init=False, repr=False, compare=False)
    spans: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    runs: npt.NDArray[np.uint64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("layout: a group without bytes (no parts)")
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"layout: two parts of one name in {names}")
        _positive("store_shards", self.store_shards)
        cuts = sorted({part.slices(self.store_shards) for part in self.parts}, reverse=True)
        spans = [_spans(self.store_shards, cut) for cut in cuts]
        object.__setattr__(self, "layers", max(part.layers[1] for part in self.parts))
        object.__setattr__(self, "spans", tuple(span for row in spans for span in row))
        object.__setattr__(self, "fingerprint", self._fingerprint())
        object.__setattr__(self, "runs", self._runs(cuts))

    def _fingerprint(self) -> bytes:
        # A block of one piece and one layer lies as it did before there were runs.
        version = 1 if self.pieces == self.layers == 1 else 2
        text = [f"radix-layout-{version};{self.store_shards}"]
        for part in self.parts:
            axes = ",".join(f"{len(axis)}:{axis}={size}" for axis, size in part.axes)
            first = f";{part.first_layer}" if version > 1 else ""
            text.append(
                f"{len(part.name)}:{part.name};{part.dtype};{axes};"
                f"{part.shard_axis or ''};{part.distinct_shards}{first}"
            )
        return hashlib.sha256("|".join(text).encode()).digest()[:16]

    def _runs(self, cuts: list[int]) -> npt.NDArray[np.uint64]:
        sizes = np.zeros((self.pieces, self.layers), np.uint64)
        first = dict(zip(cuts, np.cumsum([0, *cuts]), strict=False))
        for part in self.parts:
            cut, (lo, hi) = part.slices(self.store_shards), part.layers
            rows = slice(first[cut], first[cut] + cut)
            sizes[rows, lo:hi] += np.uint64(part.nbytes // (cut * (hi - lo)))
        ends = np.cumsum(sizes, dtype=np.uint64).reshape(sizes.shape)
        runs = np.stack([ends - sizes, sizes], axis=2)
        runs.setflags(write=False)
        return runs

    @property
    def pieces(self) -> int:
        """Pieces of a stored block: ``store_shards`` where every part has as many distinct shards
        or more; fewer or more where some are held by several ranks.
        """
        return len(self.spans)

    @property
    def block_bytes(self) -> int:
        """Bytes of one unsharded block: the sum over its parts, each byte stored once."""
        return sum(part.nbytes for part in self.parts)

    def view(
        self,
        layers: tuple[int, int] | None = None,
        shards: tuple[int, int] | None = None,
        *,
        beginning: bool = False,
    ) -> npt.NDArray[np.void]:
        """The runs that a reader of layers [lo, hi) and store shards [lo, hi) needs.

        Each that holds a byte of what it reads, replicated parts among them; in the order of the
        block, each once, without empty ones (dtype ``RUN``; the caller's). None: all.
        ``beginning``: only of the pieces that begin in these shards, which is what their writer
        writes, so that the writers of all shards write every run once.
        Raises: ``ValueError`` for a range that is empty or goes beyond the layout.
        Cost: pieces x layers.
        """
        low, high = _range("layers", layers, self.layers)
        left, right = _range("shards", shards, self.store_shards)
        first, end = np.array(self.spans).T
        needed = (first < right) & ((first >= left) if beginning else (end > left))
        chosen = (self.runs[:, :, 1] > 0) & needed[:, None]
        chosen[:, :low] = False
        chosen[:, high:] = False
        piece, layer = np.nonzero(chosen)
        view = np.empty(len(piece), RUN)
        view["piece"], view["layer"] = piece, layer
        view["offset"], view["bytes"] = self.runs[piece, layer].T
        return view

    def contents(self, piece: int, layer: int) -> tuple[Part, ...]:
        """The parts that have a slice in this run, in the order of its bytes."""
        low, high = self.spans[piece]
        cut = self.store_shards // (high - low)
        return tuple(
            part
            for part in self.parts
            if part.slices(self.store_shards) == cut and part.layers[0] <= layer < part.layers[1]
        )

    @classmethod
    def opaque(cls, block_bytes: int) -> Layout:
        """A layout that says only how many bytes a block has."""
        return cls((Part("bytes", "uint8", (("byte", _positive("block_bytes", block_bytes)),)),))


def _spans(shards: int, cut: int) -> list[tuple[int, int]]:
    """The store shards [first, end) of each of ``cut`` equal slices."""
    width = shards // cut
    return [(index * width, (index + 1) * width) for index in range(cut)]


def _range(name: str, given: tuple[int, int] | None, end: int) -> tuple[int, int]:
    if given is None:
        return 0, end
    low, high = given
    if not 0 <= low < high <= end:
        raise ValueError(f"{name} must be a range within [0, {end}), not [{low}, {high})")
    return low, high
