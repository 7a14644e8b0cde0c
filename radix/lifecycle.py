"""A request's life, with its three events of an end (I9, I10, I30), and the fences that keep a slot
from being read too early or reused too soon.

    admit -> LOADING -> RUNNING -> GENERATION_DONE -> FINALIZED -> RELEASED
                |^        |        no more tokens     no more      all transfers
                v|        v                           stores       are done
             PREEMPTED <--+  what it held ends by the same path, untold; resume admits it again
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix.arguments import at_least_one, boundaries_of, count_of
from radix.content import Chain
from radix.events import RequestState
from radix.groups import Group, Rule
from radix.hints import Hints, check_hints
from radix.keys import Tokens
from radix.plan import Cursor, Demand, Move
from radix.tier import Slots


@runtime_checkable
class FenceLike(Protocol):
    """Something that knows whether a point in a stream has passed: a CUDA event, say."""

    def query(self) -> bool:
        """Whether it has passed. Never blocks."""
        ...


Fence = int | FenceLike | None


def as_fence(name: str, fence: object) -> Fence:
    """A fence as it was given, if it is one. ``TypeError`` names the argument."""
    if fence is None or type(fence) is int or isinstance(fence, FenceLike):
        return fence
    if isinstance(fence, bool) or not hasattr(fence, "__index__"):
        raise TypeError(
            f"{name} must be a step number, an object with query() or None, "
            f"not {type(fence).__name__}"
        )
    return operator.index(fence)


class Fences:
    """What waits for a fence: step numbers in order, or objects with ``query``.

    A step fence passes when ``passed(step)`` was told that step or a later one; None has passed.
    One that raises when it is asked has not: ``run`` asks again and tells, so that no call that has
    changed something is left half done.
    """

    def __init__(self) -> None:
        self.step = -1
        self._seen = -1  # the step at which all that waits for one was looked at
        self._asked = 0  # of those that wait, how many have to be asked
        self._waiting: deque[tuple[Fence, Callable[[], None]]] = deque()
        self._error: Exception | None = None  # of the last fence that could not be asked

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, fence: Fence) -> bool:
        """Whether the fence has not passed yet."""
        if fence is None:
            return False
        if isinstance(fence, int):
            return fence > self.step
        try:
            return not fence.query()
        except Exception as error:  # outermost: the engine's own code; ``run`` raises it
            self._error = error
            return True

    def after(self, fence: Fence, action: Callable[[], None]) -> None:
        """Runs ``action`` now if the fence has passed, else at the first ``run`` after it."""
        if self.holds(fence):
            self._waiting.append((fence, action))
            self._asked += not isinstance(fence, int)
        else:
            action()

    def run(self) -> None:
        """Runs what no longer waits, in the order it came. Cost: what waits; nothing where all of
        it waits for steps and none has passed since.

        An action that raises costs the others nothing: they stay. What a query raises is raised
        once all that could be asked were.
        """
        if not self._asked and self._seen == self.step:
            return
        self._error, step = None, self.step
        for _ in range(len(self._waiting)):
            fence, action = self._waiting[0]
            held = self.holds(fence)
            self._waiting.popleft()
            if held:
                self._waiting.append((fence, action))
            else:
                self._asked -= not isinstance(fence, int)
                action()
        self._seen = step
        if self._error is not None:
            error, self._error = self._error, None
            raise error


Mask = npt.NDArray[np.bool_]
NO_SLOT = -1
LIVE = (RequestState.LOADING, RequestState.RUNNING)


@dataclass(slots=True)
class Held:
    """What one request holds of one group in the first tier, by page: the block that ends with page
    p has its slot at p, every other page has -1. ``own``: the slot is private, not the tree's.

        every block      | the tree's ........... | own: coming, being computed, reserved |
        the last tokens  -1 -1 -1 | the tree's or own | own .................................|
        one snapshot     -1 .. own snapshot, not yet shared .. -1     ``running``: updated in place

    ``shared``: pages from the root whose blocks are all the tree's, where every block is needed;
    ``passed``: those that lie behind a window, of which nothing is held any more.
    ``needed``, ``here``, ``coming``, by page of the hit: entries that it needs, those that are in
    the first tier, those on their way there; ``loaded``: those that came from a lower tier.
    ``spare``: own slots that no page has now; ``reuses``: pages take theirs from there.
    """

    rule: Rule
    slots: Slots
    own: Mask
    reuses: bool = False
    shared: int = 0
    passed: int = 0
    running: int = NO_SLOT
    spare: list[int] = field(default_factory=list)
    needed: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    here: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    coming: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    loaded: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))

    @classmethod
    def empty(cls, rule: Rule, pages: int, hit: int, *, reuses: bool) -> Held:
        """Nothing yet, for ``pages`` pages of which ``hit`` may be a hit."""
        count = whole_blocks(rule, pages)
        none = [np.zeros(hit, np.bool_) for _ in range(4)]
        return cls(
            rule,
            no_slots(count),
            np.zeros(count, np.bool_),
            reuses and not rule.everywhere and not rule.per_position,
            needed=none[0],
            here=none[1],
            coming=none[2],
            loaded=none[3],
        )

    def ends(self, lo: int, hi: int) -> npt.NDArray[np.int64]:
        """The pages of [lo, hi) at which a block ends."""
        size = self.rule.block_pages
        return np.arange(-(-(lo + 1) // size) * size - 1, hi, size, dtype=np.int64)

    def wanted(self, hit: int) -> npt.NDArray[np.int64]:
        """The pages whose entries a hit of ``hit`` pages needs."""
        if not self.rule.lookup or not hit:
            return np.empty(0, np.int64)
        return self.ends(self.rule.first_page(hit), hit)

    def private(self) -> Slots:
        """Every slot that is the request's own."""
        more = self.spare if self.running == NO_SLOT else [*self.spare, self.running]
        return np.concatenate((self.slots[self.own], np.array(more, np.int32)))

    def release(self) -> Slots:
        """Gives up every own slot: which they were."""
        slots = self.private()
        self.slots[self.own] = NO_SLOT
        self.own[:] = False
        self.spare, self.running = [], NO_SLOT
        return slots

    def grow(self, pages: int) -> None:
        """Room for ``pages`` pages."""
        more = whole_blocks(self.rule, pages) - len(self.slots)
        if more > 0:
            self.slots = np.concatenate((self.slots, np.full(more, NO_SLOT, np.int32)))
            self.own = np.concatenate((self.own, np.zeros(more, np.bool_)))


