"""What SGLang's scheduler does with a prefix cache, on its own allocator, request pool and ``Req``:
match, lock, allocate, write the row, checkpoint, release, retract, evict. The forward pass is a
digest: the content of a token slot names the namespace and every token before it, so that a hit on
a slot that holds anything else is seen (I24). ``check`` counts every page of the pool.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from radix.engines.hinting import KEY

LONGEST = 1024


def publish() -> None:
    """SGLang's process-wide configuration, of which a request reads a few fields."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy"))


@dataclass(eq=False)
class Run:
    """A request that holds a row."""

    req: Req
    written: int = 0  # positions whose content is final
    digests: list[int] = field(default_factory=list)


class Ranks:
    """So many processes, as far as a cache asks how many they are."""

    def __init__(self, count: int) -> None:
        self._count = count

    def size(self) -> int:
        return self._count


class Scheduler:
    """One scheduler over one cache of class ``kind``, of ``ranks`` that do the same."""

    def __init__(
        self,
        kind: type,
        page: int,
        pages: int,
        *,
        eagle: bool = False,
        events: bool = False,
        policy: str = "lru",
        ranks: int = 1,
    ) -> None:
        publish()
        self.page, self.pages, self.eagle = page, pages, eagle
        self.rows = ReqToTokenPool(
            size=16, max_context_len=LONGEST, device="cpu", enable_memory_saver=False
        )
        size = page * pages
        self.allocator: Any = (
            TokenToKVPoolAllocator(size, torch.float32, "cpu", None, False)
            if page == 1
            else PagedTokenToKVPoolAllocator(size, page, torch.float32, "cpu", None, False)
        )
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            is_eagle=eagle,
            enable_kv_cache_events=events,
            eviction_policy=policy,
            tp_cache_group=None if ranks == 1 else Ranks(ranks),
        )
        self.cache: Any = kind(self.params)
        self.content = np.zeros(size + page, np.int64)
        self.running: list[Run] = []
        self.log: list[tuple[str, Any]] = []
        self.count = 0

    # ------------------------------------------------------------ a request
    def request(
        self,
        tokens: list[int],
        extra: str | None = None,
        salt: str | None = None,
        *,
        hints: object = None,
    ) -> Req:
        """A request; ``hints``: what it says of its blocks."""
        self.count += 1
        params: Any = None if hints is None else {KEY: hints}
        return Req(
            str(self.count),
            "",
            array("q", tokens),
            SamplingParams(max_new_tokens=64, custom_params=params),
            extra_key=extra,
            cache_salt=salt,
        )

    def start(self, req: Req, chunk: int | None = None) -> Run | None:
        """Matches, locks, and prefills the first chunk; None where there is no room."""
        req.init_next_round_input(self.cache)
        req.lock = self.cache.lock(req.last_node)
        run = Run(req, req.prefix_len)
        known = self.cache.prefix_device_indices(req)
        right = self._digests(run)[: req.prefix_len]
        assert np.array_equal(self.content[known.numpy()], right), "a hit on another prefix"
        self.log.append(("match", req.prefix_len))
        if not self._extend(run, chunk, known):
            self.cache.unlock(req.lock)
            req.lock = None
            return None
        self.running.append(run)
        return run

    def resume(self, run: Run, chunk: int | None = None) -> bool:
        """The next chunk of a prompt that is not all computed; False where there is no room."""
        return self._extend(run, chunk, None)

    def unfinished(self, run: Run) -> bool:
        return run.req.kv.kv_committed_len < len(run.req.full_untruncated_fill_ids)

    def _extend(self, run: Run, chunk: int | None, known: torch.Tensor | None) -> bool:
        req = run.req
        start = req.prefix_len if known is not None else req.kv.kv_committed_len
        total = len(req.full_untruncated_fill_ids)
        end = total if chunk is None else min(total, start + chunk)
        last = -1
        if start:
            last = int(known[-1]) if known is not None else int(self._row(req)[start - 1])
        slots = self._allocate(start, end, last)
        if slots is None:
            return False
        if known is not None:
            assert self.rows.alloc([req]) is not None
            self.rows.write((req.kv.req_pool_idx, slice(0, start)), known)
        self.rows.write((req.kv.req_pool_idx, slice(start, end)), slots)
        req.prefix_len, req.extend_end = start, end
        req.kv.kv_committed_len = req.kv.kv_allocated_len = end
        self._forward(run)
        if end < total:
            checkpoint_kv_cache(req, self.cache)
        return True

    def sample(self, run: Run, token: int) -> None:
        """A token comes out of the forward pass; its own KV is not computed yet."""
        run.req.output_ids.append(token)

    def share(self, run: Run) -> None:
        """A checkpoint of a running request whose prompt is computed."""
        run.req.extend_end = run.req.kv.kv_committed_len
        checkpoint_kv_cache(run.req, self.cache)

    def decode(self, run: Run) -> bool:
        """Computes the KV of the last sampled token; False where there is no room."""
        kv = run.req.kv
        at = kv.kv_committed_len
        slots = self._allocate(at, at + 1, int(self._row(run.req)[at - 1]))
        if slots is None:
            return False
        self.rows.write((kv.req_pool_idx, slice(at, at + 1)), slots)
        kv.kv_committed_len = kv.kv_allocated_len = at + 1
        run.req.refresh_fill_ids()
        self._forward(run)
        return True

    def finish(self, run: Run) -> None:
        run.req.finished_reason = FINISH_LENGTH(length=len(run.req.output_ids))
        self._end(run, True)

    def retract(self, run: Run) -> None:
        """Gives the row back without sharing it."""
        self._end(run, False)

    def _end(self, run: Run, checkpoint: bool) -> None:
        release_kv_cache(run.req, self.cache, checkpoint=checkpoint)
        self.running.remove(run)

    # ------------------------------------------------------------ the pool
    def evict(self, tokens: int) -> int:
        before = self.allocator.available_size()
        could = self.cache.evictable_size()
        freed = int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)
        assert min(tokens, could) <= freed <= could
        assert self.allocator.available_size() == before + freed, "not what it says it freed"
        self.log.append(("evict", freed))
        return freed

    def reset(self) -> None:
        assert not self.running
        self.cache.reset()
        self.allocator.clear()

    def _allocate(self, start: int, end: int, last: int) -> torch.Tensor | None:
        count, page = end - start, self.page
        self.allocator.evict_to_free_tokens(self.cache, count + page)
        if page == 1:
            slots = self.allocator.alloc(count)
        else:
            before, after = torch.tensor([start]), torch.tensor([end])
            slots = self.allocator.alloc_extend(
                before, before, after, after, torch.tensor([last]), count
            )
        self.log.append(("slots", None if slots is None else slots.tolist()))
        return slots

    # ------------------------------------------------------------ what the slots hold
    def _row(self, req: Req) -> torch.Tensor:
        return self.rows.req_to_token[req.kv.req_pool_idx]

    def _digests(self, run: Run) -> np.ndarray:
        """What each position should hold: of pairs, the token behind it counts too."""
        tokens, known = run.req.full_untruncated_fill_ids, run.digests
        if not known:
            space = repr((run.req.extra_key, run.req.cache_salt, tokens[0]))
            known.append(zlib.crc32(space.encode()))
        for token in tokens[len(known) - 1 :]:
            known.append(zlib.crc32(token.to_bytes(8, "little"), known[-1]))
        first = 2 if self.eagle else 1
        return np.array(known[first : len(tokens) + 1], np.int64)

    def _forward(self, run: Run) -> None:
        """Writes what the positions computed now hold, as far as it can be known."""
        tokens = len(run.req.full_untruncated_fill_ids)
        end = min(run.req.kv.kv_committed_len, tokens - self.eagle)
        slots = self._row(run.req)[run.written : end].numpy()
        self.content[slots] = self._digests(run)[run.written : end]
        run.written = end

    def check(self) -> None:
        """Every page is free, the tree's, or one request's own; sizes add up; rows hold what they
        should. Cost: everything.
        """
        page, cache = self.page, self.cache
        free = self.allocator.get_all_free_pages().numpy()
        assert len(np.unique(free)) == len(free), "a page was freed twice"
        own: list[np.ndarray] = []
        for run in self.running:
            kv = run.req.kv
            row = self._row(run.req).numpy()
            assert kv.cache_protected_len % page == 0
            own.append(row[kv.cache_protected_len : kv.kv_allocated_len : page] // page)
            shared = row[: kv.cache_protected_len]
            tree = cache.path_device_indices(run.req.last_node)[: len(shared)].numpy()
            assert np.array_equal(shared, tree), "the row does not name the tree's slots"
            assert not np.isin(shared // page, free).any(), "a locked page is free"
            right = self._digests(run)[: run.written]
            assert np.array_equal(self.content[row[: run.written]], right), "a slot was reused"
        mine = np.concatenate(own) if own else np.empty(0, np.int64)
        taken = np.concatenate((free, mine))
        assert len(np.unique(taken)) == len(taken), "a page has two owners"
        assert len(taken) * page + cache.total_size() == self.pages * page, "a page has leaked"
        assert cache.evictable_size() + cache.protected_size() == cache.total_size()

    def hits(self) -> list[int]:
        return [found for name, found in self.log if name == "match"]

    def sizes(self) -> tuple[int, int, int, int]:
        return (
            self.cache.total_size(),
            self.cache.evictable_size(),
            self.cache.protected_size(),
            self.allocator.available_size(),
        )
