"""TreeCore against a dictionary: whatever is done to it, in whatever order, with cursors however
stale and with any allocation failing, it holds the same pages in the same slots under the same
pins, gives up the same pages in the same order, and its own check (I1-I6, I12-I18, I20, I21) finds
nothing. The content of each step is compared in full.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.tree_driver import run_at_random
from tests.tree_machine import TreeMachine


@pytest.mark.parametrize("seed", range(10))
def test_tree_agrees_with_the_model_at_random(seed: int) -> None:
    run_at_random(TreeMachine, seed, 250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_tree_agrees_with_the_model_at_random_for_long(seed: int) -> None:
    run_at_random(TreeMachine, seed, 1500)


def test_tree_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        TreeMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.long
def test_tree_agrees_with_the_model_for_long() -> None:
    run_state_machine_as_test(
        TreeMachine, settings=settings(max_examples=3000, stateful_step_count=80, deadline=None)
    )
