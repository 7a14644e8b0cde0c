"""What is kept stays where it is for as long as was said, whatever else comes; no longer, never
more than a share of a tier, and never in the way of a request that would be let in without it
(I29).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, RequestError
from radix.groups import Group
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.policy.limits import Limits
from tests.cacherig import Rig, build
from tests.mixes import full, state, window
from tests.unit.storerig import StoreRig, keys
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 4
SECOND = 1_000_000_000


class Clock:
    """The owner's, which stands unless it is moved."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def prompt(number: int, pages: int = 4) -> list[int]:
    return [1 + number] * (pages * PAGE) + [0]


def rig_of(**options: Any) -> tuple[Rig, Clock]:
    clock = Clock()
    return build(clock=clock, **options), clock


def done(rig: Rig) -> None:
    """Ends what is kept, and then everything: nothing may be pinned."""
    rig.cache.check()
    rig.cache._keeps.end_all("released")
    rig.finish_all()


def hit(rig: Rig, tokens: list[int], tier: str = "device") -> int:
    """Pages that a prompt would hit with what lies down to a tier."""
    return rig.cache.explain(np.array(tokens, np.int32)).upto[tier] // PAGE


def flood(rig: Rig, first: int = 50, count: int = 8) -> None:
    """Enough other prompts to evict all that may go."""
    for number in range(first, first + count):
        rig.serve(prompt(number))


@pytest.mark.parametrize("by", ["seconds", "steps"])
def test_what_is_kept_outlives_a_flood_until_its_time_is_over(by: str) -> None:
    rig, clock = rig_of()
    rig.pass_step()
    rig.serve(prompt(0))
    rig.serve(prompt(1))
    terms: dict[str, Any] = {"seconds": 60} if by == "seconds" else {"steps": 3}
    keep = rig.cache.keep(prompt(0), **terms)
    assert (keep.held, keep.tokens, keep.blocks) == (True, 4 * PAGE, 4)
    flood(rig)
    assert hit(rig, prompt(0)) == 4 and not hit(rig, prompt(1))
    rig.cache.check()
    if by == "seconds":
        clock.ns += 60 * SECOND - 1
    else:
        rig.pass_step()
        rig.pass_step()
    rig.poll()
    assert keep.held
    clock.ns += 1
    rig.pass_step()
    rig.poll()
    assert not keep.held and keep.ended == "expired"
    flood(rig)
    assert not hit(rig, prompt(0))
    counters = rig.cache.counters()
    assert counters["keep.started"] == counters["keep.expired"] == 1
    assert counters["keep.tokens"] == 4 * PAGE
    done(rig)


def test_released_early_it_is_as_old_as_it_was() -> None:
    rig, _ = rig_of(device=8)
    rig.serve(prompt(0, 2))
    rig.serve(prompt(1, 2))
    with rig.cache.keep(prompt(0, 2), 60) as keep:
        assert keep.held
    keep.release()
    assert keep.ended == "released" and rig.cache.counters()["keep.released"] == 1
    rig.serve(prompt(2, 4))
    assert hit(rig, prompt(0, 2)) < hit(rig, prompt(1, 2)) == 2, "it was the oldest"
    done(rig)


def test_extended_it_begins_anew_and_once_over_it_cannot_be() -> None:
    rig, clock = rig_of()
    rig.serve(prompt(0))
    keep = rig.cache.keep(prompt(0), 10)
    clock.ns += 9 * SECOND
    keep.extend(10)
    clock.ns += 9 * SECOND
    rig.poll()
    assert keep.held
    clock.ns += SECOND
    rig.poll()
    with pytest.raises(RequestError, match="expired"):
        keep.extend(10)
    done(rig)


def test_times_that_hold_no_more_end_nothing_and_are_forgotten() -> None:
    rig, clock = rig_of()
    rig.serve(prompt(0))
    rig.serve(prompt(1))
    keep, other = rig.cache.keep(prompt(0), 10), rig.cache.keep(prompt(1), 30)
    for _ in range(1000):
        keep.extend(20, steps=1000)
        rig.cache.keep(prompt(0), 5).release()
    assert max(map(len, rig.cache._keeps._due)) < 200, "times are remembered for ever"
    clock.ns += 19 * SECOND
    rig.poll()
    assert keep.held and other.held, "a time that was extended ended one"
    keep.extend(40)
    clock.ns += 11 * SECOND
    rig.poll()
    assert keep.held and other.ended == "expired"
    keep.extend(1)
    clock.ns += SECOND
    rig.poll()
    assert keep.ended == "expired"
    done(rig)


