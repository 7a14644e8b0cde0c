"""The calls of a cache for the requests of a step give what the loop of the single calls gives,
whatever a page is and whoever owns the slots; one that is refused gives everything back (I11), and
under pressure no slot is lost (I7, I8) and no hit is another prefix (I24).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from radix._native import Match
from radix.cache import PrefixCache
from radix.content import Content
from radix.errors import CapacityError, ClosedError, LeaseError, RequestError, SlotError, StaleError
from radix.groups import Group
from radix.inserting import Inserted
from radix.keys import Namespace
from radix.lease import Lease
from radix.ownership import Ownership
from radix.plan import Cursor
from tests.mixes import mix
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 2
SPACES = (None, Namespace(salt=b"another"))


def prompts_of(rng: random.Random, most: int = 20) -> list[np.ndarray]:
    """Prompts that share beginnings, one of them twice in some steps."""
    found = [
        np.array([rng.randrange(2) for _ in range(rng.randrange(1, most))], np.int32)
        for _ in range(rng.randrange(1, 7))
    ]
    return [*found, found[0]] if rng.random() < 0.3 else found


def marks_of(rng: random.Random, cache: PrefixCache, prompt: np.ndarray, lease: Lease) -> list[int]:
    """Lengths of the new pages at which a hit is to be possible."""
    step = cache.align_tokens
    places = range(
        -(-(lease.pages * PAGE + 1) // step) * step, len(prompt) // PAGE * PAGE + 1, step
    )
    return sorted(rng.sample(list(places), min(len(places), rng.randrange(3))))


def splits_alike(cache: PrefixCache) -> bool:
    """Copies to a tier below, and room made for groups that do not keep everything, pin parts of a
    path, which splits edges: for all requests of a step before the first of them enters.
    """
    return cache.tree.tiers == 1 and all(rule.everywhere for rule in cache.tree.rules)


def shown(cache: PrefixCache) -> tuple[object, ...]:
    """What can be asked of a cache that counts alike; blocks by number, not by slot; nodes where
    both caches split alike.
    """
    tree, same = cache.tree, splits_alike(cache)
    roots = sorted(cache._spaces.names)
    columns = range(tree.groups * tree.tiers)
    return (
        [tree.nodes(root) for root in roots if same],
        [tree.column_stats(column)[: 2 + same] for column in columns],
        [tree.order(column) for column in columns if same],
        cache.usage(),
        tree.stats().leases,
        dict(cache.counters()) if tree.tiers == 1 else None,
    )


def usable(match: Match, cursor: Cursor) -> Cursor:
    """Where an engine goes on: at the end of what the device has of all groups."""
    return cursor._replace(pages=match.device_pages)


def end_of(cache: PrefixCache, lease: Lease) -> tuple[int, ...]:
    """Where a lease ends; its node where both caches split alike."""
    return lease.cursor if splits_alike(cache) else (lease.cursor.root, lease.pages)


def numbers_of(cache: PrefixCache, match: Match) -> tuple[int, ...]:
    """The numbers of a match, likewise."""
    return tuple(match)[: 5 + splits_alike(cache)]


def loop(
    cache: PrefixCache, prompts: list[np.ndarray], spaces: list[Namespace | None], seed: int
) -> list[object]:
    """One step, call by call, the requests' slots picked by the cache."""
    rng = random.Random(seed)
    found = [cache.match(p, namespace=s, leave=0) for p, s in zip(prompts, spaces, strict=True)]
    leases = [cache.lease(usable(match, cursor)) for match, cursor in found]
    ends = [end_of(cache, lease) for lease in leases]
    done = []
    marks = [marks_of(rng, cache, p, le) for p, le in zip(prompts, leases, strict=True)]
    for prompt, lease, lengths in zip(prompts, leases, marks, strict=True):
        result = cache.insert(prompt, lease, boundaries=lengths)
        done.append((result.existing_pages, result.created_pages, end_of(cache, lease)))
    for lease in leases:
        lease.release()
    return [[numbers_of(cache, match) for match, _ in found], ends, done]


