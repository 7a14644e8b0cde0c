"""TreeCore over mixes of groups of every kind against the model: windows, chunks and checkpoints of
several reaches and grids beside full groups, with tombstones, pins of single pages, window slides
and late arrivals in any tier. The hits equal an enumeration of all lengths; what is exact of the
order stands in ``tests/tree_pair.py`` (I15, I16, I20, I26-I28).
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.tree_driver import run_at_random
from tests.tree_machine import MixedTreeMachine


@pytest.mark.parametrize("seed", range(40))
def test_tree_of_mixed_groups_agrees_with_the_model_at_random(seed: int) -> None:
    run_at_random(MixedTreeMachine, seed, 150)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_tree_of_mixed_groups_agrees_with_the_model_at_random_for_long(seed: int) -> None:
    run_at_random(MixedTreeMachine, seed, 600)


def test_tree_of_mixed_groups_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        MixedTreeMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.long
def test_tree_of_mixed_groups_agrees_with_the_model_for_long() -> None:
    run_state_machine_as_test(
        MixedTreeMachine,
        settings=settings(max_examples=3000, stateful_step_count=80, deadline=None),
    )
