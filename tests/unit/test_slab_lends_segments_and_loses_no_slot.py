"""The slab allocator against a dictionary: one owner a slot, no two blocks in one place, the limit,
a segment that every class is sure of, and calls that fail and change nothing (I7, I8, I11, I25).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.pool import QUARANTINE, RESERVED, USED, SlotError
from tiers.slab import ALIGNMENT_BYTES, UNLENT, SlabAllocator, stride_bytes

SEGMENT = 8 * ALIGNMENT_BYTES
SIZES = (100, 4097, 3 * 4096)  # 8, 4 and 2 slots a segment


def _places(slab: SlabAllocator, cls: int, slots: list[int]) -> list[tuple[int, int, int]]:
    segments, offsets = slab.place(cls, np.array(slots, np.int32))
    size = slab.classes[cls].block_bytes
    return [(int(s), int(o), int(o) + size) for s, o in zip(segments, offsets, strict=True)]


def _assert_apart(slab: SlabAllocator, held: dict[tuple[int, int], int]) -> None:
    """No two blocks overlap, each lies in a segment lent to its class, within the limit."""
    runs = []
    for cls in range(len(slab.classes)):
        slots = [slot for c, slot in held if c == cls]
        for segment, start, end in _places(slab, cls, slots):
            assert slab.owner(segment) == cls
            room = slab.tail_bytes if segment == slab.segments - 1 else SEGMENT
            assert end <= room, "a block reaches over the end of its segment"
            runs.append((segment, start, end))
    runs.sort()
    for before, after in itertools.pairwise(runs):
        assert before[0] < after[0] or before[2] <= after[1], "two blocks overlap"
    assert slab.lent_bytes <= slab.segments * SEGMENT


@settings(max_examples=120)
@given(
    st.integers(3, 7),
    st.sampled_from([SEGMENT, 3 * ALIGNMENT_BYTES, 4 * ALIGNMENT_BYTES]),
    st.lists(
        st.tuples(
            st.sampled_from(["take", "commit", "abort", "free", "fence", "lift", "wrong", "trim"]),
            st.integers(0, 2),
            st.integers(0, 12),
        ),
        max_size=40,
    ),
)
def test_slots_have_one_owner_whatever_is_called(
    segments: int, tail: int, calls: list[tuple[str, int, int]]
) -> None:
    limit = (segments - 1) * SEGMENT + tail
    slab = SlabAllocator(SIZES, limit_bytes=limit, segment_bytes=SEGMENT)
    held: dict[tuple[int, int], int] = {}
    moves = {"commit": RESERVED, "abort": RESERVED, "free": USED, "lift": QUARANTINE}
    for word, cls, count in calls:
        mine = {slot: state for (c, slot), state in held.items() if c == cls}
        if word == "take":
            could = slab.available(cls)
            slots = slab.reserve(cls, count)
            assert (slots is not None) == (count <= could), "available() told the truth"
            for slot in () if slots is None else slots.tolist():
                assert (cls, slot) not in held, "a slot was given out twice"
                held[cls, slot] = RESERVED
        elif word == "trim":
            slab.trim()
        elif word == "wrong":
            _misuse(slab, cls, mine)
        else:
            wanted = (USED,) if word == "fence" else (moves[word],)
            chosen = [slot for slot, state in mine.items() if state in wanted][:count]
            getattr(slab, word)(cls, np.array(chosen, np.int32))
            for slot in chosen:
                if word in ("commit", "fence"):
                    held[cls, slot] = USED if word == "commit" else QUARANTINE
                else:
                    del held[cls, slot]
        slab.check()  # what is remembered of segments to lend is what they are (I12)
        _assert_apart(slab, held)
        assert all(slab.available(each) >= 0 for each in range(len(SIZES)))  # remembers it
        for each in range(len(SIZES)):
            count_of = sum(1 for c, _ in held if c == each)
            assert slab.occupied(each) == count_of <= slab.capacity(each)


def _misuse(slab: SlabAllocator, cls: int, mine: dict[int, int]) -> None:
    before = [slab.available(each) for each in range(len(SIZES))]
    for call, state in ((slab.free, USED), (slab.commit, RESERVED), (slab.lift, QUARANTINE)):
        fitting = [slot for slot, have in mine.items() if have == state][:1]
        other = [slot for slot, have in mine.items() if have != state][:1]
        for bad in (other, [-1], [10_000], fitting):
            slots = np.array(fitting + bad, np.int32)
            if len(slots) > len(fitting):
                with pytest.raises(SlotError):
                    call(cls, slots)
    assert before == [slab.available(each) for each in range(len(SIZES))]


def test_what_is_free_is_not_counted_segment_by_segment_each_time() -> None:
    """Each store and each admission asks it: over a terabyte of segments it took milliseconds."""
    slab = SlabAllocator(SIZES, limit_bytes=2000 * SEGMENT, segment_bytes=SEGMENT)
    slots = slab.reserve(0, 20)
    assert slots is not None
    found: list[int] = []

    class Told(dict[int, int]):
        """What is remembered, and for which class it had to be counted."""

        def __setitem__(self, cls: int, count: int) -> None:
            found.append(cls)
            super().__setitem__(cls, count)

    slab._to_lend = Told()
    for _ in range(50):
        assert slab.available(0) == 1998 * 8 - 20
        more = slab.reserve(0, 2)
        assert more is not None
        slab.abort(0, more)
    assert found in ([], [0])
    slab.commit(0, slots)
    slab.free(0, slots)
    assert slab.available(1) == 1998 * 4 and found[-1] == 1, "its segments are empty now"
    slab.check()


def test_a_class_can_always_get_one_segment() -> None:
    slab = SlabAllocator(SIZES, limit_bytes=5 * SEGMENT, segment_bytes=SEGMENT)
    assert slab.capacity(0) == 3 * 8
    greedy = slab.reserve(0, 3 * 8)
    assert greedy is not None and slab.reserve(0, 1) is None
    assert slab.reserve(1, 5) is None, "the second of its segments is what the third class has"
    assert slab.reserve(1, 4) is not None and slab.reserve(2, 2) is not None
    slab.check()


def test_an_empty_segment_goes_to_another_class() -> None:
    slab = SlabAllocator(SIZES[:2], limit_bytes=4 * SEGMENT, segment_bytes=SEGMENT)
    slots = slab.reserve(0, 24)
    assert slots is not None and slab.available(1) == 4
    slab.abort(0, slots[8:])
    assert slab.available(1) == 4 + 2 * 4
    slab.changes()
    assert slab.reserve(1, 12) is not None
    lent, returned = slab.changes()
    assert len(lent) == 3 and len(returned) == 2
    assert slab.lent == 4 and slab.reserve(0, 1) is None
    slab.check()


def test_a_restart_adopts_segments_beyond_a_smaller_limit() -> None:
    """Slot numbers name places, so what an earlier limit made stays where it is."""
    slab = SlabAllocator((4096,), limit_bytes=2 * SEGMENT, segment_bytes=SEGMENT)
    slab.adopt(0, 9)
    slots = np.array([72, 79], np.int32)
    slab.claim(0, slots)
    assert _places(slab, 0, [72, 79]) == [(9, 0, 4096), (9, 7 * 4096, 8 * 4096)]
    slab.check()
    assert slab.available(0) == 6 + 8
    more = slab.reserve(0, 14)
    assert more is not None and slab.lent == 2
    with pytest.raises(SlotError, match="all 2 segments are lent"):
        slab.adopt(0, 5)
    slab.free(0, slots)
    slab.abort(0, more)
    assert slab.trim() == 2 and slab.owner(9) == UNLENT
    slab.check()


def test_a_banned_segment_gives_out_nothing_again() -> None:
    slab = SlabAllocator((4096,), limit_bytes=3 * SEGMENT, segment_bytes=SEGMENT)
    slots = slab.reserve(0, 10)
    assert slots is not None
    slab.commit(0, slots)
    slab.ban(1)
    slab.ban(2)
    assert slab.available(0) == 0 and slab.capacity(0) == 8 * 2
    slab.free(0, slots)
    assert slab.available(0) == 8
    again = slab.reserve(0, 8)
    assert again is not None and set(_places(slab, 0, again.tolist())[0][:1]) == {0}
    slab.check()


def test_a_held_segment_is_not_lent() -> None:
    slab = SlabAllocator((4096,), limit_bytes=4 * SEGMENT, segment_bytes=SEGMENT)
    assert slab.hold(0) and slab.available(0) == 24
    slots = slab.reserve(0, 9)
    assert slots is not None and slots.min() >= 8
    assert not slab.hold(3), "the last ones are needed"
    slab.unhold(0)
    assert slab.available(0) == 24 - 9 + 8
    slab.check()


def test_over_several_drives_what_is_reserved_together_lies_on_all() -> None:
    sizes, segment = (64 << 10, 1 << 20), 4 << 20
    slab = SlabAllocator(sizes, limit_bytes=10 * segment, segment_bytes=segment, stripe=3)
    assert slab.hold(1)  # its drive has another one to give
    slots = slab.reserve(0, 24)
    assert slots is not None
    drives = slab.place(0, slots)[0] % 3
    assert drives.tolist() == [0] * 8 + [2] * 8 + [1] * 8, "512 KiB of each in turn"
    slab.unhold(1)
    large = slab.reserve(1, 12)
    assert large is not None and (slab.place(1, large)[0] % 3).tolist() == [1, 0, 2] * 4
    slab.commit(0, slots)
    slab.check()
    again = SlabAllocator(sizes, limit_bytes=10 * segment, segment_bytes=segment, stripe=3)
    again.adopt(0, 0, 2, 4, 5, 6)
    again.claim(0, slots)
    more = again.reserve(0, 24)
    assert more is not None and sorted(set(again.place(0, more)[0] % 3)) == [0, 1, 2]
    again.check()
    with pytest.raises(SlotError, match="all 10 segments are lent"):
        again.adopt(0, *range(7, 13))
    assert again.lent == 5


@pytest.mark.parametrize(
    ("sizes", "limit", "segment", "words"),
    [
        ((), SEGMENT, SEGMENT, "must not be empty"),
        ((0,), SEGMENT, SEGMENT, "at least 1"),
        ((4096,), SEGMENT, 5000, "multiple of 4096"),
        ((SEGMENT + 1,), 4 * SEGMENT, SEGMENT, "does not fit a segment"),
        ((4096, 4096), SEGMENT, SEGMENT, "too small"),
        ((4096,), 100, SEGMENT, "too small"),
    ],
)
def test_bad_sizes_are_refused_by_name(
    sizes: tuple[int, ...], limit: int, segment: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SlabAllocator(sizes, limit_bytes=limit, segment_bytes=segment)


def test_places_equal_a_naive_sum() -> None:
    slab = SlabAllocator(SIZES, limit_bytes=64 * SEGMENT, segment_bytes=SEGMENT)
    for cls, size in enumerate(SIZES):
        each = SEGMENT // stride_bytes(size)
        slots = np.arange(0, 60 * each, 7, dtype=np.int32)
        segments, offsets = slab.place(cls, slots)
        for slot, segment, offset in zip(slots.tolist(), segments, offsets, strict=True):
            assert (segment, offset) == (slot // each, slot % each * stride_bytes(size))
