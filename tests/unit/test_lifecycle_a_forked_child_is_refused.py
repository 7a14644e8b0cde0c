"""A cache does not survive a fork: every call in the child raises and names the fork, whatever a
thread of the parent was doing meanwhile, and the parent goes on (C96 one layer up).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from radix.cache import PrefixCache
from radix.errors import ClosedError
from tests.cacherig import GROUPS, Rig, build
from tiers.device import DeviceTier
from tiers.disk import DiskTier

PROMPT = list(range(10))


def _in_child(body: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_call_in_a_forked_child_names_the_fork() -> None:
    rig = build(below=(16,))
    cache = rig.cache
    live = rig.until_ready(rig.admit(PROMPT))
    lease = cache.lease(cache.match(PROMPT)[1])

    def body() -> None:
        for call in (
            cache.poll,
            cache.usage,
            cache.check,
            lambda: cache.match(PROMPT),
            lambda: cache.admit(PROMPT),
            lambda: live.request.computed(10),
            live.request.finish,
            lambda: lease.move(lease.cursor),
        ):
            with pytest.raises(ClosedError, match="fork"):
                call()
        lease.release()  # nothing is held here
        cache.close()
        with pytest.raises(ClosedError, match="fork"):
            cache.poll()

    _in_child(body)
    rig.compute(live, 10)
    lease.release()
    rig.end(live)
    rig.settle()
    assert cache.explain(PROMPT).hit_tokens == 8
    rig.finish_all()
    cache.close()


def test_child_forked_while_a_thread_is_inside_is_refused_for_the_fork_alone() -> None:
    """The lock of a thread that does not exist in the child would say busy for ever."""
    rig = build()
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with rig.cache.gate:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(10)

    def body() -> None:
        with pytest.raises(ClosedError, match="fork"):
            rig.cache.poll()

    try:
        _in_child(body)
    finally:
        leave.set()
        thread.join()
    rig.finish_all()
    rig.cache.close()


def test_a_child_leaves_the_directory_of_its_parent_alone(tmp_path: Path) -> None:
    def opened() -> Rig:
        disk = DiskTier(tmp_path / "disk", limit_bytes=2 << 20, segment_bytes=1 << 16)
        device = DeviceTier(blocks=16, device="cpu")
        return Rig(PrefixCache(GROUPS[:1], [device, disk], page_tokens=4, events=True), device)

    rig = opened()
    rig.serve(PROMPT)
    _in_child(rig.cache.close)
    rig.serve([5] * 10)
    rig.finish_all()
    rig.cache.close()
    again = opened()
    assert again.cache.explain(PROMPT).tiers == {"disk": 8}
    assert again.cache.explain([5] * 10).tiers == {"disk": 8}
    again.cache.close()