def step(
    cache: PrefixCache, prompts: list[np.ndarray], spaces: list[Namespace | None], seed: int
) -> list[object]:
    """The same in four calls."""
    rng = random.Random(seed)
    found = cache.match_many(prompts, namespaces=spaces, leave=0)
    leases = cache.lease_many([usable(match, found.cursor(at)) for at, match in enumerate(found)])
    ends = [end_of(cache, lease) for lease in leases]
    marks = [marks_of(rng, cache, p, le) for p, le in zip(prompts, leases, strict=True)]
    result = cache.insert_many(prompts, leases, boundaries=marks)
    done = [
        (one.existing_pages, one.created_pages, end_of(cache, lease))
        for one, lease in zip(result, leases, strict=True)
    ]
    cache.release_many(leases)
    assert all(lease.released for lease in leases)
    return [[numbers_of(cache, match) for match in found], ends, done]


@pytest.mark.parametrize("keys", ["tokens", "xxh3"])
@pytest.mark.parametrize("seed", range(16))
def test_a_step_equals_the_loop_of_single_calls(keys: str, seed: int) -> None:
    """Models of a seed, with a tier below in some, with the stream of blocks in some; room for all.

    Victims are compared where no prompt of a step brings what another brings: room for it is made
    for both before the first enters.
    """
    rng = random.Random(seed)
    groups = mix(rng, PAGE)
    tiers = 1 + (seed % 3 == 0)

    def make() -> PrefixCache:
        names = ("device", "host")[:tiers]
        media = [IndexTier(4000, name) for name in names]
        return PrefixCache(groups, media, page_tokens=PAGE, keys=keys, events=seed % 4 == 1)

    with make() as one, make() as many:
        for number in range(25):
            prompts = prompts_of(rng)
            spaces = [rng.choice(SPACES) for _ in prompts]
            expected = loop(one, prompts, spaces, number)
            assert step(many, prompts, spaces, number) == expected
            for _ in range(3):
                told = [[type(event) for event in each.poll()] for each in (one, many)]
                assert told[0] == told[1] or tiers > 1
            assert shown(many) == shown(one)
            for each in (one, many):
                each.check()
            if tiers == 1 and rng.random() < 0.3:
                count = rng.randrange(20)
                for group in range(len(groups)):
                    assert len(one.evict(group, count)) == len(many.evict(group, count))
                assert shown(many) == shown(one)


