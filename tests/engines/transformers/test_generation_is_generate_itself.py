"""Arguments go through to ``generate``; logits behind a cached prefix are those of a cold run; a
loop of one's own restores and stores; what goes wrong beside the cache leaves it whole.
"""

from __future__ import annotations

import copy
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import StoppingCriteria

from radix.engines.transformers import PrefixGenerator, groups_of
from radix.errors import ClosedError
from tests.engines.transformers.families import BY_NAME, FAMILIES, model_of
from tests.engines.transformers.talks import Fed, cold, opened, prompt_of, random_ids
from tiers.host import HostTier

NAMES = [family.name for family in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_are_those_of_a_cold_run(name: str, tmp_path: Path) -> None:
    """Of every sampled token, behind a restored prefix, within a thousandth."""
    model, ids = model_of(name), prompt_of(1)
    asked: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True}
    expected = cold(model, ids, 12, **asked)
    with opened(model, tmp_path / "kept") as cached:
        cached.generate(ids, max_new_tokens=12, do_sample=False)
        with Fed(model) as fed:
            found = cached.generate(ids, max_new_tokens=12, do_sample=False, **asked)
    assert fed.tokens == 4 + 11
    logits = [torch.stack(run.logits).log_softmax(-1) for run in (found, expected)]
    assert (logits[0] - logits[1]).abs().max() < 1e-3
    assert logits[1].std() > 0.1  # there is something to tell apart


def test_sampling_with_a_seed_samples_the_same(tmp_path: Path) -> None:
    """Temperature, penalties and the rest see the whole prompt."""
    model, ids = model_of("gpt-oss"), prompt_of(2)
    asked: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "max_length": 120,
    }
    with opened(model, tmp_path / "kept") as cached:
        cached.generate(ids, max_new_tokens=1)
        for seed in range(3):
            torch.manual_seed(seed)
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
            torch.manual_seed(seed)
            assert cached.generate(ids, **asked).tolist() == expected.tolist(), seed
        assert cached.counters["generate.hit_tokens"] == 3 * 96


@pytest.mark.parametrize("name", ["Llama", "gpt-oss", "Bamba"])
def test_pad_tokens_within_a_prompt_are_tokens_like_others(name: str, tmp_path: Path) -> None:
    """``generate`` alone would mask them; behind a cached prefix that would be wrong data."""
    model = model_of(name)
    prompt = random_ids(random.Random(3), 80)
    prompt[5] = prompt[40] = prompt[70] = model.config.pad_token_id
    ids = torch.tensor([prompt])
    masked = model.generate(ids, max_new_tokens=8, do_sample=False)
    expected = cold(model, ids, 8)
    with opened(model, tmp_path / "kept") as cached:
        for _ in range(2):
            found = cached.generate(ids, max_new_tokens=8, do_sample=False)
            assert found.tolist() == expected.tolist()
    if name == "Llama":
        assert masked.tolist() != expected.tolist()  # the trap is real


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_of_ones_own_restores_and_stores(name: str, tmp_path: Path) -> None:
    """Restore, compute what is missing, store at a multiple of the page: the next one goes on."""
    model, ids = model_of(name), prompt_of(4, 96)
    with opened(model, tmp_path / "kept") as cached:
        for length, hit in ((48, 0), (80, 48), (96, 80), (96, 80)):
            cache, known = cached.restore(ids[:, :length])
            assert known == hit
            with torch.no_grad():
                logits = model(
                    ids[:, known:length],
                    past_key_values=cache,
                    position_ids=torch.arange(known, length)[None],
                    attention_mask=torch.ones((1, length), dtype=torch.long),
                ).logits
                expected = model(ids[:, :length]).logits[:, known:]
            assert (logits - expected).abs().max() < 1e-3
            assert cached.store(ids[:, :length], cache) == length
            cached.check()


