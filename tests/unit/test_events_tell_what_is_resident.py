"""The stream of blocks stored and removed, replayed, is what is resident in each tier: parents
before children, nothing twice, whatever was split meanwhile, from the first poll after a restart on
(I32).
"""

from __future__ import annotations

from pathlib import Path

from radix.cache import PrefixCache
from radix.events import BlocksRemoved, BlocksStored, RequestEvent, TierEvent
from radix.keys import page_keys, root_key
from radix.tier import TierMode
from tests.cacherig import GROUPS, Rig, build
from tests.mixes import full
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PROMPT = list(range(24))


def test_blocks_are_told_once_with_their_parents_though_the_edge_was_split() -> None:
    """C31, C33, C34, sglang#16946, #27072, #26387: a split while a copy was under way lost the
    first half, and the event told the second half alone, or none at all.
    """
    rig = build(below=(32,))
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 24)
    with rig.cache.lease(rig.cache.match(PROMPT[:16])[1]) as lease:
        assert lease.pages == 4
        splits = rig.cache.tree.stats().splits
        rig.ticks[0].pace = 1.0
        events = rig.poll()
    assert splits >= 1
    stored = [event for event in events if isinstance(event, BlocksStored)]
    root = root_key(rig.cache.namespace())
    keys = page_keys(root, live.request.tokens(), 4)
    for tier in ("device", "host"):
        seen = sorted((event for event in stored if event.tier == tier), key=lambda e: e.first)
        assert [key.tobytes() for event in seen for key in event.keys] == [
            key.tobytes() for key in keys
        ]
        for event in seen:
            above = keys[event.first - 1].tobytes() if event.first else root
            assert event.parent == above
    rig.finish_all()


def test_children_are_removed_before_their_parents() -> None:
    rig = build()
    rig.serve(PROMPT)
    keys = [key.tobytes() for key in page_keys(root_key(rig.cache.namespace()), PROMPT, 4)]
    rig.cache.evict(0, 4)
    removed = [event for event in rig.poll() if isinstance(event, BlocksRemoved)]
    gone = [key.tobytes() for event in removed for key in event.keys]
    assert gone == keys[:1:-1] and removed[0].reason == "evicted"
    rig.finish_all()


def test_what_a_disk_kept_is_told_at_the_first_poll(tmp_path: Path) -> None:
    def start() -> Rig:
        disk = DiskTier(tmp_path, limit_bytes=4 << 20, segment_bytes=1 << 18)
        tiers = [DeviceTier(blocks=16, device="cpu"), HostTier(32 * 4096), disk]
        cache = PrefixCache(GROUPS[:1], tiers, page_tokens=4, events=True)
        return Rig(cache, cache.tiers[0])

    rig = start()
    rig.serve(PROMPT)
    rig.serve([*PROMPT[:8], 3, 3, 3, 3])
    assert not rig.cache.flush()
    rig.cache.close()
    again = start()
    again.known = rig.known
    again.poll()
    assert {tier for tier, _, _ in again.resident} == {"disk"} and len(again.resident) == 7
    live = again.until_ready(again.admit(PROMPT))
    assert live.request.hit_tokens == 20
    again.finish_all()
    again.cache.close()


def test_blocks_of_two_pages_that_a_disk_kept_are_told_as_they_lie(tmp_path: Path) -> None:
    """After a restart the pages between such blocks were told, too, as if they held something."""

    def start() -> Rig:
        disk = DiskTier(tmp_path, limit_bytes=4 << 20, segment_bytes=1 << 18)
        tiers = [DeviceTier(blocks=16, device="cpu"), HostTier(32 * 4096), disk]
        groups = (full(), full(name="coarse", grid_tokens=8))
        cache = PrefixCache(groups, tiers, page_tokens=4, events=True)
        return Rig(cache, cache.tiers[0])

    rig = start()
    rig.serve(PROMPT)
    rig.cache.flush()
    rig.cache.close()
    again = start()
    again.known = rig.known
    again.poll()
    assert len([key for tier, group, key in again.resident if group == "coarse"]) == 3
    assert len(again.resident) == 9 and {tier for tier, _, _ in again.resident} == {"disk"}
    again.finish_all()
    again.cache.close()


def test_stream_is_silent_where_nobody_asked_for_it() -> None:
    rig = build(below=(16,), events=False)
    rig.serve(PROMPT)
    rig.empty()
    rig.admit(PROMPT)
    kinds = {type(event) for event in rig.poll()}
    assert not kinds & {BlocksStored, BlocksRemoved} and RequestEvent in kinds
    rig.finish_all()


def test_tier_that_changes_its_mode_is_told_once() -> None:
    rig = build(below=(16,))
    rig.cache.set_mode("host", TierMode.READ_ONLY)
    told = [event for event in rig.poll() if isinstance(event, TierEvent)]
    assert [(event.tier, event.mode) for event in told] == [("host", "read-only")]
    assert not [event for event in rig.poll() if isinstance(event, TierEvent)]
    rig.finish_all()
