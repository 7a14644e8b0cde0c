"""Device slots that the engine keeps to itself: it lends them to transfers, passes its own hit in,
and a ledger says which are on loan, from the start of a transfer to its end and not a poll longer.
And no device at all: the host is the first tier. Both with every byte looked at (I22, I24).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import RequestError
from radix.events import RequestState
from radix.ownership import Ownership
from tests.cacherig import GROUPS, Live, Rig
from tests.ticktier import TickTier, peek
from tiers.device import DeviceTier
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier

PROMPT = list(range(18))  # four pages of four, and two tokens


def _engine(*below: int, plan: FaultPlan | None = None, groups: int = 1) -> Rig:
    device = DeviceTier(blocks=32, device="cpu")
    ticks = [TickTier(blocks, name) for blocks, name in zip(below, ("host", "deep"), strict=False)]
    lower = [FaultyTier(ticks[0], plan) if plan else ticks[0], *ticks[1:]]
    cache = PrefixCache(
        GROUPS[:groups],
        [device, *lower],
        page_tokens=4,
        ownership=Ownership.BORROWED,
        events=True,
    )
    return Rig(cache, device, tuple(ticks), ticks=ticks)


def _admit(rig: Rig, tokens: list[int], first: int, device_tokens: int = 0) -> Live:
    """A request whose page table begins at slot ``first``."""
    pages = -(-len(tokens) // 4)
    rows = [list(range(first, first + pages))] * len(rig.cache.groups)
    return rig.admit(tokens, slots=rows, device_tokens=device_tokens)


def _fill(rig: Rig, tokens: list[int], first: int, pages: int) -> None:
    """What the engine holds itself in the slots from ``first`` on."""
    for group in range(len(rig.cache.groups)):
        wanted = rig.expected(None, np.array(tokens, np.int32), group)
        for page in range(pages):
            peek(rig.cache.tiers[0], group, first + page)[:] = wanted[page]
            rig.known.add((rig.cache.namespace(), tuple(tokens[: 4 * (page + 1)])))


def _store(rig: Rig, tokens: list[int], first: int) -> None:
    live = rig.until_ready(_admit(rig, tokens, first))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()


def test_loan_of_a_store_ends_with_its_transfer() -> None:
    rig = _engine(32)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(_admit(rig, PROMPT, 10))
    assert rig.cache.borrowed() == {}
    rig.compute(live, 18)
    assert [slots.tolist() for slots in rig.cache.borrowed().values()] == [[10, 11, 12, 13]]
    rig.end(live)
    rig.poll()
    assert len(rig.cache.borrowed()) == 1, "the request is final, the copy still reads"
    rig.ticks[0].pace = 1.0
    rig.poll()
    assert rig.cache.borrowed() == {}
    rig.settle()
    rig.walk()
    rig.finish_all()


@pytest.mark.parametrize("groups", [1, 2])
def test_hit_comes_up_into_the_slots_that_were_lent(groups: int) -> None:
    """What came up to the host was taken for the engine's: it was attached nowhere, its slots were
    lost, and the same load began again.
    """
    rig = _engine(32, 32, groups=groups)
    _store(rig, PROMPT, 0)
    rig.empty(0)  # tier 0 of the tree is the host here
    rig.ticks[0].pace = rig.ticks[1].pace = 0.0
    live = _admit(rig, PROMPT, 20)
    assert live.request.state is RequestState.LOADING and rig.cache.borrowed() == {}
    rig.ticks[1].pace = 1.0
    rig.poll()
    lent = [slots.tolist() for slots in rig.cache.borrowed().values()]
    assert lent == [[20, 21, 22, 23]] * groups
    rig.ticks[0].pace = 1.0
    rig.until_ready(live)
    assert rig.cache.borrowed() == {}
    assert live.request.hit_tokens == 16 and live.request.sources == {"deep": 16}
    assert rig.cache.metrics.get("match", "hit_tokens", "deep") == 16
    rig.finish_all()


def test_own_hit_of_the_engine_is_not_loaded_and_is_counted_as_its_own() -> None:
    """The engine holds two pages itself; only the two behind them come up, beside its own."""
    rig = _engine(32)
    _store(rig, PROMPT, 0)
    _fill(rig, PROMPT, 8, 2)
    live = _admit(rig, PROMPT, 8, device_tokens=8)
    assert [slots.tolist() for slots in rig.cache.borrowed().values()] == [[10, 11]]
    rig.until_ready(live)
    assert live.request.hit_tokens == 16
    assert live.request.sources == {"device": 8, "host": 8}
    assert rig.cache.metrics.get("load", "blocks", "host", "kv") == 2
    rig.finish_all()


def test_own_hit_beyond_what_is_known_is_stored_once_it_is_told_as_computed() -> None:
    rig = _engine(32)
    _fill(rig, PROMPT, 4, 4)
    live = _admit(rig, PROMPT, 4, device_tokens=16)
    assert live.request.ready and live.request.hit_tokens == 16
    live.request.computed(18)
    rig.end(live)
    rig.settle()
    assert rig.cache.explain(PROMPT).tiers == {"host": 16}
    rig.finish_all()


def test_failed_load_leaves_the_engines_own_hit() -> None:
    rig = _engine(32, plan=FaultPlan(script={"load": {1: Fault.PART}}))
    _store(rig, PROMPT, 0)
    _fill(rig, PROMPT, 8, 1)
    live = _admit(rig, [*PROMPT[:16], 7, 7], 8, device_tokens=4)
    rig.until_ready(live)
    assert live.request.hit_tokens == 8, "one of its own, one of three that were to come"
    rig.compute(live, 18)
    rig.end(live)
    rig.finish_all()


def test_wrong_block_keeps_its_slot_while_another_transfer_reads_it() -> None:
    """The slot of a corrupt block went to the next store at once, while a copy further down still
    read it: the bytes of one prefix went down as those of another.
    """
    rig = _engine(4, 16, plan=FaultPlan(script={"load": {1: Fault.CORRUPT}}))
    rig.ticks[1].pace = 0.0
    live = rig.until_ready(_admit(rig, PROMPT, 0))
    rig.compute(live, 18)
    rig.end(live)
    rig.poll()  # on the host, and on its way to the tier below
    live = rig.until_ready(_admit(rig, PROMPT, 8))
    assert live.request.hit_tokens < 16
    column = rig.cache.tree.column_stats(rig.cache.tree.column(0, 0))
    assert column.resident == 3 and rig.cache.usage()["host"].used_blocks == (4,)
    rig.cache.check()
    rig.ticks[1].pace = 1.0
    rig.poll()
    rig.poll()
    assert rig.cache.usage()["host"].used_blocks == (3,)
    rig.compute(live, 18)  # what was wrong is stored again
    rig.end(live)
    rig.settle()
    assert rig.cache.explain(PROMPT).tiers == {"host": 16}
    rig.finish_all()


def test_more_slots_are_lent_as_the_request_grows() -> None:
    rig = _engine(32)
    live = rig.until_ready(_admit(rig, PROMPT[:6], 0))
    with pytest.raises(RequestError, match="lend 1 more"):
        live.request.append([6, 7, 8])
    assert len(live.request) == 6
    with pytest.raises(ValueError, match="one for each of 1 groups"):
        live.request.lend([[2], [2]])
    live.request.lend([[30, 31]])
    live.request.append([6, 7, 8])
    rig.compute(live, 9)
    assert live.request.slots().tolist() == [0, 1, 30, 31]
    rig.finish_all()


def test_what_does_not_fit_together_is_refused_before_anything_changes() -> None:
    rig = _engine(32)
    cache = rig.cache
    before = cache.counters(), cache.usage(), cache.tree.stats().leases
    for more, message in (
        ({}, "page table of every group"),
        ({"slots": [[0, 1]]}, "5 pages need a slot"),
        ({"slots": [[0] * 5, [0] * 5]}, "one for each of 1 groups"),
        ({"slots": [[0, 1, 2, 3, -1]]}, "slots from 0 on"),
        ({"slots": [[0.5] * 5]}, "integers"),
        ({"slots": [range(5)], "device_tokens": 6}, "whole pages"),
        ({"slots": [range(5)], "device_tokens": 20}, "left to compute"),
        ({"slots": [range(5)], "device_tokens": -4}, "negative"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            rig.admit(PROMPT, **more)
    with cache.lease(cache.match(PROMPT)[1]) as lease:
        with pytest.raises(RequestError, match="borrowed"):
            cache.insert(PROMPT, lease)
    cache.check()
    assert (cache.counters(), cache.usage(), cache.tree.stats().leases) == before
    with pytest.raises(ValueError, match="below the device"):
        PrefixCache(GROUPS[:1], [DeviceTier(blocks=4)], ownership=Ownership.BORROWED)
    rig.finish_all()


def test_host_is_the_first_tier_where_there_is_no_device() -> None:
    """The page table then names slots of the host, and a tier below it gives them back."""
    host, deep = HostTier(8 * 4096, segment_bytes=4096), TickTier(32, "deep")
    cache = PrefixCache(GROUPS[:1], [host, deep], page_tokens=4, events=True)
    rig = Rig(cache, host, (deep,), ticks=[deep])
    rig.serve(PROMPT)
    assert cache.explain(PROMPT).tiers == {"host": 16}
    rig.empty()
    assert cache.explain(PROMPT).tiers == {"deep": 16}
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 16
    rig.finish_all()
    cache.close()