def test_a_cache_that_gave_tokens_up_is_not_stored(tmp_path: Path) -> None:
    """A window that slid holds no whole page of what was before: nothing is kept, never garbage."""
    model, ids = model_of("Gemma3"), prompt_of(5, 96)
    out = cold(model, ids[:, :95], 2, return_dict_in_generate=True)
    with opened(model, tmp_path / "kept") as cached:
        assert cached.store(out.sequences[:, :96], out.past_key_values) == 0
        assert cached.counters["generate.given up"] == 1
        assert cached.restore(out.sequences).tokens == 0
        with pytest.raises(ValueError, match="past_key_values holds 96 tokens, input_ids 97"):
            cached.store(out.sequences, out.past_key_values)


def test_a_state_off_the_page_is_not_stored(tmp_path: Path) -> None:
    """A recurrent state belongs to one length."""
    model, ids = model_of("Qwen3-Next"), prompt_of(6, 100)
    out = cold(model, ids, 1, return_dict_in_generate=True)
    with opened(model, tmp_path / "kept") as cached:
        assert cached.store(ids, out.past_key_values) == 0
        assert cached.restore(out.sequences).tokens == 0


def test_a_state_is_stored_for_no_other_length(tmp_path: Path) -> None:
    """A cache of 80 tokens holds the state of 80, though all pages before are stored with it."""
    model, ids = model_of("Qwen3-Next"), prompt_of(14, 81)
    with opened(model, tmp_path / "kept") as cached:
        past = cached.restore(ids[:, :80]).past_key_values
        with torch.no_grad():
            model(ids[:, :80], past_key_values=past)
        assert cached.store(ids[:, :80], past) == 80
        for length, hit in ((81, 80), (80, 0), (65, 0), (50, 0)):
            assert cached.restore(ids[:, :length]).tokens == hit, length


def test_blocks_of_several_dtypes_come_back_bit_by_bit(tmp_path: Path) -> None:
    """A bfloat16 model with float32 recurrent states."""
    model, ids = BY_NAME["Qwen3-Next"].model().to(torch.bfloat16), prompt_of(7, 64)
    (state,) = [g for g in groups_of(model, tolerance=100.0) if g.name == "state"]
    assert {part.dtype for part in state.layout.parts} == {"bfloat16", "float32"}
    with opened(model, tmp_path / "kept", tolerance=100.0) as cached:
        first = cached.restore(ids).past_key_values
        with torch.no_grad():
            model(ids, past_key_values=first)
        assert cached.store(ids, first) == 64
        again = cached.restore(_longer(ids)).past_key_values
        for cell in cached._placement.cells:
            one, other = cell.of(first), cell.of(again)
            assert one.dtype == other.dtype == cell.dtype
            assert torch.equal(one, other), cell
        assert again.get_seq_length() == 64


