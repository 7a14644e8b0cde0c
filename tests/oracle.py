"""The content oracle: the bytes of a block are a digest of the namespace and the whole prefix that
the block ends, so that a block given to the wrong prefix is seen on any machine.

Pages are chained (the key of page i is a digest of the key of page i-1 and the tokens of page i),
so all the blocks of a prompt cost one digest a page and one expansion a block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# splitmix64: a fixed, public expansion of a seed, the same on every machine and numpy.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def chain_seeds(
    namespace: bytes, tokens: npt.ArrayLike, page_tokens: int, group: int = 0
) -> npt.NDArray[np.uint64]:
    """One seed for each full page of a prompt: the digest of all that leads up to its end."""
    pages = np.ascontiguousarray(tokens, np.int32)
    count = len(pages) // page_tokens
    raw = pages[: count * page_tokens].view(np.uint8).reshape(count, -1) if count else ()
    key = hashlib.blake2b(
        len(namespace).to_bytes(8, "little") + namespace + group.to_bytes(4, "little"),
        digest_size=16,
    ).digest()
    seeds = np.empty(count, np.uint64)
    for index, page in enumerate(raw):
        key = hashlib.blake2b(key + page.tobytes(), digest_size=16).digest()
        seeds[index] = int.from_bytes(key[:8], "little")
    return seeds


def expand(seeds: Iterable[int] | npt.NDArray[np.uint64], nbytes: int) -> Bytes:
    """(n, nbytes) bytes, row i a function of seed i alone. Cost: the bytes."""
    start = np.asarray(seeds, np.uint64).reshape(-1, 1)
    words = -(-nbytes // 8)
    with np.errstate(over="ignore"):
        state = start + np.arange(1, words + 1, dtype=np.uint64) * _STEP
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
    state ^= state >> np.uint64(31)
    return state.view(np.uint8).reshape(len(start), words * 8)[:, :nbytes]


def blocks_for(
    namespace: bytes, tokens: npt.ArrayLike, page_tokens: int, group: int, nbytes: int
) -> Bytes:
    """(pages, nbytes): what the block of each full page of a prompt must hold."""
    return expand(chain_seeds(namespace, tokens, page_tokens, group), nbytes)


def block_bytes_for(
    namespace: bytes, prefix_tokens: npt.ArrayLike, group: int, nbytes: int, page_tokens: int = 1
) -> bytes:
    """What the block that ends the prefix must hold; of a prompt take ``blocks_for``."""
    seeds = chain_seeds(namespace, prefix_tokens, page_tokens, group)
    return expand(seeds[-1:], nbytes).tobytes()
