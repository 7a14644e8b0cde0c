"""A store that many threads call, over a real disk, with blocks whose bytes say which they are; and
threads that run at once.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.ownership import Ownership
from radix.service import BlockingStore
from radix.store import FlatStore, hash_keys
from radix.tier import Tier
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

ROW = 4096
Rows = npt.NDArray[np.uint8]


def keys_of(numbers: list[int]) -> npt.NDArray[np.uint8]:
    return hash_keys([f"block {number}".encode() for number in numbers], "sha256")


def content(number: int) -> Rows:
    return np.frombuffer(hashlib.shake_128(f"{number}".encode()).digest(ROW), np.uint8)


def over(rows: Rows, tier: Tier, **settings: float) -> BlockingStore:
    """Rows that the engine lends, above a tier; ``settings``: of the store."""
    tiers = [AdoptedTier([[rows]], "rows"), tier]
    flat = FlatStore([Group.full("g", ROW)], tiers, ownership=Ownership.BORROWED)
    return BlockingStore(flat, **settings)


def over_disk(rows: Rows, folder: Path, **settings: float) -> BlockingStore:
    """The same over a disk of its own."""
    return over(rows, DiskTier(folder, limit_bytes=16 << 20), **settings)


def together(*works: Callable[[], None]) -> None:
    """Runs them at once; raises what any of them raised."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # outermost: a thread of the test; the test raises it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a call never returned"
    for failure in failures:
        raise failure
