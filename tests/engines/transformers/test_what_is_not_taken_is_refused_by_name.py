"""Models, cache layers, tiers, prompts and arguments that the adapter does not take: refused at the
boundary, with what was wrong and what to change; the cache goes on.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.cache_utils import DynamicLayer

from radix.engines import versions
from radix.engines.transformers import PrefixGenerator, groups_of, terms
from radix.engines.transformers.forward import Forward
from radix.errors import LayoutMismatchError, TierError, UnsupportedError
from tests.engines.transformers.families import BY_NAME, model_of
from tests.engines.transformers.talks import cold, opened, prompt_of
from tiers.disk import DiskTier
from tiers.host import HostTier


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Jamba", r"differs from what is computed whole.*token_by_token=True"),
        ("Mamba", r"mamba.*cache_params.*starts anew in every forward of several tokens"),
        ("FalconMamba", r"falcon_mamba.*cache_params.*starts anew"),
        ("Mamba2", r"mamba2.*cannot tell its length: purely recurrent"),
        ("MiniMax", r"MiniMaxForCausalLM has a cache class of its own"),
    ],
)
def test_families_that_do_not_go_on_right_are_refused(name: str, why: str) -> None:
    """By the probe at load, not by their name."""
    with pytest.raises(UnsupportedError, match=why):
        groups_of(BY_NAME[name].model())


def test_token_by_token_helps_no_purely_recurrent_model() -> None:
    """It cannot tell how much it holds."""
    with pytest.raises(UnsupportedError, match="purely recurrent"):
        groups_of(BY_NAME["Mamba"].model(), token_by_token=True)


class _Strange(DynamicLayer):
    """A cache layer that nobody knows, though it looks like one that is known."""


def test_an_unknown_cache_layer_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it derives from a known one: what it keeps is not said."""
    model = model_of("Llama")

    def cache(self: Forward) -> Any:
        made = hf.DynamicCache(config=model.config)
        made.layers[2] = _Strange()
        return made

    monkeypatch.setattr(Forward, "cache", cache)
    with pytest.raises(UnsupportedError, match=r"cache layer 2 is a _Strange, expected one of .*"):
        groups_of(model)


