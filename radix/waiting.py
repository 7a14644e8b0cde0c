"""Requests that wait for room, in order of age: a queue over ``PrefixCache.admit`` that lets in
what it can at each tick, and in which nothing waits for ever. It decides by ages and counts alone,
never by a clock, so that replicas that are ticked alike decide alike. Keeps I29: of requests each
of which fits alone, every one finishes.

    R0  what can never fit is refused when it is submitted, by the formula that sizes the pools
    R2  a step is shortened only when nobody's end could make room
    R3  each tick polls first: what fell out of windows, and whose fence passed, is free by then
    R4  a waiter holds nothing
    R6  the oldest waiter is bypassed at most so many times, then nothing younger is let in
    R7  when one that runs can't go on, the youngest is named to give way, the oldest never, and
        nobody younger is let in before it goes on
    R8  a transfer that pins what is waited for is cancelled at its deadline, and its end wakes

R1, charging the increment alone, and R5, shorter hits, are in the admission itself.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from radix.admission import behind_tokens, blocks_needed, check_fits
from radix.arguments import at_least_one, count_of, prompt_of, seconds_of, storable
from radix.cache import EVERYTHING, PrefixCache
from radix.errors import CapacityError, NeverFitsError, RequestError, TierError
from radix.events import Event, RequestState
from radix.hints import Hints
from radix.keys import Namespace, Tokens
from radix.lifecycle import LIVE, Fence, terms_of
from radix.ownership import Ownership
from radix.plan import Demand
from radix.request import Request

GRACE_TICKS = 2  # a fence or a transfer may make room by the next one


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for beside its tokens, as in ``PrefixCache.admit``. ``most_tokens``: how
    long it may become, generated tokens included.
    """

    most_tokens: int
    new_tokens: int
    namespace: Namespace | None
    cacheable_upto: int | None
    boundaries: tuple[int, ...]
    leave: int
    content: object
    demand: Demand
    hints: Hints | None


@dataclass(slots=True, eq=False)
class Waiter:
    """One request from ``submit`` to its end; it waits, runs, and waits again where it gave way.

    ``age``: the lower the older; it stays. ``request``: None until it is let in, then the one
    request that it is to its end, PREEMPTED where it waits again. ``tokens``: its prompt.
    ``chunk_tokens``: the most that a step computes. ``bypassed``: how many younger ones were let in
    while it was the oldest that waits. ``retracted``: how often it gave way.
    """

    age: int
    tokens: Tokens
    ask: Ask
    chunk_tokens: int | None
    request: Request | None = None
    bypassed: int = 0
    retracted: int = 0
    stalled: int = field(default=0, repr=False)  # in a row, what it lacked slots for


@dataclass(frozen=True, slots=True)
class Turn:
    """What a tick did. ``events``: those of ``poll``. ``admitted``: they have a request now.
    ``refused``: they left the queue, because by now they can never fit. ``short``: why the oldest
    waiter still waits. ``retract``: who is to give way (``Waiting.retract``), because an older one
    can't go on.
    """

    events: tuple[Event, ...]
    admitted: tuple[Waiter, ...]
    refused: tuple[tuple[Waiter, NeverFitsError], ...]
    short: CapacityError | TierError | None
    retract: Waiter | None


