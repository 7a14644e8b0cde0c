"""The engine-driven calls of a cache, of one request and of a step's, never give up the
interpreter's lock: beside a thread that computes, each time that one does costs tens of
microseconds. An insert or an eviction did at each count of a pool.

A second thread waits for the lock, and the interpreter is told to force nobody: the thread gets it
only where a call lets go. A call that does is seen to be seen first.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from radix._native import lib
from radix.cache import PrefixCache
from radix.groups import Group, Retention
from radix.layout import Layout
from tiers.index import IndexTier

REPEATS = 2000
NEVER_S = 1000.0


def gives_up_the_lock(call: Callable[[], object]) -> bool:
    """Whether another thread got to run while ``call`` did, many times over."""
    start, ran = threading.Lock(), []
    start.acquire()
    forced = sys.getswitchinterval()

    def wait() -> None:
        with start:
            ran.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    while not thread.ident:
        time.sleep(0.001)
    time.sleep(0.02)  # it waits for `start` by now
    gc.collect()
    gc.disable()  # what earlier tests left behind may let go of the lock where it ends
    sys.setswitchinterval(NEVER_S)
    try:
        start.release()
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:  # it waits for the interpreter's lock by now
            pass
        assert not ran
        for _ in range(REPEATS):
            call()
        return bool(ran)
    finally:
        gc.enable()
        sys.setswitchinterval(forced)
        thread.join()


@pytest.mark.parametrize("mixed", [False, True], ids=["full", "mixed"])
def test_no_call_of_a_cache_that_an_engine_drives_gives_it_up(mixed: bool) -> None:
    if not any(gives_up_the_lock(lib.rdx_dispatch_get) for _ in range(50)):
        pytest.skip("this machine hands the lock over too slowly to see it")
    one = Layout.opaque(1)
    more = [Group("near", one, Retention("window", 64)), Group("state", one, Retention("state"))]
    groups = [Group.full("kv", 1), *(more if mixed else [])]
    pages = 24
    with PrefixCache(groups, [IndexTier([pages, 20, 4][: len(groups)])], page_tokens=16) as cache:
        rng = np.random.default_rng(1)
        prompts = list(rng.integers(0, 1000, (4, 16 * 8), dtype=np.int32))
        served = 0

        def single() -> None:
            nonlocal served
            prompt = prompts[served % 4]
            served += 1
            _, cursor = cache.match(prompt, leave=0)
            with cache.lease(cursor if not mixed else cursor._replace(pages=0)) as lease:
                cache.insert(prompt, lease, boundaries=[64] if mixed and not lease.pages else [])
            cache.evict(0, 3)

        def step() -> None:
            nonlocal served
            served += 2
            pair = [prompts[served % 4], prompts[(served + 1) % 4]]
            found = cache.match_many(pair, leave=0)
            at = [found.cursor(0), found.cursor(1)]
            leases = cache.lease_many([c._replace(pages=0) for c in at] if mixed else at)
            cache.insert_many(pair, leases)
            cache.release_many(leases)
            cache.evict(0, 3)

        for call in (single, step):
            call()
            assert not gives_up_the_lock(call), call.__name__
        cache.check()
        assert cache.counters()["evict.blocks.device.kv"] > REPEATS
