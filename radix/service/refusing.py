"""What a client is told where a request fails: a status, a text, and for room the numbers of the
budget that is short. Answers that come later than their frame refuse by the same way.
"""

from __future__ import annotations

import logging

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
from radix.service.context import Context
from radix.service.protocol import CAPACITY_NUMBERS, ProtocolError, Status
from radix.service.session import Session

_LOG = logging.getLogger("radix.service")
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


def refuse(context: Context, session: Session, op: int, request: int, error: Exception) -> None:
    """Answers a request with what went wrong, logs it and counts it."""
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
