"""What a client does, written once for both kinds of waiting: each call is steps that yield what is
asked of the service and are sent what it answered, or thrown what it refused. Nothing here waits or
touches a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from radix.arguments import number_below, seconds_of, slots_of
from radix.errors import CapacityError, ClosedError, LeaseError, NeverFitsError, RequestError
from radix.groups import Group, check_groups
from radix.keys import Namespace
from radix.keysets import Mask, keys_of, positions_of
from radix.service.calls import (
    GONE,
    MISS,
    Asking,
    Blocks,
    Explained,
    Hit,
    ServiceGoneError,
    Told,
    blocks_in,
    explained_in,
    kept_in,
    lengths_in,
    mask_in,
    offsets_in,
    runs_of,
    tiers_in,
    told_in,
)
from radix.service.held import OpenedStore, Room, ServiceLease, memory_planes, rows_planes
from radix.service.protocol import (
    DIGEST_BYTES,
    DURABLE,
    HEADER_BYTES,
    LOAD,
    MOST_FRAME_BYTES,
    TOKENS,
    Frame,
    Op,
    encode,
    numbers_in,
    parse_text,
)
from radix.tier import Keys, Slots
from tiers.slab import stride_bytes
from tiers.transfer import Planes
from tiers.views import checksums, copy_blocks

WRITE_TIMEOUT_S = 90.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: ``make`` writes it for a store and a request (None: of the store alone, which
    is opened if it was not), ``read`` takes from the answer what is wanted, while its bytes are
    there. ``store``: only in its connection; else of the store of ``namespace``, and once more
    where the connection had ended.
    """

    namespace: Namespace | None
    make: Callable[[int, int], bytearray] | None
    read: Callable[[OpenedStore, Frame], Any]
    timeout_s: float | None = None
    store: OpenedStore | None = None


Steps = Generator[Ask, Any, T]


@dataclass(frozen=True, slots=True)
class Terms:
    """How keys are brought: in which namespace, where they stand, when and how soon it is told."""

    namespace: Namespace | None
    positions: object
    durable: bool
    timeout_s: float = WRITE_TIMEOUT_S


def _nothing(store: OpenedStore, frame: Frame) -> None:
    return None


