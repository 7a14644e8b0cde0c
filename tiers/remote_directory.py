"""What a cache believes to lie in a distributed backend: for each slot the name of its block and
what its header will have to say. A belief, never a proof: what is read decides. Keeps the remote
tier's half of I7: one slot, one block.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from radix.tier import Slots
from tiers.remote_backend import Backend, BackendError
from tiers.remote_values import DIGESTS, EPOCH_BYTES, MOST_KEY_BYTES, Blocks, sealed_epoch


def new_epoch() -> bytes:
    """One that nobody has."""
    return secrets.token_bytes(EPOCH_BYTES)


def put_epoch(backend: Backend, name: str, epoch: bytes, timeout_s: float) -> None:
    """An epoch is in force for all who go by this name, once they look. ``BackendError``: perhaps
    not. Blocks.
    """
    value = sealed_epoch(epoch)
    if backend.replace(name, value, timeout_s, absent=False) != value:
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
    """The epochs of a deployment that were seen, the last of them in force."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []

    @property
    def number(self) -> int:
        """Of the one in force; -1 before the first."""
        return len(self._seen) - 1

    @property
    def current(self) -> bytes:
        """Its bytes. ``IndexError`` before the first."""
        return self._seen[-1]

    def left(self, epoch: bytes) -> bool:
        """Whether it was in force before, and is not any more."""
        return epoch in self._seen[:-1]

    def saw(self, epoch: bytes) -> bool:
        """This is in force now; whether it was another one before."""
        if self._seen and self._seen[-1] == epoch:
            return False
        self._seen.append(epoch)
        return True
