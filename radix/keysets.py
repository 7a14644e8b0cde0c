"""What the flat store is asked with and answers with: sets of keys of one width, the order in which
they count as used, and the handles that stand for them. A lease and a reservation end exactly once
(I13, I14); one that is dropped is put on a list that the owner drains.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.errors import LeaseError
from radix.flat import FlatCore, Handles
from radix.gate import Gate
from radix.hints import Said
from radix.plan import Pages
from radix.tier import Keys, Slots

HASHED_BYTES = 32
MOST_RECORD_BYTES = 32
MOST_KEY_BYTES = 4096
HASHES = ("sha256", "xxh3")
Mask = npt.NDArray[np.bool_]


def hash_keys(keys: Iterable[bytes], how: str) -> Keys:
    """Keys of any lengths as (n, 32) uint8, for engines whose keys are longer or vary.

    ``how``: ``sha256``, or ``xxh3`` (128 bits and 16 zero bytes: several times faster, and only
    for keys that nobody can choose with intent). Cost: the bytes, one call a key.

    >>> hash_keys([b"a", b"bb"], "xxh3").shape
    (2, 32)
    """
    if how not in HASHES:
        raise ValueError(f"how is {how!r}, expected one of {', '.join(HASHES)}")
    if how == "sha256":
        raw = b"".join([hashlib.sha256(key).digest() for key in keys])
    else:
        raw = b"".join([_xxh3(key) for key in keys])
    return np.frombuffer(bytearray(raw), np.uint8).reshape(-1, HASHED_BYTES)


def _xxh3(key: bytes) -> bytes:
    out = ffi.new("uint8_t[32]")
    lib.rdx_xxh3_128(ffi.from_buffer(key), len(key), out)
    return bytes(ffi.buffer(out))


def width_of(key_bytes: object, persistent: list[str]) -> int:
    """The width of keys; what a record can hold over the ``persistent`` tiers, if there are any."""
    if isinstance(key_bytes, bool) or not isinstance(key_bytes, int):
        raise TypeError(f"key_bytes must be an int, not {type(key_bytes).__name__}")
    most = MOST_RECORD_BYTES if persistent else MOST_KEY_BYTES
    if not 1 <= key_bytes <= most:
        where = f" over the persistent tier {persistent[0]!r}" if persistent else ""
        raise ValueError(f"key_bytes must be 1 to {most}{where}, not {key_bytes}; see hash_keys")
    return key_bytes


def keys_of(name: str, keys: object, width: int) -> Keys:
    """A set of keys as (n, width) uint8, C-contiguous; such arrays pass without a copy.

    Raises ``TypeError`` for another dtype, ``ValueError`` for another shape.
    """
    array = np.asarray(keys)
    if array.dtype != np.uint8:
        raise TypeError(f"{name} must be uint8, not {array.dtype}")
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"{name} must have the shape (n, {width}), not {array.shape}; hash_keys brings keys "
            f"of other widths to {HASHED_BYTES} bytes"
        )
    return np.ascontiguousarray(array)


def positions_of(positions: object, count: int) -> Pages:
    """Positions of keys (blocks before each in its request) as int64; -1 where unknown."""
    if positions is None:
        unknown = np.empty(count, np.int64)
        unknown.fill(-1)
        return unknown
    array = np.asarray(positions)
    if array.shape != (count,):
        raise ValueError(f"positions must have the shape ({count},), not {array.shape}")
    if count and array.dtype.kind not in "iu":
        raise TypeError(f"positions must be integers, not {array.dtype}")
    if count and int(array.min()) < -1:
        raise ValueError(f"positions must be -1 (unknown) or more, not {int(array.min())}")
    return array.astype(np.int64)


def mask_of(name: str, mask: object, count: int) -> Mask:
    """A mask of ``count`` booleans."""
    array = np.asarray(mask)
    if array.shape != (count,) or array.dtype != np.bool_:
        raise ValueError(
            f"{name} must be {count} booleans, not {array.dtype} of shape {array.shape}"
        )
    return array


def deepest_first(positions: Pages) -> npt.NDArray[np.int64]:
    """The order in which keys count as used: the deepest is the oldest and goes first.

    Without positions a set stands in the order of its prompt. Cost: the keys.
    """
    if len(positions) < 2:
        return np.zeros(len(positions), np.int64)
    last_first = np.arange(len(positions) - 1, -1, -1, dtype=np.int64)
    if int(positions.max()) < 0:
        return last_first
    order: npt.NDArray[np.int64] = last_first[np.argsort(-positions[last_first], kind="stable")]
    return order


def names_of(keys: Keys) -> list[bytes]:
    """Each key as bytes. Cost: the keys."""
    if len(keys) < 2:
        return [keys.tobytes()] if len(keys) else []
    names: list[bytes] = keys.view(f"V{keys.shape[1]}").ravel().tolist()
    return names


def first_of_each(names: list[bytes]) -> Mask:
    """Which keys of a set stand in it for the first time. Cost: the keys."""
    first = np.ones(len(names), np.bool_)
    if len(set(names)) < len(names):
        seen: set[bytes] = set()
        for index, name in enumerate(names):
            first[index] = name not in seen
            seen.add(name)
    return first


class FetchState(IntEnum):
    """Of a key that is to be in the first tier: ``HERE`` it is there; ``COMING`` it is on its way;
    ``ABSENT`` no readable tier has it; ``NO_ROOM`` a tier has it, but it cannot be moved now.
    """

    HERE = 0
    COMING = 1
    ABSENT = 2
    NO_ROOM = 3


@dataclass(frozen=True, slots=True)
class Fetch:
    """What ``fetch`` began: the ``KeysDone`` of ``number`` tells how it ended, and ``states[i]``
    is the ``FetchState`` of key i now.
    """

    number: int
    states: npt.NDArray[np.int8]


class FlatLease:
    """Every block of the keys of ``held``, in every group and tier, stays until ``release``.

    ``held[i]``: key i was there and is pinned; ``nodes``: by what the tree knows those. Made by
    ``FlatStore.lease``; never by hand.
    """

    __slots__ = ("__weakref__", "_core", "_dropped", "_leases", "_owner", "held", "nodes")

    def __init__(
        self,
        core: FlatCore,
        nodes: Handles,
        order: npt.NDArray[np.int64],
        dropped: deque[tuple[FlatCore, Handles]],
        owner: Gate,
    ) -> None:
        self._leases: Handles | None = None  # what __del__ reads if the tree refuses
        self._core = core
        self._dropped = dropped
        self._owner = owner
        self.held: Mask = nodes != 0
        self.nodes: Handles = nodes[self.held]
        self._leases = core.lease(nodes[order][self.held[order]])

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self._leases is None

    def release(self) -> None:
        """Gives it back: the keys become the most recently used, the deepest the oldest of them.

        ``LeaseError`` if done before, ``BusyError`` while another thread's call runs. A closed
        store holds nothing any more.
        """
        if self._leases is None:
            raise LeaseError("the lease was released already")
        if not self._owner.closed:
            with self._owner:
                self._core.release(self._leases)
        self._leases = None

    def hint(self, said: Said) -> None:
        """Notes what is said of its keys; those that are gone are passed over. The owner's call."""
        self._core.hint(self.nodes, said)

    def belongs_to(self, owner: Gate) -> bool:
        """Whether it was given by the store with this gate."""
        return self._owner is owner

    def __enter__(self) -> FlatLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._leases is not None:
            self.release()

    def __del__(self) -> None:
        # any thread may end here: appending to a deque takes no lock, the owner drains it
        if self._leases is not None:
            self._dropped.append((self._core, self._leases))


