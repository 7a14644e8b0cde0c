"""What a scheduler's calls cost against all that is under way: requests that run, loads that have
not ended, and the context that a request has behind it.

Kept here: few and many are measured in turn, round by round; what is under way does not move while
something is timed. The tiers have slots without bytes, or blocks of a page, so that what is seen is
the books.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from functools import partial

import numpy as np

from bench.measure import (
    OURS,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Target,
    call_us,
    no_collection,
    ratio,
)
from bench.workloads import Prompts, fresh_prompts
from radix.cache import PrefixCache
from radix.events import KeysDone
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.ownership import Ownership
from radix.request import Request
from radix.store import FlatStore
from tiers.host import AdoptedTier, HostTier
from tiers.index import IndexTier

PAGE_TOKENS = 16
WINDOW_TOKENS = 1024
BLOCK_BYTES = 4096
KEY_BYTES = 32
POLL, TURN = "poll, {:,} requests run", "a request from admission to its end, {:,} run"
LOAD, TOKEN = "load of a key, {:,} under way", "a decoded token behind {:,} tokens"


def _groups() -> list[Group]:
    layout = Layout.opaque(BLOCK_BYTES)
    window = Group("window", layout, Retention("window", tokens=WINDOW_TOKENS))
    return [Group("kv", layout), window, Group("state", layout, Retention("state"))]


def _cache(tokens: int) -> PrefixCache:
    blocks = 2 * tokens // PAGE_TOKENS + 1024
    return PrefixCache(_groups(), [IndexTier(blocks)], page_tokens=PAGE_TOKENS)


class _Running:
    """A cache in which so many requests run and wait for nothing."""

    def __init__(self, stack: ExitStack, requests: int, tokens: int, seed: int) -> None:
        prompts = fresh_prompts(requests + 1, tokens, seed)
        self.cache = stack.enter_context(_cache(2 * (requests + 2) * tokens))
        self.prompt = prompts[-1]
        for prompt in prompts[:-1]:
            self.cache.admit(prompt)
        self.cache.poll()

    def turn(self) -> None:
        """One request more, from its admission to its end."""
        request = self.cache.admit(self.prompt)
        request.computed(len(self.prompt))
        request.finish()
        self.cache.poll()


def _decode(request: Request, cache: PrefixCache, token: Prompts) -> None:
    request.append(token)
    request.computed(len(request))
    cache.poll()


class _Loading:
    """A flat store over host memory, from which keys are loaded into lent rows."""

    def __init__(self, stack: ExitStack, keys: int) -> None:
        rows = np.zeros((2 * keys, BLOCK_BYTES), np.uint8)
        host = HostTier(keys * 2 * BLOCK_BYTES + (64 << 20))
        memory = AdoptedTier([[rows]], "memory")
        self.store = stack.enter_context(
            FlatStore(
                [Group.full("kv", BLOCK_BYTES)],
                [memory, host],
                key_bytes=KEY_BYTES,
                ownership=Ownership.BORROWED,
            )
        )
        self._names = np.zeros((keys, KEY_BYTES), np.uint8)
        self._names[:, :8] = np.arange(keys, dtype=np.int64)[:, None].view(np.uint8)
        self._keys = keys
        self.store.store(self._names, np.arange(keys, dtype=np.int32))
        self.store.flush()

    def load_us(self, asked: int) -> tuple[float, int]:
        """us of each of the last calls, all others under way; and keys that came."""
        store, free = self.store, np.arange(self._keys, 2 * self._keys, dtype=np.int32)
        calls = [(self._names[at : at + 1], free[at : at + 1]) for at in range(self._keys)]
        spans = call_us(store.load, calls)
        ended = [event for event in store.flush() if isinstance(event, KeysDone)]
        return statistics.median(spans[-asked:]), sum(int(event.good.sum()) for event in ended)


def run_running(sizes: Sizes, place: Place) -> Outcome:
    """Each call with few and with many others under way, behind few and behind many tokens."""
    rounds, few, many = Rounds(), sizes["few"], sizes["many"]
    calls, tokens, came = sizes["calls"], sizes["tokens"], 0
    short, long = sizes["short_tokens"], sizes["long_tokens"]
    token = np.ones(1, np.int32)
    with ExitStack() as stack, no_collection():
        running = {count: _Running(stack, count, tokens, 61) for count in (few, many)}
        loading = {count: _Loading(stack, count) for count in (few, many)}
        decoding = []
        for length in (short, long):
            cache = stack.enter_context(_cache(2 * length))
            new = calls * (sizes["rounds"] + 1)
            request = cache.admit(fresh_prompts(1, length, 62)[0], new_tokens=new)
            request.computed(length)
            cache.poll()
            decoding.append((length, request, partial(_decode, request, cache, token)))
        for _ in range(sizes["rounds"]):
            for count in (few, many):
                one = running[count]
                rounds.add_median(
                    POLL.format(count), OURS, "us", call_us(one.cache.poll, [()] * calls)
                )
                rounds.add_median(TURN.format(count), OURS, "us", call_us(one.turn, [()] * calls))
                us, good = loading[count].load_us(few)
                came += good
                rounds.add(LOAD.format(count), OURS, "us", us)
            for length, _, decode in decoding:
                rounds.add_median(TOKEN.format(length), OURS, "us", call_us(decode, [()] * calls))
        served = [len(request) for _, request, _ in decoding]
    rows = rounds.rows()
    pairs = [(name.format(many), name.format(few)) for name in (POLL, TURN, LOAD)]
    pairs.append((TOKEN.format(long), TOKEN.format(short)))
    return Outcome(
        rows=rows,
        facts={"keys that came": came, **{f"request {at}": n for at, n in enumerate(served)}},
        ratios=[ratio(rows, name, to) for name, to in pairs],
        targets=[Target(f"{name} / {to}", "at most", 1.5) for name, to in pairs],
    )


BENCHMARKS = (
    Benchmark(
        "running",
        "Calls of a scheduler against all that is under way",
        run_running,
        smoke={
            "few": 4,
            "many": 32,
            "tokens": 64,
            "calls": 20,
            "short_tokens": 2048,
            "long_tokens": 16_384,
            "rounds": 2,
        },
        full={
            "few": 8,
            "many": 1024,
            "tokens": 64,
            "calls": 500,
            "short_tokens": 2048,
            "long_tokens": 1 << 20,
            "rounds": 5,
        },
    ),
)
