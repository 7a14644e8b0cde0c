"""A queue over a cache while everything happens to both: requests give way, are withdrawn, ended
and limited, drafts are staged, others are admitted past the queue, tiers fail, hang and are
switched, the cache is reset and given other weights. The books are whole after each step, and once
it is calm everybody ends (I7-I14, I22, I29, I30, I34).
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from radix import Largest, PrefixCache, Waiter, Waiting, pool_sizes
from radix.errors import CapacityError, NeverFitsError, RequestError, StaleError
from radix.groups import Cost
from radix.hints import Hints
from radix.lease import Lease
from radix.policy.checkpoint import Checkpoints
from radix.policy.eviction import NATIVE_POLICIES
from radix.policy.limits import Breaker, Limits, Patience
from radix.prefetching import Prefetch
from radix.request import Request
from radix.stages import Stage
from radix.tier import TierMode
from tests.livelock import FAULTS, HangingTier
from tests.mixes import mix
from tiers.faults import FaultPlan, FaultyTier
from tiers.index import IndexTier

STEPS = 120
CALM_TICKS = 1500
WEIGHTS = {
    "submit": 12,
    "tick": 30,
    "run": 40,
    "retract": 5,
    "withdraw": 3,
    "end": 4,
    "reset": 2,
    "revise": 2,
    "switch": 4,
    "evict": 6,
    "prefetch": 4,
    "stage": 5,
    "outside": 4,
    "lease": 4,
    "flush": 1,
    "lift": 1,
}


class World:
    """One cache, its queue and its engine, all of a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.page = rng.choice((1, 2, 4))
        self.most, self.step = 6 * self.page + 8, rng.choice((1, 3, 8))
        cost = Cost(2.0, 0.01)  # of all of them, for the policy that goes by it
        groups = [replace(group, cost=cost) for group in mix(rng, self.page)]
        names = ("host", "deep")[: rng.choice((0, 1, 2, 2))]
        self.slow = [
            HangingTier(rng.randint(2, 30), name, rng.choice((0, 0, 0.1)), seed) for name in names
        ]
        rates = FAULTS if rng.random() < 0.5 else {}
        plan = FaultPlan(rates=rates, seed=seed, delay_polls=rng.randint(0, 3), reorder=True)
        self.faulty = [FaultyTier(tier, plan) for tier in self.slow]
        sizes = pool_sizes(groups, self.page, Largest(self.most + 4, self.step))
        self.cache = PrefixCache(
            groups,
            [IndexTier([size + rng.choice((0, 0, 1, 4)) for size in sizes]), *self.faulty],
            page_tokens=self.page,
            write=rng.choice(("write_through", "write_back", "none")),
            policy=rng.choice(NATIVE_POLICIES),
            events=rng.random() < 0.5,
            checkpoints=Checkpoints(rng.choice((0, 8)), rng.choice((None, 2))),
            limits=self._limits(),
        )
        ticks = rng.choice((1, 5, 12))
        self.queue = Waiting(self.cache, bypass=rng.choice((0, 1, 3)), deadline_ticks=ticks)
        self.stories = [[rng.randrange(3) for _ in range(self.most)] for _ in range(2)]
        self.length: dict[Waiter, int] = {}
        self.stages: dict[Request, Stage] = {}
        self.outside: list[Request] = []
        self.held: list[Lease | Prefetch] = []
        self.tick, self.lag = 0, rng.choice((0, 1, 3))

    def _limits(self) -> Limits:
        def polls(*some: int | None) -> Patience:
            return Patience(polls=self.rng.choice(some))

        return Limits(
            demote_after=polls(None, 3, 30),
            drop_after=polls(0, 5, 256),
            load_deadline=polls(None, 0, 1, 8),
            prefetch_deadline=polls(0, 5, 100),
            stores=self.rng.choice((None, 1)),
            loads=self.rng.choice((None, 1)),
            breaker=Breaker(self.rng.choice((0, 2, 8)), polls(0, 5)),
        )

    def fence(self) -> int | None:
        """A step that has not passed, or none."""
        return self.tick + self.lag if self.lag and self.rng.random() < 0.8 else None

    def hints(self) -> Hints | None:
        """What is said at an end, in ticks; most often nothing."""
        ended, times = self.rng.random() < 0.3, (None, 0, 3, 40)
        said = Hints(
            expects_return=None if ended else self.rng.choice(times),
            keep_for=self.rng.choice(times),
            priority=self.rng.choice((None, None, -1, 1)),
            ended=ended,
        )
        return self.rng.choice((None, said))

    def story(self) -> list[int]:
        """The beginning of a story."""
        return self.rng.choice(self.stories)[: self.rng.randint(1, self.most - 6)]

    # ------------------------------------------------------------ one thing happens
    def happen(self) -> None:
        """Draws one, and looks at everything."""
        name = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        with suppress(CapacityError, NeverFitsError, StaleError):
            getattr(self, f"_{name}")()
        self.cache.check()

    def _submit(self) -> None:
        rng, prompt = self.rng, [*self.story(), self.rng.randrange(3)]
        if len(self.queue.queue()) < 6:
            most = len(prompt) + rng.randint(0, 4)
            waiter = self.queue.submit(
                prompt,
                most_tokens=most,
                new_tokens=rng.randint(0, most - len(prompt)),
                chunk_tokens=rng.choice((None, self.step)),
                cacheable_upto=rng.choice((None, None, 0, 5)),
                boundaries=[rng.randint(1, len(prompt))],
            )
            self.length[waiter] = most

    def _tick(self) -> None:
        self.tick += 1
        self.cache.passed(self.tick - 1)
        turn = self.queue.tick()
        if turn.retract is not None:
            self._give_way(turn.retract)

    def _give_way(self, waiter: Waiter) -> None:
        assert waiter.request is not None
        self.stages.pop(waiter.request, None)
        self.queue.retract(waiter, fence=self.fence())

    def _retract(self) -> None:
        if running := self.queue.running():
            self._give_way(self.rng.choice(running))

    def _withdraw(self) -> None:
        if waiters := self.queue.queue():
            waiter = self.rng.choice(waiters)
            self.queue.withdraw(waiter)
            if waiter.request is not None:
                waiter.request.abort(fence=self.fence())

    def _end(self) -> None:
        if running := self.queue.running():
            request = self.rng.choice(running).request
            assert request is not None
            self.stages.pop(request, None)
            if self.rng.random() < 0.5:
                request.abort(fence=self.fence())
            else:
                limit = self.rng.choice((None, 0, 4))
                request.finish(fence=self.fence(), cacheable_upto=limit, hints=self.hints())

    def _reset(self) -> None:
        names = [tier.name for tier in self.cache.opened]
        some = self.rng.sample(names, self.rng.randint(0, len(names)))
        self.cache.reset(None if self.rng.random() < 0.5 else some)

    def _revise(self) -> None:
        self.cache.set_revision(f"weights {self.rng.randint(0, 3)}")

    def _switch(self) -> None:
        tier = self.rng.choice(self.cache.tiers)
        self.cache.set_mode(tier.name, self.rng.choice([*TierMode, TierMode.ON]))

    def _evict(self) -> None:
        group = self.rng.randrange(len(self.cache.groups))
        self.cache.evict(group, 20, tier=self.rng.randrange(len(self.cache.tiers)))

    def _prefetch(self) -> None:
        self.held.append(self.cache.prefetch(self.story()))
        self._let_go(3)

    def _lease(self) -> None:
        self.held.append(self.cache.lease(self.cache.match(self.story())[1]))
        self._let_go(2)

    def _let_go(self, most: int) -> None:
        while len(self.held) > most:
            self.held.pop(self.rng.randrange(len(self.held))).release()

    def _outside(self) -> None:
        if self.outside and self.rng.random() < 0.6:
            self.outside.pop().abort(fence=self.fence())
        else:
            self.outside.append(self.cache.admit(self.story()[:12], new_tokens=2))

    def _flush(self) -> None:
        if not any(tier.stuck or tier._hangs for tier in self.slow):
            self.cache.flush()

    def _lift(self) -> None:
        self.cache.fence_lifted()

    def _stage(self) -> None:
        rng = self.rng
        for waiter in self.queue.running():
            request = waiter.request
            if request is None or not request.ready or request in self.stages:
                continue
            with suppress(RequestError):  # its last token has no slot any more
                stage = self.stages[request] = request.stage()
                for _ in range(rng.randint(0, 3)):
                    drafts = [rng.randrange(3) for _ in range(rng.randint(1, 3))]
                    stage.add(rng.randint(-1, len(stage) - 1), drafts, states=rng.random() < 0.5)
                return

    # ------------------------------------------------------------ the engine
    def _run(self) -> None:
        for waiter in self.queue.running():
            if self.rng.random() < 0.7:
                self.go_on(waiter)

    def go_on(self, waiter: Waiter) -> None:
        """One step of one request, if it can take one."""
        request = waiter.request
        if request is None or not request.ready:
            return
        self._verify(request)
        told = request._work.told
        left = len(request) - told
        if left == 0:
            if len(request) >= self.length[waiter]:
                request.finish(fence=self.fence(), hints=self.hints())
            else:
                self.queue.append(waiter, [self.rng.randrange(3)])
            return
        step = self.queue.prepare(waiter, self.rng.randint(1, left))
        if not step:
            return
        if any(rule.per_position for rule in self.cache.residency.rules):
            for stop in request.cuts(step):
                request.snapshot(stop)
        request.computed(told + step, fence=self.fence(), reuse=self.fence())

    def _verify(self, request: Request) -> None:
        stage = self.stages.pop(request, None)
        if stage is None or not stage.open:
            return
        path: list[int] = []
        parents = stage.parents.tolist()
        while self.rng.random() < 0.7:
            behind = [d for d, before in enumerate(parents) if before == (path or [-1])[-1]]
            if not behind:
                break
            path.append(self.rng.choice(behind))
        with suppress(CapacityError, NeverFitsError):
            stage.accept(path, fence=self.fence())
        if stage.open:
            stage.rollback(self.fence())

    # ------------------------------------------------------------ the end
    def calm(self) -> None:
        """Nothing is in the way any more: everybody ends, and nothing is left."""
        self._let_go(0)
        for request in self.outside:
            request.abort()
        for tier in self.cache.tiers:
            self.cache.set_mode(tier.name, TierMode.ON)
        for faulty in self.faulty:
            faulty.plan = FaultPlan()
        for _ in range(CALM_TICKS):
            for slow in self.slow:
                slow._hangs = 0
                for job in list(slow.stuck):
                    slow.cancel(job)
            self.tick += 10
            self._tick()
            for waiter in self.queue.running():
                self.go_on(waiter)
            works, jobs = self.cache.requests.works, self.cache.transfers.jobs
            if not (self.queue.queue() or works or jobs or len(self.cache.fences)):
                break
        else:
            raise AssertionError(f"they never end: {self.queue.queue()}, {works}, {jobs}")
        self.cache.check()
        assert not self.cache.tree.stats().leases, "something is pinned (I14)"
        metrics = self.cache.metrics
        told = metrics.total("match", "hit_tokens") + metrics.total("match", "miss")
        assert told == metrics.get("match", "queried_tokens"), "hits and misses (I34)"
        self.cache.close()


def _storm(seed: int, steps: int) -> None:
    world = World(seed)
    try:
        for _ in range(steps):
            world.happen()
        world.calm()
    except BaseException as error:
        error.add_note(f"seed {seed}, {steps} steps")
        raise


@pytest.mark.parametrize("seed", range(30))
def test_queue_that_is_interrupted_keeps_its_promises(seed: int) -> None:
    _storm(seed, STEPS)


@pytest.mark.long
def test_queue_that_is_interrupted_keeps_its_promises_for_long() -> None:
    for seed in range(1000, 3000):
        _storm(seed, 250)