class Reservation:
    """Slots of the first tier that the caller fills: ``slots[j]`` is for ``keys[j]``.

    Of the keys asked for, in their order, ``granted`` got a slot, ``there`` have one already and
    ``coming`` are being filled by somebody else. Ends once, by ``commit`` or ``abort``; one that
    is dropped is aborted. Made by ``FlatStore.reserve``; never by hand.
    """

    __slots__ = (
        "_dropped",
        "coming",
        "granted",
        "group",
        "keys",
        "number",
        "open",
        "positions",
        "slots",
        "there",
    )

    def __init__(
        self,
        number: int,
        group: int,
        wanted: tuple[Keys, Pages, Slots],
        masks: tuple[Mask, Mask, Mask],
        dropped: deque[int],
    ) -> None:
        """``wanted``: the keys granted, their positions and slots; ``masks``: granted, there and
        coming, over all keys asked for.
        """
        self._dropped = dropped
        self.number = number
        self.group = group
        self.keys, self.positions, self.slots = wanted
        self.granted, self.there, self.coming = masks
        self.open = True

    def belongs_to(self, dropped: deque[int]) -> bool:
        """Whether it was given by the owner of this list of dropped ones."""
        return self._dropped is dropped

    def __len__(self) -> int:
        return len(self.slots)

    def __del__(self) -> None:
        # any thread may end here: appending to a deque takes no lock, the owner drains it
        if self.open:
            self._dropped.append(self.number)