class Oracle:
    """Which prefix the block in each slot is of: what the tree says of a hit must be true."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.of: dict[int, bytes] = {}

    def wrote(self, prompt: np.ndarray, lease: Lease) -> None:
        """The blocks of a prompt that was just inserted; those there before are what they were."""
        pages = lease.pages
        slots = self.cache.tree.slots(lease.cursor, 0, 0, pages).tolist()
        for page, slot in enumerate(slots):
            prefix = prompt[: (page + 1) * PAGE].tobytes()
            if page >= pages - len(prompt) // PAGE:
                self.of[slot] = prefix

    def reads(self, prompt: np.ndarray) -> int:
        """A hit, block by block."""
        match, cursor = self.cache.match(prompt, leave=0)
        slots = self.cache.tree.slots(cursor, 0, 0, match.hit_pages).tolist()
        for page, slot in enumerate(slots):
            assert self.of[slot] == prompt[: (page + 1) * PAGE].tobytes()
        return match.hit_pages


@pytest.mark.parametrize("pool", [8, 16, 32])
@pytest.mark.parametrize("seed", range(6))
def test_under_pressure_a_step_is_done_or_was_never_there(pool: int, seed: int) -> None:
    """Pools of 8 to 32 blocks: a step without room names its request, and holds nothing."""
    rng = random.Random(seed)
    refused = done = hits = 0
    with PrefixCache([Group.full("kv", 1)], [IndexTier(pool)], page_tokens=PAGE) as cache:
        oracle = Oracle(cache)
        for _ in range(60):
            prompts = prompts_of(rng, 3 * pool // 2)
            hits += sum(oracle.reads(prompt) for prompt in prompts)
            leases = cache.lease_many(cache.match_many(prompts, leave=0))
            before = [lease.cursor for lease in leases]
            new = [len(p) // PAGE - lease.pages for p, lease in zip(prompts, leases, strict=True)]
            held = cache.tree.column_stats(0).protected
            try:
                result = cache.insert_many(prompts, leases)
            except CapacityError as error:
                refused += 1
                assert sum(new) > pool - held >= 0
                at = next(at for at in range(len(new)) if sum(new[: at + 1]) > pool - held)
                assert str(error).startswith(f"request {at} of the batch: ")
                assert [lease.cursor for lease in leases] == before
                assert cache.tree.column_stats(0).protected == held
                assert cache.usage()["device"].used_blocks[0] == cache.tree.column_stats(0).resident
            else:
                done += 1
                for prompt, lease, one in zip(prompts, leases, result, strict=True):
                    assert lease.pages == max(len(prompt) // PAGE, lease.pages)
                    oracle.wrote(prompt, lease)
                    assert sum(len(row) for row in one.duplicates) == one.existing_pages
            cache.check()
            cache.release_many(leases)
            cache.check()
        assert cache.tree.stats().leases == 0
    assert refused > 3
    assert done > 10
    assert hits > 20


def test_a_step_of_several_groups_without_room_holds_nothing() -> None:
    """What was reserved for the requests before the one without room goes back, in every group."""
    groups = [Group.full("kv", 64), Group.full("more", 64)]
    with PrefixCache(groups, [IndexTier([64, 20])], page_tokens=PAGE) as cache:
        prompts = [np.full(16, row, np.int32) for row in range(3)]
        leases = cache.lease_many(cache.match_many(prompts))
        before = shown(cache)
        with pytest.raises(CapacityError, match=r"request 2 of the batch: .*'more'"):
            cache.insert_many(prompts, leases)
        assert shown(cache) == before
        cache.check()
        assert cache.insert_many(prompts[:2], leases[:2]).created_pages.tolist() == [8, 8]
        cache.release_many(leases)


def shared(blocks: int = 64) -> PrefixCache:
    """A cache of slots that an engine allocates."""
    kv = [Group.full("kv", 64)]
    return PrefixCache(kv, [IndexTier(blocks)], page_tokens=PAGE, ownership=Ownership.SHARED)


@pytest.mark.parametrize("seed", range(8))
def test_slots_of_an_engine_come_back_alike(seed: int) -> None:
    """What a prompt brings that another brought before is the engine's again, in a step too."""
    rng = random.Random(seed)
    with shared(400) as one, shared(400) as many:
        engine = [list(range(400)), list(range(400))]
        for _ in range(12):
            prompts = prompts_of(rng, 16)
            told: list[list[object]] = []
            for cache, free, whole in ((one, engine[0], False), (many, engine[1], True)):
                found = [cache.match(prompt, leave=0) for prompt in prompts]
                leases = [cache.lease(cursor) for _, cursor in found]
                slots = []
                for prompt, lease in zip(prompts, leases, strict=True):
                    count = len(prompt) // PAGE - lease.pages
                    slots.append([np.array(free[:count], np.int32)])
                    del free[:count]
                if whole:
                    result: Sequence[Inserted] = cache.insert_many(prompts, leases, slots=slots)
                    cache.release_many(leases)
                else:
                    result = [
                        cache.insert(prompt, lease, slots=rows)
                        for prompt, lease, rows in zip(prompts, leases, slots, strict=True)
                    ]
                    for lease in leases:
                        lease.release()
                told.append([(e.existing_pages, e.created_pages) for e in result])
                told[-1] += [[row.tolist() for row in e.duplicates] for e in result]
                told[-1] += [[row.tolist() for row in e.slots] for e in result]
                for each in result:
                    free += [slot for row in each.duplicates for slot in row.tolist()]
                cache.check()
                assert len(free) + cache.tree.column_stats(0).resident == 400
            assert told[0] == told[1]
            assert shown(one) == shown(many)


