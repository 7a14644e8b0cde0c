"""One thread at a time owns a cache, any thread: a call while another thread's runs raises, after
close everything raises, and Ctrl-C in the middle of a call leaves a cache that can be closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from radix.cache import PrefixCache
from radix.errors import BusyError, ClosedError, LeaseError, TierError
from radix.gate import Gate
from radix.store import FlatStore
from radix.tier import TierMode
from tests.cacherig import GROUPS, Rig, build
from tests.ticktier import TickTier
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PROMPT = list(range(10))


class StopTier(TickTier):
    """Stays in ``wait`` until it is told to go on."""

    def __init__(self) -> None:
        super().__init__(16, "host")
        self.entered, self.go_on = threading.Event(), threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Blocks as a slow medium does."""
        self.entered.set()
        self.go_on.wait(timeout_s)


def test_call_while_another_threads_call_runs_is_refused() -> None:
    """Also those of a lease and of a request, which reach the same tree. A third thread may use
    the cache once the second is done: there is no affinity.
    """
    tier = StopTier()
    cache = PrefixCache(GROUPS[:1], [DeviceTier(blocks=8, device="cpu"), tier], page_tokens=4)
    rig = Rig(cache, cache.tiers[0])
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 10)
    lease = cache.lease(cache.match(PROMPT)[1])
    before = cache.counters(), cache.usage()
    thread = threading.Thread(target=cache.wait, args=(60.0,))
    thread.start()
    assert tier.entered.wait(60.0)
    calls: list[Callable[[], object]] = [
        lambda: cache.admit(PROMPT),
        cache.poll,
        cache.wait,
        cache.check,
        cache.flush,
        cache.usage,
        cache.borrowed,
        cache.close,
        lambda: cache.passed(1),
        lambda: cache.match(PROMPT),
        lambda: cache.explain(PROMPT),
        lambda: cache.evict(0, 1),
        lambda: cache.set_mode("host", TierMode.OFF),
        lambda: live.request.append([1]),
        lambda: live.request.computed(10),
        live.request.finish,
        live.request.abort,
        lease.release,
        lambda: lease.move(lease.cursor),
    ]
    for call in calls:
        with pytest.raises(BusyError):
            call()
    assert cache.counters() == before[0]
    tier.go_on.set()
    thread.join()
    assert cache.usage() == before[1] and not lease.released
    other = threading.Thread(target=lease.release)
    other.start()
    other.join()
    assert lease.released
    rig.finish_all()
    cache.close()


def test_everything_but_close_raises_after_close() -> None:
    rig = build(below=(16,))
    cache = rig.cache
    live = rig.until_ready(rig.admit(PROMPT))
    lease = cache.lease(cache.match(PROMPT)[1])
    cache.close()
    cache.close()
    for call in (
        cache.poll,
        cache.check,
        cache.usage,
        cache.flush,
        lambda: cache.admit(PROMPT),
        lambda: cache.match(PROMPT),
        live.request.finish,
        lambda: live.request.append([1]),
        lambda: lease.move(lease.cursor),
    ):
        with pytest.raises(ClosedError):
            call()
    lease.release()  # a with block around a cache that was closed inside it
    with pytest.raises(LeaseError, match="already"):
        lease.release()
    assert cache.counters()["match.queries"] == 1, "what was counted can still be read"


def test_close_with_transfers_under_way_keeps_what_is_durable(tmp_path: Path) -> None:
    """Nothing hangs, nothing is lost that was acknowledged, and the directory is free again."""

    def start() -> Rig:
        disk = DiskTier(tmp_path, limit_bytes=4 << 20, segment_bytes=1 << 18)
        tiers = [DeviceTier(blocks=64, device="cpu"), HostTier(64 * 4096), disk]
        cache = PrefixCache(GROUPS[:1], tiers, page_tokens=4, events=True)
        return Rig(cache, cache.tiers[0])

    rig = start()
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 10)
    rig.settle_transfers = rig.cache.flush()
    known = rig.known
    running = rig.until_ready(rig.admit([9] * 200))
    rig.compute(running, 200)
    rig.cache.wait(0.001)
    rig.cache.poll()
    assert rig.cache.transfers.jobs
    rig.cache.close()
    again = start()
    again.known = known
    assert again.cache.explain(PROMPT).tiers == {"disk": 8}
    assert again.until_ready(again.admit(PROMPT)).request.hit_tokens == 8
    again.finish_all()
    again.cache.close()


@pytest.mark.parametrize("facade", [PrefixCache, FlatStore])
def test_tier_that_fails_to_close_keeps_no_other_open(
    facade: type[PrefixCache] | type[FlatStore],
) -> None:
    """The fault: tiers were closed in turn, so that one that raised left the others open, and the
    facade itself too: each call went on as if nothing had been closed.
    """

    class Stubborn(TickTier):
        def close(self) -> None:
            raise TierError(self.name, "does not close")

    device = DeviceTier(blocks=8, device="cpu")
    cache = facade(GROUPS[:1], [device, Stubborn(8, "host")])
    with pytest.raises(TierError, match="does not close"):
        cache.close()
    with pytest.raises(ClosedError):
        device.poll()
    with pytest.raises(ClosedError):
        cache.poll()


def test_interrupt_inside_a_call_leaves_a_cache_that_can_be_closed() -> None:
    """A token taken at the door was lost where Ctrl-C struck between the door and the call: from
    then on every call, close among them, was refused as one too many.
    """
    gate = Gate()
    gate.__enter__()  # and the interrupt comes before the with block begins
    with gate:
        pass
    refused: list[bool] = []

    def enter() -> None:
        try:
            with gate:
                refused.append(False)
        except BusyError:
            refused.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert refused == [True], "another thread is still kept out"
    gate.__exit__()
    enter()
    assert refused == [True, False]


def test_clock_that_raises_costs_the_call_and_nothing_else() -> None:
    """What a caller passes in may fail in the middle: an admission is undone then."""
    fail = [False]

    def clock() -> int:
        if fail[0]:
            raise RuntimeError("no clock")
        return 0

    rig = build(below=(16,), clock=clock)
    rig.serve(PROMPT)
    rig.empty()
    used = rig.cache.usage()
    fail[0] = True
    with pytest.raises(RuntimeError):
        rig.cache.admit(PROMPT)
    fail[0] = False
    for _ in range(4):
        rig.cache.poll()
    rig.cache.check()
    assert rig.cache.usage() == used and not rig.cache.requests.works
    assert rig.cache.tree.stats().leases == 0
