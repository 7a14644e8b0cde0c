"""SGLang's own ``PrefillAdder``, which locks a match, asks what could be evicted, and cuts a prompt
into chunks: the same admissions over this cache as over SGLang's, with room and without.
"""

from __future__ import annotations

import random

import pytest
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.radix_cache import RadixCache

from radix.engines.sglang.backend import RadixBackend
from tests.sglang.scheduling import Scheduler


def admissions(kind: type, seed: int, pages: int) -> list[object]:
    rng = random.Random(seed)
    scheduler = Scheduler(kind, 4, pages)
    kept = [[rng.randrange(3) for _ in range(rng.randint(8, 24))] for _ in range(3)]
    for prompt in kept:
        run = scheduler.start(scheduler.request(prompt))
        assert run is not None
        scheduler.finish(run)
    adder = PrefillAdder(4, scheduler.cache, scheduler.allocator, None, 0.5, 1000, 40)
    said: list[object] = []
    for _ in range(6):
        more = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        req = scheduler.request(rng.choice(kept) + more)
        req.init_next_round_input(scheduler.cache)
        answer = adder.add_one_req(req, adder.new_chunked_req is not None, None)
        said.append((answer.name, req.prefix_len, req.extend_end, *scheduler.sizes()))
    assert scheduler.cache.protected_size() > 0
    for req in adder.can_run_list:
        scheduler.cache.unlock(req.lock)
    assert scheduler.cache.protected_size() == 0
    return said


@pytest.mark.parametrize("pages", [40, 64, 256])
@pytest.mark.parametrize("seed", range(4))
def test_admissions_are_those_over_sglangs_cache(seed: int, pages: int) -> None:
    ours = admissions(RadixBackend, seed, pages)
    assert ours == admissions(RadixCache, seed, pages), f"seed {seed}"
