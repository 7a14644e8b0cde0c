"""Answers for who keeps an account of what is where, a router say: which stores a domain has open,
what lies in each, and what was stored and removed since. Whoever watches a store holds it open for
nobody. Keeps of I32 that a listing and the events from its beginning on give what is resident.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radix.errors import StaleError
from radix.events import BlocksRemoved, BlocksStored
from radix.service.context import Context, opened_of
from radix.service.hosting import Hosted
from radix.service.protocol import EVENT, LOST, Frame, Op, ProtocolError, Status, text_of
from radix.service.session import Session

_MOST_EVENTS = 4096
_MOST_LISTED = 1024  # keys of a RESIDENT: the loop is not held up
_WATCHED_FROM = 1 << 16  # numbers of watched stores, beyond those that OPEN gives


def watch(context: Context, session: Session, frame: Frame) -> None:
    """The open store of place ``number`` in the domain, and what it is named by in this connection;
    ``items``: how many there are. Beyond them no text.
    """
    assert session.tenant is not None  # nobody else gets here
    stores = list(context.domains[session.tenant.domain].stores.values())
    for number, known in list(session.watched.items()):
        if known.closed:
            del session.watched[number]
    if frame.number >= len(stores):
        session.reply(Op.WATCH, frame.request, items=len(stores))
        return
    hosted = stores[frame.number]
    signature = hosted.signature
    told = {
        "key_bytes": signature.key_bytes,
        "page_tokens": signature.page_tokens,
        "groups": [
            {
                "name": group.name,
                "block_bytes": group.block_bytes,
                "retention": group.retention.rule,
                "tokens": group.retention.tokens,
                "grid_tokens": group.grid_tokens or 0,
            }
            for group in signature.groups
        ],
        "tiers": [tier.name for tier in hosted.flat.tiers],
        "following": hosted.told,
        "store": _number_of(session, hosted),
    }
    session.reply(Op.WATCH, frame.request, text_of(told), items=len(stores))


def _number_of(session: Session, hosted: Hosted) -> int:
    found = next((n for n, known in session.watched.items() if known is hosted), None)
    if found is None:
        session.watches += 1
        found = _WATCHED_FROM + session.watches
        session.watched[found] = hosted
    return found


def _hosted(session: Session, frame: Frame) -> Hosted:
    """The store of a frame, opened or watched."""
    watched = session.watched.get(frame.store)
    if watched is None and not 0 < frame.store - _WATCHED_FROM <= session.watches:
        return opened_of(session, frame).hosted
    if watched is None or watched.closed:
        raise ProtocolError(f"store {frame.store} was closed", Status.CLOSED, frame.request)
    return watched


def events(context: Context, session: Session, frame: Frame) -> None:
    """Blocks stored and removed since event ``number`` (0: the first), at most ``argument`` of
    them. The answer's ``number`` is what to ask for next. Of all namespaces of the store: its
    clients trust each other.
    """
    hosted = _hosted(session, frame)
    since = frame.number or hosted.began
    first = hosted.events[0][0] if hosted.events else hosted.told
    flags = LOST if since < first or since > hosted.told else 0
    start = first if flags else since
    most = min(frame.argument if frame.argument > 0 else _MOST_EVENTS, _MOST_EVENTS)
    places = range(start - first, min(start - first + most, len(hosted.events)))
    rows = _rows(context, hosted, (hosted.events[at][1] for at in places))
    session.reply(
        *(Op.EVENTS, frame.request),
        data=b"".join(rows),
        flags=flags,
        items=len(rows),
        number=start + len(rows),
    )


def resident(context: Context, session: Session, frame: Frame) -> None:
    """A piece of what lies where, as events, from the namespace ``number`` on (0: the first) behind
    its place ``argument``; the answer's ``number`` and ``argument`` say where to go on, 0 at the
    end. A place that has gone: that namespace from its beginning.
    """
    hosted = _hosted(session, frame)
    residency, most = hosted.flat.residency, _listed_at_once(context, hosted)
    roots = sorted(root for root in hosted.flat.namespaces() if root >= frame.number)
    if not roots:
        session.reply(Op.RESIDENT, frame.request)
        return
    root = roots[0]
    after = frame.argument % (1 << 64) if root == frame.number else 0
    try:
        told, following = residency.resident_piece(root, after, most)
    except StaleError:
        told, following = residency.resident_piece(root, 0, most)
    rows = _rows(context, hosted, told, whole=True)
    where = (root, following) if following is not None else ([*roots, 0][1], 0)
    session.reply(
        *(Op.RESIDENT, frame.request),
        data=b"".join(rows),
        items=len(rows),
        number=where[0],
        argument=where[1] - (1 << 64 if where[1] >> 63 else 0),
    )


def _listed_at_once(context: Context, hosted: Hosted) -> int:
    """Keys of a RESIDENT: so many that what lies where of them goes into half a frame."""
    places = len(hosted.flat.tiers) * len(hosted.signature.groups)
    most = context.config.limits.max_frame_bytes // 2 - places * EVENT.itemsize
    return max(1, min(_MOST_LISTED, most // (places * (16 + hosted.signature.key_bytes))))


def _rows(
    context: Context,
    hosted: Hosted,
    told: Iterable[BlocksStored | BlocksRemoved],
    *,
    whole: bool = False,
) -> list[bytes]:
    """Events as they stand in an answer, as many as go into one, at least one."""
    budget = context.config.limits.max_frame_bytes // 2
    tiers = [tier.name for tier in hosted.flat.tiers]
    names = [group.name for group in hosted.signature.groups]
    rows: list[bytes] = []
    for event in told:
        row = np.zeros(1, EVENT)
        row["stored"], row["tier"] = isinstance(event, BlocksStored), tiers.index(event.tier)
        row["group"], row["count"] = names.index(event.group), len(event.keys)
        row["first"] = event.first if isinstance(event, BlocksStored) else -1
        raw = row.tobytes() + event.keys.tobytes()
        budget -= len(raw)
        if budget < 0 and rows and not whole:
            break
        rows.append(raw)
    return rows
