"""LOOKUPs are answered in C, many in one crossing, or one by one in Python: alike, and as asking
key by key says; what is no plain LOOKUP is left to the longer way, however the bytes are cut.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix._native import ffi, lib
from radix.groups import Group
from radix.keys import page_keys
from radix.service.protocol import HEADER_BYTES, REPLY, Op, decode, encode
from radix.store import FlatStore
from tests.ticktier import TickTier
from tiers.host import HostTier

PAGE = 4
MOST = 16


def _store(groups: int) -> FlatStore:
    """Keys of pages in a pool of host memory, some of them also in a tier below it."""
    kinds = [Group.full(f"g{n}", 4096) for n in range(groups)]
    return FlatStore(kinds, [HostTier(4 << 20), TickTier([64] * groups, "low")], key_bytes=16)


def _filled(seed: int, groups: int) -> tuple[FlatStore, np.ndarray, np.ndarray, np.ndarray]:
    """A store that has some pages of a prompt, the prompt, and by group which pages, in any tier
    and in the pool.
    """
    draw = np.random.default_rng(seed)
    store = _store(groups)
    tokens = draw.integers(0, 3, PAGE * 12).astype(np.int32)
    keys = page_keys(store.root_key(), tokens, PAGE)
    there = np.zeros((groups, 12), np.bool_)
    for group in range(groups):
        there[group] = draw.random(12) < 0.9
        room = store.reserve(keys[there[group]], group)
        store.commit(room)
    store.flush()
    first = np.zeros((groups, 12), np.bool_)
    for group in range(groups):
        store.residency.evict(0, group, int(draw.integers(0, 4)))
        first[group] = store.slots(keys, group) >= 0
        assert (there[group] == (store.has(keys, group) >= 0)).all()
    return store, tokens, there, first


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 50), st.booleans())
def test_frames_are_answered_as_asking_each_key_says(
    seed: int, groups: int, left: int, as_keys: bool
) -> None:
    store, tokens, *masks = _filled(seed, groups)
    with store:
        keys = page_keys(store.root_key(), tokens, PAGE)
        draw = np.random.default_rng(seed)
        frames, wanted = b"", []
        for request in range(int(draw.integers(1, 6))):
            pages = int(draw.integers(0, 13))
            if as_keys:
                frames += bytes(
                    encode(
                        *(Op.LOOKUP, request, keys[:pages]),
                        items=pages,
                        store=9,
                        argument=left // PAGE,
                    )
                )
                most = max(0, pages - left // PAGE)
            else:
                run = tokens[: pages * PAGE + int(draw.integers(0, PAGE)) * (pages < 12)]
                frames += bytes(
                    encode(
                        *(Op.LOOKUP, request, run),
                        flags=1,
                        items=len(run),
                        store=9,
                        argument=left,
                    )
                )
                most = max(0, len(run) - left) // PAGE
            reached = []
            for mask in masks:
                whole = mask[:, :most].all(axis=0)
                reached.append(most if whole.all() else int(whole.argmin()))
            wanted.append((request, *reached))
        answers = _answers(store, groups, frames, 0 if as_keys else PAGE)
        assert answers == wanted
        for cut in sorted(draw.integers(0, len(frames), 4).tolist()):
            assert answers[: _whole(frames, cut)] == _answers(
                store, groups, frames[:cut], 0 if as_keys else PAGE
            )


def _whole(frames: bytes, end: int) -> int:
    count, at, view = 0, 0, memoryview(frames)[:end]
    while (frame := decode(view, at, 1 << 20)) is not None:
        count, at = count + 1, at + frame.wire_bytes
    return count


def _answers(store: FlatStore, groups: int, frames: bytes, page: int) -> list[tuple[int, int, int]]:
    out, totals = ffi.new("uint8_t[]", MOST * HEADER_BYTES), ffi.new("uint64_t[4]")
    status = lib.rdx_flat_lookups(
        *(store.tree.native, store.root_of(None), store.root_key(), page, (1 << groups) - 1, 3, 9),
        *(ffi.from_buffer(frames), len(frames), MOST, out, totals),
    )
    assert status == lib.RDX_OK
    raw, found, source, at, asked = memoryview(bytes(ffi.buffer(out))), [], memoryview(frames), 0, 0
    for number in range(totals[1]):
        frame = decode(raw, number * HEADER_BYTES, 1 << 20)
        assert frame is not None and frame.op == Op.LOOKUP | REPLY and frame.store == 9
        found.append((frame.request, frame.items, frame.number))
        question = decode(source, at, 1 << 20)
        assert question is not None
        at, asked = at + question.wire_bytes, asked + question.items // (page or 1)
    # in pages both, so that one over the other is a share
    assert list(totals)[2:] == [asked, sum(items for _, items, _ in found)]
    assert totals[0] == at <= len(frames)
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"store": 8},
        {"flags": 2},
        {"flags": 0},
        {"status": 1},
        {"items": 7},
        {"items": 2**32 - 1},
    ],
)
def test_what_is_no_plain_lookup_is_left_to_the_longer_way(fields: dict[str, int]) -> None:
    with _store(1) as store:
        tokens = np.zeros(8, np.int32)
        good = {"store": 9, "flags": 1, "items": 8}
        first = bytes(encode(Op.LOOKUP, 1, tokens, **good))
        odd = bytes(encode(Op.LOOKUP, 2, tokens, **{**good, **fields}))
        assert _answers(store, 1, first + odd + first, PAGE) == [(1, 0, 0)]
        for other in (Op.HAS, Op.READ):
            assert _answers(store, 1, bytes(encode(other, 2, tokens, **good)), PAGE) == []
        data = bytes(encode(Op.LOOKUP, 2, tokens, b"more", **good))
        assert _answers(store, 1, data, PAGE) == []
        for at in (0, 4, 56):
            bad = bytearray(first)
            bad[at] ^= 255
            assert _answers(store, 1, bytes(bad), PAGE) == []
