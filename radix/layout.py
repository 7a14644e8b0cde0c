"""What the bytes of a block are: a tuple of parts, and the fingerprint that tells two layouts
apart. "Same" is decided here and nowhere else: two blocks are the same only when their layouts
have one fingerprint, never because they share a size. Keeps no invariant of its own; I24 and the
namespace rules lean on the fingerprint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

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
    names the axis that ranks divide, ``distinct_shards`` into how many different pieces (1: every
    rank holds the same bytes, a declared replica set).
    """

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    shard_axis: str | None = None
    distinct_shards: int = 1

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
        sizes = dict(self.axes)
        if len(sizes) != len(self.axes):
            raise ValueError(f"part {self.name!r}: two axes of one name")
        if self.shard_axis is None:
            if self.distinct_shards != 1:
                raise ValueError(f"part {self.name!r}: distinct_shards needs a shard_axis")
        elif self.shard_axis not in sizes:
            raise ValueError(f"part {self.name!r}: shard_axis {self.shard_axis!r} is not an axis")
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


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a block, in order, and the finest degree at which blocks are kept.

    ``store_shards`` pieces a block; the fingerprint covers the unsharded block and
    ``store_shards``, never the degree of a run.
    """

    parts: tuple[Part, ...]
    store_shards: int = 1
    fingerprint: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("layout: a group without bytes (no parts)")
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"layout: two parts of one name in {names}")
        _positive("store_shards", self.store_shards)
        object.__setattr__(self, "fingerprint", self._fingerprint())

    def _fingerprint(self) -> bytes:
        text = [f"radix-layout-1;{self.store_shards}"]
        for part in self.parts:
            axes = ",".join(f"{len(axis)}:{axis}={size}" for axis, size in part.axes)
            text.append(
                f"{len(part.name)}:{part.name};{part.dtype};{axes};"
                f"{part.shard_axis or ''};{part.distinct_shards}"
            )
        return hashlib.sha256("|".join(text).encode()).digest()[:16]

    @property
    def block_bytes(self) -> int:
        """Bytes of one unsharded block: the sum over its parts."""
        return sum(part.nbytes for part in self.parts)

    @classmethod
    def opaque(cls, block_bytes: int) -> Layout:
        """A layout that says only how many bytes a block has."""
        return cls((Part("bytes", "uint8", (("byte", _positive("block_bytes", block_bytes)),)),))
