"""Twenty worlds, whatever happens to them: every hit holds the right bytes, `check()` holds after
each operation, what is durable outlives power cuts, each end is told by its three events once and
in order, and what fits alone ends within a bound of ticks once nothing fails any more.
"""

from __future__ import annotations

import pytest

from tests.sim.simulation import Outcome, simulate
from tests.sim.world import RATES

SEEDS = 20
OPERATIONS = 320


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Every seed, once."""
    return [simulate(seed, OPERATIONS) for seed in range(SEEDS)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_world_of_a_seed_is_without_violations(outcomes: list[Outcome], seed: int) -> None:
    assert not outcomes[seed].violations, outcomes[seed].violations[0]
    assert outcomes[seed].operations == OPERATIONS


def test_every_kind_of_fault_struck_and_everything_happened(outcomes: list[Outcome]) -> None:
    """`make sim` wants each in each state; so few operations want each at all."""
    total = Outcome()
    for outcome in outcomes:
        total.add(outcome)
    quiet = [kind for kind, states in total.strikes.table().items() if not any(states.values())]
    assert not quiet, f"never struck: {quiet}"
    assert not [name for name in RATES if not total.ran[name]]
