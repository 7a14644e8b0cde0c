"""How long a hit is: whole pages, at least one token left to compute, what was computed and may be
kept, in the own namespace, over the turns of a chat (I34; C10, C15, C18-C23, C109, C110).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import CapacityError, NeverFitsError
from radix.keys import Namespace
from tests.cacherig import Rig, build


def _hit(rig: Rig, tokens: list[int], namespace: Namespace | None = None) -> int:
    """The hit that a request gets; the request leaves no trace."""
    live = rig.until_ready(rig.admit(tokens, namespace))
    rig.end(live, abort=True)
    rig.poll()
    assert live.request.hit_tokens == rig.cache.explain(tokens, namespace=namespace).hit_tokens
    return live.request.hit_tokens


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)])
def test_hit_is_whole_pages_and_leaves_one_token(length: int, hit: int) -> None:
    """C18-C20, vllm#11186, #17999, #3239: with a whole prompt cached nothing was left to compute;
    the hit of n tokens is at most floor((n-1)/P)*P.
    """
    rig = build()
    rig.serve(list(range(9)))
    assert _hit(rig, list(range(length))) == hit
    rig.finish_all()


@pytest.mark.parametrize(("length", "hit"), [(255, 128), (256, 128), (257, 256)])
def test_hit_of_a_prompt_sent_again_is_as_documented(length: int, hit: int) -> None:
    """C21, sglang#27206: 128 cached tokens of 256 but 256 of 257 looked like a fault."""
    rig = build(page_tokens=128, device=8)
    prompt = (np.arange(length) % 7).tolist()
    rig.serve(prompt)
    told = rig.cache.explain(prompt)
    assert told.hit_tokens == hit == _hit(rig, prompt)
    assert told.structural_tokens == length // 128 * 128, "what is stored is told beside it"
    rig.finish_all()


def test_full_hit_of_a_whole_prompt_keeps_both_pages_cached() -> None:
    """C18: after the last page is computed again, it is cached once, under the same key."""
    rig = build(device=6)
    rig.serve(list(range(8)))
    rig.serve(list(range(8)))
    assert rig.cache.usage()["device"].used_blocks == (2,)
    assert _hit(rig, list(range(9))) == 8
    rig.finish_all()


def test_page_is_shared_only_when_it_is_full() -> None:
    """C22, LMCache#653: one token behind a full chunk was saved as a chunk of its own."""
    rig = build(below=(8,))
    live = rig.until_ready(rig.admit([0, 1, 2, 3], new_tokens=4))
    rig.compute(live, 4)
    for token in range(4, 7):
        live.request.append([token])
        rig.compute(live, token + 1)
        rig.poll()
        assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 1
    live.request.append([7])
    rig.compute(live, 8)
    rig.poll()
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 2
    rig.finish_all()


def test_computed_told_twice_changes_nothing_the_second_time() -> None:
    """C23, sglang#25091: the second insert of a tick compared the length with the tail in it."""
    rig = build()
    live = rig.until_ready(rig.admit(list(range(6))))
    rig.compute(live, 6)
    before = live.request.slots().tolist(), rig.cache.tree.stats(), dict(rig.cache.counters())
    live.request.computed(6)
    after = live.request.slots().tolist(), rig.cache.tree.stats(), dict(rig.cache.counters())
    assert after == before
    with pytest.raises(ValueError, match="computed is 5"):
        live.request.computed(5)
    with pytest.raises(ValueError, match="computed is 7"):
        live.request.computed(7)
    rig.finish_all()


def test_prompt_shorter_than_a_page_leaves_nothing_behind() -> None:
    """C15, sglang#38191: no early return where nothing was cacheable."""
    rig = build()
    nodes = rig.cache.tree.stats().nodes
    rig.serve([1, 2, 3])
    assert rig.cache.usage()["device"].used_blocks == (0,)
    assert rig.cache.tree.stats().nodes <= nodes + 1, "the root of the namespace, at most"
    assert _hit(rig, [1, 2, 3]) == 0
    rig.finish_all()


def test_request_does_not_evict_its_own_prefix() -> None:
    """C10, vllm#42948: room for a request was made of the pages that it was about to hit."""
    rig = build(device=4)
    rig.serve(list(range(8)))  # the oldest
    rig.serve([9] * 8)
    live = rig.until_ready(rig.admit([*range(8), 8, 8, 8, 8]))
    assert live.request.hit_tokens == 8
    rig.end(live, abort=True)
    rig.finish_all()


def test_miss_is_explained_before_room_is_made() -> None:
    """A prompt that leaves a cached edge in its middle looked, after its admission had evicted the
    rest of that edge, at what was gone: admit raised, and its slots stayed taken.
    """
    rig = build(device=4, below=(1,))
    rig.serve(list(range(16)))
    live = rig.until_ready(rig.admit([0, 1, 2, 3, *[7] * 12]))
    assert live.request.hit_tokens == 4
    rig.end(live, abort=True)
    rig.finish_all()


