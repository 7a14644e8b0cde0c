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

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from radix.keys import Tokens, page_keys, root_key
from radix.tier import Keys, Slots

if TYPE_CHECKING:
    from tiers.device import DeviceTier

_WORD_BYTES = 8
_CHUNK_BYTES = 1 << 20
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class Content:
    """What the blocks of one cache must hold, in the one group of its device tier.

    Ask: `keys`. Change: `write`. Check: `wrong`. The bytes are made and compared in this process's
    memory; where the device is elsewhere they are copied there and back.
    """

    def __init__(self, device: DeviceTier, namespace: bytes, page_tokens: int) -> None:
        """Prepare for a device tier that is attached. Cost: a MiB.

        Args:
            device: the tier, whose tensor is written to.
            namespace: canonical bytes of the namespace that all requests are in.
            page_tokens: tokens a page.
        """
        self._blocks = device.tensors[0][0]
        mapped = self._blocks.device.type == "cpu"
        self._memory: Bytes | None = self._blocks.numpy() if mapped else None
        self._root = root_key(namespace)
        self._page_tokens = page_tokens
        self._block_bytes = int(self._blocks.shape[1])
        words = -(-self._block_bytes // _WORD_BYTES)
        self._base = np.random.default_rng(words).integers(0, 1 << 63, words, dtype=np.int64)
        self._step = max(1, _CHUNK_BYTES // self._block_bytes)
        # Room that is kept: fresh memory would cost more than what is done in it.
        self._made = np.empty((self._step, words), np.int64)
        self._found = np.empty((self._step, self._block_bytes), np.uint8)
        whole = self._block_bytes % _WORD_BYTES == 0
        self._unit: type[np.int64 | np.uint8] = np.int64 if whole else np.uint8
        self._same = np.empty((self._step, words if whole else self._block_bytes), np.bool_)

    def keys(self, tokens: Tokens) -> Keys:
        """Return the chained keys (pages, 16) of the full pages. Cost: the tokens."""
        return page_keys(self._root, tokens, self._page_tokens)

    def write(self, slots: Slots, keys: Keys) -> None:
        """Write the blocks of `keys` to `slots` of the device, as computing them would.

        Cost: the bytes; on CUDA the writes are queued on the current stream.
        """
        for rows, blocks in self._chunks(slots, keys):
            if self._memory is not None:
                self._memory[rows] = blocks
            else:
                self._blocks[self._places(rows)] = self._blocks.new_tensor(blocks)

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Return how many of `slots` do not hold the blocks of `keys`; nothing is changed.

        Cost: the bytes; on CUDA it waits for what is queued on the current stream.
        """
        count = 0
        for rows, blocks in self._chunks(slots, keys):
            same = np.equal(
                self._gathered(rows).view(self._unit),
                blocks.view(self._unit),
                out=self._same[: len(rows)],
            )
            if not same.all():
                count += len(rows) - int(np.count_nonzero(same.all(axis=1)))
        return count

    def _gathered(self, rows: Indices) -> Bytes:
        """The bytes of some blocks, valid until the next call."""
        if self._memory is None:
            held: Bytes = self._blocks[self._places(rows)].cpu().numpy()
            return held
        if int(rows.min()) < 0 or int(rows.max()) >= len(self._memory):
            raise IndexError(f"no such slots: the device has {len(self._memory)}")
        # Slots in range, so that nothing is clipped; checked here, numpy would take a copy for it.
        return self._memory.take(rows, axis=0, out=self._found[: len(rows)], mode="clip")

    def _chunks(self, slots: Slots, keys: Keys) -> Iterator[tuple[Indices, Bytes]]:
        """Slots and what they must hold, about a MiB at a time so that it stays in the cache.

        The bytes are valid until the next chunk is asked for.
        """
        rows = slots.astype(np.int64)
        seeds = np.ascontiguousarray(keys[:, :_WORD_BYTES]).view(np.int64)
        for lo in range(0, len(rows), self._step):
            part = seeds[lo : lo + self._step]
            made = np.add(part, self._base, out=self._made[: len(part)])
            yield rows[lo : lo + self._step], made.view(np.uint8)[:, : self._block_bytes]

    def _places(self, rows: Indices) -> Any:
        """Row numbers as a tensor on the device."""
        return self._blocks.new_tensor(rows, dtype=self._blocks.new_empty(0).long().dtype)
