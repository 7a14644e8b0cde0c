"""``RadixServiceTier`` under vLLM's own host pool, over a real service in a process of its own:
what one engine stored another loads, by configuration alone; a service that dies is a miss and no
more, and every job is answered once. At the end two engines of a tiny model, one that prefills and
one that decodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.tiering.base import JobResult

from radix.engines.vllm import service_tier
from tests.counting import memory_of
from tests.service.rig import Service
from tests.vllm.models import LLAMA
from tests.vllm.rig import Engine, prompt
from tests.vllm.secondaryrig import ROW_BYTES, Host, content, key
from tests.vllm.test_secondary_in_a_real_vllm import LENGTH, REACHABLE, tiering, tokens

WAIT_S = 30.0


class ServedHost(Host):
    """A host pool of vLLM's over a service."""

    def __init__(self, service: Service, **given: Any) -> None:
        settings = {"timeout_s": 2.0, **given}
        shown = {name: settings.pop(name) for name in ("config", "shown") if name in settings}
        entry = {
            "type": "RadixServiceTier",
            "module_path": "radix.engines.vllm",
            "service": service.path,
        }
        super().__init__(Path("unused"), entry=entry | settings, **shown)

    def results(self) -> dict[int, JobResult]:
        found: dict[int, JobResult] = {}
        end = time.monotonic() + WAIT_S
        while self.tier.has_pending_work():
            assert time.monotonic() < end
            time.sleep(0.002)
            for result in self.tier.get_finished_jobs():
                assert result.job_id not in found
                found[result.job_id] = result
        return found

    def answers(self, *names: bytes) -> str:
        """As ``lookup``, asked until nothing is to be asked again."""
        end = time.monotonic() + WAIT_S
        while "R" in (found := self.lookup(*names)):
            assert time.monotonic() < end
            time.sleep(0.002)
        return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, data=str(tmp_path / "data")) as running:
        yield running
        if running.process.poll() is None:
            running.check()


def test_an_answer_costs_nothing_for_all_that_are_believed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: with more than 65,536 answers, those of one long context, each further one copied
    them all, under the lock that the scheduler's lookups take.
    """
    monkeypatch.setattr(service_tier, "_KNOWN_S", {True: 1e9, False: 1e9})
    with ServedHost(service) as host:
        host.tier._learn({key(number): True for number in range(70_000)})
        costs = [memory_of(partial(host.tier._learn, {key(at, 1): True})) for at in range(8)]
        assert sorted(costs)[4] < 100_000, costs
        assert host.lookup(key(69_999), key(7, 1)) == "HH"
        for number, (there, _) in list(host.tier._known.items()):
            host.tier._known[number] = there, 0.0
        host.tier._learn({key(number, 2): True for number in range(80_000)})
        host.tier._learn({key(1, 1): True})
        assert len(host.tier._known) == 80_001, "what is believed no more goes"


def test_what_one_engine_stored_another_loads(service: Service) -> None:
    names = [key(1), key(2, 1), key(3), key(1, 1)]
    with ServedHost(service) as first, ServedHost(service) as second:
        assert first.answers(*names) == "MMMM"
        assert first.store(names, [3, 9, 0, 7]).success
        time.sleep(0.3)  # what was a miss is believed to be one for so long
        assert second.answers(*names, key(9)) == "HHHHM"
        loaded = second.load(names, [10, 11, 12, 13])
        assert (loaded.success, loaded.transfer_bytes) == (True, 4 * ROW_BYTES)
        assert [second.row(10 + i) for i in range(4)] == [content(name) for name in names]
        assert first.tier.counts["faults"] == second.tier.counts["faults"] == 0


def test_engines_of_another_model_share_nothing(service: Service) -> None:
    with ServedHost(service) as first, ServedHost(service, revision="r2") as other:
        assert first.store([key(1)], [0]).success
        assert other.answers(key(1)) == "M"
        result = other.load([key(1)], [0])
        assert (result.success, result.successful_keys) == (False, None)


def test_a_load_of_which_some_is_gone_names_what_came(service: Service) -> None:
    with ServedHost(service) as host:
        assert host.store([key(1), key(3)], [0, 1]).success
        result = host.load([key(1), key(2), key(3)], [5, 6, 7])
        assert not result.success and set(result.successful_keys) == {key(1), key(3)}
        assert (host.row(5), host.row(7)) == (content(key(1)), content(key(3)))


def test_after_a_reset_nothing_older_is_found_by_this_engine(service: Service) -> None:
    with ServedHost(service) as host, ServedHost(service) as other:
        assert host.store([key(1)], [0]).success
        host.tier.drain_jobs()
        assert host.answers(key(1)) == "M"
        assert host.store([key(2)], [1]).success
        assert host.answers(key(1), key(2)) == "MH"
        assert other.answers(key(1), key(2)) == "HM"


def test_a_service_that_dies_is_a_miss_and_every_job_is_answered(service: Service) -> None:
    with ServedHost(service, timeout_s=1.0) as host:
        assert host.store([key(1)], [0]).success
        service.kill()
        host.fill([1], [key(2)])
        jobs = [host.submit([key(1)], [5], load=True), host.submit([key(2)], [1])]
        results = host.results()
        assert [results[job].success for job in jobs] == [False, False]
        host.tier._known.clear()
        assert host.answers(key(1), key(2)) == "MM"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"tenant": 7}, "tenant must be text"),
        ({"sockets": "x"}, "unknown keys sockets"),
        ({"pool_bytes": -1}, "pool_bytes"),
        ({"after_reset": "forget"}, "after_reset must be one of"),
    ],
)
def test_options_are_refused_by_name(service: Service, given: dict[str, Any], what: str) -> None:
    with pytest.raises((ValueError, TypeError), match=what):
        ServedHost(service, **given)


def test_one_engine_prefills_and_another_decodes(
    start: Callable[..., Engine], service: Service
) -> None:
    connector = tiering(Path("unused"), 20)
    connector["kv_connector_extra_config"]["secondary_tiers"] = [
        {
            "type": "RadixServiceTier",
            "module_path": "radix.engines.vllm",
            "service": service.path,
        }
    ]
    asked = [prompt(number, LENGTH) for number in range(3)]
    with start(LLAMA, connector) as prefills:
        cold = [prefills.generate([one], 12) for one in asked]
        assert sum(outcome.cached_tokens for each in cold for outcome in each) == 0
        with start(LLAMA, connector) as decodes:  # both at once, over one service
            warm = [decodes.generate([one], 12) for one in asked]
            assert list(map(tokens, warm)) == list(map(tokens, cold))
            hit = sum(outcome.cached_tokens for each in warm for outcome in each)
            assert hit >= 3 * REACHABLE
