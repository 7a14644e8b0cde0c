"""Request: what the owner of a cache holds of one request. A thin face; the work is done by
``radix/requests.py``, under the cache's rule of one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix.arguments import count_of, number_below, rows_of, seconds_of, storable
from radix.errors import TierError
from radix.events import Event, RequestState
from radix.gate import Gate
from radix.groups import Group
from radix.hints import Hints, check_hints
from radix.keys import Namespace
from radix.lifecycle import LIVE, Fence, Held, Work, as_fence
from radix.requests import Requests
from radix.stages import Stage
from radix.tier import Slots
from radix.transfers import Transfers


class Owner(Protocol):
    """What a request needs of the cache that it belongs to."""

    gate: Gate
    requests: Requests
    transfers: Transfers
    page_tokens: int
    groups: tuple[Group, ...]

    def resume(
        self,
        work: Work,
        namespace: Namespace | None,
        new_tokens: int | None,
        slots: Sequence[object] | None,
        device_tokens: int,
    ) -> Work:
        """Admits what was preempted again."""
        ...

    def poll(self) -> list[Event]:
        """Lets what waited go on."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Blocks until there is something to poll."""
        ...


class Request:
    """One request, from ``PrefixCache.admit`` to RELEASED.

    Ask: ``state``, ``hit_tokens``, ``branch_tokens``, ``loaded``, ``slots``, ``running``,
    ``tokens``, ``cuts``. Tell: ``wait``, ``prepare``, ``snapshot``, ``append``, ``stage``,
    ``computed``, ``preempt``, ``resume``, ``finish``, ``abort``; borrowed slots: ``lend``. As a
    context it finishes at the end of the block, or is aborted by an exception.

        for stop in request.cuts(chunk):        # where later requests may go on
            ...                                 # the forward runs up to `stop`
            request.snapshot(stop)              # groups whose state is updated in place
        ...                                     # and to the end of the chunk
        request.computed(end)
    """

    __slots__ = ("_cache", "_namespace", "_work")

    def __init__(self, cache: Owner, work: Work, namespace: Namespace | None) -> None:
        """``namespace``: as the admission named it."""
        self._cache = cache
        self._work = work
        self._namespace = namespace

    @property
    def id(self) -> int:
        """The number that events carry."""
        return self._work.number

    @property
    def state(self) -> RequestState:
        """LOADING until the hit is on the device, then RUNNING; see ``RequestState``."""
        return self._work.shown

    @property
    def ready(self) -> bool:
        """Whether it runs: the hit is where it can be read."""
        return self._work.state is RequestState.RUNNING

    @property
    def short(self) -> bool:
        """Whether it loads and lacks slots, because its hit became shorter: it goes on once some
        are free.
        """
        return self._work.short and self._work.state is RequestState.LOADING

    @property
    def hit_tokens(self) -> int:
        """Tokens at the start whose state need not be computed; final once RUNNING."""
        return self._work.hit_pages * self._cache.page_tokens

    @property
    def sources(self) -> dict[str, int]:
        """Tokens of the hit by the tier that served them, as planned at admission."""
        page, transfers, origin = self._cache.page_tokens, self._cache.transfers, self._work.origin
        tiers, pages = np.unique(origin, return_counts=True)
        return {
            transfers.tier_name(int(tier)): int(count) * page
            for tier, count in zip(tiers, pages, strict=True)
        }

    def __len__(self) -> int:
        return self._work.count

    def tokens(self) -> Slots:
        """The tokens so far, prompt and sampled, int32. A copy."""
        return self._work.tokens[: self._work.count].copy()

    @property
    def branch_tokens(self) -> int:
        """Where the tree's knowledge of the prompt ends, though some group ends the hit before: a
        length at which to keep what a hit needs (``cuts`` names it). 0: nowhere.
        """
        return self._work.branch * self._cache.page_tokens

    def slots(self, group: int = 0) -> Slots:
        """The page table of a group: slot of the first tier for each block, int32. A copy.

        -1 where the request holds none: behind the window, and for groups with one state a
        sequence all but snapshots not yet shared. It may change with ``computed``: where another
        request computed the same page, its block counts.
        """
        held = self._held(group)
        return held.slots[held.rule.block_pages - 1 :: held.rule.block_pages].copy()

    def running(self, group: int) -> int:
        """The slot of the state that the forward updates in place, private to the request; once
        RUNNING it holds the state at ``hit_tokens`` (nothing where that is 0). ``ValueError`` for
        a group without one.
        """
        slot = self._held(group).running
        if slot < 0:
            raise ValueError(f"group {group} has no state that is updated in place")
        return slot

    def loaded(self, group: int = 0) -> npt.NDArray[np.bool_]:
        """For each page of the hit as admitted, whether a lower tier's block arrived for this
        request. A copy; final once RUNNING.
        """
        return self._held(group).loaded.copy()

    def _held(self, group: int) -> Held:
        held = self._work.held
        return held[number_below("group", group, len(held))]

    def wait(self, timeout_s: float = 30.0) -> list[Event]:
        """Polls the cache until this request runs; the events meanwhile. Blocks.

        For programs without a loop of their own. ``TierError(retryable)`` when the time is over;
        the request loads on.
        """
        events: list[Event] = []
        left = seconds_of("timeout_s", timeout_s)
        while self._work.state is RequestState.LOADING:
            if left <= 0:
                raise TierError("device", f"request {self.id} still loads", retryable=True)
            self._cache.wait(0.05)
            news = self._cache.poll()
            left -= 0 if news else 0.05
            events += news
        return events

    def cuts(self, chunk: int) -> list[int]:
        """Lengths in tokens, among the next ``chunk``, at which the forward must stop or record,
        ascending: for snapshots (``snapshot``) and for blocks that a window would give up. Changes
        nothing.

        They are the branch point, the boundaries of the admission, the last place of the grid in
        the prompt and each one behind it, because the end of the turn is not known.
        """
        tokens = count_of("chunk", chunk)
        with self._cache.gate:
            self._cache.requests.running(self._work, "cuts")
            return self._cache.requests.keeping.cuts(self._work, tokens)

    def prepare(self, chunk: int) -> None:
        """Gives the pages of the next ``chunk`` tokens their slots, where ``chunk_tokens`` of the
        admission lets pages reuse them. Nothing to do otherwise. Raises ``ValueError`` beyond it,
        ``CapacityError`` where what earlier steps give back still waits for their fences, or a
        sharing engine took back (``spare``) what it had offered: offer more, or let fences pass.
        """
        tokens = count_of("chunk", chunk)
        with self._cache.gate:
            self._cache.requests.running(self._work, "prepare")
            self._cache.requests.keeping.prepare(self._work, tokens)

    def snapshot(self, position: int, *, copy: bool = True) -> dict[str, int]:
        """Sets the running state aside, as it is after ``position`` tokens: by group the slot.

        ``copy``: the cache copies it now, in the order of the first tier; False: the engine writes
        it there, before the fence of the ``computed`` that covers it. It is shared where a later
        request may go on; of those on the grid the last counts, at the end. Empty where there was
        no room: the request goes on without. Raises ``ValueError`` for a position off the grid,
        beyond the tokens, behind what was told computed, or with a snapshot; ``RequestError``.
        """
        at = count_of("position", position)
        with self._cache.gate:
            self._cache.requests.running(self._work, "snapshot")
            slots = self._cache.requests.keeping.snapshot(self._work, at, copy)
            return {self._cache.groups[group].name: slot for group, slot in slots.items()}

    def layers(self, group: int) -> int:
        """Layers of a group, from the first on, of which all that the hit needs is on the device:
        while LOADING with a ``Demand`` by layer it grows. Never blocks.
        """
        with self._cache.gate:
            number = number_below("group", group, len(self._work.held))
            return self._cache.requests.loading.layers(self._work, number)

    def wait_layer(self, group: int, layer: int, timeout_s: float = 30.0) -> bool:
        """Blocks until a layer of what the hit needs of a group is on the device, so that the
        forward can begin there. False where the time is over, a load ended without it, or part of
        the hit still lies too deep to be on its way: ``poll``, then ask again. What fails later
        makes the hit shorter: use nothing before ``ready``, or compute it again then.
        """
        left_s, which = seconds_of("timeout_s", timeout_s), count_of("layer", layer)
        with self._cache.gate:
            number = number_below("group", group, len(self._work.held))
            return self._cache.requests.loading.wait_layer(self._work, number, which, left_s)

    def append(self, tokens: object) -> None:
        """Adds sampled tokens. ``CapacityError`` or ``NeverFitsError`` if no page is left. While
        PREEMPTED, what the step under way still sampled.
        """
        run = storable(tokens)
        with self._cache.gate:
            self._cache.requests.append(self._work, run)

    def stage(self) -> Stage:
        """Opens a tree of drafts behind the last token; see ``Stage``. ``RequestError`` unless it
        runs, has no open stage and its slots are the cache's.
        """
        with self._cache.gate:
            return self._cache.requests.stages.start(self._cache.gate, self._work)

    def lend(self, slots: Sequence[object]) -> None:
        """More of the engine's slots, by group, behind those lent at admission (borrowed)."""
        rows = rows_of("slots", slots, self._cache.requests.residency.rules)
        with self._cache.gate:
            self._cache.requests.lend(self._work, rows)

    def computed(self, tokens: int, *, fence: Fence = None, reuse: Fence = None) -> None:
        """The state of the first ``tokens`` tokens is written once ``fence`` passes (None: now).

        Full pages are then shared and stored. ``reuse``: until this fence passes, slots that are
        replaced by another request's equal blocks are given to nobody. Cost: the new pages.
        """
        count = count_of("computed", tokens)
        written, free = as_fence("fence", fence), as_fence("reuse", reuse)
        with self._cache.gate:
            self._cache.requests.computed(self._work, count, written, free)

    def preempt(self, *, fence: Fence = None) -> None:
        """Gives its slots up for others, by the path of ``abort``: what is computed is kept where
        there is room. It keeps its number, its tokens and its age until ``resume``, ``finish`` or
        ``abort``. ``fence``: until it passes, its slots are given to nobody.
        """
        free = as_fence("fence", fence)
        with self._cache.gate:
            self._cache.requests.preempt(self._work, free)

    def resume(
        self,
        *,
        new_tokens: int | None = None,
        slots: Sequence[object] | None = None,
        device_tokens: int = 0,
    ) -> None:
        """Admits it again with all of its tokens: LOADING, then RUNNING from what is still cached;
        this counts as ``match.resumed_tokens``, not as a hit. ``new_tokens``: room for what is
        sampled; None: what is left of the first. The others as in ``PrefixCache.admit``, whose
        errors it raises; it stays PREEMPTED then. ``RequestError`` unless it is PREEMPTED.
        """
        self._work = self._cache.resume(
            self._work, self._namespace, new_tokens, slots, device_tokens
        )

    def finish(
        self,
        *,
        cacheable_upto: int | None = None,
        fence: Fence = None,
        hints: Hints | None = None,
    ) -> None:
        """No more tokens will be sampled. Stores what is full, then FINALIZED, then RELEASED.

        ``cacheable_upto``: tokens of which the state may be kept (a chat format that drops its
        thinking); what was cached before this request stays. ``fence``: until it passes, the slots
        of this request, private ones and those of its prefix, are given to nobody. ``hints``: what
        is said of its blocks (None: what the admission said); where its slots go, they count.
        """
        said = check_hints(hints)
        limit = None if cacheable_upto is None else count_of("cacheable_upto", cacheable_upto)
        free = as_fence("fence", fence)
        with self._cache.gate:
            self._cache.requests.finish(self._work, limit, free, hints=said)

    def abort(self, *, fence: Fence = None) -> None:
        """Ends it early, by the same path, with what is computed."""
        free = as_fence("fence", fence)
        with self._cache.gate:
            self._cache.requests.finish(self._work, None, free, "abort")

    def __enter__(self) -> Request:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._work.shown in (*LIVE, RequestState.PREEMPTED) and not self._cache.gate.closed:
            if kind is None:
                self.finish()
            else:
                self.abort()
