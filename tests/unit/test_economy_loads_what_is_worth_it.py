"""A cache that is told what computing costs loads of a hit what loads faster than it is computed,
writes tiers that are worth it, says so with the numbers, and learns how fast its tiers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from radix import Compute, Cost, Economy, Group, LoadDecided, PersistDecided, PrefixCache, Rate
from radix.events import Event
from radix.plan import PersistDecision
from radix.policy.limits import Limits
from radix.policy.rates import Rates
from tests.cacherig import BLOCK_BYTES, Rig, build
from tests.mixes import full, state, window
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 4
PROMPT = [7] * (8 * PAGE) + [1]
TOKEN_S = 1.0  # what computing a token takes here
FAST, SLOW = Rate(0.0, 1e9), Rate(0.0, 1.0)  # of which a block takes a minute, and 16 no second


def economy(host: Rate = FAST, deep: Rate = FAST, context: int = 64) -> Economy:
    return Economy(100.0, {"host": host, "deep": deep}, context)


def groups_of(*groups: Group) -> list[Group]:
    """Computing a token costs TOKEN_S at 100 FLOP/s, over all groups."""
    return [replace(group, cost=Cost(100.0 / len(groups), 0.0)) for group in groups]


def rig_of(told: Economy, *groups: Group, **options: object) -> Rig:
    kinds = groups_of(*(groups or (Group.full("kv", BLOCK_BYTES),)))
    return build(groups=kinds, below=(32, 64), economy=told, **options)


def believe(rig: Rig, tier: str, rate: Rate) -> None:
    """From now on the cache takes a tier to be so fast."""
    assert rig.cache._judge is not None
    rig.cache._judge._rates = Rates({**rig.cache._judge._rates.now(), tier: rate})


class Heard:
    """What a rig's polls told."""

    def __init__(self, rig: Rig) -> None:
        self.events: list[Event] = []
        hear = rig._hear

        def both(event: Event) -> None:
            self.events.append(event)
            hear(event)

        rig._hear = both  # type: ignore[method-assign]  # the rig asserts, this keeps

    def loads(self) -> list[LoadDecided]:
        return [event for event in self.events if isinstance(event, LoadDecided)]

    def persists(self) -> list[PersistDecision]:
        return [event.decision for event in self.events if isinstance(event, PersistDecided)]


def counts(rig: Rig) -> Mapping[str, int]:
    return rig.cache.counters()


def test_only_the_part_of_a_hit_that_lies_on_a_fast_tier_is_loaded() -> None:
    rig = rig_of(economy())
    rig.serve(PROMPT)
    rig.empty(0)
    rig.evict(0, 3, 1)  # the last three pages lie deep alone
    believe(rig, "deep", SLOW)
    heard = Heard(rig)
    before = dict(counts(rig))
    live = rig.until_ready(rig.admit(PROMPT))
    rig.poll()
    assert live.request.hit_tokens == 5 * PAGE
    (told,) = heard.loads()
    assert (told.request, told.decision.tokens) == (live.request.id, 5 * PAGE)
    assert told.decision.hit_tokens == 8 * PAGE
    assert told.decision.prompt_tokens == len(PROMPT)
    assert told.decision.compute_s == pytest.approx(3 * PAGE + 1)
    assert told.decision.recompute_s == pytest.approx(len(PROMPT))
    assert told.decision.saved_s == pytest.approx(5 * PAGE, rel=1e-3)
    gained = {name: value - before.get(name, 0) for name, value in counts(rig).items()}
    assert gained["match.miss.cheaper to compute"] == 3 * PAGE
    assert gained["match.hit_tokens.host"] == 5 * PAGE
    misses = sum(value for name, value in gained.items() if name.startswith("match.miss."))
    assert misses + 5 * PAGE == gained["match.queried_tokens"] == len(PROMPT)
    assert gained["economy.saved us"] == pytest.approx(5 * PAGE * 1e6, rel=1e-3)
    assert gained.get("load.blocks.deep.kv", 0) == 0
    rig.compute(live, len(PROMPT))
    rig.end(live)
    rig.finish_all()


def test_nothing_is_loaded_from_tiers_that_are_slower_than_computing() -> None:
    rig = rig_of(economy(), limits=Limits())
    rig.serve(PROMPT)
    rig.evict(0, 6, 0)
    for name in ("host", "deep"):
        believe(rig, name, SLOW)
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 2 * PAGE, "what lies on the device is used in any case"
    assert counts(rig).get("load.blocks.host.kv", 0) == 0
    rig.compute(live, len(PROMPT))
    rig.end(live)
    rig.finish_all()


