"""Where the time of a replay goes: every moment of its thread belongs to exactly one stage.

The cache and what is below it have no clock. What is measured are the calls between their parts:
on the one cache that a replay opened, and on nothing else, they are replaced by calls that read a
clock before and after. Kept here: a stage has only the time in which no other stage ran inside it,
so that all stages, with what is in none of them, add up to the time between the first and the last
reading, whatever raises in between; nothing that the cache decides depends on a reading.

    time    ------------------------------------------------------------------->
    calls   admit( match( )  evict( )  plan( load( ) ) )   content( )   insert( ...
    stage   admit  match  .  evict  .  plan  load  .  admit  rest  content  ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from radix.cache import PrefixCache

P = ParamSpec("P")
T = TypeVar("T")

REST = "rest"
TREE = "tree and policy"
BOOKS = "books of moves"
BYTES = "moving bytes"
REPLAY = "the replay itself"

# What each stage is a part of, in the order in which they are shown. Of a stage, only what is not
# in a later one: `admit` is an admission less its match, the evictions that it made, and its loads.
PARTS = {
    "match": TREE,  # how much of a prompt is there
    "admit": TREE,  # the page table: what is pinned, what is reserved, what is counted
    "insert": TREE,  # computed pages enter the tree
    "evict": TREE,  # the choice of victims, and their slots given back
    "release": TREE,  # the end of a request
    "plan": BOOKS,  # which blocks go where, and their jobs
    "settle": BOOKS,  # what each acknowledgement changes
    "store": BYTES,  # tiers begin to copy down
    "load": BYTES,  # tiers begin to copy up
    "progress": BYTES,  # tiers go on with what they began
    "commit": BYTES,  # slots become readable; the host takes the checksums of their bytes
    "wait": BYTES,  # nothing to do but wait for bytes
    "flush": BYTES,
    "parse": REPLAY,
    "open": REPLAY,
    "content": REPLAY,  # the bytes of computed blocks are made
    "verify": REPLAY,  # blocks that came back are compared
    "sample": REPLAY,
    "close": REPLAY,
    REST: REPLAY,
}
# The calls whose time is a stage's: of which part of a cache, which call, which stage.
_SEAMS: tuple[tuple[Callable[[PrefixCache], object], str, str], ...] = (
    (lambda cache: cache, "admit", "admit"),
    (lambda cache: cache, "poll", "settle"),
    (lambda cache: cache, "wait", "wait"),
    (lambda cache: cache, "flush", "flush"),
    (lambda cache: cache.tree, "match", "match"),
    (lambda cache: cache.residency, "evict", "evict"),
    (lambda cache: cache.requests, "computed", "insert"),
    (lambda cache: cache.requests, "finish", "release"),
    (lambda cache: cache.requests.ending, "close", "release"),
    (lambda cache: cache.requests.loading, "advance", "plan"),
    (lambda cache: cache.transfers, "store", "plan"),
    (lambda cache: cache.transfers, "load", "plan"),
)
_OF_A_TIER = (("store", "store"), ("load", "load"), ("poll", "progress"), ("commit", "commit"))


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage: the part that it belongs to, its own seconds, and how often it was entered."""

    name: str
    part: str
    seconds: float
    calls: int


class Stopwatch:
    """Divides the time since it was made among stages. It belongs to one thread.

    Measure: `measure`, `around`, `watch`, `watch_cache`. Ask: `stages`.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Begin now, in no stage. `clock` gives nanoseconds and never goes back."""
        self._clock = clock
        self._spent_ns = {REST: 0}
        self._calls = {REST: 1}
        self._open = [REST]
        self._last_ns = [clock()]  # the last reading, where every call finds it

    def stages(self) -> tuple[StageTime, ...]:
        """Return the stages that were entered, and the rest, up to now: they add up to all the time
        since the stopwatch was made. Cost: the stages.
        """
        self._turn()
        return tuple(
            StageTime(name, part, self._spent_ns[name] / 1e9, self._calls[name])
            for name, part in PARTS.items()
            if self._calls.get(name)
        )

    def _turn(self) -> None:
        """What has passed since the last reading was the innermost stage's."""
        now_ns = self._clock()
        self._spent_ns[self._open[-1]] += now_ns - self._last_ns[0]
        self._last_ns[0] = now_ns

    def _enter(self, stage: str) -> None:
        self._turn()
        self._open.append(stage)

    def _leave(self) -> None:
        self._turn()
        self._open.pop()

    def _known(self, stage: str) -> None:
        if stage not in PARTS:
            raise ValueError(f"unknown stage {stage!r}; known: {', '.join(PARTS)}")
        self._spent_ns.setdefault(stage, 0)
        self._calls.setdefault(stage, 0)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Give the body's time to a stage of `PARTS`, less that of stages inside. Cost: about a us.

        Raises:
            ValueError: there is no such stage.
        """
        self._known(stage)
        self._calls[stage] += 1
        self._enter(stage)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def around(self, context: AbstractContextManager[T], begin: str, end: str) -> Iterator[T]:
        """Enter a context in one stage and leave it in another; the body is in neither."""
        with ExitStack() as stack:
            opened = ExitStack()
            with self.measure(begin):
                found = opened.enter_context(context)
            closing = self.measure(end)
            # Left in the opposite order: the stage begins, the context ends, the stage ends.
            stack.callback(lambda: closing.__exit__(None, None, None))
            stack.push(opened)
            stack.callback(closing.__enter__)
            yield found

    def timed(self, stage: str, call: Callable[P, T]) -> Callable[P, T]:
        """Return a call that does the same and whose time is a stage's. Cost: a us a call."""
        self._known(stage)
        clock, calls, spent_ns, opened = self._clock, self._calls, self._spent_ns, self._open
        last_ns = self._last_ns

        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            # What `measure` does, without its calls: this is done some forty times a request.
            now_ns = clock()
            spent_ns[opened[-1]] += now_ns - last_ns[0]
            last_ns[0] = now_ns
            opened.append(stage)
            calls[stage] += 1
            try:
                return call(*args, **kwargs)
            finally:
                now_ns = clock()
                spent_ns[opened.pop()] += now_ns - last_ns[0]
                last_ns[0] = now_ns

        return measured

    def watch(self, owner: object, call: str, stage: str) -> None:
        """From now on the time of a method of this one object is a stage's.

        Raises:
            AttributeError: it has no such method.
        """
        setattr(owner, call, self.timed(stage, getattr(owner, call)))

    def watch_cache(self, cache: PrefixCache) -> None:
        """Watch the calls between the parts of a cache that was just opened, and into its tiers.

        Cost: about a us for each such call later on, some forty a request.
        """
        for part, call, stage in _SEAMS:
            self.watch(part(cache), call, stage)
        for tier in cache.tiers:
            for call, stage in _OF_A_TIER:
                self.watch(tier, call, stage)