class Waiting:
    """The requests of one cache that wait, and those that it let in.

    Put in: ``submit``, ``withdraw``. Each step of the engine: ``tick``, then for those that run
    ``prepare`` before a forward and ``append`` for what was sampled; ``retract`` whom a tick names.
    Idle: ``wait``. Look: ``queue``, ``running``.

        turn = waiting.tick()
        if turn.retract is not None:
            waiting.retract(turn.retract, fence=step)
        for waiter in waiting.running():
            chunk = waiting.prepare(waiter, 512)     # 0: it sits this step out
    """

    def __init__(
        self, cache: PrefixCache, *, bypass: int = 8, tries: int = 16, deadline_ticks: int = 256
    ) -> None:
        """``bypass``: how often the oldest waiter may be overtaken; ``tries``: waiters that one
        tick may try in vain; ``deadline_ticks``: after so many, a load is cancelled, and a store
        if somebody lacks room. Raises ``TypeError``, ``ValueError``; ``ValueError`` where the
        engine lends the slots, because then it alone knows which are free.
        """
        if not isinstance(cache, PrefixCache):
            raise TypeError(f"cache must be a PrefixCache, not {type(cache).__name__}")
        if cache.ownership is Ownership.BORROWED:
            raise ValueError("cache: its device slots are lent by the engine at each admission")
        self.bypass = count_of("bypass", bypass)
        self.tries = at_least_one("tries", tries)
        self.deadline_ticks = at_least_one("deadline_ticks", deadline_ticks)
        self._cache = cache
        self._behind = behind_tokens(cache.residency.rules, cache.align_tokens)
        self._queue: list[Waiter] = []  # the oldest first
        self._running: list[Waiter] = []
        self._next = 1
        self._now = 0
        self._named = 0  # the tick that named who gives way
        self._since: dict[int, int] = {}  # the tick at which a transfer was first seen
        self._cancelled: set[int] = set()

    def queue(self) -> tuple[Waiter, ...]:
        """Those that wait, the oldest first."""
        return tuple(self._queue)

    def running(self) -> tuple[Waiter, ...]:
        """Those that were let in and have not ended, the oldest first."""
        self._running = [waiter for waiter in self._running if _live(waiter)]
        return tuple(self._running)

    # ------------------------------------------------------------ in and out
    def submit(
        self,
        tokens: object,
        *,
        most_tokens: int | None = None,
        new_tokens: int = 0,
        chunk_tokens: int | None = None,
        namespace: Namespace | None = None,
        cacheable_upto: int | None = None,
        boundaries: Sequence[int] = (),
        leave: int = 1,
        content: object = None,
        demand: Demand = EVERYTHING,
        hints: Hints | None = None,
    ) -> Waiter:
        """Puts a request behind all others; it holds nothing until a tick lets it in.

        ``most_tokens``: how long it may become, by default the prompt and ``new_tokens``, which are
        reserved at once. ``chunk_tokens``: a step becomes shorter where the pools hold none so
        long. All else as in ``PrefixCache.admit``. Raises ``NeverFitsError`` at once for what the
        pools can't hold alone, ``ValueError``, ``TypeError``; nothing changed. Cost: the groups.
        """
        prompt = prompt_of(tokens).copy()
        groups = self._cache.groups
        terms = terms_of(
            len(prompt), new_tokens, cacheable_upto, chunk_tokens, boundaries, demand, hints, groups
        )
        if terms.demand.view is not None:
            raise ValueError("demand: a view of blocks that the cache would share as whole ones")
        least = len(prompt) + terms.new
        most = least if most_tokens is None else count_of("most_tokens", most_tokens)
        if most < least:
            raise ValueError(f"most_tokens is {most}, expected at least {least}")
        self._cache.namespace(namespace)
        self._cache.keys.contents(content, len(prompt))
        ask = Ask(
            most_tokens=most,
            new_tokens=terms.new,
            namespace=namespace,
            cacheable_upto=terms.cacheable,
            boundaries=terms.boundaries,
            leave=at_least_one("leave", leave),
            content=content,
            demand=terms.demand,
            hints=terms.hints,
        )
        waiter = Waiter(self._next, prompt, ask, self._longest_step(most, terms.chunk))
        self._next += 1
        self._queue.append(waiter)
        return waiter

    def _longest_step(self, most: int, chunk: int | None) -> int | None:
        """R0: the step as asked, or as long as the pools hold at all."""
        residency, step = self._cache.residency, chunk
        while True:
            needed = [blocks_needed(rule, most, step, self._behind) for rule in residency.rules]
            try:
                check_fits(residency, needed)
            except NeverFitsError:
                if step is None or step == 1:
                    raise
                step //= 2
            else:
                return step

    def withdraw(self, waiter: Waiter) -> None:
        """Takes one that waits out of the queue; where it ran before, the rest is its request's:
        ``abort`` or ``finish``. ``RequestError`` for one that does not wait.
        """
        if waiter not in self._queue:
            raise RequestError(f"withdraw: the request of age {waiter.age} does not wait")
        self._queue.remove(waiter)

    # ------------------------------------------------------------ a tick
    def tick(self) -> Turn:
        """Polls the cache and lets in what there is room for, the oldest first.

        Cost: the poll, and the prompts of those let in and of at most ``tries`` others.
        """
        self._now += 1
        events = tuple(self._cache.poll())
        admitted: list[Waiter] = []
        refused: list[tuple[Waiter, NeverFitsError]] = []
        short: CapacityError | TierError | None = None
        failed, first = 0, self._lacking()
        self._queue = [  # but those that the engine ended before their resumption
            one
            for one in self._queue
            if one.request is None or one.request.state is RequestState.PREEMPTED
        ]
        for waiter in self.queue():
            oldest = self._queue[0]
            if failed >= self.tries or (waiter is not oldest and oldest.bypassed >= self.bypass):
                break
            if first is not None and waiter.age > first.age:
                break  # what the youngest gave is for whom it gave way, not for itself
            try:
                self._admit(waiter)
            except NeverFitsError as error:
                refused.append((waiter, error))
            except (CapacityError, TierError) as error:
                failed += 1
                short = error if waiter is oldest else short
                continue
            else:
                oldest.bypassed += waiter is not oldest
                insort(self._running, waiter, key=_age)
                admitted.append(waiter)
            self._queue.remove(waiter)
        retract = self._pressed()
        self._overdue(short is not None or self._lacking() is not None)
        return Turn(events, tuple(admitted), tuple(refused), short, retract)

    def _lacking(self) -> Waiter | None:
        """The oldest that was let in and lacks slots."""
        return next((waiter for waiter in self.running() if waiter.stalled), None)

    def _admit(self, waiter: Waiter) -> None:
        """R2: where nobody's end could make room, a shorter step may do with less."""
        step, ask = waiter.chunk_tokens, waiter.ask
        while True:
            try:
                if waiter.request is not None:
                    waiter.request.resume()
                else:
                    waiter.request = self._cache.admit(
                        waiter.tokens,
                        new_tokens=ask.new_tokens,
                        namespace=ask.namespace,
                        cacheable_upto=ask.cacheable_upto,
                        chunk_tokens=step,
                        boundaries=ask.boundaries,
                        leave=ask.leave,
                        content=ask.content,
                        demand=ask.demand,
                        hints=ask.hints,
                    )
            except CapacityError:
                if step is None or step == 1 or waiter.request is not None or self._may_free():
                    raise
                step //= 2
            else:
                waiter.chunk_tokens, waiter.stalled = step, 0
                return

    def _may_free(self, but: Request | None = None) -> bool:
        """Whether something is under way, another request than this or a transfer, whose end gives
        slots back.
        """
        cache = self._cache
        others = len(cache.requests.works) - (but is not None)
        return bool(others or cache.transfers.jobs or len(cache.fences))

    def _pressed(self) -> Waiter | None:
        """R7: the youngest, where one that runs lacks slots though others had time to end."""
        for waiter in self._running:
            if waiter.request is not None and waiter.request.state is RequestState.LOADING:
                waiter.stalled = waiter.stalled + 1 if waiter.request.short else 0
        lacking = any(waiter.stalled >= GRACE_TICKS for waiter in self._running)
        if not lacking or len(self._running) < 2 or self._now - self._named < GRACE_TICKS:
            return None
        self._named = self._now  # what it gives comes behind its fence
        return self._running[-1]

    def _overdue(self, pressed: bool) -> None:
        """R8: a load that took too long is cancelled, a store too where somebody lacks room."""
        transfers, now = self._cache.transfers, self._now
        self._since = {number: self._since.get(number, now) for number in transfers.jobs}
        self._cancelled.intersection_update(self._since)
        for number, since in self._since.items():
            if now - since >= self.deadline_ticks and number not in self._cancelled:
                job = transfers.jobs[number]
                if job.storing and not pressed:
                    continue
                move = job.move
                self._cancelled.add(number)
                with self._cache.gate, suppress(TierError):
                    transfers.tiers[max(move.source, move.target)].cancel(number)

    # ------------------------------------------------------------ those that run
    def prepare(self, waiter: Waiter, tokens: int) -> int:
        """How many of its next ``tokens`` tokens a step may compute; their pages have slots then.

        0: none in this step, there is no room and somebody's end will make some. It is fewer only
        where nobody's could. Raises ``RequestError`` unless it runs.
        """
        request = self._of(waiter, "prepare")
        step = count_of("tokens", tokens)
        if waiter.chunk_tokens is not None:
            step = min(step, waiter.chunk_tokens)
        while step:
            try:
                request.prepare(step)
            except (CapacityError, TierError):
                if step == 1 or self._may_free(request):
                    waiter.stalled += 1
                    return 0
                step //= 2
            else:
                waiter.stalled = 0
                return step
        return 0

    def append(self, waiter: Waiter, tokens: object) -> bool:
        """Adds sampled tokens; False where there is no room for them now: offer them again after
        the next tick, which may name who is to give way. Raises ``NeverFitsError`` beyond what the
        pools hold, ``ValueError`` beyond ``most_tokens``, ``RequestError`` unless it runs.
        """
        request, run = self._of(waiter, "append"), storable(tokens)
        if len(request) + len(run) > waiter.ask.most_tokens:
            raise ValueError(
                f"tokens: {len(request) + len(run)} in all, expected at most the "
                f"{waiter.ask.most_tokens} that were submitted"
            )
        try:
            request.append(run)
        except (CapacityError, TierError):
            waiter.stalled += 1
            return False
        waiter.stalled = 0
        return True

    def retract(self, waiter: Waiter, *, fence: Fence = None) -> None:
        """It gives way (``Request.preempt``) and waits again, at its age; a tick resumes it.

        ``fence``: until it passes, its slots are given to nobody. What was sampled and not appended
        is the engine's. Raises ``RequestError`` unless it loads or runs.
        """
        self._of(waiter, "retract").preempt(fence=fence)
        waiter.stalled = 0
        waiter.retracted += 1
        self._running.remove(waiter)
        insort(self._queue, waiter, key=_age)

    def _of(self, waiter: Waiter, what: str) -> Request:
        if waiter.request is None or not _live(waiter) or waiter not in self._running:
            raise RequestError(f"{what}: the request of age {waiter.age} does not run")
        return waiter.request

    def wait(self, timeout_s: float = 0.05) -> bool:
        """Blocks until a transfer has ended, whose pins may be what is waited for, or the time is
        over. False at once where none is under way: only computing goes on from here.
        """
        left_s = seconds_of("timeout_s", timeout_s)
        if not self._cache.transfers.jobs:
            return False
        self._cache.wait(left_s)
        return True


def _age(waiter: Waiter) -> int:
    return waiter.age


def _live(waiter: Waiter) -> bool:
    return waiter.request is not None and waiter.request.state in LIVE
