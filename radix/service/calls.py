"""What both clients say and understand: requests as frames, answers as values, refusals as errors.
Pure: it keeps no connection and does no I/O, so that the blocking and the asynchronous client
differ in nothing but how they wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.errors import (
    CacheError,
    CapacityError,
    ClosedError,
    LeaseError,
    NeverFitsError,
    TierError,
)
from radix.keys import as_tokens
from radix.keysets import Mask, keys_of, positions_of
from radix.service.protocol import (
    CAPACITY_NUMBERS,
    EVENT,
    LOST,
    POSITIONS,
    TOKENS,
    Frame,
    Op,
    ProtocolError,
    Status,
    encode,
    numbers_in,
    padded,
    parse_text,
)
from radix.tier import Keys, TierUsage

Offsets = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.uint8]


class ServiceGoneError(CacheError):
    """The service does not answer: it is gone, was restarted, or took too long. What was asked is
    a miss; calls with a result that a miss can say give that instead.
    """


class DeniedError(CacheError):
    """The service does not let this client in, or not into this namespace."""


class ServiceLimitError(CacheError):
    """Beyond a limit of the service: it names which. Retrying does not help."""


@dataclass(frozen=True, slots=True)
class Hit:
    """How far a prompt is there: ``pages`` usable once loaded, ``pool_pages`` of them without."""

    pages: int
    pool_pages: int


MISS = Hit(0, 0)


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a prompt (or keys) reaches as far as it does: of ``asked`` pages ``hit`` are usable,
    ``pool`` of them without loading, ``there`` by group wherever they stand; of the hit's blocks,
    ``tiers`` has them. ``reason``: of the first that is missing, empty where none is.
    """

    asked: int
    hit: int
    pool: int
    there: Mapping[str, int]
    tiers: Mapping[str, int]
    reason: str


GONE = Explained(0, 0, 0, {}, {}, "the service is gone")


@dataclass(frozen=True, slots=True)
class StoredOrRemoved:
    """Blocks that became resident in a tier, or left it: ``ids`` (n, 16 + key_bytes), the root key
    of their namespace and the key; ``first``: the position of the first, -1 where unknown.
    """

    stored: bool
    tier: int
    group: int
    first: int
    ids: Keys


@dataclass(frozen=True, slots=True)
class Told:
    """Events of a store; ``following``: the number to ask from next. ``lost``: some before these
    are gone, and what is resident must be asked for.
    """

    events: tuple[StoredOrRemoved, ...]
    following: int
    lost: bool


@dataclass(frozen=True, slots=True)
class Asking:
    """Keys, or tokens, as they go into a frame: ``raw``, ``items`` of them, and ``flags``."""

    raw: bytes | memoryview
    items: int
    flags: int

    @classmethod
    def of(
        cls, keys: object, tokens: object, key_bytes: int, positions: object = None
    ) -> tuple[Asking, bytes]:
        """Exactly one of keys and tokens; and the bytes of positions, if any."""
        if (keys is None) == (tokens is None):
            raise ValueError("give either keys or tokens")
        if tokens is not None:
            run = as_tokens(tokens)
            return cls(run.tobytes(), len(run), TOKENS), b""
        asked = keys_of("keys", keys, key_bytes)
        flags, data = 0, b""
        if positions is not None:
            data = positions_of(positions, len(asked)).tobytes()
            flags = POSITIONS
        return cls(asked.tobytes(), len(asked), flags), data

    def frame(
        self, op: Op, request: int, data: bytes | memoryview = b"", flags: int = 0, **fields: int
    ) -> bytearray:
        """The request."""
        return encode(
            op, request, self.raw, data, items=self.items, flags=self.flags | flags, **fields
        )


def raise_refusal(frame: Frame) -> None:
    """Raises what the status of an answer stands for; nothing where it is good."""
    status = frame.status
    if status in (Status.OK, Status.PROVE):
        return
    text = bytes(frame.data).decode("utf-8", "replace")
    if status in (Status.CAPACITY, Status.NEVER_FITS):
        raise _short(status, frame, text)
    if status == Status.STALE:
        raise LeaseError(text)
    if status == Status.TIER:
        raise TierError("service", text)
    if status in (Status.CLOSED, Status.DRAINING):
        raise ClosedError(text)
    if status == Status.DENIED:
        raise DeniedError(text)
    if status == Status.LIMIT:
        raise ServiceLimitError(text)
    if status == Status.BAD_REQUEST:
        raise ValueError(text)
    try:
        known = Status(status)
    except ValueError:
        known = Status.BAD_FRAME
    raise ProtocolError(text, known, frame.request)