def test_whole_hits_are_loaded_from_fast_tiers_and_device_hits_need_no_decision() -> None:
    rig = rig_of(economy())
    rig.serve(PROMPT)
    heard = Heard(rig)
    rig.serve(PROMPT)
    assert not heard.loads()
    rig.empty(0)
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 8 * PAGE
    rig.poll()
    (told,) = heard.loads()
    assert told.decision.tokens == told.decision.hit_tokens == 8 * PAGE
    rig.compute(live, len(PROMPT))
    rig.end(live)
    rig.finish_all()


def test_a_cut_hit_is_one_that_every_group_has() -> None:
    """Windows and states are valid at few lengths: what is cut for its cost ends at one of them."""
    rig = rig_of(economy(), full(), window(5), state(8))
    prefix = [3] * 16
    live = rig.until_ready(rig.admit([*prefix, 1], boundaries=[16]))
    rig.compute(live, 17)
    rig.end(live)
    rig.settle()
    rig.serve(prefix + [4] * 16 + [1])
    rig.empty(0)
    deep = rig.cache.explain([*prefix, *[4] * 16, 1])
    assert deep.hit_tokens in (16, 32)
    believe(rig, "host", Rate(0.0, 40.0))
    live = rig.until_ready(rig.admit(prefix + [4] * 16 + [1]))
    assert live.request.hit_tokens in (0, 16, 32)
    rig.compute(live, 33)
    rig.end(live)
    rig.finish_all()


def test_tier_that_is_not_worth_it_is_not_written_and_that_is_told_once() -> None:
    rig = rig_of(economy(deep=SLOW))
    heard = Heard(rig)
    rig.serve(PROMPT)
    rig.serve([9, *PROMPT])
    assert counts(rig)["store.blocks.host.kv"] == 16
    assert counts(rig).get("store.blocks.deep.kv", 0) == 0
    told = {each.tier: each for each in heard.persists()}
    assert len(heard.persists()) == 2
    assert told["host"].keep
    assert not told["deep"].keep
    assert told["deep"].nbytes == 64 // PAGE * BLOCK_BYTES
    assert told["deep"].load_s == pytest.approx(64 // PAGE * BLOCK_BYTES)
    assert told["deep"].compute_s == pytest.approx(64 * TOKEN_S)
    rig.finish_all()


def test_what_loads_took_says_how_fast_a_tier_is() -> None:
    now = [0]
    rig = rig_of(economy(host=Rate(0.0, 1e9)), clock=lambda: now[0])
    rig.serve(PROMPT)
    for _ in range(60):
        rig.empty(0)
        live = rig.admit(PROMPT)
        while not live.checked:
            now[0] += 40 * 10**9
            rig.cache.wait(0.01)
            rig.poll()
        loaded = live.request.hit_tokens
        rig.compute(live, len(PROMPT))
        rig.end(live)
        rig.settle()
        if loaded == 0:
            break
    assert loaded == 0, "each load took longer than computing: after some nobody loads any more"
    rig.finish_all()


def test_replicas_go_by_the_rates_that_they_were_given() -> None:
    now = [0]
    rig = rig_of(economy(), clock=lambda: now[0], agree=lambda values: values)
    assert rig.cache._judge is not None
    given = rig.cache._judge._rates.now()
    for _ in range(3):
        rig.serve(PROMPT)
        rig.empty(0)
        now[0] += 10**12
    assert rig.cache._judge._rates.now() == given
    rig.finish_all()


def test_what_is_missing_to_decide_is_named() -> None:
    costly = groups_of(Group.full("kv", 8))

    def made(groups: list[Group], told: object) -> PrefixCache:
        tiers = [IndexTier(4), HostTier(1 << 16)]
        return PrefixCache(groups, tiers, economy=told)  # type: ignore[arg-type]  # on purpose

    with pytest.raises(ValueError, match="'kv' says no cost"):
        made([Group.full("kv", 8)], economy())
    with pytest.raises(ValueError, match="no rate of tier 'host'"):
        made(costly, Economy(1.0, {}))
    with pytest.raises(TypeError, match="economy must be an Economy"):
        made(costly, {"host": FAST})
    with pytest.raises(TypeError, match=r"rates\['host'\] must be a Rate"):
        Economy(1.0, {"host": 5.0})  # type: ignore[dict-item]  # on purpose
    with pytest.raises(ValueError, match="context_tokens must be at least 1"):
        Economy(1.0, {}, 0)
    with pytest.raises(TypeError, match="context_tokens must be an int"):
        Economy(1.0, {}, 1.5)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="flops_per_s"):
        Economy(0.0, {})
    assert Compute.of(costly, 100.0).seconds(0, 2) == 2 * TOKEN_S
