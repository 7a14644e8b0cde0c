"""The page about policies shows the kept counts and nothing else, and the kept counts cover every
policy at every size; with the traces at hand, a small one is counted again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bench import curves
from radix.replay.options import OPTIMAL


@pytest.mark.parametrize("part", curves.PARTS, ids=lambda part: part.name)
def test_each_part_was_counted_under_every_policy_at_every_size(part: curves.Part) -> None:
    report = curves.kept(part)
    expected = [
        (policy, max(1, report.unique_blocks * size // 100))
        for size in curves.SIZES
        for policy in curves.COUNTED
    ]
    assert [(run.policy, run.capacity_blocks) for run in report.runs] == expected
    best = {run.capacity_blocks: run.hit_blocks for run in report.runs if run.policy == OPTIMAL}
    assert all(run.hit_blocks <= best[run.capacity_blocks] for run in report.runs)
    assert "/" not in report.trace


def test_the_tables_of_the_page_are_those_of_the_kept_counts() -> None:
    page = curves.PAGE.read_text()
    assert curves.written(page) == page
    assert len(re.findall(r"<!-- (?:hits|gaps|test|means) -->", page)) == 4
    assert (curves.PAGE.parent / "policies.png").read_bytes()[:4] == b"\x89PNG"


def test_the_guarded_policy_never_lost_half_a_point_against_lru() -> None:
    for part in curves.PARTS:
        for lru, own, best, _ in curves.closed(curves.kept(part), "hit_density"):
            assert lru - 0.5 < own <= best


@pytest.mark.traces
def test_a_trace_counted_again_gives_what_was_kept() -> None:
    part = next(part for part in curves.PARTS if part.name == "branching")
    again = curves.replay(part, Path(os.environ["RADIX_TRACES"]), curves.COUNTED)
    for found, was in zip(again.runs, curves.kept(part).runs, strict=True):
        assert (found.policy, found.hit_blocks) == (was.policy, was.hit_blocks)
