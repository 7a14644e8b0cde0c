"""What the adapter takes: models, prompts and the arguments of ``generate``. Everything else is
refused at the boundary, by name, with what to change. Keeps no invariant of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from radix.engines.versions import require
from radix.errors import UnsupportedError

_MODES = ("greedy_search", "sample")
_OURS = ("past_key_values", "cache_params", "inputs_embeds", "custom_generate", "assistant_model")
_LENGTH_ROPES = ("dynamic", "longrope")
_NEEDED: Mapping[type, Mapping[str, tuple[str, ...]]] = {
    DynamicCache: {"__init__": ("config",), "get_seq_length": ()},
    DynamicLayer: {"lazy_initialization": ("key_states", "value_states")},
    DynamicSlidingWindowLayer: {"activate_past_recording": (), "crop": ("tokens_to_remove",)},
    LinearAttentionLayer: {"lazy_initialization": ("conv_states", "recurrent_states", "state_idx")},
    PreTrainedModel: {"can_generate": ()},
    GenerationMixin: {
        "_supports_default_dynamic_cache": (),
        "generate": ("stopping_criteria", "generation_config", "past_key_values"),
    },
}


def check_engine() -> None:
    """``UnsupportedError`` where the installed transformers lacks what the adapter calls."""
    for owner, methods in _NEEDED.items():
        require("transformers", owner, methods)


def check_model(model: Any) -> None:
    """``TypeError``, ``ValueError`` or ``UnsupportedError`` for a model that is not taken."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a transformers.PreTrainedModel, not {type(model).__name__}; merge "
            "adapters into it first"
        )
    name = type(model).__name__
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise UnsupportedError(f"{name}: expected a decoder with a language modelling head")
    if not model._supports_default_dynamic_cache():
        raise UnsupportedError(f"{name} has a cache class of its own, not DynamicCache")
    if (model.tp_size or 1) > 1:
        raise UnsupportedError(f"{name} is split over {model.tp_size} processes, expected one")
    for kind in _rope_types(
        getattr(model.config.get_text_config(decoder=True), "rope_parameters", None)
    ):
        if kind in _LENGTH_ROPES:
            raise UnsupportedError(
                f"{name}: rope type {kind} turns keys by the length of the whole prompt, so that "
                "those of a prefix are others in a longer one"
            )
    if model.device.type == "mps":
        raise UnsupportedError(f"{name} is on mps, whose generate() runs a step ahead of its end")
    check_mode(model)


def _rope_types(parameters: Any) -> list[str]:
    """Of all layers: they may differ, and then stand in a dictionary of their own."""
    if not isinstance(parameters, dict):
        return []
    nested = [kind for value in parameters.values() for kind in _rope_types(value)]
    return [str(parameters.get("rope_type", "default")), *nested]


def check_mode(model: Any) -> None:
    """Of a model that may have changed since it was taken: ``ValueError`` where its layers may drop
    what they compute, ``UnsupportedError`` where adapters, now or later, switch what it computes.
    """
    if model.training:
        raise ValueError("model is in training mode, call model.eval()")
    if model._hf_peft_config_loaded:
        raise UnsupportedError(
            f"{type(model).__name__} has adapters loaded, which may be switched: merge them"
        )


def prompt_of(ids: object, device: torch.device) -> torch.Tensor:
    """Token ids as (1, tokens) int64 on the model's device.

    ``UnsupportedError`` for more than one sequence, ``ValueError`` and ``TypeError`` otherwise.
    """
    if isinstance(ids, torch.Tensor):
        tensor = ids
    else:
        array = np.asarray(ids)
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"input_ids must be integers, not {array.dtype}")
        tensor = torch.from_numpy(array.astype(np.int64))
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids must be int64 or int32, not {tensor.dtype}")
    if tensor.ndim == 2 and tensor.shape[0] != 1:
        raise UnsupportedError(
            f"input_ids has a batch of {tensor.shape[0]} sequences, expected one: padding is no "
            "part of a prefix; call generate for each"
        )
    if tensor.ndim not in (1, 2) or not tensor.numel():
        raise ValueError(f"input_ids has shape {tuple(tensor.shape)}, expected (1, tokens)")
    return tensor.reshape(1, -1).to(device, torch.int64)


def generation_kwargs(model: Any, ids: torch.Tensor, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which ``model.generate`` is called beside the cache and the mask.

    ``UnsupportedError`` that names what would need more than one sequence, another cache, or
    inputs that are not tokens.
    """
    kwargs = dict(given)
    mask = kwargs.pop("attention_mask", None)
    if mask is not None and (tuple(mask.shape) != tuple(ids.shape) or not bool((mask == 1).all())):
        raise UnsupportedError("attention_mask must be ones: padding is no part of a prefix")
    for name, value in kwargs.items():
        if (name in _OURS and value is not None) or isinstance(value, torch.Tensor):
            raise UnsupportedError(f"{name} cannot be given: a prefix is known by its tokens alone")
    chosen = kwargs.get("generation_config")
    config = copy.deepcopy(chosen if chosen is not None else model.generation_config)
    stated = config.cache_implementation if chosen is not None else None
    config.update(**kwargs)
    if kwargs.get("cache_implementation", stated) is not None:
        raise UnsupportedError("cache_implementation cannot be given: the cache is restored")
    kwargs["cache_implementation"] = None
    mode = str(getattr(config.get_generation_mode(), "value", config.get_generation_mode()))
    if mode not in _MODES:
        raise UnsupportedError(f"generation mode {mode} is not one of {', '.join(_MODES)}")
    if (config.num_return_sequences or 1) > 1:
        raise UnsupportedError(f"num_return_sequences is {config.num_return_sequences}, expected 1")
    if config.use_cache is False:
        raise UnsupportedError("use_cache is False: there would be nothing to keep")
    if config.prefill_chunk_size is not None:
        raise UnsupportedError("prefill_chunk_size cannot be given: the prefill is cut here")
    return kwargs
