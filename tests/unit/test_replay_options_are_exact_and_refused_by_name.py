"""Capacities, policies and tier sizes mean exactly what was typed, or are refused by their name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.options import OptionError
from radix.replay.options import (
    TierSizes,
    parse_budgets,
    parse_capacities,
    parse_policies,
    parse_positive,
    parse_tiers,
)


def test_capacities_keep_their_order_and_mix_counts_and_percentages() -> None:
    found = [capacity.blocks(182790) for capacity in parse_capacities("18279, 5%,1%,50%,200%,0.5%")]
    assert found == [18279, 9139, 1827, 91395, 365580, 913]


@given(st.integers(1, 10**9), st.integers(1, 400))
def test_percentage_is_the_floor_in_integers(unique_blocks: int, percent: int) -> None:
    expected = unique_blocks * percent // 100
    capacity = parse_capacities(f"{percent}%")[0]
    if expected == 0:
        with pytest.raises(OptionError, match="is no block"):
            capacity.blocks(unique_blocks)
    elif expected < 2**31:
        assert capacity.blocks(unique_blocks) == expected


def test_percentage_that_binary_fractions_cannot_hold_is_exact() -> None:
    """0.29 x 100 is 28.999999999999996 in floating point, which would lose a block."""
    assert 29 * 0.01 * 100 < 29
    assert parse_capacities("0.29%")[0].blocks(10_000) == 29


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "5%,",
        "0",
        "0,5%",
        "-1",
        "5%%",
        "%",
        "1e3",
        "1_000",
        "5 %x",
        "nan%",
        "-5%",
        "1/2%",
        "2147483648",
        "९",
    ],
)
def test_capacity_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--capacity: "):
        parse_capacities(text)


@pytest.mark.parametrize("unique_blocks", [0, 19])
def test_percentage_that_comes_to_no_block_is_refused(unique_blocks: int) -> None:
    capacity = parse_capacities("5%")[0]
    with pytest.raises(OptionError, match=f"5% of {unique_blocks} unique blocks is no block"):
        capacity.blocks(unique_blocks)


def test_budgets_are_sizes_or_shares_of_the_footprint() -> None:
    text = "4GiB, 1.5KiB,2MB,7,3 B,1kB,2TB,1PiB,50%,0.25%"
    assert [budget.bytes(1001) for budget in parse_budgets(text)] == [
        *(4 << 30, 1536, 2_000_000, 7, 3, 1000, 2 * 10**12, 1 << 50, 500, 2)
    ]


@given(st.integers(1, 10**18), st.integers(1, 400))
def test_a_share_of_the_footprint_is_the_floor_in_integers(footprint: int, percent: int) -> None:
    expected = footprint * percent // 100
    budget = parse_budgets(f"{percent}%")[0]
    if expected == 0:
        with pytest.raises(OptionError, match="is no byte"):
            budget.bytes(footprint)
    elif expected < 1 << 62:
        assert budget.bytes(footprint) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "0GiB", "4gib", "4 iB", "-4", "1e9", "5%%", "4G", "4GiB,", "x", "4097PiB", "0.1B"],
)
def test_a_budget_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--budget-bytes: "):
        parse_budgets(text)


def test_policies_keep_their_order() -> None:
    assert parse_policies("optimal, lru") == ("optimal", "lru")


@pytest.mark.parametrize("text", ["", "mru", "lru,", "LRU", "lru,lru"])
def test_policy_that_is_unknown_or_twice_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--policy: "):
        parse_policies(text)


def test_tiers_are_read_in_any_order_and_may_stop_at_the_device() -> None:
    assert parse_tiers("disk=64000,device=2000, host = 8000") == TierSizes(2000, 8000, 64000)
    assert parse_tiers("device=1") == TierSizes(1, 0, 0)
    assert parse_tiers("device=1,disk=7") == TierSizes(1, 0, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "device",
        "device=",
        "device=0",
        "device=-1",
        "device=1.5",
        "device=2147483648",
        "host=8",
        "device=1,device=2",
        "device=1,tape=9",
        "device=1,",
        "=5",
        "device=1=2",
    ],
)
def test_tiers_that_cannot_be_built_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--tiers: "):
        parse_tiers(text)


@pytest.mark.parametrize("text", ["0", "-1", "", "x", "1.0", "9" * 13])
def test_count_below_one_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--page-tokens: expected an integer of at least 1"):
        parse_positive("--page-tokens", text)
    assert parse_positive("--page-tokens", "16") == 16
