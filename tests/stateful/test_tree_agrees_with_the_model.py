"""TreeCore against a dictionary: whatever is done to it, in whatever order, with cursors however
stale and with any allocation failing, it holds the same pages in the same slots under the same
pins, gives up the same pages in the same order, and its own check (I1-I6, I12-I18, I20, I21) finds
nothing. The content of each step is compared in full.
"""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.strategies import World
from tests.tree_machine import NAMESPACES, TreeMachine


def arguments(rng: random.Random) -> dict[str, object]:
    """What any rule may be given."""
    return {
        "name": rng.choice(NAMESPACES),
        "run": [rng.randrange(5) for _ in range(rng.randrange(1, 4))],
        "keep": rng.randrange(3),
        "mask": rng.randrange(1, 8),
        "choice": rng.randrange(1 << 16),
        "where": rng.randrange(1 << 16),
        "cut": rng.randrange(7),
        "first": rng.randrange(5),
        "upto": rng.randrange(7),
        "back": rng.randrange(8),
        "count": rng.randrange(7),
        "tiers": rng.randrange(4),
        "gaps": [rng.random() < 0.3 for _ in range(rng.choice((0, 0, 6)))],
        "leased": rng.random() < 0.4,
        "stamp": rng.random() < 0.6,
        "fail": rng.choice((0, 0, 0, 0, 0, 1, 2, 3)),
    }


WEIGHTS = {
    "match": 6,
    "insert": 5,
    "insert_more": 14,
    "lease": 6,
    "release": 9,
    "move_up": 2,
    "move_down": 2,
    "attach_below": 8,
    "attach_device": 6,
    "drop": 5,
    "evict_some": 14,
    "forget": 3,
    "touch": 3,
}
NEEDS = {
    "release": "leases",
    "move_up": "leases",
    "move_down": "leases",
}


def run_at_random(seed: int, steps: int) -> None:
    """Many steps of every kind from one seed: deeper than what shrinks well."""
    rng = random.Random(seed)
    machine = TreeMachine()
    world = World(
        page_tokens=rng.choice((1, 2, 4)),
        groups=rng.randrange(1, 3),
        tiers=rng.randrange(1, 4),
        capacity=rng.randrange(12, 33),
        keep_keys=rng.random() < 0.5,
    )
    machine.build(world=world, seed=seed)
    machine.insert(name="a", run=[1, 2, 3], leased=False, gaps=[], tiers=3, fail=0)
    for _ in range(steps):
        [name] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        given = arguments(rng)
        if name in NEEDS and not machine.model.leases:
            continue
        if name == "attach_below" and not machine.lower:
            continue
        step = getattr(machine, name)
        step(**{key: given[key] for key in inspect.signature(step).parameters})
        machine.both_sides_agree()
    machine.teardown()


@pytest.mark.parametrize("seed", range(10))
def test_tree_agrees_with_the_model_at_random(seed: int) -> None:
    run_at_random(seed, 250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_tree_agrees_with_the_model_at_random_for_long(seed: int) -> None:
    run_at_random(seed, 1500)


def test_tree_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        TreeMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.long
def test_tree_agrees_with_the_model_for_long() -> None:
    run_state_machine_as_test(
        TreeMachine, settings=settings(max_examples=3000, stateful_step_count=80, deadline=None)
    )
