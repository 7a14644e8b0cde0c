"""A cache whose pages are digests does what a cache of tokens does in which each token is what it
stands for: its id and, inside a content, which token of which content. Everything that can be seen
is compared at each step: hits, branch points, page tables, events, victims, the tree's size
(C29; I5, I33, I34), under pressure, for groups of every retention.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from radix.cache import PrefixCache
from radix.content import Content
from radix.errors import CacheError
from radix.events import BlocksRemoved, BlocksStored, Event, RequestState
from radix.groups import Group, Retention
from radix.keys import Namespace
from radix.layout import Layout
from radix.request import Request
from tests.ticktier import TickTier
from tiers.device import DeviceTier

DIGESTS = (b"cat".ljust(16, b"."), b"dog".ljust(32, b"."))
SPACES = (None, Namespace("llava", revision="r2"))
STEPS = 250


def groups_of(rng: random.Random, page: int) -> tuple[Group, ...]:
    """One group that keeps everything, beside it a window, a state, both or neither."""
    found = [Group.full("kv", 16)]
    if rng.random() < 0.6:
        tokens = rng.choice((1, page, page + 1, 3 * page))
        found.append(Group("near", Layout.opaque(8), Retention("window", tokens)))
    if rng.random() < 0.5:
        grid = rng.choice((None, 1, 3)) if page < 4 else None
        found.append(Group("state", Layout.opaque(8), Retention("state"), grid_tokens=grid))
    return tuple(found)


def counted(cache: PrefixCache) -> dict[str, int]:
    """What a cache counted; misses in one sum, whatever their reasons."""
    found: dict[str, int] = {}
    for name, value in cache.counters().items():
        name = "match.miss" if name.startswith("match.miss") else name
        found[name] = found.get(name, 0) + value
    return found


class Pair:
    """Both caches, and one call for the two of them."""

    def __init__(self, seed: int, keys: str) -> None:
        self.rng = rng = random.Random(seed)
        self.page = rng.choice((1, 2, 4))
        groups, align = groups_of(rng, self.page), rng.choice((1, 1, 1, 2 * self.page))
        device, host = rng.randrange(12, 33), rng.randrange(8, 33)
        self.caches = tuple(
            PrefixCache(
                groups,
                [DeviceTier(blocks=device, device="cpu"), TickTier(host, "host", seed=seed)],
                page_tokens=self.page,
                keys=kind,
                events=True,
                align_tokens=align,
            )
            for kind in (keys, "tokens")
        )
        self.live: list[tuple[Request, Request]] = []
        self.prompts: list[tuple[list[int], list[Content]]] = [([], [])]
        self.names: dict[bytes, bytes] = {}  # a key of the one cache to that of the other
        self._ids: dict[object, int] = {}

    # ------------------------------------------------------------ prompts
    def prompt(self) -> tuple[list[int], list[Content]]:
        """Tokens and contents; mostly one that was seen before, cut and gone on with."""
        rng = self.rng
        known, contents = rng.choice(self.prompts[-5:])
        upto = len(known) - rng.choice((0, 0, 1, len(known) // 2))
        tokens = list(known[:upto])
        contents = [content for content in contents if content.end_tokens <= upto]
        while not tokens or (rng.random() < 0.7 and len(tokens) < 9 * self.page):
            tokens += [rng.randrange(2) for _ in range(rng.randrange(0, 2 * self.page) + 1)]
            if rng.random() < 0.4:
                length = rng.randrange(0, 2 * self.page) + 1
                contents.append(Content(len(tokens), length, rng.choice(DIGESTS)))
                tokens += [0] * length
        self.prompts.append((tokens, contents))
        return tokens, contents

    def plain(self, tokens: Sequence[int], contents: Sequence[Content]) -> list[int]:
        """The same prompt where each id says what its token stands for."""
        found = []
        for at, token in enumerate(tokens):
            inside = tuple(
                replace(one, offset_tokens=at - one.offset_tokens)
                for one in contents
                if one.offset_tokens <= at < one.end_tokens
            )
            found.append(self._ids.setdefault((token, inside), len(self._ids)))
        return found

    # ------------------------------------------------------------ both
    def both(self, call: Callable[[int, PrefixCache], object]) -> tuple[object, object] | None:
        """Both answers; None where both refused, for one reason."""
        answers: list[object] = []
        for number, cache in enumerate(self.caches):
            try:
                answers.append(call(number, cache))
            except CacheError as error:
                answers.append((type(error), str(error)))
        refused = [isinstance(answer, tuple) and len(answer) == 2 for answer in answers]
        assert refused[0] == refused[1], answers
        if refused[0]:
            assert answers[0] == answers[1]
            return None
        return answers[0], answers[1]

    def same(self, call: Callable[[int, PrefixCache], object]) -> object:
        """The one answer of both."""
        answers = [repr(call(number, cache)) for number, cache in enumerate(self.caches)]
        assert answers[0] == answers[1]
        return answers[0]

    def tell(self, events: Sequence[list[Event]]) -> None:
        """Both streams say the same of blocks that answer to each other."""
        assert len(events[0]) == len(events[1])
        for one, other in zip(*events, strict=True):
            assert type(one) is type(other)
            if isinstance(one, BlocksStored | BlocksRemoved):
                assert isinstance(other, BlocksStored | BlocksRemoved)
                assert (one.tier, one.group, len(one.keys)) == (
                    other.tier,
                    other.group,
                    len(other.keys),
                )
                for mine, theirs in zip(one.keys, other.keys, strict=True):
                    known = self.names.setdefault(mine.tobytes(), theirs.tobytes())
                    assert known == theirs.tobytes(), "two pages of one key, or two keys of a page"
            else:
                assert one == other

    # ------------------------------------------------------------ steps
    def admit(self) -> None:
        """A request comes; what it would hit is asked for first."""
        rng = self.rng
        tokens, contents = self.prompt()
        space, plain = SPACES[rng.random() < 0.2], self.plain(tokens, contents)
        step = self.caches[0].align_tokens
        ends = [end for end in range(step, len(tokens) + 1, step) if rng.random() < 0.3]
        runs = [(tokens, contents), (plain, None)]
        several = (0, 1, rng.randrange(2, 9))
        self.same(
            lambda number, cache: [
                cache.match(runs[number][0], content=runs[number][1], namespace=space, leave=leave)[
                    0
                ][:5]
                for leave in several
            ]
        )
        # Why a page is gone is remembered in a small table by hashes, which are not the same.
        self.same(
            lambda number, cache: replace(
                cache.explain(runs[number][0], content=runs[number][1], namespace=space), reason=""
            )
        )
        found = self.both(
            lambda number, cache: cache.admit(
                runs[number][0],
                content=runs[number][1],
                namespace=space,
                new_tokens=2,
                boundaries=ends,
            )
        )
        if found is not None:
            self.live.append(found)

    def compute(self, pair: tuple[Request, Request]) -> None:
        """A running request computes up to where it must stop, or samples a token."""
        rng = self.rng
        if pair[0].state is not RequestState.RUNNING:
            return
        done = pair[0]._work.told
        if done == len(pair[0]):
            ids = [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
            given = (ids, self.plain(ids, ()))
            self.both(lambda number, cache: pair[number].append(given[number]))
            return
        upto = rng.choice((rng.randrange(done, len(pair[0])) + 1, len(pair[0])))
        self.same(lambda number, cache: pair[number].cuts(upto - done))
        states = any(group.retention.rule == "state" for group in self.caches[0].groups)
        for stop in pair[0].cuts(upto - done) if states else ():
            self.same(lambda number, cache, at=stop: sorted(pair[number].snapshot(at)))
        self.both(lambda number, cache: pair[number].computed(upto))

    def step(self) -> None:
        """One thing that happens."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.35 and len(self.live) < 3:
            self.admit()
        elif roll < 0.75 and self.live:
            self.compute(rng.choice(self.live))
        elif roll < 0.92 and self.live:
            pair = self.live.pop(rng.randrange(len(self.live)))
            self.same(lambda number, cache: pair[number].finish())
        elif roll < 0.96:
            group, tier = rng.randrange(len(self.caches[0].groups)), rng.randrange(2)
            count = rng.randrange(6)
            self.same(lambda number, cache: cache.evict(group, count, tier=tier).tolist())
        self.tell([cache.poll() for cache in self.caches])
        self.look()

    def look(self) -> None:
        """Everything that can be compared."""
        for pair in self.live:
            self.same(
                lambda number, cache, pair=pair: (
                    pair[number].state,
                    pair[number].hit_tokens,
                    pair[number].branch_tokens,
                    pair[number].sources,
                    [pair[number].slots(group).tolist() for group in range(len(cache.groups))],
                )
            )
        self.same(lambda number, cache: cache.tree.stats()._replace(bytes=0))
        self.same(lambda number, cache: cache.usage())
        self.same(lambda number, cache: counted(cache))

    def end(self) -> int:
        """Ends what runs; the tokens that hit."""
        for pair in self.live:
            self.same(lambda number, cache, pair=pair: pair[number].abort())
        for _ in range(20):
            self.tell([cache.poll() for cache in self.caches])
        self.look()
        for cache in self.caches:
            cache.check()
            cache.close()
        return int(self.caches[0].metrics.total("match", "hit_tokens"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keys", ["xxh3", "sha256"])
def test_a_cache_of_keys_does_what_a_cache_of_tokens_does(seed: int, keys: str) -> None:
    pair = Pair(seed, keys)
    for step in range(STEPS):
        try:
            pair.step()
        except BaseException as error:
            error.add_note(f"seed {seed} step {step}")
            raise
    assert pair.end() > 0, f"seed {seed}: nothing hit"
