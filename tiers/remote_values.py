"""What lies in a distributed backend: one value for each shard piece of a block, under a name that
says which block it is, behind a header that says it again and carries checksums. Whatever does not
verify (cut short, foreign, of another format or layout, a bit that turned over) is told apart from
what was stored, so that it is a miss. Keeps I24 for bytes that other programs and machines held.

    name     prefix {digest of the block} piece          digest: xxh3-128, or sha256
    value    | header, 160 bytes | payload: the runs of one piece, all layers, as in the block |

    header   magic 8 | version 2 | header bytes 2 | group 2 | piece 2 | key bytes 1 | 3 zero
             space 32 | fingerprint 16 | epoch 16 | key 32 | payload bytes 8 | payload xxh3-128 16
             12 zero | guard 8: xxh3-64 of all before it

The braces stand in the name: a Redis cluster keeps all pieces of a block on one node for them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from radix._native import ffi, lib
from radix.groups import Group
from radix.tier import Keys, Records

MAGIC = b"RDXREMOT"
VERSION = 1
_HEADER = struct.Struct("<8sHHHHB3x32s16s16s32sQ16s12x")
_GUARD = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _GUARD.size
DIGESTS = {"xxh3": 16, "sha256": 32}
EPOCH_BYTES = 16
MOST_KEY_BYTES = 32
Span = tuple[int, int]  # offset, bytes


def pieces_of(group: Group) -> list[Span]:
    """Where each shard piece of a stored block lies: (offset, bytes), layers one after another; of
    no bytes where no layer has any.
    """
    runs = group.layout.runs.astype(np.int64)
    return [(int(piece[0, 0]), int(piece[:, 1].sum())) for piece in runs]


@dataclass(frozen=True, slots=True)
class Row:
    """Where the values of some ``pieces`` of one block lie in staging memory, one after the other:
    at ``places``, multiples of 32 bytes; ``sizes``: of their payloads; ``nbytes``: of the row.
    """

    pieces: tuple[int, ...]
    places: tuple[int, ...]
    sizes: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, spans: list[Span], pieces: tuple[int, ...]) -> Row:
        """The row of these pieces, ascending, of blocks whose pieces lie at ``spans``."""
        places, end = [], 0
        for piece in pieces:
            places.append(end)
            end += -(-(HEADER_BYTES + spans[piece][1]) // 32) * 32
        sizes = tuple(spans[piece][1] for piece in pieces)
        return cls(pieces, tuple(places), sizes, end)

    def views(self, memory: memoryview, row: int) -> list[memoryview]:
        """The values of one row."""
        start = row * self.nbytes
        return [
            memory[start + place : start + place + HEADER_BYTES + size]
            for place, size in zip(self.places, self.sizes, strict=True)
        ]


def space_of(namespace: bytes) -> bytes:
    """The digest by which values name a namespace. Cost: its length."""
    return hashlib.sha256(b"radix-space-1" + namespace).digest()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which blocks: (n, 16 or 32) digests for their names, and what their headers say of each;
    ``space``: of all of them.
    """

    space: bytes
    digests: Keys
    keys: Keys
    key_bytes: int

    def __len__(self) -> int:
        return len(self.digests)


def epoch_name(prefix: str) -> str:
    """Under which the epoch of all who share a prefix stands."""
    return f"{prefix}:epoch"


class Names:
    """How one deployment names its values: ``prefix`` keeps it apart from others, ``epoch`` from
    what it stored before its last reset. ``digest``: one of ``DIGESTS``.
    """

    def __init__(self, prefix: str, digest: str, groups: tuple[Group, ...]) -> None:
        self.prefix = prefix
        self.digest = digest
        self._groups = [
            b"radix-remote-1" + number.to_bytes(2, "little") + group.layout.fingerprint
            for number, group in enumerate(groups)
        ]
        self._spaces: dict[bytes, bytes] = {}

    @property
    def epoch_name(self) -> str:
        """Under which the epoch of the deployment stands."""
        return epoch_name(self.prefix)

    def blocks(self, group: int, records: Records, epoch: bytes) -> Blocks:
        """The blocks that records are of. Where their pages are known they are in the digest:
        pages that are sha256 digests of all before them make it as strong. Cost: the records.
        """
        space = self._spaces.get(records.namespace)
        if space is None:
            if len(self._spaces) > 4096:
                self._spaces.clear()
            space = self._spaces[records.namespace] = space_of(records.namespace)
        head = self._groups[group] + epoch + space
        keys = np.ascontiguousarray(records.keys)
        rows = keys if records.pages is None else np.concatenate((keys, records.pages), axis=1)
        raw, width = rows.tobytes(), rows.shape[1]
        parts = [head + raw[at : at + width] for at in range(0, len(raw), width)]
        if self.digest == "sha256":
            digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        else:
            digests = b"".join(map(_xxh3_128, parts))
        shape = len(parts), DIGESTS[self.digest]
        return Blocks(space, np.frombuffer(digests, np.uint8).reshape(shape), keys, keys.shape[1])

    def name(self, digest: bytes, piece: int) -> str:
        """Of the value of one piece."""
        return f"{self.prefix}:{{{digest.hex()}}}:{piece}"


def _xxh3_128(data: bytes) -> bytes:
    out = ffi.new("uint8_t[16]")
    lib.rdx_xxh3_128(data, len(data), out)
    return bytes(ffi.buffer(out))


class Values:
    """Writes and verifies the values of one group."""

    def __init__(self, number: int, group: Group) -> None:
        self._number = number
        self._fingerprint = group.layout.fingerprint

    def _head(
        self, space: bytes, epoch: bytes, key: bytes, piece: int, size: int, digest: bytes
    ) -> bytes:
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self._number,
            piece,
            len(key),
            space,
            self._fingerprint,
            epoch,
            key,
            size,
            digest,
        )
        return head + _GUARD.pack(int(lib.rdx_xxh3_64(ffi.from_buffer(head), len(head))))

    def seal(self, value: memoryview, space: bytes, epoch: bytes, key: bytes, piece: int) -> None:
        """Writes the header before the payload that lies in ``value`` already. Cost: its bytes."""
        digest = _digest(value[HEADER_BYTES:])
        size = len(value) - HEADER_BYTES
        value[:HEADER_BYTES] = self._head(space, epoch, key, piece, size, digest)

    def verify(self, value: memoryview, space: bytes, epoch: bytes, key: bytes, piece: int) -> bool:
        """Whether ``value`` is what ``seal`` made of this piece of this block. Cost: its bytes."""
        digest = _digest(value[HEADER_BYTES:])
        size = len(value) - HEADER_BYTES
        return bytes(value[:HEADER_BYTES]) == self._head(space, epoch, key, piece, size, digest)


def _digest(payload: memoryview) -> bytes:
    out = ffi.new("uint8_t[16]")
    lib.rdx_xxh3_128(ffi.from_buffer(payload), len(payload), out)
    return bytes(ffi.buffer(out))


def is_epoch(value: bytes) -> bool:
    """Whether bytes read under ``epoch_name`` are what ``sealed_epoch`` makes."""
    return len(value) == EPOCH_BYTES + 16 and value == sealed_epoch(value[:EPOCH_BYTES])


def sealed_epoch(epoch: bytes) -> bytes:
    """An epoch with a checksum, as it stands in the backend."""
    return epoch + _xxh3_128(b"radix-epoch-1" + epoch)
