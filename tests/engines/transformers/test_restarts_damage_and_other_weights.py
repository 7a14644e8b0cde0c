"""What lies on disk: served after a restart, in another process too; a damaged slab file costs hits
and no token; state of other weights, another dtype or another attention is a miss (I24).
"""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from radix.engines.transformers import PrefixGenerator
from tests.engines.transformers.families import BY_NAME, model_of
from tests.engines.transformers.talks import cold, empty_host, opened, prompt_of

ROOT = Path(__file__).resolve().parents[3]
NEW = 8
NAMES = ["Gemma3", "Qwen3-Next", "Falcon-H1", "DeepSeek-V3"]
WARM = """
import json, sys
import torch
from pathlib import Path
from tests.engines.transformers.families import model_of
from tests.engines.transformers.talks import opened
torch.set_num_threads(1)
name, folder, ids = json.loads(sys.argv[1])
with opened(model_of(name), Path(folder)) as cached:
    out = cached.generate(ids, max_new_tokens=8, do_sample=False)
    print(json.dumps([out.tolist(), dict(cached.counters)]))
"""


def _served(cached: PrefixGenerator, tier: str) -> int:
    return cached.counters.get(f"match.hit_tokens.{tier}", 0)


def _answer(cached: PrefixGenerator, ids: torch.Tensor) -> Any:
    return cached.generate(ids, max_new_tokens=NEW, do_sample=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_cache_object_serves_the_prompt_from_disk(name: str, tmp_path: Path) -> None:
    """All but the last page of 100 tokens, none of it from host memory."""
    model, ids = model_of(name), prompt_of(1)
    with opened(model, tmp_path / "kept") as cached:
        first = _answer(cached, ids)
        assert _served(cached, "disk") == _served(cached, "host") == 0
    with opened(model, tmp_path / "kept") as cached:
        again = _answer(cached, ids)
        assert (_served(cached, "disk"), _served(cached, "host")) == (96, 0)
        more = _answer(cached, again)  # the whole turn is there, in host memory
        assert _served(cached, "disk") + _served(cached, "host") == 96 + 96
    assert first.tolist() == again.tolist() == cold(model, ids, NEW).tolist()
    assert more.tolist() == cold(model, again, NEW).tolist()


def test_another_process_serves_the_prompt_from_disk(tmp_path: Path) -> None:
    """The same model there has the same fingerprint."""
    model, ids = model_of("Qwen3-Next"), prompt_of(2)
    with opened(model, tmp_path / "kept") as cached:
        _answer(cached, ids)
    given = json.dumps(["Qwen3-Next", str(tmp_path / "kept"), ids.tolist()])
    done = subprocess.run(
        [sys.executable, "-c", WARM, given], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    tokens, counters = json.loads(done.stdout.splitlines()[-1])
    assert tokens == cold(model, ids, NEW).tolist()
    assert counters["match.hit_tokens.disk"] == 96, counters


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_slab_file_costs_hits_and_no_token(name: str, tmp_path: Path) -> None:
    """A bit in every 4 KiB of the file is flipped, or in a few of them."""
    model, prompts = model_of(name), [prompt_of(seed) for seed in range(3, 6)]
    for share in (1.0, 0.02):
        folder = tmp_path / f"kept{share}"
        with opened(model, folder) as cached:
            for ids in prompts:
                _answer(cached, ids)
        _flip(folder, share, random.Random(9))
        with opened(model, folder) as cached:
            for ids in prompts:
                assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist(), share
            served, whole = _served(cached, "disk"), 96 * len(prompts)
            corrupt = cached.counters.get("match.miss.corrupt", 0)
            assert corrupt > 0 or share < 1.0, cached.counters  # a window's old pages go unread
            assert (served < whole) == (corrupt > 0), cached.counters
            assert (served > 0) == (share < 1.0), cached.counters
            cached.check()


def _flip(folder: Path, share: float, rng: random.Random) -> None:
    """Flips a byte in so many of the 4 KiB blocks of the slab files, at least in one."""
    files = sorted(folder.glob("slab-*"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        places = [at for at in range(0, len(data), 4096) if any(data[at : at + 4096])]
        for at in rng.sample(places, max(1, int(len(places) * share))):
            data[at + rng.randrange(16)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


@pytest.mark.parametrize("change", ["weights", "one weight", "dtype", "attention", "window"])
def test_what_computes_otherwise_is_a_miss_under_the_same_directory(
    change: str, tmp_path: Path
) -> None:
    """And what it says is its own."""
    family, ids = BY_NAME["Gemma3"], prompt_of(6)
    with opened(family.model(), tmp_path / "kept") as cached:
        _answer(cached, ids)
    tolerance = 1e-2
    model = family.model(1) if change == "weights" else family.model()
    if change == "one weight":
        with torch.no_grad():
            model.lm_head.weight[7, 7] += 1.0
    if change == "dtype":
        model, tolerance = model.to(torch.bfloat16), 10.0
    if change == "attention":
        model.set_attn_implementation("sdpa")
    if change == "window":
        model = family.model(sliding_window=33)
    with opened(model, tmp_path / "kept", tolerance=tolerance) as cached:
        assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist()
        assert _served(cached, "disk") == _served(cached, "host") == 0, cached.counters
        _answer(cached, ids)
        assert _served(cached, "host") == 96


def test_code_of_a_models_own_that_was_edited_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same name, over the same weights."""
    ids, source = prompt_of(7), tmp_path / "modeling_own_of_this_test.py"
    code = "import transformers\n\nclass Own(transformers.LlamaForCausalLM):\n    number = {}\n"
    monkeypatch.syspath_prepend(str(tmp_path))

    def served(number: int) -> int:
        source.write_text(code.format(number))
        monkeypatch.delitem(sys.modules, source.stem, raising=False)
        importlib.invalidate_caches()
        model = model_of("Llama")
        own = importlib.import_module(source.stem).Own(model.config).eval()
        own.load_state_dict(model.state_dict())
        with opened(own, tmp_path / "kept") as cached:
            _answer(cached, ids)
            return _served(cached, "disk")

    assert [served(1), served(1), served(2), served(1)] == [0, 96, 0, 96]


def test_weights_written_in_place_are_noticed_at_the_next_call(tmp_path: Path) -> None:
    """Nothing of the old weights is matched, on host and disk; back again, nothing is wrong."""
    model, ids = BY_NAME["Llama"].model(), prompt_of(7)
    with opened(model, tmp_path / "kept") as cached:
        _answer(cached, ids)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(2.0)
        assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist()
        assert _served(cached, "host") == 0
        empty_host(cached)
        assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist()
        assert _served(cached, "disk") == 96
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.data.mul_(2.0)  # nobody can notice that
        cached.weights_changed()
        assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist()
        assert _served(cached, "host") + _served(cached, "disk") == 96
        cached.check()


def test_a_cache_restored_under_other_weights_is_not_stored(tmp_path: Path) -> None:
    """What it holds is of the old ones, at least in part."""
    model, ids = BY_NAME["Llama"].model(), prompt_of(10, 48)
    with opened(model, tmp_path / "kept") as cached:
        past = cached.restore(ids).past_key_values
        with torch.no_grad():
            model(ids, past_key_values=past)
            model.model.layers[0].mlp.up_proj.weight.mul_(2.0)
        assert cached.store(ids, past) == 0
        assert cached.counters["generate.given up"] == 1
        assert _answer(cached, ids).tolist() == cold(model, ids, NEW).tolist()


def test_named_weights_are_not_read_and_go_by_their_name(tmp_path: Path) -> None:
    """``revision`` stands for the weights; another name is a miss."""
    model, ids = BY_NAME["Llama"].model(), prompt_of(8)
    for revision, hit in (("step 1", 0), ("step 1", 96), ("step 2", 0)):
        with opened(model, tmp_path / "kept", revision=revision) as cached:
            _answer(cached, ids)
            assert _served(cached, "disk") == hit, revision
            if revision == "step 2":
                cached.weights_changed("step 3")
                _answer(cached, ids)
                assert _served(cached, "host") + _served(cached, "disk") == 0


def test_tenants_of_one_directory_do_not_share(tmp_path: Path) -> None:
    """Another salt is a miss."""
    model, ids = model_of("Llama"), prompt_of(9)
    for salt, hit in ((b"a", 0), (b"b", 0), (b"a", 96)):
        with opened(model, tmp_path / "kept", salt=salt) as cached:
            _answer(cached, ids)
            assert _served(cached, "disk") == hit, salt