def test_what_is_not_there_is_not_held() -> None:
    rig, _ = rig_of()
    keep = rig.cache.keep(prompt(0), 10)
    assert not keep.held and keep.ended == "nothing was there" and keep.tokens == 0
    rig.serve(prompt(0))
    other = rig.cache.keep(prompt(0), 10, namespace=Namespace(adapter="other"))
    assert not other.held
    keep.release()
    done(rig)


@pytest.mark.parametrize(("most", "pages"), [(63, 0), (64, 1), (191, 2), (256, 4), (None, 4)])
def test_one_keep_holds_no_more_bytes_than_it_may(most: int | None, pages: int) -> None:
    rig, _ = rig_of()
    rig.serve(prompt(0))
    keep = rig.cache.keep(prompt(0), 10, most)
    assert keep.tokens == pages * PAGE and keep.blocks == pages
    flood(rig)
    assert hit(rig, prompt(0)) == pages
    done(rig)


def test_all_keeps_hold_no_more_than_their_share_of_a_tier() -> None:
    rig, _ = rig_of(device=16, below=(64,), limits=Limits(keep_share=0.25))
    for number in range(4):
        rig.serve(prompt(number, 2))
    keeps = [rig.cache.keep(prompt(number, 2), 60) for number in range(4)]
    assert [keep.held for keep in keeps] == [False, False, True, True], "the oldest end"
    assert keeps[0].ended == "over its share"
    rig.serve(prompt(9, 8))
    alone = rig.cache.keep(prompt(9, 8), 60)
    assert alone.tokens == 4 * PAGE and not keeps[3].held, "one alone is cut to it"
    done(rig)


def test_prefixes_that_keeps_share_count_once() -> None:
    rig, _ = rig_of(device=16)
    system = [7] * (4 * PAGE)
    for number in range(4):
        rig.serve([*system, *prompt(number, 1)])
    keeps = [rig.cache.keep([*system, *prompt(number, 1)], 60) for number in range(4)]
    assert all(keep.held for keep in keeps), "eight of sixteen blocks"
    done(rig)


def test_share_is_kept_when_what_is_kept_comes_up(tmp_path: Path) -> None:
    """Held below it costs the device nothing; once a request brings it up there it does."""
    rig, _ = rig_of(device=8, below=(64,))
    rig.serve(prompt(0, 4))
    rig.serve(prompt(1, 4))
    rig.empty()
    keeps = [rig.cache.keep(prompt(number, 4), 60) for number in range(2)]
    assert all(keep.held for keep in keeps)
    rig.serve(prompt(0, 4))
    assert all(keep.held for keep in keeps), "four of eight"
    live = rig.admit(prompt(1, 4)[:-2])
    rig.until_ready(live)
    rig.poll()
    assert not keeps[0].held and keeps[0].ended in ("over its share", "gave way")
    done(rig)


def test_keep_gives_way_oldest_first_and_only_where_that_helps() -> None:
    rig, _ = rig_of(device=16)
    for number in range(2):
        rig.serve(prompt(number, 3))
    keeps = [rig.cache.keep(prompt(number, 3), 60) for number in range(2)]
    live = rig.admit([9] * (12 * PAGE))
    rig.until_ready(live)
    assert [keep.held for keep in keeps] == [False, True]
    assert keeps[0].ended == "gave way" and rig.cache.counters()["keep.gave_way"] == 1
    with pytest.raises(CapacityError) as error:
        rig.admit([8] * (6 * PAGE))
    assert keeps[1].held, "twelve blocks are another request's: giving way would not be enough"
    assert (error.value.kept, error.value.leased) == (3, 3)
    assert "(3 of them by keeps)" in str(error.value)
    rig.end(live, abort=True)
    rig.settle()
    rig.alone([8] * (16 * PAGE)).abort()
    assert not keeps[1].held
    done(rig)