def no_slots(count: int) -> Slots:
    """A row of none. Cost: the row; ``np.full`` takes four times as long for a short one."""
    row = np.empty(count, np.int32)
    row.fill(NO_SLOT)
    return row


def whole_blocks(rule: Rule, pages: int) -> int:
    """``pages``, up to the end of the last block that they touch."""
    return -(-pages // rule.block_pages) * rule.block_pages


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request asks for beside its prompt; all in tokens. ``new``: room to reserve for what
    is sampled; ``cacheable``: how much may be kept; ``chunk``: the most that a step computes;
    ``boundaries``: lengths at which a hit is to be possible later; ``hints``: of its blocks, unless
    its end says others.
    """

    new: int = 0
    cacheable: int | None = None
    chunk: int | None = None
    boundaries: tuple[int, ...] = ()
    demand: Demand = field(default_factory=Demand)
    hints: Hints | None = None


def terms_of(
    prompt_tokens: int,
    new_tokens: int,
    cacheable_upto: int | None,
    chunk_tokens: int | None,
    boundaries: Sequence[object],
    demand: object,
    hints: object,
    groups: Sequence[Group],
) -> Terms:
    """What an admission asks for, checked; ``ValueError`` or ``TypeError`` names the argument."""
    if not isinstance(demand, Demand):
        raise TypeError(f"demand must be a Demand, not {type(demand).__name__}")
    for group in demand.groups or ():
        if not 0 <= group < len(groups):
            raise ValueError(f"demand: group {group}, expected 0 to {len(groups) - 1}")
    if demand.view is not None:
        for number, spec in enumerate(groups):
            if demand.wants(number):
                spec.layout.view(demand.view.layers, demand.view.shards)  # raises what is wrong
    return Terms(
        new=count_of("new_tokens", new_tokens),
        cacheable=None if cacheable_upto is None else count_of("cacheable_upto", cacheable_upto),
        chunk=None if chunk_tokens is None else at_least_one("chunk_tokens", chunk_tokens),
        boundaries=tuple(boundaries_of(boundaries, prompt_tokens)),
        demand=demand,
        hints=check_hints(hints),
    )


@dataclass(slots=True)
class Work:
    """What the cache knows of one request; by group, ``held``.

    ``chain``: the pages of ``tokens`` as the tree takes them; ``inserted``: pages from the root,
    leased, at the end of which it goes on inserting; ``marks``: lengths in pages at which what a
    hit there needs is to be kept, ascending; ``rolling``: lengths of snapshots of which only the
    last is kept; ``branch``: where the hit ends short of what the tree knows (0: nowhere);
    ``chunk``: tokens of a step, where bounded.

    One admission, one of these: a request that is resumed gets another. ``number``: the request's;
    ``hop``: the owner of its transfers, another for each. ``quiet``: preempted, its end is told to
    nobody; ``earlier``: the one before, until it has ended; ``found``: of one that was resumed,
    pages that were there before the request was. ``stale``: of an older epoch, it shares nothing.
    """

    number: int
    hop: int
    tokens: Tokens
    chain: Chain
    count: int
    prompt_tokens: int
    lease: int
    at: Cursor
    held: list[Held]
    pages: int
    hit_pages: int
    inserted: int
    admitted_pages: int  # the hit at admission, before any load failed
    cacheable: int | None
    demand: Demand
    origin: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    chunk: int | None = None
    branch: int = 0
    marks: list[int] = field(default_factory=list)
    rolling: list[int] = field(default_factory=list)
    aside: set[int] = field(default_factory=set)  # lengths at which it set a snapshot aside
    ahead: int = 0  # a second lease, on what lies behind the hit of a group that looks ahead
    apart: dict[int, int] = field(default_factory=dict)  # leases on the rest of a window, by group
    device_pages: int = 0  # the engine's own hit, where it lends its slots
    short: bool = False  # the hit became shorter, and slots for what follows it are missing
    rests: bool = False  # all that its hit lacks is coming by its own loads: till one has ended
    settled: bool = False  # the last boundary was kept
    state: RequestState = RequestState.LOADING
    computed: int = 0
    told: int = 0
    waiting: int = 0  # computed() calls whose fence has not passed
    refused: list[tuple[Move, Slots]] = field(default_factory=list)
    end_fence: Fence = None
    kept: int | None = None  # pages that may stay, where less than all
    ran: bool = False
    terms: Terms = field(default_factory=Terms)
    quiet: bool = False
    earlier: Work | None = None
    found: int | None = None
    stale: bool = False

    @property
    def shown(self) -> RequestState:
        """The state that its owner sees."""
        return RequestState.PREEMPTED if self.quiet else self.state

    @property
    def resumed(self) -> bool:
        """Whether it was preempted before: what it asks for was counted then."""
        return self.found is not None

    @property
    def foreign(self) -> int:
        """Pages that were there before the request was: not its own to give up."""
        return self.hit_pages if self.found is None else self.found

    @property
    def table(self) -> list[Slots]:
        """The slots of every group, by page."""
        return [held.slots for held in self.held]

    @property
    def shared(self) -> int:
        """Pages from the root on whose slots are the tree's, where every block is needed."""
        if self.ran:
            return self.inserted
        return min((held.shared for held in self.held if held.rule.everywhere), default=0)

    @property
    def missing(self) -> bool:
        """Whether the hit needs something that is not in the first tier."""
        return any(bool((held.needed & ~held.here).any()) for held in self.held)

    @property
    def lacking(self) -> bool:
        """The same of what none of its own loads brings there."""
        return any(bool((held.needed & ~held.here & ~held.coming).any()) for held in self.held)

    def append(self, tokens: Tokens) -> None:
        """Adds tokens behind the others; grows by doubling."""
        need = self.count + len(tokens)
        if need > len(self.tokens):
            grown = np.empty(max(need, 2 * len(self.tokens)), np.int32)
            grown[: self.count] = self.tokens[: self.count]
            self.tokens = grown
        self.tokens[self.count : need] = tokens
        self.count = need
