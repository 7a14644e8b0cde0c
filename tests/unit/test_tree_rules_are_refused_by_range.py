"""A rule that means nothing makes no tree, and a call that names no column changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from radix._native import lib
from radix.groups import Rule
from radix.tree import StaleError, TreeCore
from tests.treerig import Rig, chunked, full, state, window


@pytest.mark.parametrize(
    "rule",
    [
        replace(full(), code=lib.RDX_RULE_COUNT),
        replace(full(), block_pages=0),
        replace(full(), reach_tokens=1),
        replace(state(), reach_tokens=1),
        replace(chunked(1), reach_tokens=0),
        replace(window(3, 2), lookahead_pages=1),
        replace(chunked(3), lookahead_pages=1),
        replace(state(), lookahead_pages=1),
        replace(full(), code=lib.RDX_RULE_SCRATCH),
    ],
)
def test_a_rule_out_of_its_range_is_refused(rule: Rule) -> None:
    with pytest.raises(ValueError, match="range"):
        TreeCore(4, groups=[full(), rule], tiers=1)


def test_page_tokens_below_one_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="page_tokens must be at least 1, not 0"):
        TreeCore(4, groups=[full()], tiers=1, page_tokens=0)


def test_scratch_groups_never_stand_in_the_tree() -> None:
    scratch = Rule(lib.RDX_RULE_SCRATCH, 1, 0, 0, False, 1)
    rig = Rig(full(), scratch)
    rig.put([1, 2, 3], {0: range(3), 1: range(3)})
    assert rig.held([1, 2, 3], 1) == []
    assert rig.attach([1, 2, 3], 1, 0, 2) == []
    assert rig.match([1, 2, 3]).hit_pages == 3


def test_calls_that_name_no_column_or_page_are_refused() -> None:
    rig = Rig(full(), window(2))
    end = rig.put([1, 2, 3], {0: range(3), 1: range(3)})
    before = rig.everything()
    for call in (
        lambda: rig.tree.drop_span(end, 2, 0, 1),
        lambda: rig.tree.drop_span(end, 0, 0, 1),
        lambda: rig.tree.entries(end, 2),
    ):
        with pytest.raises(ValueError, match="range"):
            call()
    gone = end._replace(root=12345, node=12345)
    for call in (
        lambda: rig.tree.drop_span(end, 1, 2, 2),
        lambda: rig.tree.entries(gone, 1),
        lambda: rig.tree.joint(gone, 3),
    ):
        with pytest.raises(StaleError):
            call()
    assert rig.everything() == before
