"""Load or compute again, keep or let go: the decision is that of a table of all lengths, its
numbers add up, and rates are those of what was seen.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.groups import Cost
from radix.policy.cost import Candidate, Compute, Hop, decide_load, decide_persist, load_seconds
from radix.policy.rates import Estimate, Rate, Rates

RATES = {"host": Rate(0.001, 1e9), "disk": Rate(0.01, 1e8)}
SECOND = Compute(1000.0, Cost(1000.0, 0.0))  # a token takes a second


def test_seconds_are_the_sum_over_the_tokens() -> None:
    compute = Compute(10.0, Cost(7.0, 3.0))
    for first, end in itertools.product(range(6), range(8)):
        by_hand = sum((7 + 3 * position) / 10 for position in range(first, end))
        assert compute.seconds(first, end) == pytest.approx(by_hand)


def test_slow_tier_is_left_out_and_the_fast_one_below_it_used() -> None:
    host = Candidate(100, (Hop("host", 10**9, 0),))  # a second for 100 that take 100
    both = Candidate(110, (Hop("host", 10**9, 0), Hop("disk", 10**10, 0)))  # 100 s for ten more
    decision = decide_load([host, both], 120, SECOND, RATES)
    assert (decision.tokens, decision.hit_tokens) == (100, 110)
    assert decision.load_s == pytest.approx(1.001)
    assert decision.compute_s == pytest.approx(20)
    assert decision.recompute_s == pytest.approx(120)
    assert decision.saved_s == pytest.approx(120 - 1.001 - 20)


def test_latency_and_what_waits_before_it_count() -> None:
    small = Candidate(1, (Hop("disk", 10**7, 0),))  # 0.11 s for a token that takes one
    assert decide_load([small], 2, SECOND, RATES).tokens == 1
    behind = Candidate(1, (Hop("disk", 10**7, 10**8),))  # and a second in the queue
    assert decide_load([behind], 2, SECOND, RATES).tokens == 0
    late = {"disk": Rate(1.0, 1e8)}
    assert decide_load([small], 2, SECOND, late).tokens == 0


def test_what_lies_on_the_device_is_never_given_up() -> None:
    here = Candidate(64, ())
    slow = Candidate(65, (Hop("disk", 10**12, 0),))
    decision = decide_load([here, slow], 70, SECOND, RATES)
    assert decision.tokens == 64
    assert decision.recompute_s == pytest.approx(6)
    assert decision.saved_s == 0
    assert decide_load([], 70, SECOND, RATES).tokens == 0


def test_of_equal_ones_the_longest() -> None:
    free = Candidate(10, (Hop("host", 0, 0),))
    even = Candidate(20, (Hop("host", 0, 0),))
    nothing_saved = Compute(1e30, Cost(1e-300, 0.0))
    assert decide_load([free, even], 30, nothing_saved, RATES).tokens == 20


@pytest.mark.parametrize("lengths", [[2, 1], [1, 1], [5]])
def test_lengths_that_do_not_ascend_to_the_prompt_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="candidates must ascend to 4"):
        decide_load([Candidate(each, ()) for each in lengths], 4, SECOND, RATES)


@given(
    bounds=st.lists(st.integers(1, 500), min_size=1, max_size=4, unique=True),
    sizes=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    linear=st.floats(1, 1e6),
    quadratic=st.floats(0, 1e4),
    more=st.integers(1, 300),
)
def test_decision_is_the_best_of_the_whole_table(
    bounds: list[int], sizes: list[int], linear: float, quadratic: float, more: int
) -> None:
    names = ["host", "disk", "host", "disk"]
    candidates = []
    for number, tokens in enumerate(sorted(bounds)):
        hops = tuple(Hop(names[k], sizes[k], sizes[k] // 7) for k in range(number + 1))
        candidates.append(Candidate(tokens, hops))
    prompt = max(bounds) + more
    compute = Compute(1e6, Cost(linear, quadratic))
    decision = decide_load(candidates, prompt, compute, RATES)
    totals = {0: compute.seconds(0, prompt)}
    for each in candidates:
        load_s = load_seconds(each.hops, RATES)
        totals[each.tokens] = load_s + compute.seconds(each.tokens, prompt)
    assert totals[decision.tokens] == min(totals.values())
    assert decision.load_s + decision.compute_s == pytest.approx(min(totals.values()))
    assert decision.saved_s >= -1e-9


def test_state_that_is_cheaper_to_compute_is_not_worth_its_place() -> None:
    rate = Rate(0.5, 1e6)
    shallow = decide_persist("disk", 2 * 10**6, 0, 1, SECOND, rate)
    assert (shallow.load_s, shallow.compute_s, shallow.keep) == (2.5, 1.0, False)
    assert decide_persist("disk", 2 * 10**6, 0, 3, SECOND, rate).keep
    deep = Compute(1000.0, Cost(1000.0, 10.0))
    assert not decide_persist("disk", 2 * 10**6, 0, 1, deep, rate).keep
    assert decide_persist("disk", 2 * 10**6, 200, 201, deep, rate).keep  # 3 s behind 200 tokens


@pytest.mark.parametrize(
    ("flops", "linear", "quadratic"),
    [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, -1.0), (math.inf, 1.0, 1.0), (1.0, math.nan, 1)],
)
def test_what_is_no_cost_is_refused(flops: float, linear: float, quadratic: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Compute(flops, Cost(linear, quadratic))


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="flops_per_s must be a number, not bool"):
        Compute(True, Cost(1.0, 0.0))
    with pytest.raises(ValueError, match="bytes_per_s"):
        Rate(0.0, 0.0)
    with pytest.raises(ValueError, match="latency_s"):
        Rate(-1.0, 1.0)
    with pytest.raises(ValueError, match="fade"):
        Estimate(Rate(0.0, 1.0), fade=0.0)


@given(
    latency=st.floats(0, 0.1),
    speed=st.floats(1e6, 1e11),
    sizes=st.lists(st.integers(1 << 10, 1 << 30), min_size=30, max_size=60),
)
def test_estimate_comes_to_what_is_seen_whatever_was_given(
    latency: float, speed: float, sizes: list[int]
) -> None:
    true = Rate(latency, speed)
    estimate = Estimate(Rate(0.03, 3e8), fade=0.7)
    for _ in range(4):
        for nbytes in sizes:
            estimate.observe(nbytes, true.seconds(nbytes))
    found = estimate.rate
    assert found.latency_s >= 0
    assert found.bytes_per_s > 0
    for nbytes in sizes[-5:]:
        assert found.seconds(nbytes) == pytest.approx(true.seconds(nbytes), rel=0.35)
    if len({nbytes >> 20 for nbytes in sizes[-8:]}) > 3:
        assert found.seconds(sizes[-1]) == pytest.approx(true.seconds(sizes[-1]), rel=0.05)


def test_estimate_of_one_size_or_of_nonsense_stays_a_rate() -> None:
    estimate = Estimate(Rate(0.0, 1e9), fade=0.5)
    assert estimate.rate.bytes_per_s == pytest.approx(1e9)
    for nbytes, seconds in ((0, 1.0), (10, 0.0), (10, -1.0), (10, math.inf), (10, math.nan)):
        estimate.observe(nbytes, seconds)
    assert estimate.observations == 0
    for _ in range(100):
        estimate.observe(1 << 20, 0.5)
    assert estimate.rate.seconds(1 << 20) == pytest.approx(0.5)
    for _ in range(50):  # the larger the faster: no line does that
        estimate.observe(1 << 10, 2.0)
        estimate.observe(1 << 20, 0.1)
    rate = estimate.rate
    assert rate.latency_s >= 0
    assert rate.bytes_per_s > 0


def test_rates_are_kept_by_tier() -> None:
    rates = Rates({"host": Rate(0.0, 1e9), "disk": Rate(0.0, 1e8)}, fade=0.1)
    for _ in range(20):
        rates.observe("disk", 1 << 20, 1.0)
        rates.observe("elsewhere", 1 << 20, 1.0)
    now = rates.now()
    assert set(now) == {"host", "disk"}
    assert now["host"].bytes_per_s == pytest.approx(1e9)
    assert now["disk"].seconds(1 << 20) == pytest.approx(1.0, rel=0.01)
