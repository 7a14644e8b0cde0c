"""What the tier tells of itself: through vLLM's cache events, what is in the directory, so that a
router may follow; through vLLM's metrics, what happened, each once (I32, I34).
"""

from __future__ import annotations

from pathlib import Path

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    Medium,
    OffloadingCounterMetadata,
    ReqContext,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from radix.engines.vllm import RadixDiskTier
from radix.engines.vllm.disk_metrics import COUNTERS, GAUGES, PREFIX
from tests.vllm.secondaryrig import Host, config, key
from tests.vllm.test_secondary_stays_within_its_limit import capacity, small


class Follower:
    """Who knows of a directory what its events told."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()

    def follow(self, host: Host) -> None:
        assert list(host.tier.get_finished_jobs()) == [], "the engine polls before it asks"
        for event in host.tier.take_events():
            assert event.medium is Medium.STORAGE
            for name in event.keys:
                assert (name in self.known) is event.removed, "stored and removed in turn"
            (self.known.difference_update if event.removed else self.known.update)(event.keys)


def listening() -> dict[str, object]:
    return {"config": config(enable_kv_cache_events=True)}


def test_events_name_what_the_directory_has(tmp_path: Path) -> None:
    follower = Follower()
    with Host(tmp_path, small(), **listening()) as host:
        most = capacity(host)
        asked = [key(n, n % 2) for n in range(2 * most)]
        for first in range(0, 2 * most, 10):
            part = asked[first : first + 10]
            host.store(part, range(len(part)))
            follower.follow(host)
        there = {name for name in asked if host.lookup(name) == "H"}
        assert follower.known == there
        assert len(there) < len(asked)


def test_what_a_restart_finds_is_told_once_it_is_known_whose_it_is(tmp_path: Path) -> None:
    names = [key(n, n % 2) for n in range(10)]
    with Host(tmp_path) as host:
        host.store(names, range(10))
        assert list(host.tier.take_events()) == [], "nobody listens"
    follower = Follower()
    with Host(tmp_path, **listening()) as host:
        follower.follow(host)
        assert not follower.known
        host.tier.on_new_request(ReqContext("r"))
        follower.follow(host)
        assert follower.known == set(names)


def test_blocks_of_another_model_are_not_told(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store([key(0)], [0])
    with Host(tmp_path, config=config(model="another", enable_kv_cache_events=True)) as host:
        host.tier.on_new_request(ReqContext("r"))
        assert list(host.tier.take_events()) == []


def test_a_reset_takes_back_what_was_told_and_says_nothing_of_what_is_hidden(
    tmp_path: Path,
) -> None:
    """The engine itself tells those who follow that all is cleared."""
    with Host(tmp_path, small(), **listening()) as host:
        host.store([key(n) for n in range(10)], range(10))
        host.tier.drain_jobs()
        follower = Follower()
        for first in range(0, 3 * capacity(host), 10):
            host.store([key(n) for n in range(first, first + 10)], range(10))
            follower.follow(host)
        assert follower.known == {
            name for n in range(4 * capacity(host)) if host.lookup(name := key(n)) == "H"
        }


def test_nothing_is_told_after_the_shutdown(tmp_path: Path) -> None:
    with Host(tmp_path, **listening()) as host:
        host.store([key(0)], [0])
        host.tier.shutdown()
        assert list(host.tier.take_events()) == []


def test_every_metric_that_is_told_was_declared(tmp_path: Path) -> None:
    declared = RadixDiskTier.build_metric_definitions({"type": "RadixDiskTier"})
    assert set(declared) == {PREFIX + name for name in (*COUNTERS, *GAUGES)}
    with Host(tmp_path) as host:
        host.lookup(key(0))
        host.store([key(0)], [0])
        stats = host.tier.get_stats()
        assert isinstance(stats, OffloadingConnectorStats)
        for name, by_label in stats.data["data"].items():
            assert len(declared[name].labelnames) == len(next(iter(by_label)))
            kind = stats.data["types"][name]
            assert (kind == "counter") is isinstance(declared[name], OffloadingCounterMetadata)


def test_the_spec_of_the_engine_declares_them(tmp_path: Path) -> None:
    entry = {"type": "RadixDiskTier", "module_path": "radix.engines.vllm"}
    declared = TieringOffloadingSpec.build_metric_definitions({"secondary_tiers": [entry]})
    assert {PREFIX + name for name in COUNTERS} <= set(declared)


def test_each_count_is_told_once(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.lookup(key(0), key(1))
        host.store([key(0)], [0])
        host.lookup(key(0), key(1))
        told = host.counted()
        assert (told["lookup_hits"], told["lookup_misses"]) == (1, 3)
        assert (told["stored_blocks"], told["blocks"]) == (1, 1)
        assert host.counted() == {}, "nothing is new"
        host.lookup(key(0))
        assert host.counted() == {"lookup_hits": 1}


def test_what_was_asked_adds_up(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(n) for n in range(12)]
        host.store(names[:6], range(6))
        host.store(names[3:9], range(6))
        host.load(names, range(12))
        told = host.counted()
        assert told["stored_blocks"] + told["present_blocks"] == 12
        assert told["loaded_blocks"] + told["failed_load_blocks"] == 12
