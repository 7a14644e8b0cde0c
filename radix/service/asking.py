"""Answers that bring and take nothing: which blocks are there, how far a prompt reaches, what was
counted. Consecutive LOOKUPs are answered together. Keeps I34: LOOKUP changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.flat import FlatCore, Handles
from radix.keysets import Mask
from radix.service.context import Context, group_of, keys_of_frame, opened_of, positions_in
from radix.service.explaining import why_no_further
from radix.service.protocol import (
    HEADER,
    HEADER_BYTES,
    LOAD,
    MAGIC,
    REPLY,
    TOKENS,
    VERSION,
    Frame,
    Op,
    ProtocolError,
    Status,
    keys_in,
    numbers_in,
    text_of,
    tokens_in,
)
from radix.service.reach import joint_pages
from radix.service.seeking import Sought, seek_first
from radix.service.session import Opened, Session
from radix.tier import Keys, Slots, TierMode
from radix.tree import NO_SLOT, raise_status


def has(context: Context, session: Session, frame: Frame) -> None:
    """The tier of each key, 0 the pool, -1 none; with LOAD, of what others stored too."""
    opened, request = opened_of(session, frame), frame.request
    group, keys = group_of(opened, frame), keys_of_frame(opened, frame)
    positions = positions_in(frame, len(keys))
    sought = None
    if frame.flags & LOAD:
        keys = keys.copy()
        positions = None if positions is None else positions.copy()
        paged = bool(frame.flags & TOKENS)
        sought = Sought(Op.HAS, request, keys, positions, [group], paged)

    def tell() -> None:
        found = opened.hosted.flat.has(keys, group, namespace=opened.namespace, positions=positions)
        context.count(session, opened, found)
        session.reply(Op.HAS, request, data=found.astype(np.int8), items=len(keys))

    if sought is None:
        tell()
    else:
        seek_first(context, session, opened, sought, tell)


def lengths(context: Context, session: Session, frame: Frame) -> None:
    """How many keys of each run are there from its start without a gap."""
    opened = opened_of(session, frame)
    keys = keys_in(frame, opened.hosted.signature.key_bytes)
    if len(frame.data) % 4:
        raise ProtocolError("the lengths of runs must be uint32", Status.BAD_REQUEST, frame.request)
    runs = numbers_in(frame, np.uint32, len(frame.data) // 4).astype(np.int64)
    if int(runs.sum()) != len(keys):
        raise ProtocolError(
            f"runs of {int(runs.sum())} keys, {len(keys)} are here",
            Status.BAD_REQUEST,
            frame.request,
        )
    parts = np.split(keys, np.cumsum(runs)[:-1]) if len(runs) else []
    found = opened.hosted.flat.valid_lengths(
        parts, group_of(opened, frame), namespace=opened.namespace
    )
    session.reply(Op.LENGTHS, frame.request, data=found.astype(np.uint32), items=len(runs))


def touch(context: Context, session: Session, frame: Frame) -> None:
    """The keys count as used."""
    opened = opened_of(session, frame)
    keys = keys_of_frame(opened, frame)
    positions = positions_in(frame, len(keys))
    opened.hosted.flat.touch(keys, namespace=opened.namespace, positions=positions)
    session.reply(Op.TOUCH, frame.request, items=len(keys))


def stat(context: Context, session: Session, frame: Frame) -> None:
    """What a client may know of the store that it opened; of others, nothing."""
    hosted = opened_of(session, frame).hosted
    usage = hosted.flat.usage()
    told = {
        "tiers": {
            name: {
                "used_bytes": tier.used_bytes,
                "limit_bytes": tier.limit_bytes,
                "used_blocks": list(tier.used_blocks),
            }
            for name, tier in usage.items()
        },
        "counters": dict(hosted.flat.counters()),
        "leased_keys": session.leased_keys,
        "writing": len(session.writing),
        "keeps": len(hosted.keeps),
        "events": hosted.told,
        "boot": context.boot.hex(),
    }
    session.reply(Op.STAT, frame.request, text_of(told))


def explain(context: Context, session: Session, frame: Frame) -> None:
    """How far a prompt, or keys, reach in this namespace, and why no further. Changes nothing; what
    others stored in a remote tier is not asked for. Cost: the keys x the groups.
    """
    opened = opened_of(session, frame)
    keys = _run(opened, frame)
    most = pages_before(opened, frame, len(keys))
    root = opened.hosted.flat.root_of(opened.namespace)
    told = asdict(why_no_further(opened.hosted, root, keys, most))
    session.reply(Op.EXPLAIN, frame.request, text_of(told | {"asked": len(keys)}))


# ---------------------------------------------------------------------- LOOKUP
def lookup(context: Context, session: Session, frames: Sequence[Frame]) -> None:
    """How far prompts are there: ``items`` pages (or keys) that are usable once loaded, ``number``
    of them in the pool now. ``argument`` tokens (keys) at the end never count.

    The frames name one store. Cost: the pages of each hit, one crossing a prompt
    (where a group needs not every page, all pages).
    """
    opened = opened_of(session, frames[0])
    if opened.plain:
        session.quick = frames[0].store, opened
    one = _reached if opened.plain else _joint
    readable = opened.hosted.flat.residency.readable()
    answered, asked, hits, out, operation = 0, 0, 0, session.out, _ANSWERED
    page = opened.hosted.signature.page_tokens or 1
    for frame in frames:
        if frame.flags & LOAD and opened.hosted.remote is not None:
            _lookup_all(context, session, opened, frame)
            continue
        try:
            pages, first = one(opened, frame, readable)
        except ProtocolError as error:
            session.refuse(frame.op, frame.request, error.status, str(error))
            continue
        answered += 1
        asked += frame.items // page if frame.flags & TOKENS else frame.items
        hits += pages
        given = frame.store, frame.request, pages, 0, first
        out += _ANSWER(MAGIC, VERSION, operation, 0, 0, *given, 0, 0, 0, 0)
        session.queued += HEADER_BYTES
    session.answered.add(session)
    context.tally[0] += answered
    context.tally[1] += asked
    context.tally[2] += hits


def _lookup_all(context: Context, session: Session, opened: Opened, frame: Frame) -> None:
    """LOOKUP with LOAD: how far a prompt is there, what others stored of it included."""
    groups = range(len(opened.hosted.flat.groups))
    header = frame.header()
    try:
        keys = _run(opened, frame)
        most = pages_before(opened, frame, len(keys))
    except ProtocolError as error:
        session.refuse(frame.op, frame.request, error.status, str(error))
        return
    paged = bool(frame.flags & TOKENS)
    sought = Sought(Op.LOOKUP, frame.request, keys[:most].copy(), None, groups, paged)

    def tell() -> None:
        core = core_of(opened)
        some, first = there(opened, core, core.find(sought.keys))
        pages, here = (reach(opened, masks, most) for masks in (some, first))
        for at, count in enumerate((1, len(keys), pages)):
            context.tally[at] += count
        session.reply(Op.LOOKUP, header.request, items=pages, number=here, store=header.store)

    seek_first(context, session, opened, sought, tell)


_ANSWER = HEADER.pack
_ANSWERED = int(Op.LOOKUP | REPLY)
_reach = lib.rdx_flat_reach
_OUT = ffi.new("uint32_t[2]")


def lookups(context: Context, session: Session) -> bool:
    """Answers the plain LOOKUPs that stand first in what a session has read, by the shortest way:
    the same answers, in one crossing for all. Whether there were any.
    """
    store, opened = session.quick or (0, None)
    splitter = session.splitter
    if opened is None or not splitter.begun:
        return False
    flat = opened.hosted.flat
    status = _lookups(
        *(opened.tree, opened.root, opened.seed, opened.page, opened.limiting),
        *(flat.residency.readable(), store, *splitter.waiting(), _MOST_TOGETHER, _ANSWERS, _TOTALS),
    )
    taken, count, asked, hits = _TOTALS
    if status or not count:
        session.quick = None  # what comes next is judged by the longer way
        return False
    splitter.took(taken)
    session.queue(_ANSWERED_BYTES[: count * HEADER_BYTES])
    tally = context.tally
    tally[0] += count
    tally[1] += asked
    tally[2] += hits
    return True


def answer_lookups(context: Context, session: Session) -> bool:
    """The turn of a session of which a LOOKUP came last: what is there is read, and if it is
    nothing but plain LOOKUPs, answered and sent. False: nothing was done, or there is more to do.
    """
    if session.out or session.splitter.begun or session.ending:
        return False
    if not session.fill():
        return False  # and it will be told so again
    if not lookups(context, session) or session.splitter.begun:
        session.again = True
        return False
    return session.flush()


_MOST_TOGETHER = 512
_lookups = lib.rdx_flat_lookups
_ANSWERS = ffi.new("uint8_t[]", _MOST_TOGETHER * HEADER_BYTES)
_ANSWERED_BYTES = memoryview(ffi.buffer(_ANSWERS))
_TOTALS = ffi.new("uint64_t[4]")


def _reached(opened: Opened, frame: Frame, readable: int) -> tuple[int, int]:
    """Of groups that need every page: up to the first gap. Ids of tokens are not looked at: those
    that cannot be never were stored.
    """
    signature = opened.hosted.signature
    tokens, page = frame.flags & TOKENS, signature.page_tokens
    if tokens and page:
        width, parent, page_bytes = 4, opened.seed, 4 * page
        pages = max(0, frame.items - max(0, frame.argument)) // page
    elif tokens:
        keys_of_frame(opened, frame)  # says why not
        raise AssertionError
    else:
        width = page_bytes = signature.key_bytes
        parent, pages = ffi.NULL, max(0, frame.items - max(0, frame.argument))
    if len(frame.keys) != frame.items * width:
        _run(opened, frame)  # says what was expected
    if not pages:
        return 0, 0
    run, tree = ffi.from_buffer(frame.keys), opened.hosted.flat.tree.native
    given = parent, page_bytes, opened.limiting, readable, run, pages, _OUT
    if _reach(tree, opened.root, *given):
        # an empty namespace goes when many have come, and has another root from then on
        opened.root = opened.hosted.flat.root_of(opened.namespace)
        raise_status(_reach(tree, opened.root, *given))
    hit: int = _OUT[0]
    first: int = _OUT[1]
    return hit, first


def _joint(opened: Opened, frame: Frame, readable: int) -> tuple[int, int]:
    """Of any groups: the longest hit that is whole in all of them."""
    keys = _run(opened, frame)
    core = core_of(opened)
    some, first = there(opened, core, core.find(keys))
    most = pages_before(opened, frame, len(keys))
    return reach(opened, some, most), reach(opened, first, most)


def _run(opened: Opened, frame: Frame) -> Keys:
    """Keys of a frame; ids of tokens are not looked at."""
    signature = opened.hosted.signature
    if not frame.flags & TOKENS or not signature.page_tokens:
        return keys_of_frame(opened, frame)
    tokens = tokens_in(frame)
    pages = len(tokens) // signature.page_tokens
    out = np.empty((pages, 16), np.uint8)
    if pages:
        lib.rdx_keys_chain(
            opened.seed,
            ffi.from_buffer(tokens),
            pages,
            signature.page_tokens * 4,
            ffi.from_buffer("uint8_t[]", out),
        )
    return out


def core_of(opened: Opened) -> FlatCore:
    """The keys of the namespace of an opened store."""
    flat = opened.hosted.flat
    return flat.residency.core(flat.root_of(opened.namespace))


def there(opened: Opened, core: FlatCore, nodes: Handles) -> tuple[list[Mask], list[Mask]]:
    """By group, which keys are in some readable tier, and which are in the pool."""
    flat = opened.hosted.flat
    some: list[Mask] = []
    first: list[Mask] = []
    for group in range(len(flat.groups)):
        masks = [
            core.slots(nodes, flat.tree.column(group, number)) != NO_SLOT
            for number, tier in enumerate(flat.tiers)
            if tier.mode is not TierMode.OFF or number == 0
        ]
        first.append(masks[0])
        some.append(masks[0] if len(masks) == 1 else np.logical_or.reduce(masks))
    return some, first


def pages_before(opened: Opened, frame: Frame, pages: int) -> int:
    """The most pages that a hit may have, where ``argument`` tokens at the end never count."""
    left = max(0, frame.argument)
    size = opened.hosted.signature.page_tokens
    if not size or not frame.flags & TOKENS:
        return max(0, pages - left)
    return min(pages, max(0, frame.items - left) // size)


def reach(opened: Opened, masks: Sequence[Mask], most: int) -> int:
    """The longest hit of at most ``most`` pages; of keys without rules, where every group has
    them.
    """
    rules = opened.hosted.signature.rules
    if rules:
        return joint_pages(masks, rules, most)
    whole = masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)
    whole = whole[:most]
    gap = int(whole.argmin()) if len(whole) else 0
    return len(whole) if len(whole) and bool(whole[gap]) else gap


def offsets_of(slots: Slots, stride: int) -> npt.NDArray[np.int64]:
    """Where slots lie in the pool, -1 where there is none."""
    wide = slots.astype(np.int64)
    return np.where(wide < 0, np.int64(-1), wide * stride)
