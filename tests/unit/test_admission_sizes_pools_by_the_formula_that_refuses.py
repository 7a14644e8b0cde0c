"""One formula sizes the pools, refuses a request that can never fit, and admits the others: pools
of ``pool_sizes`` serve the largest request alone, one block fewer of any group refuses it, at the
start of the cache where it is named there, and else at once (R0; C45, C46, C47; I29).
"""

from __future__ import annotations

import random

import pytest

from radix import Group, Largest, NeverFitsError, PrefixCache, pool_sizes
from radix.tier import Tier
from tests.cacherig import Rig, build
from tests.mixes import full, mix, state, window
from tiers.index import IndexTier


def rig_of(groups: tuple[Group, ...], page: int, blocks: tuple[int, ...], **more: object) -> Rig:
    return build(page_tokens=page, groups=groups, device=blocks, events=False, **more)


def serve_alone(rig: Rig, prompt: list[int], new: int, chunk: int | None) -> None:
    """One request to its end: the prompt by steps, then each sampled token by itself."""
    live = rig.until_ready(rig.admit(prompt, chunk_tokens=chunk))
    while live.told < len(prompt):
        left = len(prompt) - live.told
        rig.compute(live, live.told + (left if chunk is None else min(left, chunk)))
    for token in range(new):
        rig.append(live, [token % 3])
        rig.compute(live, len(live.request))
    rig.end(live)
    rig.settle()


@pytest.mark.parametrize("seed", range(24))
def test_pools_of_the_formula_serve_the_largest_request_and_no_fewer_blocks_do(seed: int) -> None:
    rng = random.Random(seed)
    page, chunk = rng.choice((1, 2, 4)), rng.choice((1, 3, 4, 8))
    groups = mix(rng, page)
    prompt = [rng.randrange(3) for _ in range(rng.randint(5, 40))]
    new = rng.randint(0, 9)
    largest = Largest(len(prompt) + new, chunk)
    blocks = pool_sizes(groups, page, largest)
    rig = rig_of(groups, page, blocks, largest=largest)
    for _ in range(3):  # the second and third find what the one before left
        serve_alone(rig, prompt, new, chunk)
        rig.cache.check()
    rig.finish_all()
    for group, count in enumerate(blocks):
        if count == 1:
            continue
        fewer = tuple(blocks[g] - (g == group) for g in range(len(blocks)))
        with pytest.raises(NeverFitsError) as never:
            rig_of(groups, page, fewer, largest=largest)
        assert (never.value.needed, never.value.capacity) == (count, count - 1), f"seed {seed}"
        rig = rig_of(groups, page, fewer)
        before = rig.cache.usage(), dict(rig.cache.counters())
        with pytest.raises(NeverFitsError):
            rig.cache.admit(prompt, new_tokens=new, chunk_tokens=chunk)
        assert (rig.cache.usage(), dict(rig.cache.counters())) == before, f"seed {seed}"
        rig.cache.close()


class Counting(IndexTier):
    """A tier that tells whether it was closed."""

    closed = 0

    def close(self) -> None:
        """Counts."""
        super().close()
        self.closed += 1


def test_cache_whose_pools_never_admit_the_stated_request_does_not_open() -> None:
    """C47, sglang#35158: nothing said at the start that one request of the longest context could
    not fit; it was found out under load. The tiers that were opened are closed again.
    """
    tiers: list[Tier] = [Counting((8, 3)), Counting(8, "host")]
    with pytest.raises(NeverFitsError) as never:
        PrefixCache((full(), window(4)), tiers, page_tokens=2, largest=Largest(16, 4))
    assert "'near'" in str(never.value) and never.value.capacity == 3
    assert never.value.needed == pool_sizes((full(), window(4)), 2, Largest(16, 4))[1]
    assert [tier.closed for tier in tiers if isinstance(tier, Counting)] == [1, 1]
    sizes = pool_sizes((full(), window(4)), 2, Largest(16, 4))
    PrefixCache(
        (full(), window(4)), [IndexTier(sizes)], page_tokens=2, largest=Largest(16, 4)
    ).close()


def test_window_is_charged_a_window_and_a_step_however_long_the_prompt() -> None:
    """C45, vllm#39866: window 4, steps of 4, 10 blocks, a prompt of 100 tokens. C46: what a request
    may hold at once is in the sum, for each of them.
    """
    groups = (full(), window(4), state(2))
    one = pool_sizes(groups, 1, Largest(100, 4))
    assert one == (100, 9, 3) and one[1] <= 10
    assert pool_sizes(groups, 1, Largest(100, 4), requests=5) == (500, 45, 15)
    assert pool_sizes(groups, 1, Largest(1000, 4))[1:] == one[1:]
    assert pool_sizes(groups, 1, Largest(3, 4))[1] == 3, "no more than there are tokens"
    assert pool_sizes(groups, 1, Largest(100))[1] == 100, "in one step everything is there at once"


def test_groups_of_one_budget_that_fit_each_alone_and_not_together_are_refused() -> None:
    """The fault: each group's blocks were held against the whole budget, so that a request whose
    groups together are beyond it was let into the queue, and waited there for ever.
    """
    groups = (full(block_bytes=64), full("latent", 32))
    tier = IndexTier(limit_bytes=960)  # 15 of the one, 30 of the other, 10 of both
    cache = PrefixCache(groups, [tier], page_tokens=1, largest=Largest(10))
    with pytest.raises(NeverFitsError) as never:
        cache.admit([1] * 11)
    assert (never.value.needed, never.value.capacity) == (11, 9)
    assert "'kv' beside the others" in str(never.value)
    cache.admit([1] * 10).abort()
    cache.poll()
    cache.close()
    with pytest.raises(NeverFitsError):
        PrefixCache(groups, [IndexTier(limit_bytes=960)], page_tokens=1, largest=Largest(11))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Largest(0), ValueError, "tokens must be at least 1"),
        (lambda: Largest(5, 0), ValueError, "chunk_tokens must be at least 1"),
        (lambda: Largest(5.0), TypeError, "tokens must be an int"),
        (lambda: pool_sizes((full(),), 2, Largest(5), requests=0), ValueError, "requests must be"),
        (lambda: pool_sizes((), 2, Largest(5)), ValueError, "groups must not be empty"),
        (lambda: build(largest=16), TypeError, "largest must be a Largest, not int"),
    ],
)
def test_sizes_that_mean_nothing_are_refused_by_name(call, kind, message) -> None:
    with pytest.raises(kind, match=message):
        call()