@pytest.mark.parametrize("early", [True, False])
def test_tokens_beyond_the_limit_are_not_kept(early: bool) -> None:
    """C109, omlx#3525: a template that drops its thinking tokens needs a limit, others need none,
    and both are told by request. Told early nothing is shared, told at the end it is given up,
    also below, though transfers may be under way.
    """
    rig = build(below=(16, 16))
    prompt = list(range(12))
    if early:
        live = rig.until_ready(rig.admit(prompt, cacheable_upto=7))
    else:
        live = rig.until_ready(rig.admit(prompt))
    rig.compute(live, 12)
    if early:
        assert rig.cache.explain([*prompt, 1]).hit_tokens == 4
        rig.end(live)
    else:
        assert rig.cache.explain([*prompt, 1]).hit_tokens == 12
        rig.end(live, cacheable_upto=7)
    rig.settle()
    assert rig.cache.explain([*prompt, 1]).hit_tokens == 4
    assert [usage.used_blocks for usage in rig.cache.usage().values()] == [(1,), (1,), (1,)]
    rig.serve(prompt)
    assert rig.cache.explain([*prompt, 1]).hit_tokens == 12
    rig.finish_all()


def test_limit_gives_up_nothing_that_others_had_cached() -> None:
    """A request with a low limit, over a prefix that was there before, gave the prefix up."""
    rig = build(below=(16,))
    prompt = list(range(12))
    rig.serve(prompt)
    live = rig.until_ready(rig.admit([*prompt, 5, 5, 5, 5, 5]))
    rig.compute(live, 17)
    rig.end(live, cacheable_upto=0)
    rig.settle()
    assert rig.cache.explain([*prompt, 5, 5, 5, 5, 5]).hit_tokens == 12
    rig.finish_all()


def test_each_turn_hits_all_that_the_turn_before_left() -> None:
    """C110, omlx#2876: only the snapshot of the previous prompt was served, never its answer."""
    rig = build(device=16)
    history: list[int] = []
    for turn in range(12):
        before = len(history)
        live = rig.until_ready(rig.admit([*history, turn % 3, 1], new_tokens=1))
        assert live.request.hit_tokens >= max(0, before - 1) // 4 * 4
        live.request.append([turn % 2])
        rig.compute(live, len(live.request))
        history = live.request.tokens().tolist()
        rig.end(live)
        rig.settle()
    rig.finish_all()


def test_namespaces_share_nothing_and_go_when_they_are_empty() -> None:
    """C27, C28 and I1: equal tokens of another namespace never hit; roots of namespaces without
    blocks go, but never under a request that runs.
    """
    rig = build(device=8)
    mine = Namespace(salt=b"mine")
    rig.serve(list(range(9)), mine)
    assert _hit(rig, list(range(9))) == 0
    assert _hit(rig, list(range(9)), Namespace(content=b"mine")) == 0
    live = rig.until_ready(rig.admit([1, 2], Namespace(salt=b"runs")))
    for number in range(300):
        rig.cache.match([1], namespace=Namespace(salt=number.to_bytes(2, "big")))
    assert rig.cache.tree.stats().roots < 150
    live.request.append([3, 4])
    with pytest.raises(NeverFitsError):
        live.request.append([0] * 64)
    rig.compute(live, 4)
    rig.end(live)
    rig.settle()
    assert _hit(rig, [1, 2, 3, 4, 5], Namespace(salt=b"runs")) == 4
    assert _hit(rig, list(range(9)), mine) == 8
    rig.finish_all()


def test_prefix_never_makes_a_request_less_admissible() -> None:
    """R5, I29: one group lies on the device, the other below. The pin of the hit held the blocks of
    the one while room for all pages was asked for in both, and an idle cache refused for ever. Each
    group is charged what it lacks.
    """
    rig = build(device=8, groups=2, below=(16,))
    prompt = list(range(29))  # needs all eight
    rig.serve(prompt)
    rig.cache.evict(1, 8)
    assert rig.cache.explain(prompt).tiers == {"host": 28}
    live = rig.until_ready(rig.admit(prompt))
    assert live.request.hit_tokens == 28
    assert rig.cache.metrics.get("match", "miss", "no room") == 0
    rig.compute(live, 29)
    rig.end(live)
    rig.settle()
    assert rig.cache.explain(prompt).tiers == {"device": 28}
    rig.finish_all()


def test_admission_that_fails_gives_everything_back() -> None:
    """C2, C8, C13, C14: all groups or none, and every count as before."""
    rig = build(device=6, groups=2)
    rig.serve(list(range(8)))
    live = rig.until_ready(rig.admit([*range(8), 1, 1, 1]))
    cache = rig.cache
    before = (cache.counters(), cache.usage(), cache.tree.stats().leases, len(rig.states))
    with pytest.raises(CapacityError) as error:
        rig.admit([*range(8), *[2] * 16])
    assert error.value.needed == 4 and error.value.free == 3
    with pytest.raises(NeverFitsError) as never:
        rig.admit([3] * 25)
    assert (never.value.needed, never.value.capacity) == (7, 6)
    assert (cache.counters(), cache.usage(), cache.tree.stats().leases, len(rig.states)) == before
    cache.check()
    rig.end(live)
    rig.finish_all()
