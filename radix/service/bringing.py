"""Answers that bring blocks and lose them: RESERVE, COMMIT, ABORT, WRITE; FORGET, RESET, FLUSH. A
client writes into staging memory of its own connection; what counts is the server's copy, which is
made first and then summed, so that what the client writes afterwards changes nothing.

    RESERVE  slots in the pool, an extent of the staging memory
             client writes the extent
    COMMIT   copy staging -> pool (threads) --> sums, visible --> DURABLE: on the disk --> answer
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from radix.keysets import Mask, Reservation
from radix.service.context import (
    Context,
    group_of,
    keys_of_frame,
    may_hold,
    opened_of,
    positions_in,
)
from radix.service.protocol import DURABLE, POSITIONS, Frame, Op, ProtocolError, Status, numbers_in
from radix.service.refusing import refuse
from radix.service.session import Opened, Session, Staging, Writing
from radix.service.settling import Settling
from radix.tier import Keys
from radix.tree import NO_SLOT
from tiers.slab import stride_bytes
from tiers.transfer import PLANE
from tiers.views import checksums, copy_blocks

_SMALL_BYTES = 64 << 10
_SETTLE_S = 60.0
THERE, COMING = -1, -2  # in the place of an offset


def reserve(context: Context, session: Session, frame: Frame) -> None:
    """Room for keys that are neither there nor coming, all or none, in pool and staging memory."""
    _refuse_draining(context, frame)
    opened = opened_of(session, frame)
    if session.staging is None:
        raise ProtocolError(
            "RESERVE needs shared memory: WRITE carries bytes", Status.BAD_REQUEST, frame.request
        )
    may_hold(context, session, frame, 0)
    group, keys = group_of(opened, frame), keys_of_frame(opened, frame)
    positions = positions_in(frame, len(keys))
    taken = opened.hosted.flat.reserve(keys, group, namespace=opened.namespace, positions=positions)
    stride = stride_bytes(opened.hosted.flat.groups[group].block_bytes)
    nbytes = stride * len(taken)
    others, most = keys[~taken.granted].copy(), context.config.limits.max_leases
    known = session.other_keys + len(others)  # which no pool bounds; those of one its frame does
    if session.other_keys and len(others) and known > most:
        opened.hosted.flat.abort(taken)
        raise ProtocolError(
            f"the reservations of this connection would name {known} keys that are there or "
            f"coming, at most {most}",
            *(Status.LIMIT, frame.request),
        )
    first = session.staging.take(nbytes)
    if first is None:
        opened.hosted.flat.abort(taken)
        _no_staging(session.staging, nbytes, frame)
    number = next(context.numbers)
    session.begin_writing(number, Writing(opened, taken, others, first or 0, nbytes))
    offsets = np.full(len(keys), COMING, np.int64)
    offsets[taken.there] = THERE
    offsets[taken.granted] = (first or 0) + stride * np.arange(len(taken), dtype=np.int64)
    session.reply(
        *(Op.RESERVE, frame.request),
        data=offsets,
        items=len(taken),
        number=number,
        argument=stride,
    )


def _no_staging(staging: Staging, nbytes: int, frame: Frame) -> None:
    never = nbytes > staging.nbytes
    raise ProtocolError(
        f"{nbytes} bytes of staging memory; it has {staging.nbytes}, of which "
        f"{staging.lent_bytes} are lent",
        Status.NEVER_FITS if never else Status.CAPACITY,
        frame.request,
    )


def _refuse_draining(context: Context, frame: Frame) -> None:
    if context.draining:
        raise ProtocolError("the server takes nothing new", Status.DRAINING, frame.request)


def commit(context: Context, session: Session, frame: Frame) -> None:
    """The extents are written. The answer: which keys are kept, a byte each; with DURABLE after
    they are durable, and beside them which of the keys that others brought are. A ``data`` of a
    byte a key says which are good.
    """
    writing = _writing(session, frame)
    taken = writing.reservation
    good = np.ones(len(taken), np.bool_)
    if len(frame.data):
        good = numbers_in(frame, np.uint8, len(taken)) != 0
    number, request = frame.number, frame.request
    durable = bool(frame.flags & DURABLE)
    hosted, staging = writing.opened.hosted, session.staging
    assert staging is not None  # there was a reservation
    base, size = staging.address + writing.first, hosted.flat.groups[taken.group].block_bytes
    source = np.array([(base, stride_bytes(size), size)], PLANE)
    order = np.arange(len(taken), dtype=np.int32)
    target = hosted.planes(taken.group), taken.slots

    def tell(kept: Mask, others: Mask) -> None:
        more = others.astype(np.uint8) if durable else b""
        session.reply(Op.COMMIT, request, more, kept.astype(np.uint8), items=len(kept))

    def copied(well: bool) -> None:
        writing.copying = False
        session.unanswered -= 1
        if writing.dropped or hosted.flat.gate.closed:
            _forsake(session, writing, number)
            return
        session.end_writing(number)
        _show(session, writing.opened, taken, writing.others, good & well, durable, tell)

    session.unanswered += 1
    if writing.nbytes <= _SMALL_BYTES or not len(taken):
        copied(copy_blocks(*target, source, order) == 0)
        return
    writing.copying = True
    if not context.copier.copy(target, (source, order), staging, copied):
        copied(copy_blocks(*target, source, order) == 0)


def _forsake(session: Session, writing: Writing, number: int) -> None:
    """Nobody waits for this copy any more: its connection ended."""
    if not writing.opened.hosted.flat.gate.closed:
        writing.opened.hosted.flat.abort(writing.reservation)
    session.end_writing(number)


def _writing(session: Session, frame: Frame) -> Writing:
    writing = session.writing.get(frame.number)
    if writing is None or writing.copying:
        raise ProtocolError(
            f"reservation {frame.number} ended before, or never was", Status.STALE, frame.request
        )
    return writing


def _show(
    session: Session,
    opened: Opened,
    taken: Reservation,
    others: Keys,
    good: Mask,
    durable: bool,
    tell: Callable[[Mask, Mask], None],
) -> None:
    """The good blocks become visible. ``tell`` is called with which are kept, and which of the
    ``others`` that were asked for with them, once that is known: now, or when they are ``durable``,
    whoever brought them.
    """
    hosted = opened.hosted
    keys, group = taken.keys, taken.group
    hosted.flat.commit(taken, good)
    if not (durable and hosted.persistent and (good.any() or len(others))):
        kept = hosted.flat.slots(keys, group, namespace=opened.namespace) != NO_SLOT
        tell(good & kept, np.ones(len(others), np.bool_))
        return
    session.unanswered += 1

    def settled(below: Mask) -> None:
        session.unanswered -= 1
        tell(good & below[: len(keys)], below[len(keys) :])

    until, every = time.monotonic() + _SETTLE_S, np.concatenate((keys, others))
    hosted.settled(Settling(every, group, opened.namespace, settled, until))


def abort(context: Context, session: Session, frame: Frame) -> None:
    """The extents will not be written."""
    writing = _writing(session, frame)
    writing.opened.hosted.flat.abort(writing.reservation)
    session.end_writing(frame.number)
    session.reply(Op.ABORT, frame.request)


def write(context: Context, session: Session, frame: Frame) -> None:
    """Blocks with their bytes: checksums (uint64 a key), then the blocks. Each is summed where it
    lies in the pool; one that differs is not kept. The answer: a byte a key.
    """
    _refuse_draining(context, frame)
    opened = opened_of(session, frame)
    group, keys = group_of(opened, frame), keys_of_frame(opened, frame)
    count, size = len(keys), opened.hosted.flat.groups[group].block_bytes
    positions, at = None, 0
    if frame.flags & POSITIONS:
        positions, at = positions_in(frame, count), 8 * count
    sums = numbers_in(frame, np.uint64, count, at)
    at += 8 * count
    if len(frame.data) != at + count * size:
        raise ProtocolError(
            f"{len(frame.data)} bytes of data, {at + count * size} were expected",
            *(Status.BAD_REQUEST, frame.request),
        )
    blocks = np.frombuffer(frame.data, np.uint8, count * size, at)
    flat = opened.hosted.flat
    taken = flat.reserve(keys, group, namespace=opened.namespace, positions=positions)
    picked = np.flatnonzero(taken.granted).astype(np.int32)
    good = np.ones(len(taken), np.bool_)
    if len(picked):
        source = np.array([(blocks.ctypes.data, size, size)], PLANE)
        target = opened.hosted.planes(group)
        well = copy_blocks(target, taken.slots, source, picked) == 0
        good = (checksums(target, taken.slots) == sums[picked]) & well
    request, granted = frame.request, taken.granted
    others, durable = keys[~granted].copy(), bool(frame.flags & DURABLE)

    def tell(kept: Mask, more: Mask) -> None:  # those that were there, or are coming, count too
        found = np.empty(len(granted), np.uint8)
        found[granted], found[~granted] = kept, more
        session.reply(Op.WRITE, request, data=found, items=len(found))

    _show(session, opened, taken, others, good, durable, tell)


# ---------------------------------------------------------------------- losing
def forget(context: Context, session: Session, frame: Frame) -> None:
    """These blocks are wrong: no tier has them from now on."""
    opened = opened_of(session, frame)
    keys = keys_of_frame(opened, frame)
    opened.hosted.flat.forget(keys, group_of(opened, frame), namespace=opened.namespace)
    session.reply(Op.FORGET, frame.request, items=len(keys))


def reset(context: Context, session: Session, frame: Frame) -> None:
    """A new epoch of the whole store, in every tier, durable when it is answered."""
    hosted, request = opened_of(session, frame).hosted, frame.request
    session.unanswered += 1

    def begun(failure: Exception | None) -> None:
        session.unanswered -= 1
        if failure is not None:
            refuse(context, session, Op.RESET, request, failure)
        else:
            session.reply(Op.RESET, request)

    hosted.reset(begun)


def flush(context: Context, session: Session, frame: Frame) -> None:
    """Answered once everything under way in the store has ended."""
    hosted = opened_of(session, frame).hosted
    request = frame.request
    session.unanswered += 1

    def idle() -> None:
        session.unanswered -= 1
        session.reply(Op.FLUSH, request)

    hosted.when_idle(idle)
