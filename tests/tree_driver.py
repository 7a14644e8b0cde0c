"""Drives the tree machines from one seed: deeper than what shrinks well, and the seed is told."""

from __future__ import annotations

import inspect
import random

from tests.strategies import random_world
from tests.tree_machine import MixedTreeMachine, TreeMachine
from tests.tree_pair import NAMESPACES


def arguments(rng: random.Random) -> dict[str, object]:
    """What any rule may be given."""
    return {
        "name": rng.choice(NAMESPACES),
        "run": [rng.randrange(5) for _ in range(rng.randrange(1, 4))],
        "keep": rng.randrange(3),
        "mask": rng.randrange(1, 16),
        "choice": rng.randrange(1 << 16),
        "where": rng.randrange(1 << 16),
        "cut": rng.randrange(7),
        "first": rng.randrange(5),
        "limit": rng.randrange(9),
        "upto": rng.randrange(7),
        "ago": rng.randrange(30),
        "back": rng.randrange(8),
        "count": rng.randrange(7),
        "tiers": rng.randrange(4),
        "gaps": [rng.random() < 0.3 for _ in range(rng.choice((0, 0, 6)))],
        "leased": rng.random() < 0.4,
        "touch": rng.random() < 0.3,
        "stamp": rng.random() < 0.6,
        "fail": rng.choice((0, 0, 0, 0, 0, 1, 2, 3)),
    }


WEIGHTS = {
    "match": 4,
    "match_again": 6,
    "joint": 4,
    "entries": 2,
    "insert": 5,
    "insert_more": 14,
    "lease": 6,
    "narrow": 2,
    "release": 9,
    "move_up": 2,
    "move_down": 2,
    "attach_below": 10,
    "attach_device": 6,
    "restore": 3,
    "drop": 5,
    "drop_span": 4,
    "evict_some": 14,
    "evict_old": 3,
    "forget": 3,
    "touch": 3,
}


def may_run(machine: TreeMachine, name: str) -> bool:
    """The preconditions of the rules, where no Hypothesis asks for them."""
    if name in ("release", "move_up", "move_down", "narrow") and not machine.leases:
        return False
    needs = {
        "attach_below": machine.pair.loose,
        "attach_device": machine.pair.solid,
        "drop_span": machine.mixed,
        "restore": machine.pair.world.keep_keys,
    }
    return bool(needs.get(name, True)) and (bool(machine.cursors) or "insert" in name)


def run_at_random(kind: type[TreeMachine], seed: int, steps: int) -> None:
    """Many steps of every kind from one seed: deeper than what shrinks well."""
    rng = random.Random(seed)
    machine = kind()
    machine.build(world=random_world(rng, mixed=issubclass(kind, MixedTreeMachine)), seed=seed)
    machine.insert(name="a", run=[1, 2, 3], leased=False, gaps=[], tiers=3, fail=0)
    for number in range(steps):
        [name] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        given = arguments(rng)
        if not may_run(machine, name):
            continue
        step = getattr(machine, name)
        try:
            step(**{key: given[key] for key in inspect.signature(step).parameters})
            machine.both_sides_agree()
        except Exception as error:
            world = machine.pair.world
            shape = [group.name for group in world.groups], world.tiers, world.page_tokens
            error.add_note(f"seed {seed}, step {number}: {name}, {shape}")
            raise
    machine.teardown()
