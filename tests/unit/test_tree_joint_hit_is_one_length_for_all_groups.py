"""A hit is the greatest length that every group with lookup can serve, and the match says which
kind of group made it shorter (I26, I28). All lengths are tried against it, over random residencies.
"""

from __future__ import annotations

import random

import pytest

from radix._native import lib
from radix.groups import Rule
from tests.treerig import Rig, chunked, full, state, window

PROMPT = list(range(12))
LIMIT, COLD, HOLE = lib.RDX_STOP_LIMIT, lib.RDX_STOP_COLD, lib.RDX_STOP_HOLE
WINDOW, STATE = lib.RDX_STOP_WINDOW, lib.RDX_STOP_STATE


def hit(rig: Rig, tokens: list[int] = PROMPT) -> tuple[int, int]:
    """Length and reason."""
    found = rig.match(tokens)
    return found.hit_pages, found.stop


def test_a_window_with_a_gap_ends_the_hit_before_the_gap() -> None:
    rig = Rig(full(), window(3))
    rig.put(PROMPT, {0: range(12), 1: [3, 4, 5, 6, 9, 10, 11]})
    assert hit(rig) == (12, LIMIT)
    assert hit(rig, [*PROMPT, 99]) == (12, COLD)
    assert hit(rig, PROMPT[:11]) == (7, WINDOW), "page 8 is missing, and before it page 7"
    assert hit(rig, PROMPT[:5]) == (0, WINDOW)
    rig.attach(PROMPT, 1, 0)
    assert hit(rig, PROMPT[:5]) == (1, WINDOW), "at the beginning a window is short"


def test_a_snapshot_serves_its_own_length_and_no_other() -> None:
    rig = Rig(full(), state())
    rig.put(PROMPT, {0: range(12), 1: [3, 8]})
    assert hit(rig) == (9, STATE)
    assert hit(rig, PROMPT[:8]) == (4, STATE)
    assert hit(rig, PROMPT[:4]) == (4, LIMIT)
    assert hit(rig, PROMPT[:3]) == (0, STATE)


def test_windows_and_snapshots_that_never_agree_give_no_hit() -> None:
    rig = Rig(full(), window(2), state())
    rig.put(PROMPT, {0: range(12), 1: [2, 3, 7, 8, 9], 2: [4, 6, 7]})
    assert hit(rig)[0] == 0
    rig.attach(PROMPT, 2, 8)
    assert hit(rig) == (9, STATE)


def test_a_chunk_is_needed_from_its_beginning_only() -> None:
    rig = Rig(full(), chunked(4))
    rig.put(PROMPT, {0: range(12), 1: [4, 5, 9]})
    assert hit(rig) == (12, LIMIT), "a new chunk begins there: nothing is needed"
    assert hit(rig, PROMPT[:10]) == (8, WINDOW)
    assert hit(rig, PROMPT[:7]) == (6, WINDOW)


def test_a_hole_of_a_full_group_ends_the_hit_for_all() -> None:
    rig = Rig(full(), window(1), tiers=2)
    rig.put(PROMPT, {0: range(5), 1: range(4, 12), 2: range(12)})
    found = rig.match(PROMPT)
    assert (found.device_pages, found.hit_pages, found.stop) == (5, 12, LIMIT)
    rig.tree.drop(rig.find(PROMPT), 1, 7)
    assert hit(rig) == (7, HOLE)


def test_blocks_of_several_pages_end_hits_at_their_common_multiples() -> None:
    rig = Rig(full(2), full(3))
    rig.put(PROMPT, {0: range(1, 12, 2), 1: range(2, 12, 3)})
    assert [hit(rig, PROMPT[:n])[0] for n in (12, 11, 7, 5)] == [12, 6, 6, 0]


def test_a_group_that_looks_ahead_needs_what_follows_the_hit() -> None:
    rig = Rig(full(), full(lookahead_pages=1))
    rig.put(PROMPT, {0: range(12), 1: range(1, 12)})
    assert hit(rig) == (11, HOLE)
    assert hit(rig, [*PROMPT[:6], 99]) == (5, HOLE)


def test_a_group_without_lookup_limits_nothing() -> None:
    rig = Rig(full(), state(lookup=False))
    rig.put(PROMPT, {0: range(12)})
    assert hit(rig) == (12, LIMIT)


def test_the_joint_hit_on_a_path_is_that_of_the_match() -> None:
    rig = Rig(full(), state(), tiers=2)
    end = rig.put(PROMPT, {0: range(12), 2: [4], 3: [8]})
    assert rig.tree.joint(end, 12, 1) == (5, STATE)
    assert rig.tree.joint(end, 12) == (9, STATE)
    assert rig.tree.joint(end, 9) == (9, LIMIT)
    assert rig.tree.joint(end._replace(pages=8), 12) == (5, STATE)


def random_rule(rng: random.Random) -> Rule:
    """A rule of any kind, small enough to matter."""
    blocks = rng.randrange(1, 4)
    ahead = rng.choice((0, 0, 1, 2))
    return rng.choice(
        (
            full(blocks),
            full(lookahead_pages=ahead),
            window(rng.randrange(6), blocks),
            window(rng.randrange(1, 6), lookahead_pages=ahead),
            chunked(rng.randrange(1, 7), blocks),
            state(blocks),
        )
    )


def serves(rig: Rig, rules: list[Rule], tiers: range, length: int) -> bool:
    """Whether all groups have what a hit of this length needs."""
    for group, rule in enumerate(rules):
        held = {p for t in tiers for p in rig.held(PROMPT, group * rig.tiers + t)}
        first, ahead = rule.first_page(length), rule.lookahead_pages
        step = rule.block_pages
        needed = range(first + (step - 1 if not rule.per_position else 0), length, step)
        if rule.per_position:
            needed = range(length - 1, length)
        if length % step or any(page + ahead not in held for page in needed):
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_the_joint_hit_is_the_greatest_of_all_lengths(seed: int) -> None:
    rng = random.Random(seed)
    rules = [random_rule(rng) for _ in range(rng.randrange(1, 4))]
    rig = Rig(*rules, tiers=2)
    odds = rng.choice((0.6, 0.8, 0.95))
    rows = {c: [p for p in range(12) if rng.random() < odds] for c in rig.columns}
    end = rig.put(PROMPT, rows)
    for _ in range(6):  # any edges
        rig.tree.release(rig.lease(PROMPT[: rng.randrange(13)]), stamp=False)
    for mask in (1, 2, 3):
        tiers = range(2) if mask == 3 else range(mask - 1, mask)
        lengths = [n for n in range(1, end.pages + 1) if serves(rig, rules, tiers, n)]
        for limit in range(14):
            best = max((n for n in lengths if n <= limit), default=0)
            got = rig.tree.joint(rig.find(PROMPT), limit, mask)[0]
            assert got == best, f"seed {seed}: {rules}, {rows}, limit {limit}, tiers {mask}"
