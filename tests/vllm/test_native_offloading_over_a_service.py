"""``RadixOffloadingSpec`` over a service, by one key of its configuration: what one engine stored
another loads, with the tokens of the cold run, by vLLM's own count; and a service that dies costs
hits and no token. Real engines, and a service in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.rig import Service
from tests.vllm import scenario
from tests.vllm.models import MODELS
from tests.vllm.rig import Engine, offloading
from tests.vllm.scenario import MIB, REACHABLE, Counted, Record

Start = Callable[..., Engine]
SERVED = "vllm:radix_loaded_blocks{tier=service}"


def over(address: str, **given: Any) -> dict[str, Any]:
    """The connector's configuration: host memory, and below it the service."""
    return offloading(**{"host_bytes": 64 * MIB, "service": address, "timeout_s": 10.0} | given)


def serving(folder: Path) -> Service:
    """A service with room for the prompts of the tests."""
    room = {"host_bytes": "128MiB", "disk_bytes": "256MiB"}
    return Service(folder, data=str(folder / "data"), **room)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as running:
        yield running
        if running.process.poll() is None:
            running.check()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
def test_the_second_engine_loads_what_the_first_one_stored(
    name: str, start: Start, service: Service, record: Record
) -> None:
    """At least 1,472 of 1,500 tokens (1,280 of the hybrid), by vLLM's own counters, and the same
    tokens, as likely.
    """
    model, asked = MODELS[name], scenario.prompts(1)
    with start(model, over(service.path)) as first:
        cold = first.generate(asked, logprobs=True)
        assert cold[0].cached_tokens == 0 and scenario.varied(cold)
    with start(model, over(service.path)) as second:
        counted = Counted(second)
        warm = second.generate(asked, logprobs=True)
        equal = scenario.same_tokens(cold, warm)
        row, grown = scenario.row("from a service", model, "one process", counted, equal=equal)
        record(row)
        assert equal, (cold, warm)
        assert scenario.same_logprobs(model, cold, warm)
        assert row.vllm_hits == warm[0].cached_tokens >= REACHABLE[name]
        assert grown.get(SERVED, 0) > 0, grown


@pytest.mark.timeout(900)
def test_a_service_that_dies_costs_hits_and_the_engine_goes_on(
    start: Start, service: Service
) -> None:
    asked = scenario.prompts(1, 2)
    with start(MODELS["llama"], over(service.path, timeout_s=2.0, wait_s=5.0)) as engine:
        cold = engine.generate(asked[:1], 12)
        service.kill()
        assert engine.reset()
        again = engine.generate(asked[:1], 12)  # from host memory
        assert scenario.same_tokens(cold, again)
        assert again[0].cached_tokens >= REACHABLE["llama"]
        other = engine.generate(asked[1:], 12)
        assert other[0].cached_tokens == 0 and scenario.varied(other)
        assert engine.reset(connector=True)
        assert scenario.same_tokens(cold, engine.generate(asked[:1], 12))
