"""The bytes of a replay's blocks: made from the whole prefix that a block ends, written to the
device where a request computes them, and compared where a request gets them back.

Word j of a block is `base[j] + seed`: `base` is fixed random words, `seed` half of the chained key
of the block's page. Kept here: two blocks of different prefixes differ in every word, a block that
was shifted or torn equals no block, and no byte is made, copied or compared by Python one by one.

    page   0          1          2                slots of the device
         | key 0 ---> key 1 ---> key 2 |         +-------------------+
           seed 0     seed 1     seed 2    --->  | base + seed       |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from radix.keys import Tokens, page_keys, root_key
from radix.tier import Keys, Slots
from tiers.device import DeviceTier

_WORD_BYTES = 8
_CHUNK_BYTES = 4 << 20


class Content:
    """What the blocks of one cache must hold, in the one group of its device tier.

    Ask: `keys`. Change: `write`. Check: `wrong`. The same code on the CPU and on CUDA.
    """

    def __init__(self, device: DeviceTier, namespace: bytes, page_tokens: int) -> None:
        """Prepare for a device tier that is attached. Cost: the bytes of one block.

        Args:
            device: the tier, whose tensor is written to.
            namespace: canonical bytes of the namespace that all requests are in.
            page_tokens: tokens a page.
        """
        self._blocks = device.tensors[0][0]
        self._root = root_key(namespace)
        self._page_tokens = page_tokens
        self._block_bytes = int(self._blocks.shape[1])
        words = -(-self._block_bytes // _WORD_BYTES)
        base = np.random.default_rng(words).integers(0, 1 << 63, words, dtype=np.int64)
        self._words = self._blocks.new_empty(0).long().dtype
        self._base = self._blocks.new_tensor(base, dtype=self._words)
        self._whole_words = self._block_bytes % _WORD_BYTES == 0
        self._rows = self._blocks.view(self._words) if self._whole_words else self._blocks
        self._step = max(1, _CHUNK_BYTES // self._block_bytes)

    def keys(self, tokens: Tokens) -> Keys:
        """Return the chained keys (pages, 16) of the full pages. Cost: the tokens."""
        return page_keys(self._root, tokens, self._page_tokens)

    def write(self, slots: Slots, keys: Keys) -> None:
        """Write the blocks of `keys` to `slots` of the device, as computing them would.

        Cost: the bytes; on CUDA the writes are queued on the current stream.
        """
        for rows, seeds in self._chunks(slots, keys):
            places = self._blocks.new_tensor(rows, dtype=self._words)
            self._rows.index_copy_(0, places, self._expected(seeds))

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Return how many of `slots` do not hold the blocks of `keys`; nothing is changed.

        Cost: the bytes; on CUDA it waits for what is queued on the current stream.
        """
        count = 0
        for rows, seeds in self._chunks(slots, keys):
            places = self._blocks.new_tensor(rows, dtype=self._words)
            same = self._rows.index_select(0, places) == self._expected(seeds)
            count += int((~same.all(1)).sum())
        return count

    def _chunks(
        self, slots: Slots, keys: Keys
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Slots and seeds in pieces of a few MiB, so that what is made stays in the cache."""
        rows = slots.astype(np.int64)
        seeds = np.ascontiguousarray(keys[:, :_WORD_BYTES]).view(np.int64).ravel()
        step = self._step
        return [(rows[lo : lo + step], seeds[lo : lo + step]) for lo in range(0, len(rows), step)]

    def _expected(self, seeds: npt.NDArray[np.int64]) -> Any:
        """A tensor on the device: what the blocks of these seeds hold."""
        column = self._blocks.new_tensor(seeds, dtype=self._words)
        words = column[:, None] + self._base
        if self._whole_words:
            return words
        return words.view(self._blocks.dtype)[:, : self._block_bytes]
