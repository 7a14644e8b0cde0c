"""The workloads of prefix trees, the same for every tree: ``shared``, ``turns`` and ``keys``.

An adapter says how one tree does each operation; which prompts come in which order, what is timed
and what is counted stands here once. Kept here: an adapter times only what a user of that tree
calls, arguments that are no part of the work are made before; counts come from what the tree
answered.

    shared   prompts in groups that share their first tokens, inserted in random order; then full
             hits of prompts picked at random, of sets that fit a cache, half hits, misses; leases,
             releases; eviction a leaf at a time
    turns    sessions that go on by some tokens, turn after turn: match, lease, insert, release
    keys     a prompt given as a list, as int64 and as int32, made into what the tree takes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.peers.child import Found, Sizes
from bench.workloads import Prompts, fresh_prompts, shared_prompts, shuffled

_LEAST_US = 0.001
Timed = tuple[list[float], list[Any]]
HOT_PROMPTS = 8  # of which tokens and tree fit a core's own cache, as int32 and as int64


def timed(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Timed:
    """Microseconds of each call, those of reading the clock included, and what each returned."""
    clock = time.perf_counter_ns
    spans: list[float] = []
    results: list[Any] = []
    for each in arguments:
        start = clock()
        result = call(*each)
        end = clock()
        spans.append((end - start) / 1e3)
        results.append(result)
    return spans, results


def clock_us() -> float:
    """What reading the clock adds to every span: the median of spans around nothing."""
    clock = time.perf_counter_ns
    spans: list[int] = []
    for _ in range(1001):
        start = clock()
        end = clock()
        spans.append(end - start)
    return statistics.median(spans) / 1e3


class Tree(Protocol):
    """How one tree does each operation. Tokens are counted, not pages."""

    def versions(self) -> Mapping[str, str]:
        """Name and version of each package that takes part."""
        ...

    def open(self, sizes: Sizes, capacity_tokens: int) -> None:
        """An empty tree; one that was open is closed."""
        ...

    def key(self, tokens: Prompts) -> Any:
        """The tokens (int32) as the tree wants them; what that costs is measured elsewhere."""
        ...

    def conversions(self) -> Mapping[str, Callable[[Any], Any]]:
        """By "list", "int64" and "int32" (arrays): what makes tokens in that form a key."""
        ...

    def insert(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """us of each insert of a whole prompt with slots of its own, made before, and tokens that
        were there already.
        """
        ...

    def insert_behind(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """The same after a match of each prompt, which is not timed: from where it ended, where the
        tree allows.
        """
        ...

    def match(self, keys: Sequence[Any]) -> tuple[list[float], int, list[Any]]:
        """us of each match, tokens that hit, and where each ended."""
        ...

    def lease(self, ends: Sequence[Any]) -> Timed:
        """us of pinning each end, and the pins."""
        ...

    def release(self, leases: Sequence[Any]) -> list[float]:
        """us of giving each pin back."""
        ...

    def evict(self, tokens: int, times: int) -> tuple[list[float], int]:
        """us of each eviction of so many tokens, least recently used first, and tokens gone."""
        ...

    def turn(self, key: Any) -> tuple[tuple[float, float, float, float], int]:
        """One turn of a session: us of match, lease, insert (of what is new behind the match, where
        the tree allows), release; and tokens that hit.
        """
        ...


class TreeWork:
    """A tree at work, as the protocol of children asks for it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._sizes: Sizes = {}
        self._round: Callable[[], Found] | None = None
        self._keys: dict[str, list[Any]] = {}
        self._rng = np.random.default_rng(0)

    def versions(self) -> Mapping[str, str]:
        """Those of the tree's packages."""
        return self._tree.versions()

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        """Makes the prompts, as the tree wants them."""
        known = {
            "shared": self._prepare_shared,
            "turns": self._prepare_turns,
            "keys": self._prepare_keys,
        }
        if workload not in known:
            raise ValueError(f"workload must be one of {', '.join(known)}, not {workload!r}")
        self._sizes = sizes
        self._rng = np.random.default_rng(seed)
        self._round = known[workload](seed)

    def round(self) -> Found:
        """One workload from an empty tree to the last eviction. What reading the clock takes is
        no part of any figure.
        """
        if self._round is None:
            raise ValueError("round before prepare")
        us, facts = self._round()
        clock = clock_us()
        return {name: max(span - clock, _LEAST_US) for name, span in us.items()}, facts

    # ------------------------------------------------------------------ shared

    def _prepare_shared(self, seed: int) -> Callable[[], Found]:
        sizes, key, rng = self._sizes, self._tree.key, self._rng
        count, tokens, probes = sizes["prompts"], sizes["tokens"], sizes["probes"]
        shared, group = sizes["shared_tokens"], sizes["group"]
        prompts = shared_prompts(count, tokens, group, shared, seed)
        order = shuffled(count, rng)
        fill = [key(prompts[at]) for at in order]
        # What is asked for is equal to what was inserted, never the same memory.
        picks = [int(at) for at in rng.integers(0, count, probes)]
        half = fresh_prompts(probes, tokens, seed + 1)
        half[:, :shared] = prompts[picks, :shared]
        self._keys = {
            "fill": fill,
            "hit": [key(prompts[at].copy()) for at in picks],
            "partial": [key(row) for row in half],
            "miss": [key(row) for row in fresh_prompts(probes, tokens, seed + 2)],
        }
        return self._shared

    def _shared(self) -> Found:
        tree, sizes, keys = self._tree, self._sizes, self._keys
        us: dict[str, list[float]] = {}
        facts: dict[str, int] = {}
        room = 2 * sizes["prompts"] * sizes["tokens"]
        tree.open(sizes, room)
        us["insert behind a match"], facts["matched_before"] = tree.insert_behind(keys["fill"])
        tree.open(sizes, room)
        us["insert"], facts["inserted_before"] = tree.insert(keys["fill"])
        us["match hit"], facts["hit_tokens"], ends = tree.match(keys["hit"])
        us["match hit, prompt just read"], facts["read_tokens"] = self._just_read(keys["hit"])
        us["match hit in cache"], facts["hot_tokens"] = self._hot(keys["hit"])
        us["match partial"], facts["partial_tokens"], _ = tree.match(keys["partial"])
        us["match miss"], facts["miss_tokens"], _ = tree.match(keys["miss"])
        us["lease"], leases = tree.lease(ends)
        us["release"] = tree.release(leases)
        leaf = sizes["tokens"] - sizes["shared_tokens"]
        us["evict one leaf"], facts["evicted_tokens"] = tree.evict(leaf, sizes["evictions"])
        return {name: statistics.median(spans) for name, spans in us.items()}, facts

    def _just_read(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """Each prompt is brought into the cache, as one that was just tokenized is."""
        spans: list[float] = []
        hit = 0
        for key in keys:
            np.frombuffer(key, np.int32).max()
            one, tokens, _ = self._tree.match([key])
            spans += one
            hit += tokens
        return spans, hit

    def _hot(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """Sets of a few prompts: each set is asked for once, not timed, and then once more."""
        spans: list[float] = []
        hit = 0
        for first in range(0, len(keys), HOT_PROMPTS):
            some = keys[first : first + HOT_PROMPTS]
            self._tree.match(some)
            more, tokens, _ = self._tree.match(some)
            spans += more
            hit += tokens
        return spans, hit

    # ------------------------------------------------------------------- turns

    def _prepare_turns(self, seed: int) -> Callable[[], Found]:
        sizes, key = self._sizes, self._tree.key
        turns, step = sizes["turns"], sizes["turn_tokens"]
        sessions = fresh_prompts(sizes["sessions"], turns * step, seed)
        self._keys = {
            "turns": [
                key(session[: (turn + 1) * step].copy())
                for turn in range(turns)
                for session in sessions
            ]
        }
        return self._turns

    def _turns(self) -> Found:
        tree, sizes = self._tree, self._sizes
        tree.open(sizes, 2 * sizes["sessions"] * sizes["turns"] * sizes["turn_tokens"])
        spans: list[tuple[float, float, float, float]] = []
        hit = 0
        for key in self._keys["turns"]:
            of_turn, tokens = tree.turn(key)
            spans.append(of_turn)
            hit += tokens
        names = ("match", "lease", "insert", "release")
        return {
            f"turns: {name}": statistics.median(column)
            for name, column in zip(names, zip(*spans, strict=True), strict=True)
        }, {"turn_hit_tokens": hit}

    # -------------------------------------------------------------------- keys

    def _prepare_keys(self, seed: int) -> Callable[[], Found]:
        rows = fresh_prompts(self._sizes["probes"], self._sizes["tokens"], seed)
        self._keys = {
            "list": [row.tolist() for row in rows],
            "int64": [row.astype(np.int64) for row in rows],
            "int32": list(rows),
        }
        return self._convert

    def _convert(self) -> Found:
        us: dict[str, float] = {}
        tokens = 0
        for form, convert in self._tree.conversions().items():
            spans, made = timed(convert, [(given,) for given in self._keys[form]])
            us[f"from {form}"] = statistics.median(spans)
            tokens += sum(len(key) for key in made)
        return us, {"converted_tokens": tokens}
