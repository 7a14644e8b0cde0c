"""Tiny models of each family, with random weights that give varied text: small enough that a turn
takes milliseconds, real enough that every kind of cache layer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers as hf

SLIDING, LINEAR, FULL = "sliding_attention", "linear_attention", "full_attention"

BASE: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
HEADED: Mapping[str, Any] = dict(BASE, head_dim=16)
SCAN: Mapping[str, Any] = {
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 32,
}


@dataclass(frozen=True)
class Family:
    """``std``: of the matrices that are drawn; ``ends``: of embeddings and head."""

    name: str
    config: Callable[..., Any]
    fields: Mapping[str, Any]
    std: float = 0.15
    ends: float = 0.5
    groups: tuple[str, ...] = ()

    def model(self, seed: int = 0, **changes: Any) -> Any:
        """The model, float32 and eager; ``changes`` of its configuration."""
        config = self.config(**dict(self.fields, **changes))
        torch.manual_seed(seed)
        model = hf.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim >= 2:
                    ends = "embed" in name or "lm_head" in name
                    weight.normal_(0.0, self.ends if ends else self.std)
        return model


FAMILIES = (
    Family("Llama", hf.LlamaConfig, HEADED, groups=("full",)),
    Family(
        "Gemma3",
        hf.Gemma3TextConfig,
        dict(
            HEADED,
            sliding_window=32,
            query_pre_attn_scalar=16,
            layer_types=[SLIDING, SLIDING, FULL, SLIDING],
        ),
        ends=0.1,
        groups=("full", "window32"),
    ),
    Family(
        "gpt-oss",
        hf.GptOssConfig,
        dict(
            HEADED,
            sliding_window=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=[SLIDING, FULL, SLIDING, FULL],
        ),
        groups=("full", "window32"),
    ),
    Family(
        "Qwen3-Next",
        hf.Qwen3NextConfig,
        dict(
            HEADED,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        ),
        groups=("full", "state"),
    ),
    Family(
        "Bamba",
        hf.BambaConfig,
        dict(BASE, **SCAN, attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_expand=2),
        groups=("full", "state"),
    ),
    Family(
        "Falcon-H1",
        hf.FalconH1Config,
        dict(HEADED, **SCAN, mamba_d_ssm=64, mamba_n_heads=4),
        groups=("full", "state"),
    ),
    Family(
        "LFM2",
        hf.Lfm2Config,
        dict(BASE, layer_types=["conv", FULL, "conv", FULL], conv_L_cache=3),
        std=0.2,
        groups=("full", "state"),
    ),
    Family(
        "GraniteMoeHybrid",
        hf.GraniteMoeHybridConfig,
        dict(
            BASE,
            **SCAN,
            num_local_experts=2,
            num_experts_per_tok=1,
            shared_intermediate_size=64,
            mamba_n_heads=8,
            layer_types=[LINEAR, FULL, LINEAR, FULL],
        ),
        groups=("full", "state"),
    ),
    Family(
        "Nemotron-H",
        hf.NemotronHConfig,
        dict(
            HEADED,
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=1,
            ssm_state_size=16,
            conv_kernel=4,
            chunk_size=32,
            hybrid_override_pattern="M*M-",
        ),
        groups=("full", "state"),
    ),
    Family(
        "DeepSeek-V3",
        hf.DeepseekV3Config,
        dict(
            BASE,
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            n_shared_experts=1,
        ),
        groups=("full",),
    ),
)
_RECURRENT: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 16,
    "bos_token_id": 1,
}
OTHERS = (
    Family(
        "Llama4",
        hf.Llama4TextConfig,
        dict(
            HEADED,
            attention_chunk_size=32,
            intermediate_size_mlp=128,
            num_local_experts=2,
            no_rope_layers=[1, 1, 1, 0],
        ),
    ),
    Family(
        "Jamba",
        hf.JambaConfig,
        dict(
            BASE,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            num_experts=2,
            attn_layer_period=2,
            attn_layer_offset=1,
        ),
    ),
    Family("Mamba", hf.MambaConfig, _RECURRENT),
    Family("FalconMamba", hf.FalconMambaConfig, _RECURRENT),
    Family(
        "Mamba2",
        hf.Mamba2Config,
        dict(
            _RECURRENT,
            num_heads=8,
            head_dim=16,
            n_groups=1,
            conv_kernel=4,
            expand=2,
            chunk_size=32,
        ),
    ),
    Family("MiniMax", hf.MiniMaxConfig, dict(HEADED, num_local_experts=2, num_experts_per_tok=1)),
)
BY_NAME = {family.name: family for family in (*FAMILIES, *OTHERS)}


@cache
def model_of(name: str) -> Any:
    """The model of a family that tests share: nobody may change it."""
    return BY_NAME[name].model()
