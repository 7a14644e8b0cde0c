"""The fault: a disk whose loads failed eight times in a row is taken out and tried again a second
later, by the clock of its store. Those of the adapters had none and count no steps, so that a disk
that was away for a moment stayed out until the engine was started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.spec import RadixOffloadingSpec
from radix.policy.limits import Breaker
from radix.store import FlatStore
from radix.tier import TierMode
from tests.vllm.secondaryrig import Host
from tests.vllm.workerrig import config_of

Opened = Callable[[Path], Iterator[FlatStore]]


def offloading(directory: Path) -> Iterator[FlatStore]:
    config = config_of()
    config.extra_config.update(directory=str(directory), disk_bytes=256 << 20)
    store = RadixOffloadingSpec(config)._store(Geometry(1, 1, (0,), ((4096,),)))
    yield store
    store.close()


def secondary(directory: Path) -> Iterator[FlatStore]:
    with Host(directory) as host:
        yield host.tier.store


@pytest.mark.parametrize("opened", [offloading, secondary])
def test_a_disk_that_was_taken_out_is_tried_again(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    with contextmanager(opened)(tmp_path) as store:
        monkeypatch.undo()
        number, settings = len(store.tiers) - 1, Breaker()
        disk = store.tiers[number]
        for _ in range(settings.failures):
            store.transfers.breakers.ended(number, storing=False, good=False)
        store.poll()
        assert disk.mode is TierMode.OFF
        assert settings.retry.ns is not None
        now[0] += settings.retry.ns
        store.poll()
        assert disk.mode is TierMode.ON