def _short(status: int, frame: Frame, text: str) -> CacheError:
    """The error of a budget, as the service's own was: its numbers are the keys of the answer."""
    numbers = np.zeros(len(CAPACITY_NUMBERS), np.int64)
    given = np.frombuffer(bytes(frame.keys[: numbers.nbytes // 8 * 8]), np.int64)
    numbers[: len(given)] = given
    error: CacheError
    if status == Status.CAPACITY:
        error = CapacityError("", **dict(zip(CAPACITY_NUMBERS, numbers.tolist(), strict=True)))
    else:
        error = NeverFitsError("", needed=int(numbers[0]), capacity=int(numbers[1]))
    error.args = (text,)
    return error


def tiers_in(frame: Frame, count: int) -> npt.NDArray[np.int32]:
    """The answer of HAS: a tier a key."""
    return numbers_in(frame, np.int8, count).astype(np.int32)


def mask_in(frame: Frame, count: int) -> Mask:
    """An answer of a byte a key."""
    mask: Mask = numbers_in(frame, np.uint8, count) != 0
    return mask


def kept_in(frame: Frame, granted: Mask) -> Mask:
    """The answer of COMMIT, of all keys that were asked for: a byte for each that was ``granted``,
    and beside them one for each other, where the service says more of those than that they are
    there or coming.
    """
    kept: Mask = ~granted
    kept[granted] = mask_in(frame, int(granted.sum()))
    if len(frame.keys) == int(kept.size - granted.sum()):
        kept[~granted] = np.frombuffer(frame.keys, np.uint8) != 0
    return kept


def lengths_in(frame: Frame, count: int) -> npt.NDArray[np.int64]:
    """The answer of LENGTHS."""
    return numbers_in(frame, np.uint32, count).astype(np.int64)


def offsets_in(frame: Frame, groups: int) -> list[Offsets]:
    """The answer of LEASE: where each key's block of each group lies in the pool, -1 where none."""
    keys = frame.argument
    if keys < 0:
        raise ProtocolError(f"a lease of {keys} keys")
    return list(numbers_in(frame, np.int64, groups * keys).reshape(groups, keys).copy())


def blocks_in(frame: Frame, count: int, size: int) -> tuple[Mask, npt.NDArray[np.uint64], Blocks]:
    """The answer of READ: which are there, their checksums, and the bytes of those that are."""
    good = mask_in(frame, count)
    at = padded(count)
    sums = numbers_in(frame, np.uint64, count, at)
    there = int(np.count_nonzero(good))
    blocks = numbers_in(frame, np.uint8, there * size, at + 8 * count).reshape(there, size)
    return good, sums, blocks


def told_in(frame: Frame, key_bytes: int) -> Told:
    """The answer of EVENTS."""
    events, at, width = [], 0, 16 + key_bytes
    for _ in range(frame.items):
        row = np.frombuffer(bytes(numbers_in(frame, np.uint8, EVENT.itemsize, at)), EVENT)[0]
        at += EVENT.itemsize
        ids = numbers_in(frame, np.uint8, int(row["count"]) * width, at).reshape(-1, width).copy()
        at += ids.nbytes
        place = int(row["tier"]), int(row["group"]), int(row["first"])
        events.append(StoredOrRemoved(bool(row["stored"]), *place, ids))
    return Told(tuple(events), frame.number, bool(frame.flags & LOST))


def explained_in(frame: Frame) -> Explained:
    """The answer of EXPLAIN. What a newer service tells besides is left out; ``ProtocolError``
    where something is missing.
    """
    told = parse_text(frame.keys, frame.request)
    names = [field.name for field in fields(Explained)]
    missing = [name for name in names if name not in told]
    if missing:
        what = f"EXPLAIN is answered without {', '.join(missing)}"
        raise ProtocolError(what, Status.BAD_FRAME, frame.request)
    return Explained(**{name: told[name] for name in names})


def usage_in(told: Mapping[str, Any]) -> dict[str, TierUsage]:
    """What each tier takes, of what STAT tells."""
    return {
        name: TierUsage(tier["used_bytes"], tier["limit_bytes"], tuple(tier["used_blocks"]))
        for name, tier in told["tiers"].items()
    }


def runs_of(runs: Sequence[object], key_bytes: int) -> tuple[Keys, bytes]:
    """Runs of keys one after the other, and their lengths as they go into LENGTHS."""
    parts = [keys_of(f"runs[{i}]", run, key_bytes) for i, run in enumerate(runs)]
    whole = np.concatenate(parts) if parts else np.empty((0, key_bytes), np.uint8)
    return whole, np.array([len(part) for part in parts], np.uint32).tobytes()
