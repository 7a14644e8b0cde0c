"""Slots that are taken and given back by several threads stay unique, and their count right: each
call has the cache to itself or is refused whole (C73; I7, I8).
"""

from __future__ import annotations

import random
import threading

import numpy as np

from radix.errors import BusyError, CacheError
from tests.cacherig import build

TURNS = 3000


def test_two_threads_that_take_and_give_slots_lose_none() -> None:
    """C73, LMCache#1858: free() ran without the lock that alloc() took; the free list got a slot
    twice. Here a call that would run beside another is refused, and changes nothing.
    """
    rig = build(device=16, events=False)
    cache, wrong = rig.cache, []
    taken: set[int] = set()
    lock = threading.Lock()

    def engine(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(TURNS):
            request = None
            try:
                request = cache.admit(np.full(rng.randint(1, 24), seed, np.int32))
                mine = set(request._work.held[0].private().tolist())
                with lock:
                    if mine & taken:
                        wrong.append(mine & taken)
                    taken.update(mine)
            except BusyError:
                continue
            except CacheError as error:
                if "needed" not in str(error):
                    wrong.append(error)
            while request is not None:
                with lock:
                    taken.difference_update(mine)
                try:
                    request.abort()
                    break
                except BusyError:
                    with lock:
                        taken.update(mine)

    threads = [threading.Thread(target=engine, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    cache.poll()
    cache.check()
    assert cache.usage()["device"].used_blocks == (0,)
    cache.close()
