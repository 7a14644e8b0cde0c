"""The livelock model: small random systems of requests each of which fits alone, under an engine
that computes prompts by steps, decodes, and knows what it freed one step late. Every request must
finish (I29), whatever the pools hold, hit, lose or wait for. A system is one seed; the same seed
does the same, tick by tick.

Run it: ``python -m tests.livelock 100000`` ends with one JSON line and fails on a violation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from radix import Largest, PrefixCache, Waiter, Waiting, pool_sizes
from radix.errors import CacheError
from radix.groups import Group
from radix.tier import Tier, Transfer
from tests.mixes import mix
from tests.sim.strikes import Strikes, StruckTier
from tiers.faults import Fault, FaultPlan
from tiers.index import IndexTier
from tiers.pools import all_of

PATIENCE_TICKS = 400  # far more than any system needs without a request that makes progress
MOST_TICKS = 4000
KINDS = (
    *("seeds", "operations", "requests", "ticks", "bypassed", "stalled", "retracted", "shortened"),
    *("limited", "reset", "set_revision", "empty", "hung", "faults"),
)
_ENDING = ("store ending", "load ending")
_STARTING = ("store starting", "load starting")
_UNDER_WAY = ("store under way", "load under way")
# kind of fault -> the states of a transfer in which it must have struck
STRUCK = {
    "refuse": ("reserve starting", *_STARTING),
    "fail": _STARTING,
    "lose": _ENDING,
    "part": _ENDING,
    "corrupt": ("load ending",),
    "delay": _ENDING,
    "hang": _UNDER_WAY,
    "cancel": _UNDER_WAY,
    "retract": _UNDER_WAY,
    "reset": _UNDER_WAY,
    "set_revision": _UNDER_WAY,
}
FAULTS = {
    "reserve": {Fault.REFUSE: 0.05},
    "store": {Fault.REFUSE: 0.08, Fault.FAIL: 0.06, Fault.PART: 0.06, Fault.LOSE: 0.03},
    "load": {
        Fault.REFUSE: 0.08,
        Fault.FAIL: 0.08,
        Fault.PART: 0.08,
        Fault.CORRUPT: 0.05,
        Fault.LOSE: 0.03,
    },
}


class HangingTier(IndexTier):
    """Slots without bytes, some of whose transfers end only when they are cancelled."""

    def __init__(self, blocks: int, name: str, hangs: float, seed: int) -> None:
        super().__init__(blocks, name)
        self._hangs = hangs
        self._draw = random.Random(seed)
        self.stuck: dict[int, Transfer] = {}
        self.hung: Counter[str] = Counter()

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Ends at the next poll, or hangs."""
        if not self._hang(transfer, upper, storing=True):
            super().store(transfer, upper)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Ends at the next poll, or hangs."""
        if not self._hang(transfer, upper, storing=False):
            super().load(transfer, upper)

    def _hang(self, transfer: Transfer, upper: Tier, *, storing: bool) -> bool:
        if self._draw.random() >= self._hangs:
            return False
        self._accept(transfer, upper, storing=storing)
        self._running[transfer.job] = transfer
        self.stuck[transfer.job] = transfer
        self.hung[_UNDER_WAY[not storing]] += 1
        return True

    def cancel(self, job: int) -> None:
        """What hangs is skipped, and acknowledged as such."""
        if transfer := self.stuck.pop(job, None):
            del self._running[job]
            self._done.append(all_of(transfer, good=False, nbytes=0, error=None))


@dataclass(frozen=True)
class Plan:
    """One request: when it comes, its prompt, how many tokens it samples, what it reserves, and how
    many of its tokens may be kept.
    """

    arrives: int
    prompt: tuple[int, ...]
    sampled: int
    reserved: int
    limit: int | None = None

    @property
    def tokens(self) -> int:
        return len(self.prompt) + self.sampled


@dataclass(frozen=True)
class System:
    """What a seed draws: a model, its pools and tiers, its engine and the requests that come."""

    seed: int
    page: int
    groups: tuple[Group, ...]
    step: int
    blocks: tuple[int, ...]
    below: tuple[int, ...]
    faults: bool
    hangs: float
    lag: int  # steps after which slots that were given up may be used again
    bypass: int
    write: str
    plans: tuple[Plan, ...]
    epochs: tuple[tuple[int, str], ...] = ()  # ticks, and what is gone then

    @classmethod
    def draw(cls, seed: int) -> System:
        rng = random.Random(seed)
        page, step = rng.choice((1, 2, 4)), rng.choice((1, 2, 3, 4, 8))
        groups = mix(rng, page)
        stories = [[rng.randrange(3) for _ in range(6 * page + 4)] for _ in range(2)]
        plans = []
        for _ in range(rng.randint(2, 6)):
            story = rng.choice(stories)
            prompt = [*story[: rng.randint(1, len(story))], *rng.choices(range(3), k=2)]
            sampled = rng.randint(0, 2 * page + 1)
            reserved = rng.choice((0, 0, sampled, rng.randint(0, sampled)))
            plans.append(Plan(rng.randint(0, 6), tuple(prompt), sampled, reserved))
        plans.sort(key=lambda plan: plan.arrives)
        epochs: tuple[tuple[int, str], ...] = ()
        if seed % 11 > 7:  # drawn apart: the other systems are as they were
            more = random.Random(f"epochs {seed}")
            plans = [
                replace(plan, limit=more.choice((None, more.randint(0, plan.tokens))))
                for plan in plans
            ]
            kinds = ("reset", "set_revision", "empty", "empty", "empty")
            epochs = tuple(
                (more.randint(1, 30), more.choice(kinds)) for _ in range(more.randint(0, 8))
            )
        needed = pool_sizes(groups, page, Largest(max(p.tokens for p in plans), step))
        # often exactly what the largest one needs, alone: pools of 8 to 32 blocks where they may be
        spare = rng.choice((0, 0, 1, 3, 8))
        least = rng.choice((1, 1, 8))
        writes = "write_back" if seed % 7 in (1, 2) else "write_through"
        return cls(
            seed=seed,
            page=page,
            groups=groups,
            step=step,
            blocks=tuple(max(least, min(32, count + rng.randint(0, spare))) for count in needed),
            below=tuple(rng.randint(2, 40) for _ in range(rng.choice((0, 1, 1, 2)))),
            faults=rng.random() < 0.5,
            hangs=rng.choice((0.0, 0.0, 0.1)),
            lag=rng.choice((0, 1, 2)),
            bypass=rng.choice((0, 1, 3)),
            write=rng.choice((writes, writes, "none")),
            plans=tuple(plans),
            epochs=epochs,
        )


@dataclass
class Engine:
    """Serves the requests of one system. ``counts``: what happened, for whoever wants to know."""

    system: System
    queue: type[Waiting] = Waiting
    counts: Counter[str] = field(default_factory=Counter)
    tick: int = 0
    progress: int = 0  # the tick at which a request went on last
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        system = self.system
        self.rng = random.Random(system.seed + 1)
        self.tiers: list[HangingTier] = [
            HangingTier(count, name, system.hangs, system.seed + number)
            for number, (count, name) in enumerate(
                zip(system.below, ("host", "deep"), strict=False)
            )
        ]
        self.epochs = list(system.epochs)
        self.strikes = Strikes()
        self.faulty = [
            StruckTier(
                tier,
                FaultPlan(
                    rates=FAULTS if system.faults else {},
                    seed=system.seed + number,
                    delay_polls=2,
                    reorder=True,
                ),
                self.strikes,
            )
            for number, tier in enumerate(self.tiers)
        ]
        largest = Largest(max(plan.tokens for plan in system.plans), system.step)
        self.cache = PrefixCache(
            system.groups,
            [IndexTier(system.blocks), *self.faulty],
            page_tokens=system.page,
            write=system.write,
            largest=largest,
        )
        self.waiting = self.queue(self.cache, bypass=system.bypass, tries=4, deadline_ticks=12)
        self.states = any(rule.per_position for rule in self.cache.residency.rules)
        self.plans: dict[Waiter, Plan] = {}
        self.told: dict[Waiter, int] = {}
        self.ended = 0

    # ------------------------------------------------------------ a run
    def run(self) -> Counter[str]:
        """To the end of every request; ``AssertionError`` names the seed where one hangs."""
        try:
            coming = list(self.system.plans)
            while self.ended < len(self.system.plans):
                while coming and coming[0].arrives <= self.tick:
                    self._submit(coming.pop(0))
                self._turn()
                stuck = self.tick - self.progress
                assert stuck < PATIENCE_TICKS, f"nobody went on for {stuck} ticks"
                assert self.tick < MOST_TICKS, "they go round and round"
            self._quiet()
        except (AssertionError, CacheError) as error:
            raise AssertionError(
                f"livelock model, seed {self.system.seed}, tick {self.tick}: "
                f"{type(error).__name__}: {error}; {self._state()}"
            ) from error
        finally:
            self.cache.close()
        self.counts.update(seeds=1, requests=len(self.system.plans), ticks=self.tick)
        shorter = self.cache.metrics.get("admit", "hit shortened")
        self.counts["shortened"] += shorter
        self.counts["hung"] += sum(tier.hung.total() for tier in self.tiers)
        for tier in self.tiers:
            self.strikes.update({("hang", state): count for state, count in tier.hung.items()})
        self.counts["faults"] += sum(sum(tier.shown.values()) for tier in self.faulty)
        return self.counts

    def _state(self) -> str:
        queue = [(w.age, w.bypassed, len(w.tokens)) for w in self.waiting.queue()]
        running = [
            (w.age, w.request.state.value, self.told.get(w), len(w.request), w.request.short)
            for w in self.waiting.running()
            if w.request is not None
        ]
        return f"{queue=} {running=} {self.system}"

    def _struck(self, kind: str, owner: int | None = None) -> None:
        """Counts the transfers under way (of one request) as struck."""
        for number, job in self.cache.transfers.jobs.items():
            for tier in self.faulty if owner is None or job.owner == owner else ():
                if (state := tier.state_of(number)) is not None:
                    self.strikes[kind, state] += 1

    def _submit(self, plan: Plan) -> None:
        self.counts["operations"] += 1
        self.counts["limited"] += plan.limit is not None
        waiter = self.waiting.submit(
            list(plan.prompt),
            most_tokens=plan.tokens,
            new_tokens=plan.reserved,
            chunk_tokens=self.system.step,
            cacheable_upto=plan.limit,
        )
        self.plans[waiter] = plan
        self.progress = self.tick

    def _begin_epochs(self) -> None:
        """What is due happens while something loads, if that comes soon."""
        loads = any(not job.storing for job in self.cache.transfers.jobs.values())
        for epoch in list(self.epochs):
            at, kind = epoch
            if at > self.tick or (kind != "empty" and not loads and self.tick < at + 12):
                continue
            self.epochs.remove(epoch)
            self._struck(kind)
            self.counts[kind] += 1
            if kind == "reset":
                self.cache.reset()
            elif kind == "set_revision":
                self.cache.set_revision(f"of tick {self.tick}")
            else:  # what is hit later comes from below
                for group in range(len(self.cache.groups)):
                    self.cache.evict(group, 32)

    def _turn(self) -> None:
        self._begin_epochs()
        self.counts["operations"] += 1
        turn = self.waiting.tick()
        assert not turn.refused, "what fits alone was refused"
        assert turn.retract not in self.waiting.running()[:1], "the oldest gives way (R7)"
        self._watch(turn.admitted)
        for waiter in turn.admitted:
            self.told.pop(waiter, None)
            self.trace.append(f"{self.tick} admits {waiter.age}")
        running = list(self.waiting.running())
        self.rng.shuffle(running)
        for waiter in running:
            if waiter is not turn.retract and waiter.request is not None and waiter.request.ready:
                self._step(waiter)
        if (gives := turn.retract) is not None:
            self._retract(gives)
        self.tick += 1
        if self.tick > self.system.lag:
            self.cache.passed(self.tick - 1 - self.system.lag)

    def _watch(self, admitted: tuple[Waiter, ...]) -> None:
        """R6: nobody is let in past one that was bypassed often enough."""
        for waiter in self.waiting.queue():
            assert waiter.bypassed <= self.system.bypass, "bypassed once too often (R6)"
        self.counts["bypassed"] += sum(
            1 for w in admitted if any(o.age < w.age for o in self.waiting.queue())
        )

    def _fence(self) -> int | None:
        return self.tick if self.system.lag else None

    def _retract(self, waiter: Waiter) -> None:
        if waiter.request is None or waiter not in self.waiting.running():
            return
        self.counts["retracted"] += 1
        self._struck("retract", waiter.request._work.hop)
        self.trace.append(f"{self.tick} retracts {waiter.age}")
        self.waiting.retract(waiter, fence=self._fence())

    def _step(self, waiter: Waiter) -> None:
        """One step of one request: a piece of its prompt, or the token sampled before."""
        self.counts["operations"] += 1
        request, plan = waiter.request, self.plans[waiter]
        assert request is not None
        told = self.told.setdefault(waiter, request.hit_tokens)
        left = len(request) - told
        if left == 0:
            if len(request) == plan.tokens:
                self._finish(waiter)
            elif self.waiting.append(waiter, [self.rng.randrange(3)]):
                self.progress = self.tick
            else:
                self.counts["stalled"] += 1
            return
        step = self.waiting.prepare(waiter, left)
        if not step:
            self.counts["stalled"] += 1
            return
        for stop in request.cuts(step) if self.states else ():
            request.snapshot(stop)
        self.told[waiter] = told + step
        request.computed(told + step, fence=self._fence(), reuse=self._fence())
        self.progress = self.tick

    def _finish(self, waiter: Waiter) -> None:
        assert waiter.request is not None
        self.trace.append(f"{self.tick} ends {waiter.age}")
        waiter.request.finish(fence=self._fence())
        self.ended += 1
        self.progress = self.tick

    def _quiet(self) -> None:
        """Nothing is left under way, and nobody holds a slot but the tree."""
        cache = self.cache
        for _ in range(PATIENCE_TICKS):
            self.tick += 1
            cache.passed(self.tick)
            self.waiting.tick()
            for tier in self.tiers:
                for job in list(tier.stuck):
                    tier.cancel(job)
            if not cache.requests.works and not cache.transfers.jobs:
                break
        assert not cache.requests.works, "a request never ended"
        assert not cache.transfers.jobs, "a transfer never ended"
        cache.check()
        for number, tier in enumerate(cache.residency.tiers):
            for group in range(len(cache.groups)):
                stats = cache.tree.column_stats(cache.tree.column(group, number))
                assert stats.protected == 0, "something is pinned (I14)"
                assert tier.usage().used_blocks[group] == stats.resident, "a private slot (I8)"


def serve(seed: int) -> Counter[str]:
    """One system to its end."""
    return Engine(System.draw(seed)).run()


def _try(seed: int) -> tuple[Counter[str], Strikes, str]:
    engine = Engine(System.draw(seed))
    try:
        return engine.run(), engine.strikes, ""
    except AssertionError as error:
        return Counter(seeds=1), engine.strikes, str(error)


def campaign(first: int, systems: int, workers: int = 1) -> tuple[Counter[str], Strikes, list[str]]:
    """So many systems from a seed on: what happened, what struck whom, and what was violated."""
    total, strikes = Counter(dict.fromkeys(KINDS, 0)), Strikes()
    broken: list[str] = []
    seeds = range(first, first + systems)

    with ExitStack() as stack:
        each: Iterable[tuple[Counter[str], Strikes, str]] = map(_try, seeds)
        if workers > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(workers))
            each = pool.imap_unordered(_try, seeds, chunksize=50)
        for counts, struck, fault in each:
            total.update(counts)
            strikes.update(struck)
            if fault:
                broken.append(fault)
                print(fault, file=sys.stderr)
    return total, strikes, broken


def table(strikes: Strikes) -> tuple[dict[str, dict[str, int]], list[str]]:
    """How often each kind of fault struck in each state, and what never did."""
    found = {
        kind: {state: strikes[kind, state] for state in states} for kind, states in STRUCK.items()
    }
    never = [f"{k}: {state}" for k, states in found.items() for state, n in states.items() if not n]
    return found, never


def main() -> int:
    """The campaign of the command line."""
    parser = argparse.ArgumentParser(description="Every request of small random systems finishes.")
    parser.add_argument("systems", type=int, nargs="?", default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    total, strikes, broken = campaign(asked.first, asked.systems, asked.workers)
    struck, never = table(strikes)
    line = {
        **total,
        "first_seed": asked.first,
        "struck": struck,
        "never": never,
        "violations": len(broken),
    }
    print(json.dumps(line))
    return 1 if broken or never else 0


if __name__ == "__main__":
    sys.exit(main())
