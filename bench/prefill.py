"""What a cached prefix saves: seconds to the first token of a prompt, computed whole, behind a hit
in host memory, and behind one on disk after a restart.

Kept here: each round has a prompt of its own, asked of the model alone, then of a cache that has
nothing of it, then again; opening a cache is not timed; the page cache is warm. One thread.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

import numpy as np

from bench.measure import OURS, PLAIN, Benchmark, Outcome, Place, Rounds, Sizes, Skip, ratio
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import HostTier

PAGE_TOKENS = 16
ALONE, NOTHING = "model.generate alone", "nothing cached"
HOST, DISK = "from host memory", "from disk, after a restart"


def _llama(layers: int, width: int) -> Any:
    """A Llama of random weights, float32 and eager."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=4096,
        eos_token_id=None,
    )
    return hf.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def run_prefill(sizes: Sizes, place: Place) -> Outcome:
    """Seconds to one new token behind a prompt. ``Skip`` where transformers is not installed."""
    try:
        import torch

        from radix.engines.transformers import PrefixGenerator, groups_of
    except ImportError as error:
        raise Skip(str(error)) from None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = _llama(sizes["layers"], sizes["width"])
    groups = groups_of(model, PAGE_TOKENS)
    limit = limit_for(groups, 2 * sizes["tokens"] // PAGE_TOKENS, PAGE_TOKENS * 4)
    folder, rounds, hits = place.data / "prefill", Rounds(), 0
    rng = np.random.default_rng(11)

    def opened() -> PrefixGenerator:
        return PrefixGenerator(model, [HostTier(limit), DiskTier(folder, limit_bytes=limit)])

    def timed(name: str, subject: str, generate: Any) -> None:
        start = time.perf_counter()
        generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)
        rounds.add(name, subject, "s", time.perf_counter() - start)

    for _ in range(sizes["rounds"]):
        ids = torch.from_numpy(rng.integers(0, 256, (1, sizes["tokens"])))
        timed(ALONE, PLAIN, model.generate)
        with opened() as cached:
            timed(NOTHING, OURS, cached.generate)
            timed(HOST, OURS, cached.generate)
            hits += cached.counters["match.hit_tokens.host"]
        with opened() as cached:
            timed(DISK, OURS, cached.generate)
            hits += cached.counters["match.hit_tokens.disk"]
    shutil.rmtree(folder)
    torch.set_num_threads(threads)
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"hit_tokens": hits},
        ratios=[ratio(found, name, ALONE) for name in (NOTHING, HOST, DISK)],
    )


BENCHMARKS = (
    Benchmark(
        "prefill",
        "To the first token of a prompt in transformers, with and without what is cached",
        run_prefill,
        smoke={"layers": 2, "width": 64, "tokens": 100, "rounds": 1},
        full={"layers": 8, "width": 512, "tokens": 2000, "rounds": 5},
        tags=("engine",),
    ),
)