def test_what_is_refused_names_its_request_and_changes_nothing() -> None:
    """I11, for whatever one of the single calls refuses."""
    kv = [Group.full("kv", 64)]
    with PrefixCache(kv, [IndexTier(64)], page_tokens=PAGE) as cache, shared() as other:
        prompts = [np.full(8, row, np.int32) for row in range(7)]
        leases = cache.lease_many(cache.match_many(prompts))
        foreign = other.lease_many(other.match_many(prompts))
        gone = cache.lease(leases[0].cursor)
        gone.release()
        bad = [*prompts[:6], np.full(8, -1, np.int32)]
        stale = [*(lease.cursor for lease in leases[:6]), Cursor(1 << 40, 1 << 40, 0)]
        slots = [[np.arange(4 * row, 4 * row + 4)] for row in range(7)]
        wrong = [*slots[:6], [np.arange(3)]]
        twice = [*slots[:6], slots[0]]
        many, some, put = [*leases[:6], leases[2]], prompts[:6], cache.insert_many
        grid, lent = [*[[]] * 6, [3]], other.insert_many
        cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (LeaseError, "request 6 .*released", lambda: put(prompts, [*leases[:6], gone])),
            (LeaseError, "request 6 .*twice", lambda: put(prompts, many)),
            (LeaseError, "request 6 .*twice", lambda: cache.release_many(many)),
            (LeaseError, "request 6 .*another", lambda: cache.release_many([*many[:6], *foreign])),
            (ValueError, "request 6 ", lambda: put(bad, leases)),
            (TypeError, "request 6 ", lambda: put([*some, [1.5]], leases)),
            (TypeError, r"prompts\[6\]", lambda: cache.match_many([*some, np.zeros(4)])),
            (ValueError, "leave", lambda: cache.match_many(prompts, leave=-1)),
            (ValueError, "request 6 ", lambda: put(prompts, leases, boundaries=grid)),
            (StaleError, "request 6 ", lambda: cache.lease_many(stale)),
            (ValueError, "request 0 .*owned", lambda: put(prompts, leases, slots=slots)),
            (ValueError, "leases must be one a prompt", lambda: put(prompts, leases[:6])),
            (ValueError, "namespaces", lambda: cache.match_many(prompts, namespaces=[None])),
            (ValueError, "boundaries", lambda: put(prompts, leases, boundaries=[])),
            (ValueError, "request 0 .*need", lambda: lent(prompts, foreign)),
            (ValueError, "request 6 .*3 slots", lambda: lent(prompts, foreign, slots=wrong)),
            (SlotError, "twice", lambda: lent(prompts, foreign, slots=twice)),
        ]
        before = shown(cache), shown(other)
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()
            assert (shown(cache), shown(other)) == before, text
            cache.check()
            other.check()
        cache.insert_many(prompts, leases)
        other.insert_many(prompts, foreign, slots=slots)
        for each, pins in ((cache, leases), (other, foreign)):
            assert each.match_many(prompts, leave=0).hit_pages.tolist() == [4] * 7
            each.release_many(pins)


def test_a_tier_with_bytes_refuses_slots_that_nobody_wrote() -> None:
    kv = [Group.full("kv", 64)]
    with PrefixCache(kv, [HostTier(1 << 20)], page_tokens=PAGE) as cache:
        leases = cache.lease_many(cache.match_many([[1, 2, 3]]))
        with pytest.raises(RequestError, match="nobody has written"):
            cache.insert_many([[1, 2, 3]], leases)
        cache.release_many(leases)


