"""From frames to answers: which function answers an op, and what a client is told where it fails.
Consecutive LOOKUPs in one store are answered together.
"""

from __future__ import annotations

from collections.abc import Callable

from radix.service import asking, bringing, entering, lending, observing
from radix.service.context import Context
from radix.service.protocol import Frame, Op, ProtocolError, Status
from radix.service.refusing import refuse
from radix.service.session import Session

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
    Op.EXPLAIN: asking.explain,
    Op.EVENTS: observing.events,
    Op.WATCH: observing.watch,
    Op.RESIDENT: observing.resident,
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
        refuse(context, session, 0, error.request, error)
    if held:
        _lookup(context, session, held)


def _lookup(context: Context, session: Session, frames: list[Frame]) -> None:
    try:
        asking.lookup(context, session, frames)
    except Exception as error:  # outermost: of these requests
        for frame in frames:
            refuse(context, session, frame.op, frame.request, error)


def answer(context: Context, session: Session, frame: Frame) -> None:
    """Answers one frame, or refuses it."""
    try:
        if session.tenant is None and frame.op not in _BEFORE:
            raise ProtocolError("HELLO comes first", Status.DENIED, frame.request)
        known = ANSWERS.get(frame.op)
        if known is None:
            raise ProtocolError(f"no such op: {frame.op}", Status.BAD_REQUEST, frame.request)
        known(context, session, frame)
        context.active |= session.hosts
    except Exception as error:  # outermost: of this request
        refuse(context, session, frame.op, frame.request, error)
