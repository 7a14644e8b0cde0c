"""Prompts to measure with; the seed decides them all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Prompts = npt.NDArray[np.int32]
VOCABULARY = 128_000


def fresh_prompts(count: int, tokens: int, seed: int) -> Prompts:
    """(count, tokens) int32: prompts that share nothing."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, tokens), dtype=np.int32)


def shared_prompts(count: int, tokens: int, group: int, shared_tokens: int, seed: int) -> Prompts:
    """(count, tokens) int32: in groups of ``group``, which share their first ``shared_tokens``."""
    prompts = fresh_prompts(count, tokens, seed)
    for first in range(0, count, group):
        prompts[first : first + group, :shared_tokens] = prompts[first, :shared_tokens]
    return prompts


def shuffled(count: int, rng: np.random.Generator) -> list[int]:
    """The numbers below ``count`` in random order."""
    return [int(number) for number in rng.permutation(count)]
