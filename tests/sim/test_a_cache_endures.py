"""A hundred thousand operations on one cache and another: nothing is lost, leaked or wrong, and the
process takes no more memory at the end than soon after the beginning.
"""

from __future__ import annotations

from tests.sim.endurance import CHECK_EVERY, MOST_GROWTH, run

OPERATIONS = 100_000


def test_cache_of_a_hundred_thousand_operations_is_as_it_was() -> None:
    line = run(OPERATIONS, jobs=2)
    assert not line["violations"], line
    assert not line["never"], line["never"]
    assert line["operations"] >= OPERATIONS
    assert line["checks"] * CHECK_EVERY >= OPERATIONS * 9 // 10
    assert 0 < line["growth"] <= MOST_GROWTH
