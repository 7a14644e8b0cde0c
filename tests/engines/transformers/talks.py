"""Conversations of several turns with branches, several at once over one cache whose host tier is
smaller than what they touch. Every answer must be what ``generate`` gives without a cache; what was
fed to the model is counted by a hook, and what served the rest by tier.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from radix import Largest, pool_sizes
from radix.engines.transformers import PrefixGenerator, groups_of
from tiers.disk import DiskTier
from tiers.host import HostTier

VOCABULARY = 256
PAGE = 16
SYSTEM = 40
LONGEST = 176


class Fed:
    """Counts the tokens that a model is fed, while it is open."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        self._handle = model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module: Any, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        self.tokens += args[0].numel()

    def __enter__(self) -> Fed:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()


def cold(model: Any, ids: torch.Tensor, new: int, **kwargs: Any) -> Any:
    """What the model says without a cache of ours."""
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, **kwargs
    )


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Tokens, the pad token among them."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def prompt_of(seed: int, count: int = 100) -> torch.Tensor:
    """A prompt that the seed decides, (1, count)."""
    return torch.tensor([random_ids(random.Random(seed), count)])


def opened(
    model: Any,
    folder: Path,
    *,
    requests: float = 2.5,
    page: int = PAGE,
    token_by_token: bool = False,
    tolerance: float = 1e-2,
    **options: Any,
) -> PrefixGenerator:
    """A generator over a disk tier in ``folder`` and a host tier in which ``requests`` of the
    longest requests fit.
    """
    probed: dict[str, Any] = {"token_by_token": token_by_token, "tolerance": tolerance}
    groups = groups_of(model, page, **probed)
    blocks = pool_sizes(groups, page, Largest(LONGEST, 4 * page))
    strides = [-(-group.block_bytes // 4096) * 4096 for group in groups]
    total = sum(count * stride for count, stride in zip(blocks, strides, strict=True))
    limit = int(total * requests) // 4096 * 4096 + len(groups) * max(strides)
    segment = max(strides) if len(groups) > 1 else None
    host = HostTier(limit, segment_bytes=segment, verify=True)
    disk = DiskTier(folder, limit_bytes=96 << 20, segment_bytes=1 << 20)
    return PrefixGenerator(model, [host, disk], page_tokens=page, **probed, **options)


def empty_host(cached: PrefixGenerator) -> None:
    """Evicts all that the host tier holds, once it is durable below."""
    cached.flush()
    for group in range(len(cached.groups)):
        cached.cache.evict(group, 1 << 30, tier=0)


class Talks:
    """Conversations over one model. ``ends``: by conversation, histories that may go on."""

    def __init__(self, model: Any, seed: int, conversations: int) -> None:
        self.rng = random.Random(seed)
        self.model, self.seed = model, seed
        self.system = random_ids(self.rng, SYSTEM)
        self.ends: list[list[list[int]]] = [[] for _ in range(conversations)]
        self.counts: Counter[str] = Counter()

    def turn(self, cached: PrefixGenerator, conversation: int) -> None:
        """One more turn of a conversation: from its last history, or from an earlier one."""
        rng, ends = self.rng, self.ends[conversation]
        history = list(self.system)
        if ends:
            branch = rng.random() < 0.3
            history = list(rng.choice(ends) if branch else ends[-1])
            if branch:  # goes on from somewhere within
                history = history[: rng.randint(SYSTEM, len(history))]
                self.counts["branches"] += 1
        prompt = history + random_ids(rng, rng.randint(8, 24))
        new = rng.randint(6, 12)
        if len(prompt) + new > LONGEST:
            ends.clear()
            return self.turn(cached, conversation)
        ids = torch.tensor([prompt])
        expected = cold(self.model, ids, new)
        before = cached.counters
        with Fed(self.model) as fed:
            found = cached.generate(ids, max_new_tokens=new, do_sample=False, boundaries=[SYSTEM])
        after = cached.counters
        where = f"seed {self.seed}, conversation {conversation}, prompt of {len(prompt)} tokens"
        assert found.tolist() == expected.tolist(), where
        hit = after["generate.hit_tokens"] - before.get("generate.hit_tokens", 0)
        assert fed.tokens == found.shape[1] - 1 - hit, f"{where}: fed {fed.tokens}, hit {hit}"
        self.counts["prompt"] += len(prompt)
        self.counts["hit"] += hit
        for tier in ("host", "disk"):
            name = f"match.hit_tokens.{tier}"
            self.counts[tier] += after.get(name, 0) - before.get(name, 0)
        ends.append(found[0].tolist())


def run(
    model: Any, seed: int, folder: Path, *, conversations: int, turns: int, **options: Any
) -> Counter[str]:
    """So many conversations of so many turns each, interleaved, with a restart in the middle."""
    talks = Talks(model, seed, conversations)
    counts = talks.counts
    cached = opened(model, folder, requests=1.0, **options)
    order = [number for number in range(conversations) for _ in range(turns)]
    talks.rng.shuffle(order)
    for step, number in enumerate(order):
        if step == len(order) // 2:
            counts["disk before the restart"] = counts["disk"]
            cached.close()
            cached = opened(model, folder, requests=1.0, **options)
        talks.turn(cached, number)
        cached.check()
        if step % 6 == 4:
            empty_host(cached)
    for name, count in cached.counters.items():
        if name.startswith("evict.blocks.host"):
            counts["evicted"] += count
    counts["without cache"] = cached.counters.get("generate.without cache", 0)
    cached.close()
    return counts
