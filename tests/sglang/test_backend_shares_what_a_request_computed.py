"""One request at a time on SGLang's own classes: match, lock, checkpoint, release, match again;
namespaces, limits, duplicates, and what a lock holds when the tree changes under it.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix.engines.sglang.backend import Place, RadixBackend
from radix.engines.sglang.slots import PageTable
from radix.errors import InvariantError, LeaseError, UnsupportedError
from tests.sglang.scheduling import Run, Scheduler


def started(
    scheduler: Scheduler,
    tokens: list[int],
    extra: str | None = None,
    salt: str | None = None,
    chunk: int | None = None,
) -> Run:
    run = scheduler.start(scheduler.request(tokens, extra, salt), chunk)
    assert run is not None
    scheduler.check()
    return run


def match(scheduler: Scheduler, tokens: list[int], **of_key: Any) -> tuple[int, Place]:
    key = RadixKey(array("q", tokens), **of_key)
    found = scheduler.cache.match_prefix(MatchPrefixParams(key=key))
    assert found.last_device_node is found.last_host_node is found.best_match_node
    assert found.host_hit_length == 0
    return found.device_prefix_len, found.last_device_node


@pytest.mark.parametrize("page", [1, 16])
def test_what_was_released_is_hit_again_up_to_the_last_token(page: int) -> None:
    scheduler = Scheduler(RadixBackend, page, 256 // page)
    tokens = list(range(50))
    run = started(scheduler, tokens)
    for token in (50, 51, 52):
        scheduler.sample(run, token)
        assert scheduler.decode(run)
    scheduler.finish(run)
    scheduler.check()
    again = started(scheduler, [*tokens, 50, 51, 52])
    assert again.req.prefix_len == 52 // page * page
    longer = started(scheduler, [*tokens, 50, 51, 52, 60, 61])
    assert longer.req.prefix_len == 53 // page * page


def test_a_limit_is_kept_and_the_key_is_left_as_it_was() -> None:
    scheduler = Scheduler(RadixBackend, 4, 32)
    scheduler.finish(started(scheduler, list(range(20))))
    key = RadixKey(array("q", range(20)), limit=11)
    found = scheduler.cache.match_prefix(MatchPrefixParams(key=key))
    assert found.device_prefix_len == 8
    assert (len(key.token_ids), key.limit, key.is_bigram) == (20, 11, False)
    assert match(scheduler, list(range(20)), limit=0)[0] == 0
    assert match(scheduler, list(range(20)), limit=99)[0] == 20
    assert match(scheduler, [])[0] == 0


def test_extra_key_and_salt_each_keep_requests_apart() -> None:
    scheduler = Scheduler(RadixBackend, 1, 256)
    tokens = [1] * 10
    spaces = [(None, None), ("", None), ("a", None), (None, "a"), ("a", "b"), ("ab", None)]
    for extra, salt in spaces:
        assert match(scheduler, tokens, extra_key=extra, cache_salt=salt)[0] == 0
        scheduler.finish(started(scheduler, tokens, extra, salt))
    assert scheduler.cache.total_size() == 10 * len(spaces)
    for extra, salt in spaces:
        assert match(scheduler, tokens, extra_key=extra, cache_salt=salt)[0] == 10


def test_a_thousand_namespaces_that_hold_nothing_do_not_stay() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    for number in range(1000):
        _, place = match(scheduler, [1, 2], extra_key=str(number))
        scheduler.cache.unlock(scheduler.cache.lock(place))
    assert scheduler.cache._tree.stats().roots <= 128
    scheduler.cache.sanity_check()


def test_a_place_in_a_namespace_that_went_is_locked_as_an_empty_one() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, [1, 2, 3], "gone"))
    _, place = match(scheduler, [1, 2, 3], extra_key="gone")
    scheduler.evict(10**9)
    for number in range(200):
        _, other = match(scheduler, [1], extra_key=str(number))
        scheduler.cache.unlock(scheduler.cache.lock(other))
    lock = scheduler.cache.lock(place)
    assert lock.pages == 0
    assert len(scheduler.cache.path_device_indices(place)) == 0


def test_two_requests_that_computed_the_same_share_one_copy() -> None:
    scheduler = Scheduler(RadixBackend, 16, 16)
    tokens = list(range(40))
    first, second = started(scheduler, tokens), started(scheduler, tokens)
    assert scheduler.allocator.available_size() == (16 - 6) * 16
    scheduler.share(first)
    scheduler.share(second)
    scheduler.check()
    assert scheduler.cache.protected_size() == 32
    # two pages once, and the unfinished page of each
    assert scheduler.allocator.available_size() == (16 - 2 - 2) * 16
    scheduler.finish(first)
    scheduler.finish(second)
    scheduler.check()
    assert scheduler.cache.evictable_size() == 32


def test_a_prompt_in_chunks_is_hit_before_it_is_all_computed() -> None:
    scheduler = Scheduler(RadixBackend, 4, 64)
    tokens = list(range(50))
    run = started(scheduler, tokens, chunk=22)
    assert match(scheduler, tokens)[0] == 20
    assert scheduler.resume(run, 20)
    scheduler.check()
    assert match(scheduler, tokens)[0] == 40
    assert scheduler.resume(run)
    scheduler.finish(run)
    scheduler.check()
    assert match(scheduler, tokens)[0] == 48


def test_a_request_that_is_not_to_be_shared_leaves_nothing() -> None:
    scheduler = Scheduler(RadixBackend, 4, 64)
    req = scheduler.request(list(range(50)))
    req.skip_radix_cache_insert = True
    run = scheduler.start(req, 20)
    assert run is not None
    assert scheduler.resume(run)
    scheduler.finish(run)
    scheduler.check()
    assert scheduler.cache.total_size() == 0
    assert scheduler.allocator.available_size() == 256


def test_a_forced_miss_from_another_namespace_is_shared_in_the_requests_own() -> None:
    """SGLang's zero_match_result asks for the root by extra key alone: the salt is not in it."""
    scheduler = Scheduler(RadixBackend, 1, 64)
    req = scheduler.request([1] * 10, None, "tenant")
    run = scheduler.start(req)
    assert run is not None
    scheduler.cache.unlock(req.lock)
    req.last_node = scheduler.cache.root_node_handle(extra_key=None)
    req.lock = scheduler.cache.lock(req.last_node)
    scheduler.finish(run)
    scheduler.check()
    assert match(scheduler, [1] * 10)[0] == 0
    assert match(scheduler, [1] * 10, cache_salt="tenant")[0] == 10


