"""From frames to answers: which function answers an op, and what a client is told where it fails.
Consecutive LOOKUPs in one store are answered together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from radix.errors import (
    CacheError,
    CapacityError,
    ClosedError,
    LeaseError,
    NeverFitsError,
    TierError,
    TierFullError,
    UnsupportedError,
)
from radix.service import asking, bringing, entering, lending
from radix.service.context import Context
from radix.service.protocol import CAPACITY_NUMBERS, Frame, Op, ProtocolError, Status
from radix.service.session import Session

_LOG = logging.getLogger("radix.service")
_MOST_TOGETHER = 512
_LOOKUP = int(Op.LOOKUP)
Answer = Callable[[Context, Session, Frame], None]

ANSWERS: dict[int, Answer] = {
    Op.HELLO: entering.hello,
    Op.PROVE: entering.prove,
    Op.OPEN: entering.open_store,
    Op.HAS: asking.has,
    Op.LENGTHS: asking.lengths,
    Op.TOUCH: asking.touch,
    Op.STAT: asking.stat,
    Op.EVENTS: asking.events,
    Op.LEASE: lending.lease,
    Op.RELEASE: lending.release,
    Op.KEEP: lending.keep,
    Op.READ: lending.read,
    Op.RESERVE: bringing.reserve,
    Op.COMMIT: bringing.commit,
    Op.ABORT: bringing.abort,
    Op.WRITE: bringing.write,
    Op.FORGET: bringing.forget,
    Op.RESET: bringing.reset,
    Op.FLUSH: bringing.flush,
}
_BEFORE = (Op.HELLO, Op.PROVE)
_ENDS = (Status.BAD_FRAME, Status.VERSION)
# The first that fits: what stands below is more general.
_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (CapacityError, Status.CAPACITY),
    (TierFullError, Status.CAPACITY),
    (NeverFitsError, Status.NEVER_FITS),
    (ClosedError, Status.CLOSED),
    (LeaseError, Status.STALE),
    (UnsupportedError, Status.BAD_REQUEST),
    (TierError, Status.TIER),
    (CacheError, Status.BAD_REQUEST),
    (ValueError, Status.BAD_REQUEST),
    (TypeError, Status.BAD_REQUEST),
    (OverflowError, Status.BAD_REQUEST),
    (MemoryError, Status.CAPACITY),
)


def serve(context: Context, session: Session, takes: Callable[[], bool]) -> None:
    """Answers the frames that a session has read, as long as it ``takes`` more."""
    held: list[Frame] = []  # LOOKUPs in one store
    try:
        while takes():
            if session.quick is not None and not held and asking.lookups(context, session):
                continue
            frame = session.splitter.next()
            if frame is None:
                break
            if frame.op == _LOOKUP and session.tenant is not None:
                if held and (len(held) >= _MOST_TOGETHER or held[0].store != frame.store):
                    _lookup(context, session, held)
                    held = []
                held.append(frame)
                continue
            if held:
                _lookup(context, session, held)
                held = []
            answer(context, session, frame)
    except ProtocolError as error:
        if held:
            _lookup(context, session, held)
            held = []
        _refuse(context, session, 0, error.request, error)
    if held:
        _lookup(context, session, held)


def _lookup(context: Context, session: Session, frames: list[Frame]) -> None:
    try:
        asking.lookup(context, session, frames)
    except Exception as error:  # outermost: of these requests
        for frame in frames:
            _refuse(context, session, frame.op, frame.request, error)


def answer(context: Context, session: Session, frame: Frame) -> None:
    """Answers one frame, or refuses it."""
    try:
        if session.tenant is None and frame.op not in _BEFORE:
            raise ProtocolError("HELLO comes first", Status.DENIED, frame.request)
        known = ANSWERS.get(frame.op)
        if known is None:
            raise ProtocolError(f"no such op: {frame.op}", Status.BAD_REQUEST, frame.request)
        known(context, session, frame)
        for opened in session.stores.values():
            context.active.add(opened.hosted)
    except Exception as error:  # outermost: of this request
        _refuse(context, session, frame.op, frame.request, error)


def _refuse(context: Context, session: Session, op: int, request: int, error: Exception) -> None:
    status = error.status if isinstance(error, ProtocolError) else None
    if status is None:
        status = next((s for kind, s in _STATUSES if isinstance(error, kind)), Status.INTERNAL)
    text = str(error)
    told = {"connection": session.number, "request": request, "op": op, "status": status.name}
    _LOG.debug("refused: %s", text, extra=told)
    if status is Status.INTERNAL:
        _LOG.error("a fault of the server", extra=told, exc_info=error)
        text = f"a fault of the server, under request {request} of connection {session.number}"
    context.metrics.add(("refused", status.name.lower().replace("_", " ")))
    session.refuse(op & 0x7FFF, request, status, text, _numbers(error))
    denied = status in (Status.DENIED, Status.DRAINING) and session.tenant is None
    if status in _ENDS or denied or op == 0:
        session.ending = True


def _numbers(error: Exception) -> bytes:
    """What a budget says of itself."""
    if isinstance(error, CapacityError):
        return np.array([getattr(error, name) for name in CAPACITY_NUMBERS], np.int64).tobytes()
    if isinstance(error, NeverFitsError):
        return np.array([error.needed, error.capacity], np.int64).tobytes()
    return b""
