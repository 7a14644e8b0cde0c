"""What a cache believes to lie in a distributed backend: for each slot the name of its block and
what its header will have to say. A belief, never a proof: what is read decides. Keeps the remote
tier's half of I7: one slot, one block.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from radix.tier import Slots
from tiers.remote_backend import Backend, BackendError
from tiers.remote_values import (
    DIGESTS,
    EPOCH_BYTES,
    MOST_KEY_BYTES,
    Blocks,
    is_epoch,
    sealed_epoch,
)

_ORDERED = b"\xe9\x0crd"  # those of before they had an order begin by chance
_ORDINAL_BYTES = 6
_TRIES = 8


def new_epoch(*known: bytes) -> bytes:
    """One that nobody has, and that outdates all of ``known``; by the clock, most likely, also
    those that are not known here.
    """
    after = len(_ORDERED)
    ordinals = [
        int.from_bytes(epoch[after : after + _ORDINAL_BYTES], "big")
        for epoch in known
        if epoch.startswith(_ORDERED)
    ]
    ordinal = max([int(time.time() * 1000), *(each + 1 for each in ordinals)])
    ordinal = min(ordinal, (1 << 8 * _ORDINAL_BYTES) - 1)
    begin = _ORDERED + ordinal.to_bytes(_ORDINAL_BYTES, "big")
    return begin + secrets.token_bytes(EPOCH_BYTES - len(begin))


def outdates(epoch: bytes, other: bytes) -> bool:
    """Whether an epoch is known to have begun after another one."""
    return epoch.startswith(_ORDERED) and other.startswith(_ORDERED) and epoch > other


def put_epoch(
    backend: Backend,
    name: str,
    known: tuple[bytes, ...],
    timeout_s: float,
    begins: Callable[[bytes], None] = lambda epoch: None,
) -> bytes:
    """Begins an epoch for all who go by this name, once they look: that which is in force then. Of
    several who begin one at the same time the greatest stays, and is the others' as well.
    ``begins`` is told before it can be read there.

    Raises ``BackendError``: perhaps none has begun. Blocks.
    """
    found = backend.replace(name, sealed_epoch(new_epoch(*known)), timeout_s, absent=True)
    if found is not None and is_epoch(found):
        known = (*known, found[:EPOCH_BYTES])
    epoch = new_epoch(*known)
    begins(epoch)
    for _ in range(_TRIES):
        found = backend.replace(name, sealed_epoch(epoch), timeout_s, absent=False)
        if found is None:
            break
        if is_epoch(found) and (found[:EPOCH_BYTES] == epoch or outdates(found, epoch)):
            return found[:EPOCH_BYTES]
    raise BackendError("the part of it that keeps the epoch does not answer")


@dataclass(frozen=True, slots=True)
class Entries:
    """Of some slots, one each: digest, space, key, and which epoch they are of (-1: none)."""

    digests: list[bytes]
    spaces: list[bytes]
    keys: list[bytes]
    epochs: list[int]


class Directory:
    """The slots of one group: 60 or 80 bytes each, taken as they are used."""

    def __init__(self, slots: int, digest: str) -> None:
        self._digests = np.zeros((slots, DIGESTS[digest]), np.uint8)
        self._keys = np.zeros((slots, MOST_KEY_BYTES), np.uint8)
        self._key_bytes = np.zeros(slots, np.uint8)
        self._space = np.zeros(slots, np.int32)
        self._epoch = np.full(slots, -1, np.int32)
        self._spaces: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def enter(self, slots: Slots, blocks: Blocks, epoch: int) -> None:
        """These slots hold these blocks. Cost: the slots."""
        number = self._numbers.setdefault(blocks.space, len(self._spaces))
        if number == len(self._spaces):
            self._spaces.append(blocks.space)
        self._digests[slots] = blocks.digests
        self._keys[slots, : blocks.key_bytes] = blocks.keys
        self._key_bytes[slots] = blocks.key_bytes
        self._space[slots] = number
        self._epoch[slots] = epoch

    def look(self, slots: Slots) -> Entries:
        """What is known of slots. Cost: them."""
        sizes = self._key_bytes[slots].tolist()
        return Entries(
            digests=[row.tobytes() for row in self._digests[slots]],
            spaces=[self._spaces[number] if self._spaces else b"" for number in self._space[slots]],
            keys=[row[:size].tobytes() for row, size in zip(self._keys[slots], sizes, strict=True)],
            epochs=self._epoch[slots].tolist(),
        )

    def forget(self, slots: Slots) -> None:
        """These slots hold nothing."""
        self._epoch[slots] = -1


class Epochs:
    """The epochs of a deployment that were seen, the last of them in force. From any thread: one
    that was read before another came into force never comes after it.
    """

    def __init__(self) -> None:
        self._seen: list[bytes] = []
        self._lock = threading.Lock()

    @property
    def number(self) -> int:
        """Of the one in force; -1 before the first."""
        return len(self._seen) - 1

    @property
    def current(self) -> bytes:
        """Its bytes. ``IndexError`` before the first."""
        return self._seen[-1]

    def left(self, epoch: bytes) -> bool:
        """Whether it was in force before and is not any more, or is of before that which is."""
        seen = self._seen
        return epoch in seen[:-1] or bool(seen and outdates(seen[-1], epoch))

    def saw(self, epoch: bytes) -> bool:
        """This is in force now, unless it was left; whether it was another one before."""
        with self._lock:
            if (self._seen and self._seen[-1] == epoch) or self.left(epoch):
                return False
            self._seen.append(epoch)
            return True