def test_prompts_with_contents_are_matched_and_inserted_by_their_digests() -> None:
    kv = [Group.full("kv", 64)]
    image, other = Content(1, 2, bytes(32)), Content(1, 2, b"x" * 32)
    prompts = [[1, 0, 0, 2, 3, 4]] * 3
    inside = [[image], [other], None]
    with PrefixCache(kv, [IndexTier(64)], page_tokens=PAGE, keys="sha256") as cache:
        leases = cache.lease_many(cache.match_many(prompts, contents=inside))
        assert [
            one.created_pages for one in cache.insert_many(prompts, leases, contents=inside)
        ] == [3, 3, 3]
        grown = [[*prompt, 5, 6] for prompt in prompts]
        result = cache.insert_many(grown, leases, contents=inside)
        assert result.created_pages.tolist() == [1, 1, 1]
        cache.release_many(leases)
        for content in inside:
            assert cache.match(grown[0], content=content, leave=0)[0].hit_pages == 4
        with pytest.raises(ValueError, match="request 2 of the batch: content"):
            cache.match_many(prompts, contents=[None, None, [image, image]])
        cache.check()


def test_hits_of_a_step_are_multiples_of_what_the_engine_asks() -> None:
    kv = [Group.full("kv", 64)]
    with PrefixCache(kv, [IndexTier(64)], page_tokens=PAGE, align_tokens=6) as cache:
        prompt = np.arange(14, dtype=np.int32)
        with cache.lease(cache.match(prompt)[1]) as lease:
            cache.insert(prompt, lease)
        found = cache.match_many([prompt, prompt[:9]], leave=0)
        assert list(found) == [cache.match(p, leave=0)[0] for p in (prompt, prompt[:9])]
        assert found.hit_pages.tolist() == [6, 3]


def test_leases_of_a_step_end_with_a_closed_cache_and_are_counted_when_dropped() -> None:
    kv = [Group.full("kv", 64)]
    cache = PrefixCache(kv, [IndexTier(64)], page_tokens=PAGE)
    found = cache.match_many([[1, 2, 3]] * 3)
    leases = cache.lease_many(found)
    del leases[0]
    cache.poll()
    assert cache.counters()["lease.dropped"] == 1
    with pytest.warns(ResourceWarning, match="2 leases"):
        cache.close()
    cache.release_many(leases)
    assert all(lease.released for lease in leases)
    with pytest.raises(ClosedError):
        cache.match_many([[1]])


def test_a_lease_of_a_step_names_groups_as_a_single_one_does() -> None:
    kv = [Group.full("kv", 64)]
    with PrefixCache(kv, [IndexTier(64)], page_tokens=PAGE) as cache:
        found = cache.match_many([[1, 2]])
        with pytest.raises(ValueError, match="group"):
            cache.lease_many(found, groups=[4])
        [lease] = cache.lease_many(found, groups=[0])
        lease.release()
        assert [a <= b for a, b in pairwise([0, cache.tree.stats().leases])] == [True]
        assert cache.tree.stats().leases == 0


def test_an_insert_behind_what_its_tier_lacks_is_refused() -> None:
    """The fault: of several groups in one tier one may lose its blocks while another keeps the
    path; a lease at the end of that path was gone on from, over the gap (I21).
    """
    groups = [Group.full("kv", 64), Group.full("more", 64)]
    with PrefixCache(groups, [IndexTier(64)], page_tokens=PAGE) as cache:
        prompt = np.arange(8, dtype=np.int32)
        with cache.lease(cache.match(prompt)[1]) as lease:
            cache.insert(prompt, lease)
        cache.evict(0, 2)
        longer = np.arange(12, dtype=np.int32)
        match, cursor = cache.match(longer)
        assert (match.hit_pages, match.structural_pages) == (2, 4)
        with cache.lease(cursor) as lease:
            with pytest.raises(LeaseError, match="does not hold"):
                cache.insert(longer, lease)
            with pytest.raises(LeaseError, match=r"request 0 .*does not hold"):
                cache.insert_many([longer], [lease])
        with cache.lease(usable(match, cursor)) as lease:
            assert cache.insert(longer, lease).existing_pages == 2
        cache.check()
