"""How much may be under way at once, and how long anybody waits: numbers that the owner gives, held
against his own clock, his steps and the cache's polls, so that a run can be repeated. Keeps the
determinism of I33: nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from radix.policy.expected import WRITE_EXPECTED
from radix.policy.reuse import MOST, WRITE_AFTER

WRITE_POLICIES = ("write_through", "write_back", WRITE_AFTER, WRITE_EXPECTED, "none")


def check_writes(write: object, limits: object) -> Limits:
    """The bounds to go by. ``ValueError`` for a policy of writing that is none, ``TypeError`` for
    limits that are none.
    """
    if write not in WRITE_POLICIES:
        raise ValueError(f"write is {write!r}, expected one of {', '.join(WRITE_POLICIES)}")
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be a Limits, not {type(limits).__name__}")
    return limits


class Moment(NamedTuple):
    """Where the owner is: the last step told passed, nanoseconds of his clock, polls so far."""

    step: int
    ns: int
    poll: int


def _check(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait: over once any of these has gone by since; None: this one never is."""

    steps: int | None = None
    ns: int | None = None
    polls: int | None = None

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` for what is no count."""
        for each in fields(self):
            _check(each.name, getattr(self, each.name), 0)

    @property
    def endless(self) -> bool:
        """Whether it is never over."""
        return self.steps is None and self.ns is None and self.polls is None

    def ends(self, since: Moment) -> tuple[int | None, int | None, int | None]:
        """The step, the time and the poll at which it is over, whichever is first."""
        bounds = (self.steps, self.ns, self.polls)
        step, ns, poll = (
            None if bound is None else begun + bound
            for begun, bound in zip(since, bounds, strict=True)
        )
        return step, ns, poll

    def over(self, since: Moment, now: Moment, times: int = 1) -> bool:
        """Whether so long, or ``times`` as long, has gone by."""
        gone = (now.step - since.step, now.ns - since.ns, now.poll - since.poll)
        bounds = (self.steps, self.ns, self.polls)
        return any(
            bound is not None and passed >= bound * times
            for passed, bound in zip(gone, bounds, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a tier that fails is taken out, and when it is tried again.

    After ``failures`` loads in a row that failed, or were late, it is off; after as many stores
    read-only. ``retry``: how long before it is on again; ``most_doublings``: each time in a row
    that it fails again doubles that, so many times at most. ``failures`` 0: nothing is taken out.
    """

    failures: int = 8
    # polls: of who gives neither steps nor a clock
    retry: Patience = Patience(steps=256, ns=1_000_000_000, polls=65_536)
    most_doublings: int = 6

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` for what is no count."""
        _check("failures", self.failures, 0)
        _check("most_doublings", self.most_doublings, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what moves between tiers.

    ``demote_after``: how long a block may have no copy below before it goes down (write_back);
    ``drop_after``: how long an eviction waits for a copy that cannot be begun, before the block is
    dropped; ``load_deadline``: how long a request waits for one load; ``prefetch_deadline``: how
    long what was prefetched stays pinned; ``prefetch_blocks``: the most blocks of a group that
    prefetches hold in a tier at once (None: a half of it); ``stores``, ``loads``, ``prefetches``:
    transfers of one tier under way at once (None: as its queue allows); ``write_after``: how often
    a block must have been asked for again before it goes down (write_after); ``write_expected``:
    how likely it must be that a block is read back from a persistent tier before it leaves it, to
    be written there (write_expected). ``write_budget_bytes_per_day``: what each persistent tier may
    be given to write, its index included, by the clock given (None: no end); in a day never more
    than that and ``write_burst_bytes`` (None: an hour's share of it). ``keep_share``: the part of
    each tier that keeps may hold at most.
    """

    demote_after: Patience = Patience()
    drop_after: Patience = Patience(polls=256)
    load_deadline: Patience = Patience()
    prefetch_deadline: Patience = Patience(polls=4096)
    prefetch_blocks: int | None = None
    stores: int | None = None
    loads: int | None = None
    prefetches: int | None = 4
    write_after: int = 1
    write_expected: float = 0.1
    write_budget_bytes_per_day: int | None = None
    write_burst_bytes: int | None = None
    keep_share: float = 0.5
    breaker: Breaker = Breaker()

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` by name."""
        counts = ("prefetch_blocks", "stores", "loads", "prefetches")
        for name in (*counts, "write_budget_bytes_per_day", "write_burst_bytes"):
            _check(name, getattr(self, name), 1)
        if self.write_after is None:
            raise TypeError("write_after must be an int, not NoneType")
        _check("write_after", self.write_after, 1)
        if self.write_after >= MOST:
            raise ValueError(f"write_after must be below {MOST}, not {self.write_after}")
        for name in ("keep_share", "write_expected"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float):
                raise TypeError(f"{name} must be a number, not {type(share).__name__}")
            if not 0 < share <= 1:
                raise ValueError(f"{name} must lie in (0, 1], not {share}")
        for name in ("demote_after", "drop_after", "load_deadline", "prefetch_deadline"):
            if not isinstance(getattr(self, name), Patience):
                raise TypeError(f"{name} must be a Patience")
        if not isinstance(self.breaker, Breaker):
            raise TypeError("breaker must be a Breaker")

    @property
    def timed(self) -> bool:
        """Whether something waits for the clock though nothing is under way."""
        waits = (self.demote_after, self.drop_after, self.prefetch_deadline)
        paid = self.write_budget_bytes_per_day is not None
        return paid or any(each.ns is not None for each in waits)
