"""Answers that pin blocks and show them: LEASE, RELEASE, KEEP, READ. What lies below the pool is
brought there first where that is asked for, and the answer comes when it has come. A lease ends
with its connection, a KEEP with its time.

    LEASE   pin --> fetch what is below --> offsets in the pool . . . . . RELEASE, or the end
    READ    pin --> fetch what is below --> bytes and their checksums --> unpinned
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from radix.flat import FlatCore, Handles
from radix.keysets import Mask
from radix.service.asking import core_of, offsets_of, pages_before, reach, there
from radix.service.context import (
    Context,
    group_of,
    keys_of_frame,
    may_hold,
    opened_of,
    positions_in,
)
from radix.service.hosting import Hosted, Kept
from radix.service.protocol import (
    HEADER_BYTES,
    LOAD,
    TOKENS,
    Frame,
    Op,
    ProtocolError,
    Status,
    padded,
)
from radix.service.reach import needed_pages
from radix.service.seeking import Sought, seek_first
from radix.service.session import Holding, Opened, Session, block_rows
from radix.tier import Keys, Slots, Urgency
from radix.tree import NO_SLOT
from tiers.views import checksums

_MOST_KEEPS = 4096


def lease(context: Context, session: Session, frame: Frame) -> None:
    """Pins what is there of keys, or of the pages of a prompt that are a hit, and says where it
    lies in the pool. ``number``: a mask of groups, 0 for all.
    """
    opened = opened_of(session, frame)
    groups = _groups(opened, frame)
    sought, most = _sought(opened, frame, groups)
    frame = frame.header()  # what else it has is gone by the time that an answer has come

    def pin() -> None:
        _lease(context, session, opened, frame, sought, most)

    if frame.flags & LOAD:
        seek_first(context, session, opened, sought, pin)
    else:
        pin()


def _sought(opened: Opened, frame: Frame, groups: Sequence[int]) -> tuple[Sought, int]:
    """What a frame asks for, as it stays when the frame is gone; of tokens, the pages that count,
    and their number.
    """
    keys = keys_of_frame(opened, frame)
    positions, paged = positions_in(frame, len(keys)), bool(frame.flags & TOKENS)
    most = pages_before(opened, frame, len(keys)) if paged else len(keys)
    kept = None if positions is None else positions[:most].copy()
    return Sought(frame.op, frame.request, keys[:most].copy(), kept, groups, paged), most


def _lease(
    context: Context, session: Session, opened: Opened, frame: Frame, sought: Sought, most: int
) -> None:
    """Pins what is there now, brings it if asked to, and answers."""
    keys, positions, groups = sought.keys, sought.positions, sought.groups
    load, pages, core = bool(frame.flags & LOAD), None, core_of(opened)
    nodes, missed = core.find(keys), keys[:0]
    if sought.paged:
        some, first = there(opened, core, nodes)
        pages = reach(opened, some if load else first, most)
        keys, nodes, missed = keys[:pages], nodes[:pages], keys[pages:]
        positions = None if positions is None else positions[:pages]
    may_hold(context, session, frame, len(keys))
    pinned = opened.hosted.flat.lease(keys, namespace=opened.namespace, positions=positions)
    asked = Asked(opened, core, groups, keys, nodes, frame.request, pages)
    number = next(context.numbers)
    session.hold(number, Holding(opened.hosted, pinned, len(keys)))
    _count(context, session, asked)
    _count_missed(context, session, asked, missed)

    def ready() -> None:
        if number in session.leases:  # else it was released, or the connection ended
            _answer_lease(session, asked, number)

    _bring(session, asked, ready, load)


@dataclass(frozen=True, slots=True)
class Asked:
    """Keys whose blocks of some groups are to be in the pool. ``nodes``: by what the tree knows
    those that are leased, 0 for the others: what comes later is not this lease's. ``pages``: of
    tokens, how many are a hit; None for keys.
    """

    opened: Opened
    core: FlatCore
    groups: Sequence[int]
    keys: Keys
    nodes: Handles
    request: int
    pages: int | None

    def span(self, group: int) -> slice:
        """The keys of which the group's blocks are needed."""
        if self.pages is None:
            return slice(0, len(self.keys))
        return slice(*needed_pages(self.opened.hosted.signature.rules[group], self.pages))

    def slots(self, group: int, span: slice) -> Slots:
        """Where the leased of these keys lie in the pool, -1 where not."""
        return self.core.slots(self.nodes[span], self.opened.hosted.flat.tree.column(group, 0))


