"""The page about policies says what hints are worth as it was counted; true ones are worth most of
the gap to the optimum, and the more of them are wrong the less.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from bench import curves, hints
from radix.replay.options import OPTIMAL


def test_the_tables_of_hints_are_those_of_the_kept_counts() -> None:
    page = curves.PAGE.read_text()
    assert "<!-- hints -->" in page
    assert hints.written(page) == page


@pytest.mark.parametrize("part", hints.parts(), ids=lambda part: part.name)
def test_true_hints_close_most_of_the_gap_and_wrong_ones_less(part: curves.Part) -> None:
    found = json.loads((hints.FOLDER / f"{part.name}.json").read_text())
    assert set(found) == set(hints.POLICIES)
    plain = dict(curves.rows(curves.kept(part)))
    blocks = curves.kept(part).blocks
    by_error = [hints.percent(found["priority"][str(error)], blocks) for error in hints.ERRORS]
    for at, size in enumerate(curves.SIZES):
        lru, best = plain["lru"][at], plain[OPTIMAL][at]
        hits = [row[at] for row in by_error]
        assert all(more >= less - 0.1 for more, less in pairwise(hits))
        assert hits[0] <= best + 0.01
        if size in (5, 10, 20):
            assert hits[0] - lru > 0.6 * (best - lru)