def test_an_engine_without_what_is_called_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is missing; the version alone decides nothing."""
    assert versions.installed("transformers") in versions.TESTED["transformers"]
    needed = {DynamicLayer: {"rewind": ("tokens",)}}
    monkeypatch.setattr(terms, "_NEEDED", needed)
    with pytest.raises(UnsupportedError, match=r"DynamicLayer\.rewind is not there.*5\.23\.0"):
        groups_of(model_of("Llama"))


def test_an_engine_without_a_cache_class_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At import, where older releases lack the layers."""
    for name in [each for each in sys.modules if each.startswith("radix.engines.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(hf.cache_utils, "LinearAttentionLayer")
    with pytest.raises(ImportError, match=r"LinearAttentionLayer.*was run with .* 5\.23\.0"):
        importlib.import_module("radix.engines.transformers")


def test_models_that_are_none_of_ours_are_refused() -> None:
    """An encoder beside the decoder, a module of another kind, training, adapters."""
    config = hf.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0
    )
    with pytest.raises(UnsupportedError, match="expected a decoder with a language modelling"):
        groups_of(hf.T5ForConditionalGeneration(config).eval())
    with pytest.raises(TypeError, match=r"must be a transformers\.PreTrainedModel, not Linear"):
        groups_of(torch.nn.Linear(2, 2))
    model = BY_NAME["Llama"].model()
    with pytest.raises(ValueError, match=r"training mode, call model\.eval"):
        groups_of(model.train())
    model.eval()._hf_peft_config_loaded = True
    with pytest.raises(UnsupportedError, match=r"adapters loaded.*merge them"):
        groups_of(model)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_keys_turned_by_the_length_of_the_prompt_are_refused(kind: str) -> None:
    """Those of a prefix would be others in a longer prompt."""
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        rope |= {"original_max_position_embeddings": 64}
    with pytest.raises(UnsupportedError, match=f"rope type {kind} turns keys by the length"):
        groups_of(BY_NAME["Llama"].model(rope_parameters=rope))


def test_a_model_that_became_another_dtype_needs_a_new_generator(tmp_path: Path) -> None:
    """Its blocks are of another size."""
    model = BY_NAME["Llama"].model()
    with opened(model, tmp_path / "kept") as cached:
        model.to(torch.bfloat16)
        with pytest.raises(UnsupportedError, match=r"bfloat16 on cpu now, was torch\.float32"):
            cached.generate([1, 2, 3], max_new_tokens=1)


def test_a_cache_of_another_kind_is_not_stored(tmp_path: Path) -> None:
    """Of another class, or of a batch."""
    model, ids = model_of("Gemma3"), prompt_of(3, 16)
    with opened(model, tmp_path / "kept") as cached:
        plain = hf.DynamicCache()
        model(ids, past_key_values=plain)
        with pytest.raises(LayoutMismatchError, match=r"has layers .*expected .*SlidingWindow"):
            cached.store(ids, plain)
        batch = cached.restore(ids).past_key_values
        model(ids.repeat(2, 1), past_key_values=batch)
        with pytest.raises(LayoutMismatchError, match=r"layer 2 keys.*shape \(2, 2, 16, 16\)"):
            cached.store(ids, batch)
        cached.check()


def test_training_begun_later_is_refused_too(tmp_path: Path) -> None:
    """Layers that drop what they compute would be kept."""
    model = BY_NAME["Llama"].model()
    with opened(model, tmp_path / "kept") as cached:
        model.train()
        with pytest.raises(ValueError, match="training mode"):
            cached.generate([1, 2, 3], max_new_tokens=1)


def test_adapters_that_are_loaded_later_are_noticed(tmp_path: Path) -> None:
    """Switching them changes no weight, and what the model computes."""
    model = BY_NAME["Llama"].model()
    with opened(model, tmp_path / "kept") as cached:
        model._hf_peft_config_loaded = True
        with pytest.raises(UnsupportedError, match=r"adapters loaded.*merge them"):
            cached.generate([1, 2, 3], max_new_tokens=1)
        with pytest.raises(UnsupportedError, match=r"adapters loaded.*merge them"):
            cached.restore([1, 2, 3])
        with pytest.raises(ValueError, match=r"shape \(0,\), expected \(1, tokens\)"):
            cached.generate([], max_new_tokens=1)


def test_the_first_tier_is_host_memory(tmp_path: Path) -> None:
    """Blocks are written into it in place."""
    with pytest.raises(TypeError, match="must begin with a HostTier, not DiskTier"):
        PrefixGenerator(model_of("Llama"), [DiskTier(tmp_path / "d", limit_bytes=1 << 24)])
    with pytest.raises(TypeError, match="must begin with a HostTier, not none"):
        PrefixGenerator(model_of("Llama"), [])
    with pytest.raises(ValueError, match="too small"):
        PrefixGenerator(model_of("Gemma3"), [HostTier(4096)])


class _Stuck(DiskTier):
    """A disk whose removals never become durable."""

    def flush(self) -> None:
        raise TierError(self.name, "removals are not durable")


def test_a_start_that_fails_gives_its_directory_back(tmp_path: Path) -> None:
    """What is not of these weights could not be taken away: the next start tries again."""
    model, folder = model_of("Llama"), tmp_path / "kept"
    with pytest.raises(TierError, match="removals are not durable"):
        PrefixGenerator(model, [HostTier(1 << 24), _Stuck(folder, limit_bytes=1 << 26)])
    with PrefixGenerator(
        model, [HostTier(1 << 24), DiskTier(folder, limit_bytes=1 << 26)]
    ) as again:
        assert again.generate([1, 2, 3], max_new_tokens=1).shape == (1, 4)


def test_prompts_and_arguments_that_are_not_taken_change_nothing(tmp_path: Path) -> None:
    """Each is named; the next prompt is answered as ever."""
    model = model_of("Llama")
    ids = prompt_of(1, 40)
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"input_ids": ids.repeat(3, 1)}, UnsupportedError, "batch of 3 sequences"),
        ({"input_ids": ids[:, :0]}, ValueError, r"shape \(1, 0\)"),
        ({"input_ids": [[[1]]]}, ValueError, r"shape \(1, 1, 1\)"),
        ({"input_ids": [0.5]}, TypeError, "must be integers, not float64"),
        ({"input_ids": ids.float()}, TypeError, "must be int64 or int32"),
        ({"attention_mask": torch.zeros_like(ids)}, UnsupportedError, "padding is no part"),
        ({"attention_mask": torch.ones((1, 3))}, UnsupportedError, "attention_mask must be ones"),
        ({"num_beams": 2}, UnsupportedError, "mode beam_search"),
        ({"num_return_sequences": 2, "do_sample": True}, UnsupportedError, "sequences is 2"),
        ({"assistant_model": model}, UnsupportedError, "assistant_model"),
        ({"prompt_lookup_num_tokens": 3}, UnsupportedError, "mode assisted_generation"),
        ({"past_key_values": hf.DynamicCache()}, UnsupportedError, "past_key_values"),
        ({"inputs_embeds": torch.zeros(1, 40, 64)}, UnsupportedError, "inputs_embeds"),
        ({"pixel_values": torch.zeros(1)}, UnsupportedError, "pixel_values"),
        ({"cache_implementation": "static"}, UnsupportedError, "cache_implementation"),
        (
            {"generation_config": hf.GenerationConfig(cache_implementation="static")},
            UnsupportedError,
            "cache_implementation",
        ),
        ({"use_cache": False}, UnsupportedError, "use_cache"),
        ({"prefill_chunk_size": 16}, UnsupportedError, "prefill_chunk_size"),
        ({"stopping_criteria": 5}, TypeError, "not iterable"),
        ({"boundaries": [50]}, ValueError, "boundaries"),
        ({"cacheable_upto": -1}, ValueError, "cacheable_upto"),
    ]
    with opened(model, tmp_path / "kept") as cached:
        before = {k: v for k, v in cached.counters.items() if k.startswith("generate.")}
        for given, error, why in refused:
            with pytest.raises(error, match=why):
                cached.generate(**{"input_ids": ids, "max_new_tokens": 2, **given})
        after = {k: v for k, v in cached.counters.items() if k.startswith("generate.")}
        assert after == before
        found = cached.generate(ids, max_new_tokens=4, do_sample=False)
        assert found.tolist() == cold(model, ids, 4).tolist()
        cached.check()


def test_a_models_own_cache_setting_gives_way(tmp_path: Path) -> None:
    """A checkpoint's generation_config may name a static cache; ours takes its place."""
    model = BY_NAME["Llama"].model()
    ids = prompt_of(2, 40)
    expected = cold(model, ids, 4)
    model.generation_config.cache_implementation = "static"
    with opened(model, tmp_path / "kept") as cached:
        assert cached.generate(ids, max_new_tokens=4).tolist() == expected.tolist()