def _groups(opened: Opened, frame: Frame) -> list[int]:
    count = len(opened.hosted.signature.groups)
    if frame.number >> count:
        raise ProtocolError(
            f"groups {frame.number:#x}: the store has {count}", Status.BAD_REQUEST, frame.request
        )
    mask = frame.number or (1 << count) - 1
    return [group for group in range(count) if mask >> group & 1]


def _count(context: Context, session: Session, asked: Asked) -> None:
    """Hits by tier and misses by reason, of what is asked to be used (I34)."""
    flat, core = asked.opened.hosted.flat, asked.core
    for group in asked.groups:
        span = asked.span(group)
        found = flat.residency.where(core, asked.nodes[span], group)
        flat.residency.count_asked(core.root, asked.keys[span], found, group)
        context.count(session, asked.opened, found)


def _count_missed(context: Context, session: Session, asked: Asked, keys: Keys) -> None:
    """The pages of a prompt behind its hit: misses by reason of the groups that need every page,
    of all where none does; which pages a window would need behind it nobody knows.
    """
    if not len(keys):
        return
    rules, nothing = asked.opened.hosted.signature.rules, np.full(len(keys), -1, np.int32)
    whole = [group for group in asked.groups if rules[group].everywhere]
    for group in whole or asked.groups:
        asked.opened.hosted.flat.residency.count_asked(asked.core.root, keys, nothing, group)
        context.count(session, asked.opened, nothing)


def _bring(session: Session, asked: Asked, ready: Callable[[], None], load: bool) -> None:
    """Fetches what is below the pool, then ``ready``; at once where nothing is."""
    hosted, left = asked.opened.hosted, 1

    def ended(good: Mask | None = None) -> None:
        nonlocal left
        left -= 1
        if not left:
            session.unanswered -= 1
            ready()

    session.unanswered += 1
    for group in asked.groups if load else ():
        span = asked.span(group)
        missing = asked.slots(group, span) == NO_SLOT
        missing &= asked.nodes[span] != 0
        if missing.any():
            keys, space = asked.keys[span][missing], asked.opened.namespace
            fetch = hosted.flat.fetch(keys, group, namespace=space, urgency=Urgency.DEMAND)
            left += 1
            hosted.after(fetch.number, ended)
    ended()


def _answer_lease(session: Session, asked: Asked, number: int) -> None:
    opened, count = asked.opened, len(asked.keys)
    if asked.pages is not None:  # what did not come makes the hit shorter, for all groups
        _, first = there(opened, asked.core, asked.nodes)
        count = reach(opened, first, count)
        asked = replace(asked, pages=count)
    rows = []
    for group in asked.groups:
        row = np.full(len(asked.keys), -1, np.int64)
        span = asked.span(group)
        row[span] = offsets_of(asked.slots(group, span), opened.hosted.stride(group))
        rows.append(row)
    session.reply(
        Op.LEASE,
        asked.request,
        data=np.concatenate(rows),
        items=count,
        number=number,
        argument=len(asked.keys),
    )


def release(context: Context, session: Session, frame: Frame) -> None:
    """A lease ends."""
    if not session.let_go(frame.number):
        raise ProtocolError(f"no lease {frame.number}", Status.UNKNOWN, frame.request)
    session.reply(Op.RELEASE, frame.request)


