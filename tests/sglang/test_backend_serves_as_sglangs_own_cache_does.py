"""Beside SGLang's own ``RadixCache`` on the same calls, each over an allocator of its own with room
for everything: the same hits, the same sizes, the same slots freed, after every step.
"""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.radix_cache import RadixCache

from radix.engines.sglang.backend import RadixBackend
from tests.sglang.driving import Traffic
from tests.sglang.scheduling import Scheduler

STEPS = 150


@pytest.mark.parametrize("eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(2))
def test_hits_sizes_and_freed_slots_are_those_of_sglangs_cache(
    page: int, eagle: bool, seed: int
) -> None:
    pages = 4096 // page + 128
    ours = Scheduler(RadixBackend, page, pages, eagle=eagle)
    theirs = Scheduler(RadixCache, page, pages, eagle=eagle)
    traffic = Traffic(seed, [ours, theirs], max(100, 6 * page))
    for step in range(STEPS):
        traffic.step()
        ours.cache.sanity_check()
        what = f"seed {seed}, step {step}"
        assert ours.sizes() == theirs.sizes(), what
        assert ours.hits() == theirs.hits(), what
    assert sum(ours.hits()) > 0