def test_a_node_that_ends_inside_an_edge_stays_readable_while_it_is_locked() -> None:
    """The fault: a lock that ends inside an edge splits it above its end; the node that the match
    had named lay behind the pin, and its slots were gone once the rest was evicted, between lock
    and the first read of them. The node is moved to where its lock ends.
    """
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, list(range(20))))
    length, place = match(scheduler, list(range(8)))
    slots = scheduler.cache.path_device_indices(place).clone()
    lock = scheduler.cache.lock(place)
    assert scheduler.evict(10**9) == 12
    assert length == 8
    assert torch.equal(scheduler.cache.path_device_indices(place), slots)
    scheduler.cache.unlock(lock)
    scheduler.evict(10**9)
    assert len(scheduler.cache.path_device_indices(place)) == 0


def test_a_node_of_before_a_reset_names_nothing_after_it() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, [1] * 10))
    _, place = match(scheduler, [1] * 10)
    lock = scheduler.cache.lock(place)
    scheduler.reset()
    scheduler.cache.unlock(lock)
    scheduler.finish(started(scheduler, [2] * 10))
    assert len(scheduler.cache.path_device_indices(place)) == 0
    assert scheduler.cache.lock(place).pages == 0
    assert scheduler.cache.total_size() == 10
    scheduler.cache.sanity_check()


def test_a_prefix_that_is_not_locked_is_not_shared_on() -> None:
    """Nothing of a row whose beginning the tree may have given away enters the tree."""
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, [1] * 10))
    run = started(scheduler, [1] * 10 + [2] * 10)
    scheduler.cache.unlock(run.req.lock)
    run.req.lock = None
    scheduler.share(run)
    assert scheduler.cache.total_size() == 10


