"""Replicas of one cache, a thread each, over the same calls: every one has a clock, a tree seed, a
pace, an order of completions, faults and pools of its own. They meet in an agreement, and after
each poll all that they know must be equal.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np

from radix.agreement import Agree
from radix.cache import PrefixCache
from radix.errors import CapacityError, NeverFitsError
from radix.events import Event
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.plan import Cursor
from radix.reports import Values
from radix.tier import Tier
from tests.cachemachine import MOST_LIVE, MemoryMachine, plan
from tests.cacherig import Rig
from tests.interrupting import Interrupts
from tests.mixes import mix
from tests.ticktier import TickTier
from tiers.device import DeviceTier
from tiers.faults import FaultyTier

T = TypeVar("T")
PATIENCE_S = 30.0


class Meeting:
    """Where the replicas of one process meet. ``agree`` of a rank is what an engine would give."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.steps = 0
        self._said: list[object] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)

    def _all(self, rank: int, value: T) -> list[T]:
        self._said[rank] = value
        self._barrier.wait()
        everybody = list(self._said)
        self._barrier.wait()
        return cast(list[T], everybody)

    def agree(self, rank: int) -> Agree:
        """The element-wise minimum over all ranks."""

        def minimum(values: Values) -> Values:
            if rank == 0:
                self.steps += 1
            rows = self._all(rank, values.copy())
            assert len({len(row) for row in rows}) == 1, "rows of several lengths"
            return np.minimum.reduce(rows)

        return minimum

    def same(self, rank: int, value: T, what: str) -> None:
        """Asserts that all ranks come with equal values."""
        values = self._all(rank, value)
        assert all(each == values[0] for each in values), f"{what}: {_difference(values)}"

    def leave(self) -> None:
        """Somebody failed: nobody waits any more."""
        self._barrier.abort()


def _difference(values: list[object]) -> str:
    for items in zip(*values, strict=False) if isinstance(values[0], list) else []:
        if any(item != items[0] for item in items):
            return " | ".join(str(item) for item in items)
    return " | ".join(str(value)[:2000] for value in values)


def replicated(ranks: int, act: Callable[[int, Meeting], T]) -> list[T]:
    """Runs ``act(rank, meeting)`` in a thread a rank; what each gave. Raises what the first to
    fail raised.
    """
    meeting = Meeting(ranks)
    results: list[T | None] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = act(rank, meeting)
        except BaseException as error:  # outermost: raised again below
            errors.append(error)
            meeting.leave()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors, errors
    return cast(list[T], results)


# ---------------------------------------------------------------------- what a replica knows
def picture(cache: PrefixCache) -> list[object]:
    """Everything that decisions rest on; no slot number, no address."""
    tree, tiers = cache.tree, cache.residency.tiers
    found: list[object] = [tree.stats(), sorted(cache.transfers.jobs)]
    for root, name in sorted(cache._spaces.names.items(), key=lambda item: item[1]):
        for node in tree.nodes(root):
            at = Cursor(root, node.node, node.start + node.pages)
            row: list[object] = [name, node.node, node.start, node.pages]
            row.append(tree.pages(at, node.start, node.pages).tobytes())
            for tier in range(len(tiers)):
                for group in range(len(cache.groups)):
                    slots = tree.slots(at, tree.column(group, tier), node.start, node.pages)
                    row.append((slots >= 0).tolist())
            found.append(row)
    for number, tier in enumerate(tiers):
        for group in range(len(cache.groups)):
            stats = tree.column_stats(tree.column(group, number))
            found.append((tier.name, tier.mode, group, tier.free_blocks(group), stats))
    for hop, work in cache.requests.works.items():
        needs = [(h.needed.tolist(), h.here.tolist(), h.coming.tolist()) for h in work.held]
        found.append((hop, work.state, work.hit_pages, work.computed, work.short, needs))
    found.append(sorted(cache.counters().items()))
    return found


def told(events: Sequence[Event]) -> list[str]:
    """Events as text, arrays and all."""
    with np.printoptions(threshold=1 << 20):
        return [repr(event) for event in events]


class ReplicaRig(Rig):
    """A small engine on one rank; after each poll all ranks look alike."""

    rank = 0
    meeting: Meeting

    def poll(self) -> list[Event]:
        events = super().poll()
        self.meeting.same(self.rank, told(events) + picture(self.cache), "after a poll")
        return events


class ReplicaMachine(Interrupts, MemoryMachine):
    """The machine of one rank: the same steps on all, over tiers that behave as they like."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__()
        self.rank, self.meeting = rank, meeting

    def admit(
        self,
        tokens: list[int],
        space: Namespace | None,
        room: int,
        keep: int | None,
        chunk: int | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        """As on one rank; one that fails may have sent dirty blocks on their way down."""
        if len(self.rig.live) >= MOST_LIVE:
            self.rig.end(self.pick(len(tokens)))
        more = {"chunk_tokens": chunk, "boundaries": [end for end in ends if end <= len(tokens)]}
        try:
            self.rig.admit(tokens, space, new_tokens=room, cacheable_upto=keep, **more)
        except (CapacityError, NeverFitsError) as error:
            self.meeting.same(self.rank, repr(error), "a refusal")
        else:
            self.meeting.same(self.rank, "admitted", "an admission")

    def evict(self, tier: int, group: int, count: int) -> None:
        """As on one rank; of dirty blocks it may be fewer."""
        cache = self.rig.cache
        number, kind = tier % len(cache.residency.tiers), group % len(cache.groups)
        self.meeting.same(self.rank, self.rig.evict(kind, count, number), "an eviction")

    def start(
        self,
        seed: int,
        tiers: int,
        *,
        mixed: bool,
        faults: bool = True,
        ownership: Ownership = Ownership.OWNED,
        **options: object,
    ) -> None:
        """Opens this rank's cache: what is the same on all follows from the seed, the rest from
        the seed and the rank.
        """
        rng, own = random.Random(seed), random.Random(1000 * seed + self.rank + 1)
        page = rng.choice((1, 2, 4))
        blocks = rng.randint(8, 16), rng.randint(4, 40), rng.randint(4, 64)
        equal = ownership is not Ownership.OWNED  # an engine offers as many slots on each rank
        device = DeviceTier(blocks=blocks[0] + (0 if equal else own.randint(0, 3)), device="cpu")
        below: list[Tier] = []
        for number, name in enumerate(("host", "deep")[: tiers - 1]):
            count = blocks[1 + number] + own.randint(0, 1)  # C100: capacity differs by one
            tick = TickTier(count, name, pace=own.uniform(0.3, 1.0), seed=own.randrange(1 << 30))
            below.append(FaultyTier(tick, plan(own.randrange(1 << 30), faults)))
        time = [own.randrange(1 << 40)]

        def clock() -> int:
            time[0] += own.randrange(1 << 20)
            return time[0]

        self.options = {
            "agree": self.meeting.agree(self.rank),
            "clock": clock,
            "seed": own.randrange(1 << 63),
            **options,
        }
        groups = mix(random.Random(seed), page) if mixed else rng.randint(1, 2)
        self.rig_type = type("Mine", (ReplicaRig,), {"rank": self.rank, "meeting": self.meeting})
        self.open(page, groups, device, below, ownership)
