"""What is said of a sequence at its end decides which sequences stay where room is short, and not a
token of what is generated.
"""

from __future__ import annotations

import pytest
import torch

from radix.engines.transformers import PrefixGenerator, groups_of
from radix.hints import Hints
from tests.engines.transformers.families import model_of
from tests.engines.transformers.talks import PAGE, cold, prompt_of
from tiers.host import HostTier

LENGTH, NEW = 7 * PAGE, 2


def tier_of(model: object, blocks: int) -> HostTier:
    """Host memory for so many blocks of every group."""
    groups = groups_of(model, page_tokens=PAGE)
    strides = [-(-group.block_bytes // 4096) * 4096 for group in groups]
    return HostTier(sum(strides) * blocks, segment_bytes=max(strides))


def tokens_hit(cached: PrefixGenerator, prompt: torch.Tensor) -> int:
    return cached.restore(prompt).tokens


@pytest.mark.parametrize(
    "hints",
    [
        Hints(priority=5),
        Hints(keep_for=3600.0),
        Hints(expects_return=0.0, priority=1),
    ],
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_is_said_to_be_worth_more_stays(hints: Hints, by_hand: bool) -> None:
    model = model_of("Llama")
    tier = tier_of(model, 40)
    first = prompt_of(0, LENGTH)
    with PrefixGenerator(model, [tier], page_tokens=PAGE, policy="priority") as cached:
        if by_hand:
            cache, _ = cached.restore(first)
            model(first, past_key_values=cache, use_cache=True)
            cached.store(first, cache, hints=hints)
        else:
            out = cached.generate(first, max_new_tokens=NEW, do_sample=False, hints=hints)
            assert torch.equal(out, cold(model, first, NEW))
        for seed in range(1, 12):  # twice as much as fits
            cached.generate(prompt_of(seed, LENGTH), max_new_tokens=NEW, do_sample=False)
        assert tokens_hit(cached, first) == LENGTH - PAGE
        assert tokens_hit(cached, prompt_of(1, LENGTH)) == 0
        cached.check()


def test_what_has_ended_goes_first() -> None:
    model = model_of("Llama")
    tier = tier_of(model, 40)
    with PrefixGenerator(model, [tier], page_tokens=PAGE) as cached:
        for seed in range(5):
            ended = Hints(ended=True) if seed == 4 else None
            prompt = prompt_of(seed, LENGTH)
            cached.generate(prompt, max_new_tokens=NEW, do_sample=False, hints=ended)
        cached.generate(prompt_of(9, LENGTH), max_new_tokens=NEW, do_sample=False)
        oldest = tokens_hit(cached, prompt_of(0, LENGTH))  # would go first by last use
        assert oldest > tokens_hit(cached, prompt_of(4, LENGTH))


def test_what_is_no_hint_is_refused_before_anything_is_computed() -> None:
    model = model_of("Llama")
    with PrefixGenerator(model, [HostTier(1 << 22)]) as cached:
        with pytest.raises(TypeError, match="hints must be Hints or None, not dict"):
            cached.generate(prompt_of(1), max_new_tokens=1, hints={"priority": 3})
        assert cached.counters.get("generate.requests", 0) == 0