def test_request_that_grows_needs_no_keep_to_stay() -> None:
    rig, _ = rig_of(device=8)
    rig.serve(prompt(0, 3))
    keep = rig.cache.keep(prompt(0, 3), 60)
    live = rig.admit([9] * (5 * PAGE))
    rig.until_ready(live)
    rig.compute(live, 5 * PAGE)
    rig.append(live, [9] * PAGE)
    assert keep.ended == "gave way"
    done(rig)


def test_keep_survives_splits_and_what_becomes_of_its_request() -> None:
    rig, _ = rig_of(device=16, below=(32,))
    live = rig.admit(prompt(0, 4))
    rig.until_ready(live)
    rig.compute(live, 4 * PAGE)
    keep = rig.cache.keep(prompt(0, 4), 60)
    assert keep.tokens == 4 * PAGE, "of a request that still runs"
    rig.preempt(live)
    rig.poll()
    rig.serve([*prompt(0, 2)[:-1], *prompt(5, 2)])  # splits the edge
    flood(rig)
    assert hit(rig, prompt(0, 4)) == 4
    again = rig.resume(live)
    rig.until_ready(again)
    rig.end(again)
    flood(rig)
    assert hit(rig, prompt(0, 4)) == 4 and keep.held
    rig.cache.check()
    keep.release()
    done(rig)


@pytest.mark.parametrize("how", ["all", "host", "revision", "close"])
def test_reset_ends_it(how: str) -> None:
    rig, _ = rig_of(below=(32,))
    rig.serve(prompt(0))
    keep = rig.cache.keep(prompt(0), 60)
    if how == "close":
        done(rig)
        rig.serve(prompt(0))
        keep = rig.cache.keep(prompt(0), 60)
        rig.cache.close()  # warns of nothing: a keep is no lease that was forgotten
        keep.release()
        return
    if how == "revision":
        rig.cache.set_revision("r2")
    else:
        rig.cache.reset(None if how == "all" else ["host"])
    assert keep.ended == "reset"
    rig.poll()
    rig.cache.check()
    keep.release()
    done(rig)


def test_explain_says_how_much_is_kept() -> None:
    rig, _ = rig_of()
    rig.serve(prompt(0))
    ask = np.array(prompt(0), np.int32)
    assert rig.cache.explain(ask).kept_tokens == 0
    keep = rig.cache.keep(prompt(0, 3), 60)
    found = rig.cache.explain(ask)
    assert found.kept_tokens == 3 * PAGE and "(12 of them kept)" in str(found)
    keep.release()
    done(rig)


