"""Calm: faults stop, fences pass, and everything that was begun must end within a bound of ticks;
then what fits alone is admitted and served within it (I29).
"""

from __future__ import annotations

import random
from dataclasses import replace

from radix.errors import CapacityError
from radix.ownership import Ownership
from radix.prefetching import Prefetch
from radix.tier import TierMode
from tests.cachemachine import NAMESPACES, STORIES, CacheMachine
from tests.engineslots import Live
from tests.sim.simrig import SimRig
from tests.sim.steady import SteadyDisk
from tests.sim.strikes import StruckTier
from tests.ticktier import TickTier

PATIENCE = 600  # ticks in which what fits alone ends, once nothing fails any more


class Calming(CacheMachine):
    """The part of a world that lets it come to rest."""

    rig: SimRig
    faulty: list[StruckTier]
    page_tokens: int
    ownership: Ownership
    ticks = 0
    pace = 1.0  # of tiers in memory, while it is not calm
    disk: SteadyDisk | None = None

    def __init__(self) -> None:
        super().__init__()
        self.prefetches: list[Prefetch] = []

    def let_go(self) -> None:
        """Gives back every lease and prefetch."""
        for ahead in self.prefetches:
            ahead.release()
        self.prefetches.clear()
        for lease in self.leases:
            lease.release()
        self.leases.clear()

    def _calm(self, rng: random.Random) -> None:
        """Faults stop: all that runs ends within a bound, and so does what comes then."""
        plans = [tier.plan for tier in self.faulty]
        if self.disk is not None:
            self.disk.cut = None
        for tier in self.faulty:
            tier.plan = replace(tier.plan, rates={}, delay_polls=0)
        for tier in self.rig.cache.tiers:
            self.rig.cache.set_mode(tier.name, TierMode.ON)
        self.latency_of(1.0)
        self.let_go()
        for live in list(self.rig.parked):
            self.rig.end(live, abort=True)
        for _ in range(PATIENCE):
            if not (self.rig.live or self.rig.cache.requests.works):
                break
            self._tick()
        assert not self.rig.live and not self.rig.cache.requests.works, (
            f"not over after {PATIENCE} ticks: {[live.request.id for live in self.rig.live]}, "
            f"{self.rig.cache.requests.works}"
        )
        self._alone(rng)
        self.latency_of(self.pace)
        for tier, plan in zip(self.faulty, plans, strict=True):
            tier.plan = plan

    def latency_of(self, pace: float) -> None:
        """How likely a transfer of a tier in memory ends in a poll."""
        for tier in self.faulty:
            if isinstance(tier.inner, TickTier):
                tier.inner.pace = pace

    def _tick(self) -> None:
        self.ticks += 1
        self.rig.pass_step()
        for point in list(self.rig.points):
            self.rig.pass_point(point)
        if any(live.request.short for live in self.rig.live) and self.rig.own:
            self._offer()
        self.rig.poll()
        for live in list(self.rig.live):
            if live.checked:
                self._run_to_its_end(live)

    def _offer(self) -> None:
        """A request whose hit became shorter lacks slots, and they are the engine's to give."""
        for group, free in enumerate(self.rig.own if self.ownership is Ownership.SHARED else ()):
            self.rig.cache.offer(group, free)
            free.clear()

    def _run_to_its_end(self, live: Live) -> None:
        chunk = live.work.chunk
        upto = len(live.request)
        if chunk is not None:
            upto = min(upto, live.told + chunk)
        try:
            self.rig.compute(live, upto)
        except CapacityError:
            self.rig.end(live, abort=True)  # what it lacks others hold: this one makes room
            return
        if upto == len(live.request):
            self.rig.end(live)

    def _alone(self, rng: random.Random) -> None:
        """A request that fits alone is served within the bound (I29)."""
        room = min(
            self.rig.cache.tiers[0].capacity_blocks(group) * rule.block_pages
            for group, rule in enumerate(self.rig.cache.residency.rules)
            if not rule.per_position
        )
        length = min(max(1, room * self.page_tokens // 2), 24)
        prompt = [*rng.choice(STORIES)[:length]]
        for _ in range(PATIENCE):
            try:
                self.rig.admit(prompt, rng.choice(NAMESPACES))
                break
            except CapacityError:
                if self.ownership is Ownership.SHARED:
                    self.rig.empty()  # what is cached is on the engine's own slots
                self._tick()
        else:
            raise AssertionError(f"never admitted in {PATIENCE} ticks: {prompt} (I29)")
        for _ in range(PATIENCE):
            if not (self.rig.live or self.rig.cache.requests.works):
                return
            self._tick()
        raise AssertionError(f"never over in {PATIENCE} ticks: {prompt} (I29)")
