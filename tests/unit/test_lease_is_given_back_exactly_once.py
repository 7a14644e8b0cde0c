"""A lease pins what it names, is released once, by hand, by a with block or by being dropped, and
belongs to one cache (I13, I14, I19; C1, C5).
"""

from __future__ import annotations

import gc
import threading

import pytest

from radix.errors import LeaseError, StaleError
from radix.keys import Namespace
from tests.cacherig import build

PROMPT = list(range(16))


def test_leased_pages_stay_and_the_others_go() -> None:
    rig = build(below=(16,))
    rig.serve(PROMPT)
    _, cursor = rig.cache.match(PROMPT[:8])
    with rig.cache.lease(cursor) as lease:
        assert lease.pages == 2
        assert len(rig.cache.evict(0, 9)) == len(rig.cache.evict(0, 9, tier=1)) == 2
        assert rig.cache.explain(PROMPT).hit_tokens == 8
        lease.move(lease.cursor._replace(pages=1))
        assert lease.pages == 1
        assert len(rig.cache.evict(0, 9)) == 1
    assert len(rig.cache.evict(0, 9)) == 1
    rig.finish_all()


def test_lease_released_twice_or_of_another_cache_is_refused() -> None:
    """C1, sglang#27038: a lock given back without its receipt counted down what it never held."""
    rig, other = build(), build()
    rig.serve(PROMPT)
    lease = rig.cache.lease(rig.cache.match(PROMPT)[1])
    for tokens in (PROMPT, [*PROMPT, 1, 1, 1, 1]):
        with pytest.raises(LeaseError, match="another cache"):
            other.cache.insert(tokens, lease)
    lease.release()
    assert lease.released
    for call in (lease.release, lambda: lease.move(lease.cursor)):
        with pytest.raises(LeaseError, match="released already"):
            call()
    with pytest.raises(LeaseError, match="released already"):
        rig.cache.insert(PROMPT, lease)
    with lease:
        pass
    rig.finish_all()
    other.finish_all()


@pytest.mark.parametrize("thread", [False, True])
def test_dropped_lease_is_given_back_and_counted(thread: bool) -> None:
    """It may be dropped anywhere, by the collector in another thread even."""
    rig = build()
    rig.serve(PROMPT)
    held = [rig.cache.lease(rig.cache.match(PROMPT)[1]) for _ in range(3)]
    assert len(rig.cache.evict(0, 9)) == 0
    if thread:
        worker = threading.Thread(target=held.clear)
        worker.start()
        worker.join()
    held.clear()
    gc.collect()
    assert len(rig.cache.evict(0, 9)) == 4
    assert rig.cache.metrics.get("lease", "dropped") == 3
    assert rig.cache.tree.stats().leases == 0
    rig.finish_all()


def test_stale_cursor_pins_less_and_never_something_else() -> None:
    rig = build(device=8)
    rig.serve(PROMPT)
    _, cursor = rig.cache.match(PROMPT)
    rig.empty()
    rig.serve([9] * 16)
    with rig.cache.lease(cursor) as lease:
        assert lease.pages == 0
    rig.finish_all()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_lease_that_could_not_be_made_leaves_nothing_behind() -> None:
    """Its finalizer looked at a number that it never had."""
    rig = build()
    gone = Namespace(salt=b"gone")
    _, cursor = rig.cache.match(PROMPT, namespace=gone)
    for number in range(70):
        rig.cache.match([1], namespace=Namespace(salt=bytes([number])))
    with pytest.raises(StaleError):
        rig.cache.lease(cursor)
    gc.collect()
    rig.cache.check()
    assert rig.cache.tree.stats().leases == 0
    rig.finish_all()


def test_hundred_rounds_leave_every_count_where_it_was() -> None:
    """C5, LMCache#3884: a reference was kept after each load that went well."""
    rig = build(below=(16,))
    rig.serve(PROMPT)
    rig.empty()
    before = rig.cache.usage(), rig.cache.tree.stats().leases
    for _ in range(100):
        live = rig.until_ready(rig.admit(PROMPT))
        rig.end(live, abort=True)
        rig.poll()
        rig.empty()
    assert (rig.cache.usage(), rig.cache.tree.stats().leases) == before
    rig.finish_all()
