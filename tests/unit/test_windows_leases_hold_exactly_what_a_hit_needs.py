"""A lease on a length holds, of a group that keeps the last tokens, exactly the pages that a hit
there needs, also after others have split its path; it gives back exactly that, once. An insert
keeps what its end and its boundaries need, and a tombstone hides no victim (C1, C4, C32; I13-I17,
I26, I27).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, LeaseError
from radix.groups import Group
from radix.ownership import Ownership
from radix.plan import Cursor
from tests.mixes import chunked, full, state, window
from tiers.index import IndexTier

KV, NEAR = 0, 1


def cache_of(*groups: Group, page: int = 1, blocks: int = 64, tiers: int = 1) -> PrefixCache:
    """A cache over slots without bytes that picks them itself."""
    media = [IndexTier(blocks, name) for name in ("device", "host")[:tiers]]
    return PrefixCache((full(), *groups), media, page_tokens=page)


def put(cache: PrefixCache, tokens: Sequence[int], boundaries: Sequence[int] = ()) -> None:
    """An engine-driven insert behind what is there."""
    tokens = np.array(tokens, np.int32)
    found, at = cache.match(tokens, leave=0)
    with cache.lease(at._replace(pages=found.hit_pages)) as lease:
        cache.insert(tokens, lease, boundaries=boundaries)


def at(cache: PrefixCache, tokens: Sequence[int]) -> Cursor:
    """Where these tokens end in the tree."""
    found, cursor = cache.match(np.array(tokens, np.int32), leave=0)
    assert found.structural_pages * cache.page_tokens == len(tokens)
    return cursor


def there(cache: PrefixCache, tokens: Sequence[int], group: int = NEAR, tier: int = 0) -> list[int]:
    """Pages of the path with which a resident block of the group ends."""
    return cache.tree.entries(at(cache, tokens), cache.tree.column(group, tier)).tolist()


def pinned(cache: PrefixCache, group: int = NEAR, tier: int = 0) -> int:
    """Blocks of the group that may not go."""
    cache.check()
    return cache.tree.column_stats(cache.tree.column(group, tier)).protected


def needed(window_tokens: int, page: int, length: int) -> list[int]:
    """Pages that hold one of the last W - 1 tokens before ``length``."""
    return sorted({token // page for token in range(max(0, length - window_tokens + 1), length)})


@pytest.mark.parametrize("page", [1, 2, 4])
def test_insert_keeps_the_pages_of_its_last_tokens_and_of_its_boundaries(page: int) -> None:
    """The pages of the last W - 1 tokens survive, at least where W is more than one."""
    for size in (1, page, page + 1, 3 * page):
        cache = cache_of(window(size), page=page)
        prompt = list(range(8 * page))
        put(cache, prompt, boundaries=[3 * page])
        kept = {*needed(size, page, 8 * page), *needed(size, page, 3 * page)}
        assert there(cache, prompt) == sorted(kept), f"{page=} {size=}"
        assert cache.usage()["device"].used_blocks == (8, len(kept))
        for length in (3, 8):
            assert cache.explain([*prompt[: length * page], 99]).hit_tokens == length * page
        cache.check()
        cache.close()


@pytest.mark.parametrize("page", [1, 2, 4])
def test_leased_window_is_what_the_hit_needs_and_stays_so_when_its_path_is_split(page: int) -> None:
    """Two windows and chunks beside each other; others split the path everywhere."""
    prompt = list(range(8 * page))
    for size in (2, page + 1, 3 * page):
        cache = cache_of(window(size), window(2 * size, "far"), chunked(3 * page), page=page)
        put(cache, prompt, boundaries=[5 * page])
        lease = cache.lease(at(cache, prompt))
        want = needed(size, page, 8 * page), needed(2 * size, page, 8 * page)
        for cut in (7, 6, 5, 2, 1):
            put(cache, [*prompt[: cut * page], *[90 + cut] * page])
            with cache.lease(at(cache, prompt[: cut * page]), groups=[KV]):
                pass
            assert (pinned(cache, 1), pinned(cache, 2)) == (len(want[0]), len(want[1]))
        assert pinned(cache, KV) == 8
        for group in range(4):
            cache.evict(group, 99)
        assert there(cache, prompt, 1) == want[0] and there(cache, prompt, 2) == want[1]
        assert there(cache, prompt, 3) == [6, 7], "the chunk from page 6 on"
        assert cache.explain([*prompt, 99]).hit_tokens == 8 * page
        lease.release()
        assert [pinned(cache, group) for group in range(4)] == [0] * 4
        cache.close()


def test_shorter_lease_holds_its_own_window_and_moves_it() -> None:
    cache = cache_of(window(3))
    prompt = list(range(12))
    put(cache, prompt, boundaries=[4, 8])
    assert there(cache, prompt) == [2, 3, 6, 7, 10, 11]
    lease = cache.lease(at(cache, prompt[:8]))
    assert pinned(cache) == 2
    lease.move(at(cache, prompt[:4]))
    assert pinned(cache) == 2
    assert len(cache.evict(NEAR, 99)) == 4
    assert there(cache, prompt) == [2, 3]
    with cache.lease(at(cache, prompt[:4]), groups=[KV]):
        assert pinned(cache) == 2
    lease.narrow([KV])
    assert pinned(cache) == 0 and pinned(cache, KV) == 4
    assert len(cache.evict(NEAR, 99)) == 2
    lease.release()
    cache.close()


def test_lease_given_back_touches_no_window_that_it_did_not_hold() -> None:
    """C1, sglang#27038: a lock covered the tail of a path and ended at a mark; given back without
    the mark, it counted down ancestors that it had never counted up. A lease is its own receipt.
    """
    cache = cache_of(window(2))
    for tokens in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        put(cache, tokens)
    assert there(cache, [1, 2, 3, 4, 5, 6]) == [1, 3, 5]
    middle, deep = (cache.lease(at(cache, range(1, n))) for n in (5, 7))
    deep.release()
    with pytest.raises(LeaseError, match="released already"):
        deep.release()
    assert pinned(cache) == 1
    assert len(cache.evict(NEAR, 2)) == 2
    assert there(cache, [1, 2, 3, 4, 5, 6]) == [3]
    assert cache.explain([1, 2, 3, 4, 9]).hit_tokens == 4
    middle.release()
    assert pinned(cache) == 0
    cache.close()


def test_chunks_leased_one_after_another_while_others_split_leave_no_pin() -> None:
    """C4, sglang#24153: twelve tokens in chunks of four; after each the deeper node was locked and
    the upper one unlocked, while another request split what lay between, and the window's count
    went below zero.
    """
    cache = cache_of(window(4))
    prompt = list(range(12))
    lease = cache.lease(cache.match([0])[1])
    for end in (4, 8, 12):
        cache.insert(np.array(prompt[:end], np.int32), lease)
        other = cache.lease(at(cache, prompt[: end - 2]))
        put(cache, [*prompt[: end - 3], 99])
        assert pinned(cache) >= 3 and pinned(cache, KV) == end
        other.release()
        assert pinned(cache) == 3, "those of its end"
    assert there(cache, prompt)[-3:] == [9, 10, 11]
    lease.release()
    assert pinned(cache) == pinned(cache, KV) == 0
    cache.evict(NEAR, 99)
    cache.evict(KV, 99)
    assert cache.usage()["device"].used_blocks == (0, 0)
    cache.close()


def test_window_on_the_host_stays_leased_on_both_halves_of_a_split() -> None:
    """C32, sglang#38138: a split copied no lock count and left the mark behind, so half a locked
    window could go.
    """
    cache = cache_of(window(3), tiers=2)
    put(cache, [1, 2, 3, 4])
    cache.flush()
    lease = cache.lease(at(cache, [1, 2, 3, 4]))
    inner = cache.lease(at(cache, [1, 2, 3]), groups=[KV])
    put(cache, [1, 2, 3, 9])
    cache.flush()
    for tier in (0, 1):
        assert pinned(cache, tier=tier) == 2
        cache.evict(NEAR, 99, tier=tier)
        assert there(cache, [1, 2, 3, 4], tier=tier) == [2, 3]
    lease.release()
    inner.release()
    for tier in (0, 1):
        assert pinned(cache, tier=tier) == 0
        cache.evict(NEAR, 99, tier=tier)
        assert there(cache, [1, 2, 3, 4], tier=tier) == []
    cache.close()


def test_tombstones_hide_no_victim() -> None:
    """Whatever lies above, below or between, all that is not leased can go; one by one in order of
    use, of one use the lowest page first.
    """
    cache = cache_of(window(3))
    prompt = list(range(16))
    put(cache, prompt, boundaries=[4, 8, 12])
    put(cache, [*prompt[:8], 99, 98])
    assert there(cache, prompt) == [2, 3, 6, 7, 10, 11, 14, 15]
    with cache.lease(at(cache, prompt[:8])):
        assert len(cache.evict(NEAR, 99)) == 8, "6 of this path, and 2 of the other"
        assert there(cache, prompt) == [6, 7]
        assert cache.explain([*prompt[:8], 50]).hit_tokens == 8
    assert len(cache.evict(NEAR, 1)) == 1
    assert there(cache, prompt) == [7], "the lowest page first"
    assert len(cache.evict(NEAR, 99)) == 1
    assert cache.usage()["device"].used_blocks == (18, 0)
    assert len(cache.evict(KV, 99)) == 18
    cache.check()
    cache.close()


def test_window_used_last_goes_last_wherever_it_lies() -> None:
    cache = cache_of(window(3))
    prompt = list(range(12))
    put(cache, prompt, boundaries=[4, 8])
    for length in (12, 4, 8):
        cache.lease(at(cache, prompt[:length])).release()
    for left in ([2, 3, 6, 7], [6, 7]):
        assert len(cache.evict(NEAR, 2)) == 2
        assert there(cache, prompt) == left
    cache.close()


def test_insert_into_a_full_window_pool_takes_nothing_that_is_leased() -> None:
    """All or nothing, and what is leased stays."""
    cache = cache_of(window(4), blocks=8)
    put(cache, [1, 2, 3, 4])
    lease = cache.lease(at(cache, [1, 2, 3, 4]))
    other = cache.lease(cache.match([7])[1])
    before = cache.usage(), cache.counters()
    with pytest.raises(CapacityError):
        cache.insert(np.arange(7, 12, dtype=np.int32), other)
    assert (cache.usage(), cache.counters()) == before
    cache.insert(np.arange(7, 11, dtype=np.int32), other)
    assert there(cache, [1, 2, 3, 4]) == [1, 2, 3]
    lease.release()
    other.release()
    cache.close()


def test_engine_that_shares_its_slots_gets_back_what_no_hit_needs() -> None:
    """Of the slots handed in, those behind the window come back at once, those of the boundaries
    and the end stay; every slot is of one side.
    """
    cache = PrefixCache(
        (full(), window(3), state()), [IndexTier(16)], page_tokens=1, ownership=Ownership.SHARED
    )
    rows = [[*range(8)], [*range(8, 16)], [-1, -1, -1, 5, -1, -1, -1, 9]]
    lease = cache.lease(cache.match([0])[1])
    done = cache.insert(np.arange(8, dtype=np.int32), lease, slots=rows, boundaries=[4, 8])
    assert [len(row) for row in done.duplicates] == [0, 4, 0]
    assert sorted(done.duplicates[NEAR]) == [8, 9, 12, 13]
    assert there(cache, range(8)) == [2, 3, 6, 7] and there(cache, range(8), 2) == [3, 7]
    assert cache.explain([*range(8), 1]).hit_tokens == 8
    assert cache.explain([*range(4), 1, 1]).hit_tokens == 4
    lease.release()
    assert sorted(cache.evict(NEAR, 99).tolist()) == [10, 11, 14, 15]
    cache.check()
    cache.close()


@pytest.mark.parametrize("seed", range(6))
def test_leases_in_any_order_count_as_the_union_of_what_each_needs(seed: int) -> None:
    """I12-I15 recomputed from the leases that stand, over random paths, splits and evictions."""
    rng = random.Random(seed)
    page, size = rng.choice((1, 2, 4)), rng.choice((2, 3, 5, 8))
    cache = cache_of(window(size), page=page, blocks=256)
    stories = [[0] * 12, [0] * 6 + [1] * 6, [0] * 9 + [2] * 3]
    held: list[tuple[object, list[int]]] = []
    for step in range(60):
        what = f"seed {seed} step {step}"
        story = rng.choice(stories)[: rng.randint(1, 12)]
        tokens = [token for token in story for _ in range(page)]
        if rng.random() < 0.4:
            first = cache.match(np.array(tokens, np.int32), leave=0)[0].hit_pages
            inside = range(first + 1, len(story) + 1)
            put(cache, tokens, [page * rng.choice(inside)] if inside and step % 2 else ())
        elif rng.random() < 0.5:
            _, cursor = cache.match(np.array(tokens, np.int32), leave=0)
            lease = cache.lease(cursor)
            held.append((lease, tokens[: lease.pages * page]))
        elif held and rng.random() < 0.7:
            held.pop(rng.randrange(len(held)))[0].release()
        else:
            cache.evict(NEAR, rng.randint(1, 4))
            cache.evict(KV, rng.randint(1, 3))
        near, every = set(), set()
        for path in [path for _, path in held if path]:
            wanted = set(needed(size, page, len(path)))
            near |= {tuple(path[: (p + 1) * page]) for p in there(cache, path) if p in wanted}
            every |= {tuple(path[: (p + 1) * page]) for p in there(cache, path, KV)}
        assert (pinned(cache), pinned(cache, KV)) == (len(near), len(every)), what
    for lease, _ in held:
        lease.release()
    assert pinned(cache) == pinned(cache, KV) == 0
    cache.close()
