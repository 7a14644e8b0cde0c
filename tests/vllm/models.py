"""Tiny models with random weights whose greedy text varies, made from the configurations below.

A model is a folder that vLLM opens without a tokenizer. The weights follow from the seed alone, so
two processes, or two runs, that build a model build the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEED = 0
VOCABULARY = 1024

_SHARED: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}
_GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "torch_dtype": "float32",
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}
_QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Model:
    """How a tiny model is made and how vLLM is told to run it.

    ``spread`` is the standard deviation of its matrices, ``None`` for one over the root of their
    inputs, and ``embedding`` that of its embeddings; ``sharpness`` is added to the weight of the
    last norm. ``block_tokens`` is ``None`` where vLLM chooses by itself; ``settings`` are
    what else ``vllm.LLM`` is given.
    """

    name: str
    config: Mapping[str, Any]
    dtype: str
    block_tokens: int | None
    spread: float | None
    embedding: float = 1.0
    sharpness: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)


LLAMA = Model("llama", _SHARED | _LLAMA, "float32", 32, None)
# Its head is its embedding: small, or every token would only name itself; the last norm makes up
# for that, so that the logits spread as those of the others do.
GEMMA3 = Model("gemma3", _SHARED | _GEMMA3, "float32", 32, 0.15, 0.008, 40.0)
# Where the processor has bfloat16 of its own, vLLM would keep the state in float32 and take blocks
# of 384 tokens, elsewhere in the model's type, with blocks of 256: the same everywhere then. Left
# to itself vLLM 0.32 chooses the block in the worker, and a scheduler in another process keeps
# states at multiples of 128, where no block ends, and offers none.
QWEN3_NEXT = Model(
    "qwen3_next",
    _SHARED | _QWEN3_NEXT,
    "bfloat16",
    256,
    0.15,
    settings={"mamba_ssm_cache_dtype": "bfloat16"},
)
MODELS = {model.name: model for model in (LLAMA, GEMMA3, QWEN3_NEXT)}


def build(model: Model, parent: Path) -> Path:
    """Write the model into ``parent / model.name`` unless it is there, and return that folder."""
    folder = parent / model.name
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True)
    settings = {k: v for k, v in model.config.items() if k not in ("architectures", "model_type")}
    config = AutoConfig.for_model(model.config["model_type"], **settings)
    config.initializer_range = model.spread or 0.02
    torch.manual_seed(SEED)
    network = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, model.dtype))
    with torch.no_grad():
        for name, matrix in network.named_parameters():
            if name == "model.norm.weight":
                matrix.add_(model.sharpness)
            if matrix.dim() < 2:
                continue
            if "embed" in name:
                matrix.normal_(0, model.embedding)
            elif model.spread is None:
                gain = 2.0 if "self_attn" in name else 1.0
                matrix.normal_(0, gain * matrix.shape[-1] ** -0.5)
    network.save_pretrained(folder, safe_serialization=True)
    # Last: it is what marks the folder as whole. vLLM reads the configuration as it was written
    # here, not with what transformers adds to it.
    (folder / "config.json").write_text(json.dumps(dict(model.config)))
    return folder
