"""vLLM's block pool as a child of the protocol: ``python -m bench.peers.vllm_child``, in vLLM's
environment. What its scheduler does for a request, called as the scheduler calls it: hash the
prompt, ``get_computed_blocks``, ``allocate_slots``, ``free``. No engine, no model.

Comparable: the same prompts, block size and room, one full group, all of it in Python on one
thread. Not: it trusts a chain of sha256 and never sees the tokens again, where ours compares every
token; it takes a list of Python ints.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.child import Work, serve
from bench.peers.requestwork import RequestWork, Spans
from bench.workloads import Prompts

QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
MOST_TOKENS = 1 << 17


class VllmBlocks:
    """Its KVCacheManager over one group of full attention."""

    stages: Sequence[str] = ("hash", "match", "allocate", "free")

    def __init__(self) -> None:
        os.environ.update(QUIET)
        import torch
        import vllm
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1 import kv_cache_interface, request
        from vllm.v1.core import kv_cache_manager, kv_cache_utils

        self._versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        self._hash = get_hash_fn_by_name("sha256")  # its default
        kv_cache_utils.init_none_hash(self._hash)
        self._hasher_of = kv_cache_utils.get_request_block_hasher
        self._pool_of = kv_cache_manager.KVCacheManager
        self._interface, self._dtype = kv_cache_interface, torch.float32
        self._request_of = request.Request
        self._sampling = SamplingParams(max_tokens=1)
        self._pool: Any = None  # of an environment that is not checked
        self._served = 0

    def versions(self) -> Mapping[str, str]:
        """Those of vLLM and torch."""
        return self._versions

    def open(self, page_tokens: int, blocks: int) -> None:
        """One block more, because it never gives out the first."""
        self._pool, kinds = None, self._interface
        spec = kinds.FullAttentionSpec(
            block_size=page_tokens, num_kv_heads=1, head_size=1, dtype=self._dtype
        )
        config = kinds.KVCacheConfig(
            num_blocks=blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[kinds.KVCacheGroupSpec(["layer"], spec)],
        )
        self._pool = self._pool_of(
            config,
            max_model_len=MOST_TOKENS,
            scheduler_block_size=page_tokens,
            hash_block_size=page_tokens,
            enable_caching=True,
        )
        self._hasher = self._hasher_of(page_tokens, self._hash)

    def prompt(self, tokens: Prompts) -> list[int]:
        """A list of ints."""
        row: list[int] = tokens.tolist()
        return row

    def _made(self, prompt: list[int], hashed: bool) -> tuple[Any, int]:
        """A request, and the ns that its making took: it hashes its blocks while it is made."""
        start = time.perf_counter_ns()
        made = self._request_of(
            request_id=str(self._served),
            prompt_token_ids=prompt,
            sampling_params=self._sampling,
            pooling_params=None,
            block_hasher=self._hasher if hashed else None,
        )
        return made, time.perf_counter_ns() - start

    def serve(self, prompt: list[int]) -> tuple[Spans, int]:
        """The hashing is what a request takes longer with a hasher than without one."""
        pool, clock = self._pool, time.perf_counter_ns
        self._served += 1
        _, plain_ns = self._made(prompt, hashed=False)
        request, hashed_ns = self._made(prompt, hashed=True)
        t0 = clock()
        blocks, hit = pool.get_computed_blocks(request)[:2]
        t1 = clock()
        given = pool.allocate_slots(request, len(prompt) - hit, hit, blocks)
        t2 = clock()
        if given is None:
            raise RuntimeError("no room for a request")
        request.num_computed_tokens = len(prompt)
        t3 = clock()
        pool.free(request)
        t4 = clock()
        pool.new_step_starts()
        spans = (hashed_ns - plain_ns, t1 - t0, t2 - t1, t4 - t3)
        return tuple(span / 1e3 for span in spans), hit


def make(arguments: Sequence[str]) -> Work:
    """Its work. It takes no arguments."""
    return RequestWork(VllmBlocks())


if __name__ == "__main__":
    sys.exit(serve(make))