def _longer(ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([ids, ids[:, :1]], dim=1)


class _Throws(StoppingCriteria):
    """Ends a generation by an exception after some tokens."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if input_ids.shape[1] >= self.after:
            raise KeyboardInterrupt
        return torch.zeros(1, dtype=torch.bool)


@pytest.mark.parametrize("name", ["gpt-oss", "Falcon-H1"])
def test_what_was_computed_before_an_interrupt_is_kept(name: str, tmp_path: Path) -> None:
    """And the cache is whole."""
    model, ids = model_of(name), prompt_of(8)
    with opened(model, tmp_path / "kept") as cached:
        with pytest.raises(KeyboardInterrupt):
            cached.generate(
                ids, max_new_tokens=40, do_sample=False, stopping_criteria=[_Throws(120)]
            )
        cached.check()
        begun = cold(model, ids, 19)
        found = cached.generate(begun, max_new_tokens=8, do_sample=False)
        assert found.tolist() == cold(model, begun, 8).tolist()
        assert cached.counters["generate.hit_tokens"] == 112


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "Bamba"])
def test_a_prompt_asked_again_hits_once_its_end_was_named(name: str, tmp_path: Path) -> None:
    """A state is kept at the end of a turn; where the prompt ends too, if that is a boundary."""
    model, ids = model_of(name), prompt_of(11)
    with opened(model, tmp_path / "kept") as cached:
        for _ in range(2):
            found = cached.generate(ids, max_new_tokens=40, do_sample=False, boundaries=[100])
            assert found.tolist() == cold(model, ids, 40).tolist()
        assert cached.counters["generate.hit_tokens"] == 96


def test_a_prompt_that_never_fits_is_answered_without_the_cache() -> None:
    """Counted, with the same tokens; an answer that outgrows the room stops being kept."""
    model, ids = model_of("Llama"), prompt_of(9)
    with PrefixGenerator(model, [HostTier(4 * 16384)]) as cached:
        found = cached.generate(ids, max_new_tokens=8, do_sample=False)
        assert found.tolist() == cold(model, ids, 8).tolist()
        assert cached.counters["generate.without cache"] == 1
        found = cached.generate(ids[:, :40], max_new_tokens=60, do_sample=False)
        assert found.tolist() == cold(model, ids[:, :40], 60).tolist()
        assert cached.counters["generate.recording stopped"] == 1
        cached.check()
        assert cached.generate(found[:, :50], max_new_tokens=1).shape == (1, 51)
        assert cached.counters["generate.hit_tokens"] == 48


def test_a_model_that_goes_on_in_another_cache_is_not_recorded(tmp_path: Path) -> None:
    """As some do where they change how keys are turned: what is known stays right."""
    model, ids = BY_NAME["Llama"].model(), prompt_of(12)
    prepare = model.prepare_inputs_for_generation

    def other(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        inputs = prepare(*args, past_key_values=past_key_values, **kwargs)
        inputs["past_key_values"] = copy.deepcopy(past_key_values)
        return inputs

    with opened(model, tmp_path / "kept") as cached:
        model.prepare_inputs_for_generation = other
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False
        )
        assert cached.generate(ids, max_new_tokens=1, do_sample=False).tolist() == out.tolist()
        assert cached.counters["generate.recording stopped"] == 1
        assert cached.restore(ids).tokens == 0


def test_a_closed_generator_says_so_and_holds_no_memory_of_its_tier(tmp_path: Path) -> None:
    """An array over memory that was unmapped would crash whoever looks at it, a debugger say."""
    model, ids = model_of("Llama"), prompt_of(15, 40)
    cached = opened(model, tmp_path / "kept")
    cached.generate(ids, max_new_tokens=1)
    rows = weakref.ref(cached._blocks._rows[0])
    assert rows() is not None
    cached.close()
    cached.close()
    for call in (cached.generate, cached.restore, cached.explain):
        with pytest.raises(ClosedError):
            call(ids)
    with pytest.raises(ClosedError, match="memory was closed"):
        cached._blocks.read(0, np.zeros(1, np.int64), 0, 1)
    assert rows() is None


def test_prompts_shorter_than_a_page_are_answered(tmp_path: Path) -> None:
    """A token is left to compute, whatever is cached."""
    for name in ("Llama", "Gemma3", "Qwen3-Next"):
        model = model_of(name)
        with opened(model, tmp_path / name) as cached:
            for count in (1, 2, 15, 16, 17):
                ids = prompt_of(13, count)
                expected = cold(model, ids, 3).tolist()
                for _ in range(2):
                    found = cached.generate(ids, max_new_tokens=3, do_sample=False)
                    assert found.tolist() == expected, (name, count)


def test_prompts_are_taken_as_lists_arrays_and_tensors(tmp_path: Path) -> None:
    """One sequence, with or without the batch dimension; a tokenizer's mask of ones too."""
    model, ids = model_of("Llama"), prompt_of(10, 30)
    expected = cold(model, ids, 4).tolist()
    with opened(model, tmp_path / "kept") as cached:
        shapes = (ids, ids[0], ids[0].tolist(), ids.tolist(), ids.numpy().astype(np.int32))
        for given in shapes:
            found = cached.generate(given, max_new_tokens=4, do_sample=False)
            assert found.tolist() == expected
        found = cached.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4,
            do_sample=False,
        )
        assert found.tolist() == expected
        assert cached.explain(ids).hit_tokens == 16
