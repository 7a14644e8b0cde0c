"""The scheduling policy dfs-weight: requests in the order of SGLang's own cache wherever weights
decide, and by the earliest request where they do not.
"""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from radix.engines.sglang.backend import RadixBackend
from radix.engines.sglang.order import by_weight
from tests.sglang.scheduling import Scheduler


def test_the_heaviest_branch_goes_first_and_what_ends_goes_last() -> None:
    paths = [[], [1, 2], [1, 3], [5], [1, 3], [1], [5, 6, 7], [1, 3, 4]]
    order = by_weight([np.array(path, np.int32) for path in paths])
    assert order == [7, 2, 4, 1, 5, 6, 3, 0]


def test_branches_of_one_weight_go_by_their_earliest_request() -> None:
    paths = [[9], [2], [9], [2], [4]]
    assert by_weight([np.array(path, np.int32) for path in paths]) == [0, 2, 1, 3, 4]


def test_no_request_gives_no_order() -> None:
    assert by_weight([]) == []


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "lof", "hrrn", "shortest-prefill-first"])
def test_sglangs_schedule_policy_sorts_a_queue_alike_over_either_cache(policy: str) -> None:
    rng = random.Random(3)
    prompts = [[0] * 8 + [rng.randrange(3) for _ in range(12)] for _ in range(10)]
    sorted_queues = []
    for kind in (RadixBackend, RadixCache):
        scheduler = Scheduler(kind, 4, 256)
        for prompt in prompts[:5]:
            run = scheduler.start(scheduler.request(prompt))
            assert run is not None
            scheduler.finish(run)
        queue = [scheduler.request(prompt + [9] * number) for number, prompt in enumerate(prompts)]
        SchedulePolicy(policy, scheduler.cache, False, False, False).calc_priority(queue)
        sorted_queues.append([(req.rid, req.num_matched_prefix_tokens) for req in queue])
    assert sorted_queues[0] == sorted_queues[1]
    assert policy in ("fcfs", "lof") or any(found for _, found in sorted_queues[0])


@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_that_of_sglangs_cache_where_weights_decide(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [[0] * 4 + [rng.randrange(4) for _ in range(6)] for _ in range(8)]
    # Each subtree another number of times, so that no two weights are equal.
    waiting = [prompt for number, prompt in enumerate(prompts) for _ in range(1 << number)]
    rng.shuffle(waiting)
    orders = []
    for kind in (RadixBackend, RadixCache):
        scheduler = Scheduler(kind, 1, 512)
        for prompt in prompts:
            run = scheduler.start(scheduler.request(prompt))
            assert run is not None
            scheduler.finish(run)
        found = [
            scheduler.cache.match_prefix(
                MatchPrefixParams(key=RadixKey(array("q", prompt)))
            ).last_device_node
            for prompt in waiting
        ]
        order = scheduler.cache.dfs_weight_order(found)
        orders.append([waiting[index] for index in order])
    assert orders[0] == orders[1], f"seed {seed}"