def test_counted_locks_tell_what_they_took_and_are_given_back_once() -> None:
    scheduler = Scheduler(RadixBackend, 4, 64)
    scheduler.finish(started(scheduler, list(range(40))))
    _, place = match(scheduler, list(range(20)))
    assert scheduler.cache.inc_lock_ref(place).delta == -20
    assert scheduler.cache.inc_lock_ref(place).delta == 0
    assert (scheduler.cache.protected_size(), scheduler.cache.evictable_size()) == (20, 20)
    assert (scheduler.cache.full_protected_size(), scheduler.cache.full_evictable_size()) == (
        20,
        20,
    )
    assert scheduler.cache.dec_lock_ref(place).delta == 0
    assert scheduler.cache.dec_lock_ref(place).delta == 20
    with pytest.raises(LeaseError, match="not locked"):
        scheduler.cache.dec_lock_ref(place)
    scheduler.cache.unlock(None)


def test_a_lock_that_was_lost_is_given_back_at_the_next_eviction() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, [1] * 10))
    _, place = match(scheduler, [1] * 10)
    scheduler.cache.lock(place)
    assert scheduler.cache.evict(EvictParams(num_tokens=10)).num_tokens_evicted == 10


def test_a_prefix_that_is_touched_outlives_one_that_is_not() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    for token in (1, 2):
        scheduler.finish(started(scheduler, [token] * 10))
    scheduler.cache.touch_prefix(RadixKey(array("q", [1] * 10)))
    scheduler.cache.touch_prefix(RadixKey(array("q", [7])))
    scheduler.evict(10)
    assert (match(scheduler, [1] * 10)[0], match(scheduler, [2] * 10)[0]) == (10, 0)


def test_a_prefix_that_a_waiting_request_was_matched_with_outlives_what_came_later() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    for token in (1, 2):
        scheduler.finish(started(scheduler, [token] * 10))
    assert match(scheduler, [1] * 6)[0] == 6
    scheduler.evict(14)
    assert (match(scheduler, [1] * 10)[0], match(scheduler, [2] * 10)[0]) == (6, 0)


def test_tokens_that_stand_for_an_image_keep_all_their_bits() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    image = (1 << 62) + 5
    scheduler.finish(started(scheduler, [1, image, image, 2]))
    assert match(scheduler, [1, image, image, 2])[0] == 4
    assert match(scheduler, [1, image - (1 << 40), image, 2])[0] == 1
    assert match(scheduler, [1, 5, 5, 2])[0] == 1


def test_keys_that_are_not_the_engines_are_refused() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    scheduler.finish(started(scheduler, [1, 2, 3]))
    with pytest.raises(UnsupportedError, match="is_eagle"):
        match(scheduler, [1, 2, 3], is_bigram=True)
    with pytest.raises(TypeError, match="array"):
        scheduler.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("i", [1, 2, 3]))))


def test_pairs_need_the_token_behind_the_page() -> None:
    scheduler = Scheduler(RadixBackend, 4, 64, eagle=True)
    scheduler.finish(started(scheduler, list(range(9))))
    assert match(scheduler, list(range(9)))[0] == 8
    assert match(scheduler, list(range(8)))[0] == 4
    assert match(scheduler, [*range(8), 99])[0] == 4
    assert match(scheduler, [0])[0] == 0


def test_numbers_of_pages_are_kept_through_growth_and_counted() -> None:
    table = PageTable(2, 4, torch.device("cpu"))
    first = table.take(2)
    table.put(first, torch.tensor([8, 40], dtype=torch.int32))
    more = table.take(5)
    table.put(more, torch.arange(5) * 4 + 100)
    assert len(set(first.tolist() + more.tolist())) == table.used == 7
    assert table.token_slots(first).tolist() == [8, 9, 10, 11, 40, 41, 42, 43]
    assert table.token_slots(more[:1]).tolist() == [100, 101, 102, 103]
    table.check(7)
    table.give(first)
    table.check(5)
    with pytest.raises(InvariantError, match="5 page numbers are taken for 6"):
        table.check(6)
    table.clear()
    assert table.used == 0
    assert table.token_slots(np.empty(0, np.int32)).dtype == torch.int64
