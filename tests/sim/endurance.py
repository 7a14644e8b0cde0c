"""`make endurance OPS=n`: a cache that lives for n operations, in as many worlds as there are
processes. An operation is one call on it: admit, computed, append, finish, poll and so on. Every
1,000 of them `check()` walks everything, every byte that is cached is looked at, and the memory of
the process must stay within 2 % of what it was after a tenth. Ends with one line of JSON:

    python -m tests.sim.endurance --operations 100000
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radix.events import RequestState
from tests.cachemachine import NAMESPACES
from tests.cacherig import ORDER
from tests.sim.simrig import SimRig
from tests.sim.strikes import Strikes
from tests.sim.world import RATES, SEED_KINDS, SimWorld

CHECK_EVERY = 1000
MOST_GROWTH = 1.02
RESTARTS = ("crash", "close", "rot")  # what ends a cache, or needs a disk, is no part of it
CALLS = ("admit", "resume", "compute", "append", "end", "preempt", "evict", "poll", "pass_step")


@dataclass
class LongRig(SimRig):
    """A rig that counts the calls on its cache, and forgets what is over."""

    look_every: int = 1 << 60
    calls: int = 0

    def forget(self) -> None:
        """Drops what it knows of requests that are gone and of weights that are no more."""
        for number, seen in list(self.states.items()):
            if seen[-1] is RequestState.RELEASED:
                assert seen[-3:] == list(ORDER[-3:]), "an end without its three events (I30)"
                del self.states[number]
        names = {self.cache.namespace(space) for space in NAMESPACES}
        names |= {live.name for live in self.live}
        self.known = {item for item in self.known if item[0] in names}
        self.roots.clear()
        self.heard.clear()


def _counted(name: str) -> Callable[..., Any]:
    call: Callable[..., Any] = getattr(SimRig, name)

    def counting(rig: LongRig, *args: Any, **more: Any) -> Any:
        rig.calls += 1
        return call(rig, *args, **more)

    return counting


for _name in CALLS:
    setattr(LongRig, _name, _counted(_name))


RATES_OF_ONE = {
    name: rate for name, rate in RATES.items() if name not in ("cut", "crash", "reopen")
}


class LongWorld(SimWorld):
    """A world in memory whose cache is never opened again."""

    rig_type = LongRig
    rates = RATES_OF_ONE
    rig: LongRig


@dataclass
class Endured:
    """What one process saw."""

    seed: int
    operations: int = 0
    checks: int = 0
    start_bytes: int = 0
    most_bytes: int = 0
    strikes: Strikes = field(default_factory=Strikes)
    violations: list[str] = field(default_factory=list)


def resident_bytes() -> int:
    """What of this process is in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _look(world: LongWorld, seen: Endured, operations: int) -> None:
    world.rig.cache.check()
    world.rig.poll()
    assert world.rig.resident == world.rig.walk(), "the stream is not what is resident (I32)"
    world.rig.forget()
    seen.checks += 1
    if seen.operations < operations // 10:
        return
    gc.collect()
    now = resident_bytes()
    seen.start_bytes = seen.start_bytes or now
    seen.most_bytes = max(seen.most_bytes, now)
    assert now <= seen.start_bytes * MOST_GROWTH, f"grew from {seen.start_bytes} to {now} bytes"


def endure(seed: int, operations: int) -> Endured:
    """Runs one world for so many operations."""
    world = LongWorld(seed)
    seen = Endured(seed, strikes=world.strikes)
    rng = random.Random(seed)
    looked = 0
    gc.freeze()  # what was imported stays: the collector need not look at it each time
    try:
        world.begin()
        while seen.operations < operations:
            world.happen(rng)
            seen.operations = world.rig.calls
            if seen.operations >= looked + CHECK_EVERY:
                looked = seen.operations
                _look(world, seen, operations)
        world.close()
    except Exception as error:  # outermost: reported with its seed
        last = traceback.extract_tb(error.__traceback__)[-1]
        seen.violations.append(
            f"seed {seed}, operation {seen.operations} ({world.now}): {type(error).__name__}: "
            f"{str(error)[:300]} at {last.name}:{last.lineno}; again: python -m "
            f"tests.sim.endurance --seed {seed} --operations {operations} --jobs 1"
        )
    finally:
        gc.unfreeze()
        world.remove()
    return seen


def run(operations: int, jobs: int, first: int = 0) -> dict[str, Any]:
    """So many operations in so many processes, each a world of its own; the line of JSON."""
    step = SEED_KINDS.index("memory", 1)  # only some seeds are worlds in memory
    seeds = [first + step * number for number in range(jobs)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        parts = list(pool.map(endure, seeds, [-(-operations // jobs)] * jobs))
    strikes = Strikes()
    for part in parts:
        strikes.update(part.strikes)
    violations = [violation for part in parts for violation in part.violations]
    print("\n".join(violations))
    return {
        "seeds": jobs,
        "operations": sum(part.operations for part in parts),
        "checks": sum(part.checks for part in parts),
        "growth": max(part.most_bytes / max(1, part.start_bytes) for part in parts),
        "struck": strikes.table(RESTARTS),
        "never": strikes.missing(RESTARTS),
        "violations": len(violations),
    }


def main() -> int:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.endurance")
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; even")
    asked = parser.parse_args()
    line = run(asked.operations, asked.jobs, asked.seed)
    print(json.dumps(line))
    return bool(line["violations"] or line["never"])


if __name__ == "__main__":
    sys.exit(main())