class Operations:
    """The calls of a client as steps. ``local``: over the UNIX socket, so that memory is shared."""

    def __init__(
        self,
        groups: Sequence[Group],
        key_bytes: int,
        page_tokens: int,
        memory: Sequence[Sequence[npt.NDArray[Any]]] | None,
        local: bool,
    ) -> None:
        self.groups = check_groups(groups)
        self.page_tokens = page_tokens
        self.key_bytes = DIGEST_BYTES if page_tokens else key_bytes
        self.local = local
        self._memory = None if memory is None else memory_planes(memory, self.groups)
        self._kept = memory  # whose bytes the planes name
        self._rows = [len(arrays[0]) for arrays in memory or ()]

    def group(self, group: object) -> int:
        """The number of a group. ``ValueError`` beyond them."""
        return number_below("group", group, len(self.groups))

    def _lent(self, rows: object, count: int, group: int) -> tuple[Slots, Planes]:
        if self._memory is None:
            raise RequestError("rows: the client was made without memory")
        lent, most = slots_of("rows", rows), self._rows[group]
        if len(lent) != count or (count and int(lent.max()) >= most):
            raise ValueError(f"rows must be {count} rows below {most}, one a key")
        return lent, self._memory[group]

    def _pieces(self, count: int, group: int, most: int) -> Iterator[slice]:
        """Keys that fit into ``most`` bytes with their blocks, a run at a time."""
        each = 2 * self.key_bytes + 32 + stride_bytes(self.groups[group].block_bytes)
        step = max(1, (most - HEADER_BYTES - 64) // each)
        for first in range(0, count, step):
            yield slice(first, min(first + step, count))

    def _most(self, namespace: Namespace | None) -> Steps[int]:
        """The most bytes that go at once, through the staging memory or in a frame."""

        def read(store: OpenedStore, frame: Frame) -> int:
            staging = store.staging
            return store.link.most_bytes if staging is None else staging.nbytes // 2

        try:
            most: int = yield Ask(namespace, None, read)
        except ServiceGoneError:
            return MOST_FRAME_BYTES
        return most

    # ------------------------------------------------------------ asking
    def has(
        self,
        keys: object,
        group: object,
        namespace: Namespace | None,
        positions: object,
        seek: bool,
    ) -> Steps[Slots]:
        """The first tier of each key."""
        asked, data = Asking.of(keys, None, self.key_bytes, positions)
        number = self.group(group)

        def make(store: int, request: int) -> bytearray:
            flags = LOAD if seek else 0
            return asked.frame(Op.HAS, request, data, flags, store=store, group=number)

        try:
            found: Slots = yield Ask(namespace, make, lambda _, f: tiers_in(f, asked.items))
        except ServiceGoneError:
            return np.full(asked.items, -1, np.int32)
        return found

    def valid_lengths(
        self, runs: Sequence[object], group: object, namespace: Namespace | None
    ) -> Steps[npt.NDArray[np.int64]]:
        """How far each run reaches."""
        keys, data = runs_of(runs, self.key_bytes)
        number = self.group(group)

        def make(store: int, request: int) -> bytearray:
            given = {"store": store, "group": number, "items": len(keys)}
            return encode(Op.LENGTHS, request, keys, data, **given)

        found: npt.NDArray[np.int64]
        try:
            found = yield Ask(namespace, make, lambda _, f: lengths_in(f, len(runs)))
        except ServiceGoneError:
            return np.zeros(len(runs), np.int64)
        return found

    def lookup(
        self, tokens: object, keys: object, namespace: Namespace | None, leave: int, seek: bool
    ) -> Steps[Hit]:
        """How far a prompt is there."""
        asked, _ = Asking.of(keys, tokens, self.key_bytes)

        def make(store: int, request: int) -> bytearray:
            flags = LOAD if seek else 0
            return asked.frame(Op.LOOKUP, request, b"", flags, store=store, argument=leave)

        try:
            hit: Hit = yield Ask(namespace, make, lambda _, f: Hit(f.items, f.number))
        except ServiceGoneError:
            return MISS
        return hit

    def explain(
        self, tokens: object, keys: object, namespace: Namespace | None, leave: int
    ) -> Steps[Explained]:
        """Why it is no further."""
        asked, _ = Asking.of(keys, tokens, self.key_bytes)

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.EXPLAIN, request, store=store, argument=leave)

        try:
            told: Explained = yield Ask(namespace, make, lambda _, f: explained_in(f))
        except ServiceGoneError:
            return GONE
        return told

    def touch(self, keys: object, namespace: Namespace | None, positions: object) -> Steps[None]:
        """The keys count as used."""
        asked, data = Asking.of(keys, None, self.key_bytes, positions)
        with suppress(ServiceGoneError):
            yield Ask(namespace, lambda s, r: asked.frame(Op.TOUCH, r, data, store=s), _nothing)

    # ------------------------------------------------------------ reading
    def lease(
        self,
        asked: Asking,
        groups: Sequence[int] | None,
        namespace: Namespace | None,
        leave: int,
        load: bool,
        timeout_s: float | None,
        release: Callable[[ServiceLease], None],
    ) -> Steps[ServiceLease]:
        """Pins what is there, in the pool."""
        if not self.local:
            raise RequestError("lease needs shared memory; over TCP use read or load")
        every = range(len(self.groups))
        wanted = list(every) if groups is None else sorted({*map(self.group, groups)})
        mask = sum(1 << group for group in wanted)
        flags = LOAD if load else 0

        def make(store: int, request: int) -> bytearray:
            return asked.frame(
                *(Op.LEASE, request, b"", flags), store=store, number=mask, argument=leave
            )

        def read(store: OpenedStore, frame: Frame) -> ServiceLease:
            rows = dict(zip(wanted, offsets_in(frame, len(wanted)), strict=True))
            return ServiceLease(store, frame.number, frame.items, rows, self.groups, release)

        try:
            leased: ServiceLease = yield Ask(namespace, make, read, timeout_s)
        except ServiceGoneError:
            count = 0 if asked.flags & TOKENS else asked.items
            nothing = {group: np.full(count, -1, np.int64) for group in wanted}
            return ServiceLease(None, 0, 0, nothing, self.groups, release)
        return leased

    def read(
        self,
        asked: Asking,
        group: object,
        namespace: Namespace | None,
        timeout_s: float | None,
    ) -> Steps[tuple[Mask, Blocks]]:
        """Which blocks are there, and their bytes, verified."""
        number = self.group(group)
        size = self.groups[number].block_bytes
        items = asked.items
        if asked.flags & TOKENS:
            items //= max(1, self.page_tokens)

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.READ, request, store=store, group=number)

        def take(store: OpenedStore, frame: Frame) -> tuple[Mask, Blocks]:
            good, sums, blocks = blocks_in(frame, items, size)
            return _verified(good, sums, blocks.copy())

        try:
            found: tuple[Mask, Blocks] = yield Ask(namespace, make, take, timeout_s)
        except ServiceGoneError:
            return np.zeros(items, np.bool_), np.empty((0, size), np.uint8)
        return found

    def load(
        self,
        keys: object,
        rows: object,
        group: object,
        namespace: Namespace | None,
        timeout_s: float | None,
        release: Callable[[ServiceLease], None],
    ) -> Steps[Mask]:
        """Keys into rows of the engine's memory."""
        number = self.group(group)
        asked = keys_of("keys", keys, self.key_bytes)
        lent, target = self._lent(rows, len(asked), number)
        if self.local:
            asking, _ = Asking.of(asked, None, self.key_bytes)
            leased = yield from self.lease(asking, [number], namespace, 0, True, timeout_s, release)
            try:
                return leased.copy_to(number, target, lent)
            finally:
                leased.release()
        good = np.zeros(len(asked), np.bool_)
        most = yield from self._most(namespace)
        for piece in self._pieces(len(asked), number, most):
            asking, _ = Asking.of(asked[piece], None, self.key_bytes)
            there, blocks = yield from self.read(asking, number, namespace, timeout_s)
            if len(blocks):
                order = np.arange(len(blocks), dtype=np.int32)
                copied = copy_blocks(target, lent[piece][there], rows_planes(blocks), order)
                good[piece] = there if copied == 0 else False
        return good

    # ------------------------------------------------------------ writing
    def reserve(
        self,
        keys: object,
        tokens: object,
        group: object,
        namespace: Namespace | None,
        positions: object,
    ) -> Steps[Room]:
        """Room for keys that are new."""
        if not self.local:
            raise RequestError("reserve needs shared memory; over TCP use write or store")
        number = self.group(group)
        asked, data = Asking.of(keys, tokens, self.key_bytes, positions)
        count = asked.items if tokens is None else asked.items // max(1, self.page_tokens)

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.RESERVE, request, data, store=store, group=number)

        def read(store: OpenedStore, frame: Frame) -> Room:
            offsets = numbers_in(frame, np.int64, count).copy()
            return Room(store, frame.number, self.groups[number], number, offsets)

        room: Room = yield Ask(namespace, make, read)
        return room

    def commit(
        self, room: Room, good: object, durable: bool, timeout_s: float = WRITE_TIMEOUT_S
    ) -> Steps[Mask]:
        """The room is written."""
        granted, data = room.granted, b""
        if good is not None:
            mask = np.asarray(good, np.bool_)
            if mask.shape != granted.shape:
                raise ValueError(f"good must be {len(granted)} booleans, not {mask.shape}")
            data = mask[granted].astype(np.uint8).tobytes()
        flags = DURABLE if durable else 0

        def make(_: int, request: int) -> bytearray:
            return encode(Op.COMMIT, request, data=data, number=room.number, flags=flags)

        kept: Mask
        kept = yield Ask(None, make, lambda _, f: kept_in(f, granted), timeout_s, room.store)
        return kept

    def abort(self, room: Room) -> Steps[None]:
        """The room will not be written."""

        def make(_: int, request: int) -> bytearray:
            return encode(Op.ABORT, request, number=room.number)

        yield Ask(None, make, _nothing, None, room.store)

    def write(
        self, keys: object, blocks: npt.NDArray[Any], group: object, terms: Terms
    ) -> Steps[Mask]:
        """Blocks with their bytes."""
        number = self.group(group)
        asked = keys_of("keys", keys, self.key_bytes)
        rows = np.ascontiguousarray(blocks).view(np.uint8)
        size = self.groups[number].block_bytes
        if rows.shape != (len(asked), size):
            raise ValueError(f"blocks must be uint8 of ({len(asked)}, {size}), not {rows.shape}")
        order = np.arange(len(asked), dtype=np.int32)
        kept = yield from self._bring(asked, number, rows_planes(rows), order, terms)
        assert len(rows) == len(kept)  # and the planes named bytes that were there until now
        return kept

    def store(self, keys: object, rows: object, group: object, terms: Terms) -> Steps[Mask]:
        """Rows of the engine's memory."""
        number = self.group(group)
        asked = keys_of("keys", keys, self.key_bytes)
        lent, planes = self._lent(rows, len(asked), number)
        return (yield from self._bring(asked, number, planes, lent, terms))

    def _bring(
        self, keys: Keys, group: int, source: Planes, rows: Slots, terms: Terms
    ) -> Steps[Mask]:
        """Row i of memory becomes the block of key i; which are kept."""
        places = None if terms.positions is None else positions_of(terms.positions, len(keys))
        kept = np.zeros(len(keys), np.bool_)
        one = self._through_memory if self.local else self._over_wire
        most = yield from self._most(terms.namespace)
        for piece in self._pieces(len(keys), group, most):
            here = None if places is None else places[piece]
            terms = replace(terms, positions=here)
            try:
                kept[piece] = yield from one(keys[piece], group, source, rows[piece], terms)
            except (CapacityError, NeverFitsError, ServiceGoneError, ClosedError):
                break  # declined: as a store that is full declines
        return kept

    def _through_memory(
        self, keys: Keys, group: int, source: Planes, rows: Slots, terms: Terms
    ) -> Steps[Mask]:
        room = yield from self.reserve(keys, None, group, terms.namespace, terms.positions)
        well = room.fill(source, rows)
        good = None if well else np.zeros(len(keys), np.bool_)
        try:
            return (yield from self.commit(room, good, terms.durable, terms.timeout_s))
        except LeaseError:
            return np.zeros(len(keys), np.bool_)

    def _over_wire(
        self, keys: Keys, group: int, source: Planes, rows: Slots, terms: Terms
    ) -> Steps[Mask]:
        asked, first = Asking.of(keys, None, self.key_bytes, terms.positions)
        blocks = np.empty((len(keys), self.groups[group].block_bytes), np.uint8)
        order = np.arange(len(keys), dtype=np.int32)
        if copy_blocks(rows_planes(blocks), order, source, rows):
            return np.zeros(len(keys), np.bool_)
        data = first + checksums(rows_planes(blocks), order).tobytes() + blocks.tobytes()
        flags = DURABLE if terms.durable else 0

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.WRITE, request, data, flags, store=store, group=group)

        kept: Mask = yield Ask(
            terms.namespace, make, lambda _, f: mask_in(f, len(keys)), terms.timeout_s
        )
        return kept

    # ------------------------------------------------------------ staying, losing, running
    def keep(
        self, asked: Asking, seconds: float, namespace: Namespace | None
    ) -> Steps[tuple[int, int]]:
        """Pins keys for a time."""
        most_ms = max(1, round(seconds_of("seconds", seconds) * 1000))

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.KEEP, request, store=store, argument=most_ms)

        found: tuple[int, int] = yield Ask(namespace, make, lambda _, f: (f.number, f.items))
        return found

    def unkeep(self, number: int, namespace: Namespace | None) -> Steps[None]:
        """Ends a KEEP."""
        kept = number_below("number", number, 1 << 63)
        yield Ask(namespace, lambda s, r: encode(Op.KEEP, r, store=s, number=kept), _nothing)

    def forget(self, keys: object, group: object, namespace: Namespace | None) -> Steps[None]:
        """These blocks are wrong."""
        asked, number = Asking.of(keys, None, self.key_bytes)[0], self.group(group)

        def make(store: int, request: int) -> bytearray:
            return asked.frame(Op.FORGET, request, store=store, group=number)

        yield Ask(namespace, make, _nothing)

    def plain(
        self, op: Op, namespace: Namespace | None, timeout_s: float | None
    ) -> Steps[dict[str, Any]]:
        """An op that names nothing but a store: the text that it is answered with, if any."""

        def read(store: OpenedStore, frame: Frame) -> dict[str, Any]:
            return parse_text(frame.keys) if len(frame.keys) else {}

        told: dict[str, Any] = yield Ask(
            namespace, lambda s, r: encode(op, r, store=s), read, timeout_s
        )
        return told

    def events(self, since: int, most: int, namespace: Namespace | None) -> Steps[Told]:
        """Blocks stored and removed."""

        def make(store: int, request: int) -> bytearray:
            return encode(Op.EVENTS, request, store=store, number=since, argument=most)

        told: Told = yield Ask(namespace, make, lambda _, f: told_in(f, self.key_bytes))
        return told


def _verified(good: Mask, sums: npt.NDArray[np.uint64], blocks: Blocks) -> tuple[Mask, Blocks]:
    """What the checksums say is right."""
    good = good.copy()
    if not len(blocks):
        return good, blocks
    order = np.arange(len(blocks), dtype=np.int32)
    right = checksums(rows_planes(blocks), order) == sums[good]
    if not right.all():
        good[good] = right
        blocks = blocks[right]
    return good, blocks