def test_kept_on_disk_it_stays_there_or_is_fetched(tmp_path: Path) -> None:
    groups = [Group.full("kv", 4096)]
    disk = DiskTier(tmp_path / "d", limit_bytes=8 << 20, segment_bytes=1 << 20)
    tiers = [DeviceTier(blocks=16), HostTier(32 * 4096, segment_bytes=4096), disk]
    with PrefixCache(groups, tiers, page_tokens=PAGE) as cache:
        for number in range(20):
            request = cache.admit(np.array(prompt(number), np.int32))
            request.computed(len(request))
            request.finish()
            cache.flush()
        ask = np.array(prompt(0), np.int32)
        assert cache.explain(ask).upto["host"] == 0 < cache.explain(ask).upto["disk"]
        there = cache.keep(ask, 60)
        cache.flush()
        assert cache.explain(ask).upto["host"] == 0, "it is held where it lies"
        there.release()
        up = cache.keep(ask, 60, fetch=True)
        for _ in range(100):
            cache.wait()
            cache.poll()
            if cache.explain(ask).upto["host"]:
                break
        assert cache.explain(ask).upto["host"] == 4 * PAGE
        for number in range(30, 45):
            request = cache.admit(np.array(prompt(number), np.int32))
            request.computed(len(request))
            request.finish()
            cache.flush()
        assert up.held and cache.explain(ask).upto["host"] == 4 * PAGE
        up.release()
        cache.check()


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_every_kind_are_kept_as_far_as_a_hit_needs(seed: int) -> None:
    kinds = [[full(), window(PAGE + 1)], [full(), state(PAGE)], [full(), window(6), state(PAGE)]]
    groups = kinds[seed % 3]
    rig, _ = rig_of(groups=groups, device=[32] * len(groups))
    rig.serve(prompt(0))
    pages = hit(rig, prompt(0))
    keep = rig.cache.keep(prompt(0), 60)
    assert keep.held
    for number in range(60, 80):
        rig.serve(prompt(number))
    assert hit(rig, prompt(0)) >= min(pages, keep.tokens // PAGE) > 0
    rig.cache.check()
    done(rig)


def test_sharing_engine_gets_its_slots_back() -> None:
    with PrefixCache([full()], [IndexTier(16)], page_tokens=4, ownership=Ownership.SHARED) as cache:
        request = cache.admit(np.array(prompt(0)), slots=[np.arange(5, dtype=np.int32)])
        request.computed(4 * PAGE)
        request.finish()
        cache.poll()
        keep = cache.keep(np.array(prompt(0)), 60)
        assert keep.held
        assert sorted(cache.evict(0, 4).tolist()) == [0, 1, 2, 3] and keep.ended == "gave way"
        cache.spare(0)


@pytest.mark.parametrize(
    ("terms", "error", "what"),
    [
        ({}, ValueError, "seconds or steps"),
        ({"seconds": 0}, ValueError, "seconds must be finite and above 0"),
        ({"seconds": float("nan")}, ValueError, "seconds must be finite"),
        ({"seconds": "1"}, TypeError, "seconds must be a number"),
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"steps": 1.5}, TypeError, "steps must be an int"),
        ({"seconds": 1, "max_bytes": 0}, ValueError, "max_bytes must be at least 1"),
        ({"seconds": 1, "max_bytes": True}, TypeError, "max_bytes must be an int"),
    ],
)
def test_bad_terms_are_refused_by_name(
    terms: dict[str, Any], error: type[Exception], what: str
) -> None:
    rig, _ = rig_of()
    rig.serve(prompt(0))
    with pytest.raises(error, match=what):
        rig.cache.keep(prompt(0), **terms)
    assert not rig.cache.tree.stats().leases
    for share in (0, 1.5, "half"):
        with pytest.raises((ValueError, TypeError), match="keep_share"):
            Limits(keep_share=share)
    done(rig)


# ------------------------------------------------------------ keys
def test_keys_are_kept_alike() -> None:
    clock = Clock()
    rig = StoreRig(8, IndexTier(64, name="deep"), clock=clock)
    rig.bring(*range(8))
    rig.store.flush()
    keep = rig.store.keep(keys(0, 1, 2, 99), 10, 2 * 64)
    assert keep.held and keep.blocks == 2
    for first in range(100, 140, 4):
        rig.bring(*range(first, first + 4))
        rig.store.flush()
    assert rig.where(0, 1, 2) == [0, 0, 1]
    assert rig.store.counters()["keep.started"] == 1
    clock.ns += 10 * SECOND
    rig.store.poll()
    assert keep.ended == "expired"
    rig.bring(*range(200, 208))
    assert rig.where(0, 1) == [1, 1]
    rig.end()


def test_kept_keys_give_way_to_a_reservation() -> None:
    rig = StoreRig(8)
    rig.bring(*range(8))
    first, second = rig.store.keep(keys(0, 1), 10), rig.store.keep(keys(2, 3), 10)
    rig.bring(*range(100, 106))
    assert (first.held, second.held) == (False, True)
    rig.bring(*range(200, 208))
    assert second.ended == "gave way"
    third = rig.store.keep(keys(200), 10)
    rig.store.reset()
    assert third.ended == "reset"
    rig.end()


def test_kept_keys_by_position_are_the_first_of_them() -> None:
    rig = StoreRig(8, IndexTier(64, name="deep"))
    rig.bring(*range(8))
    rig.store.flush()
    keep = rig.store.keep(keys(3, 2, 1, 0), 10, 2 * 64, positions=[3, 2, 1, 0])
    rig.bring(*range(100, 106))
    assert rig.where(0, 1, 2, 3) == [0, 0, 1, 1] and keep.held
    rig.end()
