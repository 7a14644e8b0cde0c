"""A server's process has thousands of files open, so that those of the tier have high numbers.

The fault: the wait for durable removals used ``select``, which takes no number from 1024 on and
raised ``ValueError``; every store into a full tier failed from then on. Source: our own run of all
vLLM tests in one process.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np

from radix.groups import Group
from radix.store import FlatStore
from tiers.disk import DiskTier
from tiers.host import HostTier

BLOCK = 8192
MANY = 1100


def test_a_full_tier_evicts_and_stores_with_high_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 2 * MANY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    try:
        disk = DiskTier(tmp_path, limit_bytes=1 << 20, segment_bytes=1 << 18)
        store = FlatStore([Group.full("all", BLOCK)], [HostTier(16 * BLOCK), disk], key_bytes=32)
        keys = np.random.default_rng(1).integers(0, 256, (256, 32), np.uint8)
        for first in range(0, len(keys), 8):
            store.commit(store.reserve(keys[first : first + 8]))
            store.flush()
        found = store.has(keys)
        assert 0 < (found >= 0).sum() < len(keys)
        assert store.metrics.get("evict", "blocks", "disk", "all") > 0
        store.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
