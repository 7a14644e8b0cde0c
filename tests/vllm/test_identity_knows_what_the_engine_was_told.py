"""What a user tells vLLM, and what lies in the model's folder, is part of what blocks are kept
under, as far as it decides the numbers in the cache: read from vLLM's own configuration, as a
worker and a secondary tier see it. And adapters, which block hashes know by name and path alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from radix.engines.vllm.facts import facts_of_config
from radix.engines.vllm.identity import require_named_adapters
from radix.engines.vllm.options import Options
from radix.errors import UnsupportedError
from tests.vllm.models import LLAMA

PLAIN: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 1024}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(dict(LLAMA.config)))
    (made / "model.safetensors").write_bytes(bytes(1000))
    return made


def config_of(folder: Path, **told: Any) -> VllmConfig:
    return EngineArgs(model=str(folder), **{**PLAIN, **told}).create_engine_config()


def facts(folder: Path, **told: Any) -> dict[str, str]:
    return facts_of_config(config_of(folder, **told))


def yarn(folder: Path) -> None:
    """As the cards of models tell their users to do it."""
    scaled = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    said = {**LLAMA.config, "rope_scaling": scaled}
    (folder / "config.json").write_text(json.dumps(said))


def images(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"do_rescale": false}')


def weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\1" * 1000)


def test_the_same_words_at_the_next_start_are_the_same_cache(folder: Path) -> None:
    assert facts(folder) == facts(folder)
    assert " at 0x" not in str(facts(folder))


@pytest.mark.parametrize(
    "told",
    [
        # Phi-3 and its kin choose their rope factors by it, Llama 4 the temperature of attention.
        {"max_model_len": 2048},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype_skip_layers": ["0"]},
        {"revision": "main"},
        {"code_revision": "main"},
        {"model_impl": "transformers"},
        {"load_format": "dummy"},
        {"load_format": "dummy", "seed": 3},
        {"hf_overrides": {"rope_theta": 5000.0}},
        {"enable_lora": True},
    ],
    ids=lambda told: "-".join(f"{k}={v}" for k, v in told.items()),
)
def test_what_decides_the_numbers_is_another_cache(folder: Path, told: dict[str, Any]) -> None:
    assert facts(folder, **told) != facts(folder)


def test_weights_from_elsewhere_are_another_cache(folder: Path, tmp_path: Path) -> None:
    """As vLLM says it of weights in an object store, or in a file beside the configuration."""
    config = config_of(folder)
    before = facts_of_config(config)
    config.model_config.model_weights = "s3://bucket/model"
    there = facts_of_config(config)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    config.model_config.model_weights = str(file)
    one = facts_of_config(config)
    file.write_bytes(b"two")
    found = [str(each) for each in (before, there, one, facts_of_config(config))]
    assert len(set(found)) == 4


@pytest.mark.parametrize("change", [yarn, images, weights])
def test_a_folder_that_was_edited_is_another_cache(
    folder: Path, change: Callable[[Path], None]
) -> None:
    before = facts(folder)
    change(folder)
    assert facts(folder) != before


def test_what_decides_speed_alone_stays_the_same_cache(folder: Path) -> None:
    faster = {"max_num_seqs": 3, "gpu_memory_utilization": 0.5, "max_num_batched_tokens": 2048}
    assert facts(folder, **faster) == facts(folder)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("directory", [None, "kept"])
@pytest.mark.parametrize("revision", ["", "one"])
def test_adapters_over_a_directory_need_a_revision(
    folder: Path, enabled: bool, directory: str | None, revision: str
) -> None:
    options = Options(1 << 20, directory, None if directory is None else 1 << 30, revision=revision)
    told = facts(folder, enable_lora=enabled)
    if enabled and directory and not revision:
        with pytest.raises(UnsupportedError, match=r"enable-lora.*give a revision"):
            require_named_adapters(options, told)
    else:
        require_named_adapters(options, told)
