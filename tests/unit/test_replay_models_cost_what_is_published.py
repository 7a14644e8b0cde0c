"""What a model costs: the bandwidth at which loading a token and computing it take as long is that
of the published dimensions, for all presets, and a cache's groups say the same.
"""

from __future__ import annotations

import pytest

from radix.groups import Cost, Retention
from radix.layout import Part
from radix.policy.cost import Compute
from radix.replay.models import PRESETS, Attention, Layers, Model

HALF_AN_H200 = 0.5 * 989e12  # FLOP/s, dense bf16
# GB/s with no token before it, and with 32,768: from the published dimensions, windows left out,
# which are at most 1.6 % of a token's cost.
BREAK_EVEN = {
    "Llama-3.1-8B": (4.036, 1.950),
    "Llama-3.1-70B": (1.148, 0.714),
    "Qwen3-Next-80B-A3B": (2.025, 0.977),
    "DeepSeek-V3": (0.470, 0.055),
    "gpt-oss-120b": (1.787, 0.918),
    "Gemma-3-27B": (0.750, 0.682),
}


@pytest.mark.parametrize("name", BREAK_EVEN)
@pytest.mark.parametrize("which", [0, 1])
def test_break_even_is_that_of_the_published_dimensions(name: str, which: int) -> None:
    model = PRESETS[name]
    assert model.cost is not None
    found = Compute(HALF_AN_H200, model.cost).break_even(model.token_bytes, (0, 32768)[which])
    assert found / 1e9 == pytest.approx(BREAK_EVEN[name][which], rel=0.02)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("entry", [1, 16])
def test_groups_of_a_cache_cost_together_what_the_model_does(name: str, entry: int) -> None:
    model = PRESETS[name]
    assert model.cost is not None
    whole = Compute(1e12, model.cost)
    entries = Compute.of(model.groups(16, entry), 1e12)
    many = 1 << 16
    assert entries.seconds(0, many // entry) == pytest.approx(whole.seconds(0, many), rel=1e-3)


def test_a_window_costs_its_tokens_and_a_chunk_half_of_them() -> None:
    part = (Part("k", "int8", (("dim", 4),)),)
    pairs = Attention(heads=2, key=4, value=3)
    assert pairs.flops == 2 * 2 * 7

    def cost(rule: str, tokens: int) -> Cost | None:
        kept = Layers("kept", Retention(rule, tokens), 3, part, None, pairs)
        return Model("m", (kept,), 1000.0).cost

    assert cost("full", 0) == Cost(2000, 3 * 28)
    assert cost("window", 10) == Cost(2000 + 3 * 28 * 10, 0)
    assert cost("chunked", 10) == Cost(2000 + 3 * 28 * 5, 0)


def test_a_model_that_does_not_say_its_parameters_has_no_cost() -> None:
    kept = Layers("kept", Retention(), 1, (Part("k", "int8", (("dim", 4),)),), None)
    model = Model("m", (kept,))
    assert model.cost is None
    with pytest.raises(ValueError, match="'kept' says no cost"):
        Compute.of(model.groups(1), 1e12)
