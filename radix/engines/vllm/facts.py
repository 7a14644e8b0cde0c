"""What a worker knows of how its bytes are to be read, beside what the configuration says: a folder
that another machine, backend, version or model wrote must be cold here, never wrong. Keeps no
invariant of its own; C27 and C28 lean on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from radix.engines.versions import installed
from radix.engines.vllm.identity import ADAPTERS, MODEL
from radix.engines.weights import weights_digest
from radix.errors import UnsupportedError

# A layer, and what it keeps, by its exact class; None where nobody says it.
Kind = tuple[str, type | None]
# What a layer keeps so that the engine stores every block of a chunk.
FULL = (FullAttentionSpec, MLAAttentionSpec)
# Or so that a stored chunk has all that a hit at its end needs.
_WHOLE = (*FULL, MambaSpec)
# Of which a block holds the same whoever computed it. Kinds derived from these need not: one that
# lets go of what was generated, but not of the prompt, computes a prompt's end otherwise.
_KNOWN = (*_WHOLE, SlidingWindowSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec)
# How images and the like become what the model reads.
_OF_CONTENTS = (
    *("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype", "mm_device_do_normalize"),
    *("video_pruning_rate", "video_pruning_method", "mm_encoder_fp8_scale_path"),
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object that has no text of its own
# Of a model's own configuration: where it lay and who wrote it down.
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")


def facts_of(device: torch.device, layers: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(name, value) pairs, sorted: the engine and its version, the device, and, where the engine
    shows its configuration while it starts, hash algorithm, model and attention backends.

    ``layers``: names of the layers whose blocks are kept. Cost: the layers.
    """
    said = {"vllm": installed("vllm"), "device": _device_name(device)}
    config: Any = get_current_vllm_config_or_none()
    if config is not None:
        said |= facts_of_config(config)
        said["backends"] = " ".join(_backends(config, layers))
    return tuple(sorted(said.items()))


def require_known_kinds(kinds: Iterable[Kind]) -> None:
    """Raises ``UnsupportedError`` for a layer that keeps something of a kind that is not known.

    ``kinds``: of the layers whose blocks are kept. Cost: the layers.
    """
    for name, kind in kinds:
        if kind is not None and kind not in _KNOWN:
            raise UnsupportedError(
                f"layer {name} keeps a {kind.__name__}, expected one of "
                f"{', '.join(known.__name__ for known in _KNOWN)}: start without this cache"
            )


def require_whole_chunks(kinds: Iterable[Kind], whole: Sequence[type] = _WHOLE) -> None:
    """Raises ``UnsupportedError`` unless every chunk of several blocks is stored with all that a
    hit at its end needs: of full attention all of them, of a state the last one. A window's first
    blocks may be gone, or be another request's, by the time that the engine stores its chunk, and
    it names them as none.

    ``kinds``: of the layers whose blocks are kept; ``whole``: those that are taken. Cost: the
    layers.
    """
    for name, kind in kinds:
        if kind not in whole:
            said = "of an unknown kind" if kind is None else kind.__name__
            raise UnsupportedError(
                f"blocks_per_chunk above 1 over layer {name}, {said}: a chunk of several blocks "
                "may lack some that a hit needs; leave out blocks_per_chunk and block_size"
            )


def kinds_of_layers(layers: Sequence[str]) -> list[Kind]:
    """What each layer says itself, as a worker sees it. Cost: the layers."""
    config: Any = get_current_vllm_config_or_none()
    there = {} if config is None else config.compilation_config.static_forward_context
    known = {name: there[name].get_kv_cache_spec(config) for name in layers if name in there}
    return _kinds(layers, known)


def kinds_of_groups(layers: Sequence[str], config: Any | None) -> list[Kind]:
    """What the scheduler keeps for each layer. ``config``: the engine's KVCacheConfig, None where
    unknown. Cost: the layers.
    """
    known: dict[str, Any] = {}
    for group in () if config is None else config.kv_cache_groups:
        kept = group.kv_cache_spec
        uniform = isinstance(kept, UniformTypeKVCacheSpecs)
        known |= kept.kv_cache_specs if uniform else dict.fromkeys(group.layer_names, kept)
    return _kinds(layers, known)


def _kinds(layers: Sequence[str], known: Mapping[str, Any]) -> list[Kind]:
    kept = [(name, known.get(name)) for name in layers]
    return [(name, None if spec is None else type(spec)) for name, spec in kept]


def facts_of_config(config: Any) -> dict[str, str]:
    """What the engine's whole configuration, its VllmConfig, says of the bytes. Cost: its size."""
    cache, model, load = config.cache_config, config.model_config, config.load_config
    dummy = str(load.load_format) == "dummy"
    return {
        "hash_algorithm": str(cache.prefix_caching_hash_algo),
        "cache_dtype": str(cache.cache_dtype),
        "layers_of_another_dtype": _said(cache, "kv_cache_dtype_skip_layers"),
        "state_dtype": f"{cache.mamba_cache_dtype} {cache.mamba_ssm_cache_dtype}",
        "states": _said(cache, "mamba_cache_mode", "use_replayssm", "replayssm_buffer_len"),
        "model_dtype": str(model.dtype),
        "model_revision": f"{model.revision} {getattr(model.hf_config, '_commit_hash', None)}",
        "model_code": _said(model, "code_revision", "model_impl", "disable_sliding_window"),
        # Where rope factors or temperatures of attention are chosen by it, keys and values are too.
        "model_length": str(model.max_model_len),
        "quantization": f"{model.quantization} {_said(model, 'quantization_config')}",
        MODEL: _model_digest(model.hf_config),
        "contents": _said(model.multimodal_config, *_OF_CONTENTS),
        "weights": f"dummy {model.seed}" if dummy else _weights(model),
        "loading": _said(load, "load_format", "model_loader_extra_config"),
        "drafts": _drafts(config.speculative_config),
        ADAPTERS: "" if config.lora_config is None else "by name and path",
    }


def _said(config: Any, *names: str) -> str:
    """Fields of a configuration, "" for none and None where this version has no such field."""
    if config is None:
        return ""
    text = " ".join(str(getattr(config, name, None)) for name in names)
    return _ADDRESS.sub("", text)


def _weights(model: Any) -> str:
    """Where they are loaded from elsewhere than the folder of the configuration, from there too."""
    elsewhere = str(getattr(model, "model_weights", "") or "")
    digests = [weights_digest(place) for place in (str(model.model), elsewhere) if place]
    return " ".join([*digests, elsewhere]).strip()


def _drafts(config: Any) -> str:
    if config is None:
        return ""
    digest = weights_digest(str(config.model)) if config.model else ""
    return f"{config.method} {config.model} {config.revision} {digest}"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda {major}.{minor}"
    return f"{device.type} {processor()}"


def processor() -> str:
    """The units of this machine's processor for which a backend packs the keys of a block."""
    able = torch.cpu.get_capabilities()
    tiles = " amx" if able.get("amx_tile") else ""
    return f"{able.get('architecture')} {torch.backends.cpu.get_cpu_capability()}{tiles}"


def _model_digest(config: Any) -> str:
    told = {k: v for k, v in config.to_dict().items() if k not in _NOT_OF_THE_MODEL}
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _backends(config: Any, layers: Iterable[str]) -> list[str]:
    known = config.compilation_config.static_forward_context
    found = {known[name].get_attn_backend().get_name() for name in layers if name in known}
    return sorted(found)