def keep(context: Context, session: Session, frame: Frame) -> None:
    """Pins keys for ``argument`` milliseconds, whatever becomes of the connection; with a
    ``number`` and no time, ends that KEEP. ``items`` of the answer: keys that are there and stay.
    """
    opened = opened_of(session, frame)
    hosted, most = opened.hosted, context.config.limits.keep_most_s
    assert session.tenant is not None  # nobody else gets here
    if frame.number:
        if not hosted.unkeep(frame.number, session.tenant.name):
            raise ProtocolError(f"no KEEP {frame.number}", Status.UNKNOWN, frame.request)
        session.reply(Op.KEEP, frame.request)
        return
    seconds = frame.argument / 1000
    if not 0 < seconds <= most:
        raise ProtocolError(
            f"argument must be 1 to {most * 1000:.0f} milliseconds, not {frame.argument}",
            Status.BAD_REQUEST,
            frame.request,
        )
    keys = keys_of_frame(opened, frame)
    accounts = context.domains[hosted.domain].accounts
    account = accounts.account(session.tenant)
    _bound_keeps(hosted, account, accounts.part(account), len(keys), frame)
    pinned = hosted.flat.lease(
        keys, namespace=opened.namespace, positions=positions_in(frame, len(keys))
    )
    number, there = next(context.numbers), int(pinned.held.sum())
    until, tenant = time.monotonic() + seconds, session.tenant.name
    hosted.keep(number, Kept(until, pinned, there, account, tenant))
    session.reply(Op.KEEP, frame.request, items=there, number=number)


def _bound_keeps(hosted: Hosted, account: str, part: float, keys: int, frame: Frame) -> None:
    """What is kept leaves room for what is not: half of the pool at most, of an account among
    several half of its part, so that nobody's keeps are in the way of another's.
    """
    mine, held = hosted.kept(account)
    pinned = held + keys
    least = min(hosted.host.capacity_blocks(group) for group in range(len(hosted.flat.groups)))
    most = int(least * part / 2)
    if mine >= _MOST_KEEPS or pinned > most:
        raise ProtocolError(
            f"{pinned} keys would be kept, at most half of {int(least * part)}, in "
            f"{mine + 1} KEEPs, at most {_MOST_KEEPS}",
            *(Status.LIMIT, frame.request),
        )


def read(context: Context, session: Session, frame: Frame) -> None:
    """The bytes of keys of one group: which are there, their checksums, and those that are, one
    after the other.
    """
    opened = opened_of(session, frame)
    group = group_of(opened, frame)
    keys = keys_of_frame(opened, frame)
    size = opened.hosted.flat.groups[group].block_bytes
    most = context.config.limits.max_frame_bytes
    answer = HEADER_BYTES + padded(len(keys)) + len(keys) * (8 + size)
    if answer > most:
        raise ProtocolError(
            f"the answer would have {answer} bytes, at most {most}: ask for fewer keys",
            Status.LIMIT,
            frame.request,
        )
    positions, paged = positions_in(frame, len(keys)), bool(frame.flags & TOKENS)
    kept = None if positions is None else positions.copy()
    sought = Sought(frame.op, frame.request, keys.copy(), kept, [group], paged)
    seek_first(context, session, opened, sought, lambda: _read(context, session, opened, sought))


def _read(context: Context, session: Session, opened: Opened, sought: Sought) -> None:
    keys, (group,), core = sought.keys, sought.groups, core_of(opened)
    pinned = opened.hosted.flat.lease(keys, namespace=opened.namespace, positions=sought.positions)
    asked = Asked(opened, core, [group], keys, core.find(keys), sought.request, None)
    _count(context, session, asked)

    def ready() -> None:
        _answer_read(session, asked, group)
        if not opened.hosted.flat.gate.closed:
            pinned.release()

    _bring(session, asked, ready, load=True)


def _answer_read(session: Session, asked: Asked, group: int) -> None:
    opened, flat = asked.opened, asked.opened.hosted.flat
    slots = asked.slots(group, slice(None))
    good = slots != NO_SLOT
    planes = opened.hosted.planes(group)
    sums = np.zeros(len(slots), np.uint64)
    sums[good] = checksums(planes, slots[good])
    offsets = offsets_of(slots[good], opened.hosted.stride(group))
    size = flat.groups[group].block_bytes
    data = bytearray(good.astype(np.uint8).tobytes())
    data += bytes(padded(len(good)) - len(good))
    data += sums.tobytes()
    for row in block_rows(int(planes[0]["base"]), offsets, size):
        data += row
    session.reply(
        Op.READ, asked.request, data=memoryview(data), items=len(good), argument=int(good.sum())
    )
