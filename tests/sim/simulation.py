"""The driver: runs the world of a seed for so many operations, checks it after each, and says what
it did. The same seed and number of operations do the same, byte for byte.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.sim.strikes import Strikes
from tests.sim.world import RATES, SimWorld

BYTES_EVERY = 64  # operations


@dataclass
class Outcome:
    """What the worlds of some seeds did; ``violations``: how each that failed is run again."""

    seeds: int = 0
    operations: int = 0
    strikes: Strikes = field(default_factory=Strikes)
    ran: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    digest: str = ""

    def add(self, other: Outcome) -> None:
        """Takes the counts of another one."""
        self.seeds += other.seeds
        self.operations += other.operations
        self.strikes.update(other.strikes)
        self.ran.update(other.ran)
        self.violations += other.violations

    def missing(self) -> list[str]:
        """What never happened, though it can."""
        idle = [f"operation: {name}" for name in (*RATES, "traffic") if not self.ran[name]]
        return [*self.strikes.missing(), *idle]


def simulate(seed: int, operations: int) -> Outcome:
    """Runs one seed; a failure names the seed, the operation and the way to run it again."""
    world = SimWorld(seed)
    outcome = Outcome(seeds=1, strikes=world.strikes, ran=world.ran)
    rng = random.Random(seed)
    number = -1
    try:
        world.begin()
        for number in range(operations):
            world.happen(rng)
            world.rig.cache.check()
            world.note(world.now)
            if number % BYTES_EVERY == 0:
                world.note_bytes()
            outcome.operations += 1
        world.now = "the end"
        world.close()
    except Exception as error:  # outermost: reported with its seed
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__}: {str(error)[:300]} at {last.name}:{last.lineno}"
        outcome.violations.append(
            f"seed {seed} ({world.kind}, {world.ownership.value}), operation {number} "
            f"({world.now}): {where}; "
            f"again: python -m tests.sim --seed {seed} --operations {operations}"
        )
    finally:
        world.remove()
    outcome.digest = world.digest.hexdigest()
    return outcome
