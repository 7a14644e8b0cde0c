"""Answers that bring and take nothing: which blocks are there, how far a prompt reaches, what was
counted, what was stored and removed. Consecutive LOOKUPs are answered together. Keeps I34: LOOKUP
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.events import BlocksStored
from radix.flat import FlatCore
from radix.keysets import Mask
from radix.service.context import Context, group_of, keys_of_frame, opened_of, positions_in
from radix.service.protocol import (
    EVENT,
    HEADER_BYTES,
    MAGIC,
    REPLY,
    VERSION,
    Flag,
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
from radix.service.session import Opened, Session
from radix.tier import Keys, Slots, TierMode
from radix.tree import NO_SLOT

# One row of this is the header of an answer: many are written at once.
HEADERS = np.dtype(
    [
        *(("magic", "S4"), ("version", "<u2"), ("op", "<u2"), ("flags", "<u2"), ("status", "<u2")),
        *(("store", "<u4"), ("request", "<u8"), ("items", "<u4"), ("group", "<u4")),
        *(("number", "<u8"), ("keys_bytes", "<u4"), ("data_bytes", "<u4"), ("argument", "<i8")),
        ("reserved", "<u8"),
    ]
)
assert HEADERS.itemsize == HEADER_BYTES
_MOST_EVENTS = 4096


def has(context: Context, session: Session, frame: Frame) -> None:
    """The tier of each key, 0 the pool, -1 none."""
    opened = opened_of(session, frame)
    keys = keys_of_frame(opened, frame)
    found = opened.hosted.flat.has(
        keys,
        group_of(opened, frame),
        namespace=opened.namespace,
        positions=positions_in(frame, len(keys)),
    )
    context.count(session, opened, found)
    session.reply(Op.HAS, frame.request, data=found.astype(np.int8), items=len(keys))


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


def events(context: Context, session: Session, frame: Frame) -> None:
    """Blocks stored and removed since event ``number``, at most ``argument`` of them. The answer's
    ``number`` is what to ask for next. Of other namespaces of the same store too: its clients trust
    each other.
    """
    opened = opened_of(session, frame)
    hosted, since = opened.hosted, frame.number
    first = hosted.events[0][0] if hosted.events else hosted.told
    flags = Flag.LOST if since < first or since > hosted.told else Flag.NONE
    start = first if flags else since
    most = min(frame.argument if frame.argument > 0 else _MOST_EVENTS, _MOST_EVENTS)
    budget = context.config.limits.max_frame_bytes // 2
    rows: list[bytes] = []
    following = start
    tiers = [tier.name for tier in hosted.flat.tiers]
    names = [group.name for group in hosted.signature.groups]
    for at in range(start - first, min(start - first + most, len(hosted.events))):
        number, event = hosted.events[at]
        stored = isinstance(event, BlocksStored)
        row = np.zeros(1, EVENT)
        row["stored"], row["tier"] = stored, tiers.index(event.tier)
        row["group"], row["count"] = names.index(event.group), len(event.keys)
        row["first"] = event.first if isinstance(event, BlocksStored) else -1
        raw = row.tobytes() + event.keys.tobytes()
        budget -= len(raw)
        if budget < 0 and rows:
            break
        rows.append(raw)
        following = number + 1
    session.reply(
        *(Op.EVENTS, frame.request),
        data=b"".join(rows),
        flags=int(flags),
        items=len(rows),
        number=following,
    )


# ---------------------------------------------------------------------- LOOKUP
def lookup(context: Context, session: Session, frames: Sequence[Frame]) -> None:
    """How far prompts are there, together: ``items`` pages (or keys) that are usable once loaded,
    ``number`` of them in the pool now. ``argument`` tokens (keys) at the end never count.

    The frames name one store and ask alike. Cost: the tokens, one crossing a prompt and two a
    batch.
    """
    opened = opened_of(session, frames[0])
    try:
        runs = [_run(opened, frame) for frame in frames]
    except ProtocolError:
        if len(frames) == 1:
            raise
        for frame in frames:  # the one that is wrong is told so, the others are answered
            lookup_alone(context, session, frame)
        return
    core = core_of(opened)
    keys = runs[0] if len(runs) == 1 else np.concatenate(runs)
    ends = np.cumsum([len(run) for run in runs])
    rows = there(opened, core, keys)
    hits = np.empty((2, len(frames)), np.int64)
    for index, frame in enumerate(frames):
        lo, hi = int(ends[index]) - len(runs[index]), int(ends[index])
        most = pages_before(opened, frame, hi - lo)
        for row, tiers in enumerate((rows[0], rows[1])):
            hits[row, index] = reach(opened, [mask[lo:hi] for mask in tiers], most)
    _reply(session, frames, hits)
    context.metrics.add(("lookup", "requests"), len(frames))
    context.metrics.add(("lookup", "blocks"), len(keys))
    context.metrics.add(("lookup", "hits"), int(hits[0].sum()))


def lookup_alone(context: Context, session: Session, frame: Frame) -> None:
    """One LOOKUP, refused by itself where it is wrong."""
    try:
        lookup(context, session, [frame])
    except ProtocolError as error:
        session.refuse(frame.op, frame.request, error.status, str(error))


def _run(opened: Opened, frame: Frame) -> Keys:
    """Keys of a frame; ids of tokens are not looked at: those that cannot be never were stored."""
    signature = opened.hosted.signature
    if not frame.flags & Flag.TOKENS or not signature.page_tokens:
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


def there(opened: Opened, core: FlatCore, keys: Keys) -> tuple[list[Mask], list[Mask]]:
    """By group, which keys are in some readable tier, and which are in the pool."""
    flat = opened.hosted.flat
    nodes = core.find(keys)
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
    if not size or not frame.flags & Flag.TOKENS:
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


def _reply(session: Session, frames: Sequence[Frame], hits: npt.NDArray[np.int64]) -> None:
    rows = np.zeros(len(frames), HEADERS)
    rows["magic"], rows["version"], rows["op"] = MAGIC, VERSION, Op.LOOKUP | REPLY
    rows["request"] = [frame.request for frame in frames]
    rows["store"] = frames[0].store
    rows["items"], rows["number"] = hits
    session.queue(rows.tobytes())


def offsets_of(slots: Slots, stride: int) -> npt.NDArray[np.int64]:
    """Where slots lie in the pool, -1 where there is none."""
    wide = slots.astype(np.int64)
    return np.where(wide < 0, np.int64(-1), wide * stride)
