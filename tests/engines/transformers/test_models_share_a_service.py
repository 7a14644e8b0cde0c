"""Models over a service, by naming it: the tokens are those of ``generate`` without a cache; what
one process stored another hits, after a restart of the service too; and of a service that dies only
the hits are missing (I24). The service is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from radix.engines.transformers import PrefixGenerator
from radix.service import DeniedError
from radix.service.backend import Service as Where
from radix.tier import TierMode
from tests.engines.transformers.families import BY_NAME, model_of
from tests.engines.transformers.talks import Fed, Talks, cold, prompt_of
from tests.service.rig import Service
from tiers.host import HostTier

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["Llama", "Gemma3", "Qwen3-Next", "Falcon-H1", "DeepSeek-V3"]
NEW = 8
PAGE = 16
OTHER = """
import json, sys
import torch
from tests.engines.transformers.families import model_of
from radix.engines.transformers import PrefixGenerator
from tiers.host import HostTier
torch.set_num_threads(1)
name, address, prompts = json.loads(sys.argv[1])
with PrefixGenerator(model_of(name), [HostTier(16 << 20)], service=address) as cached:
    out = [cached.generate(ids, max_new_tokens=8, do_sample=False).tolist() for ids in prompts]
    print(json.dumps([out, dict(cached.counters)]))
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with _service(tmp_path) as running:
        yield running
        if running.process.poll() is None:
            running.check()


def _service(folder: Path, **flags: str) -> Service:
    return Service(folder, data=str(folder / "data"), **flags)


def _over(name: str, where: Where | str, **options: Any) -> PrefixGenerator:
    """A model with a host tier that is new, over a service."""
    return PrefixGenerator(
        model_of(name), [HostTier(16 << 20)], service=where, page_tokens=PAGE, **options
    )


def _served(cached: PrefixGenerator, tier: str = "service") -> int:
    return cached.counters.get(f"match.hit_tokens.{tier}", 0)


def _answer(cached: PrefixGenerator, ids: torch.Tensor) -> Any:
    return cached.generate(ids, max_new_tokens=NEW, do_sample=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_one_generator_stored_another_hits_and_after_a_restart_too(
    name: str, tmp_path: Path
) -> None:
    """All but the last page of 100 tokens, with the tokens of a cold run, and only the rest fed."""
    ids = prompt_of(1)
    expected = cold(model_of(name), ids, NEW).tolist()
    with _service(tmp_path) as service:
        with _over(name, service.path) as first:
            assert _answer(first, ids).tolist() == expected
            assert _served(first) == 0
        with _over(name, service.path) as second, Fed(second.model) as fed:
            assert _answer(second, ids).tolist() == expected
            assert (_served(second), _served(second, "host")) == (96, 0)
            assert fed.tokens == 100 + NEW - 1 - 96
            second.check()
        assert service.drain() == 0
    with _service(tmp_path) as service:
        with _over(name, service.path) as third:
            assert _answer(third, ids).tolist() == expected
            assert _served(third) == 96
        service.check()


def test_two_processes_share_one_service(service: Service) -> None:
    """Each hits what the other stored, while both are there."""
    name, ids, more = "Qwen3-Next", prompt_of(2), prompt_of(3)
    with _over(name, service.path) as cached:
        _answer(cached, ids)
        cached.flush()
        given = json.dumps([name, service.path, [ids.tolist(), more.tolist()]])
        done = subprocess.run(
            [sys.executable, "-c", OTHER, given],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        tokens, counters = json.loads(done.stdout.splitlines()[-1])
        assert tokens == [cold(cached.model, each, NEW).tolist() for each in (ids, more)]
        assert counters["match.hit_tokens.service"] == 96, counters
        assert _answer(cached, more).tolist() == cold(cached.model, more, NEW).tolist()
        assert _served(cached) == 96


def test_over_tcp_it_is_the_same(tmp_path: Path) -> None:
    """With a secret; another machine's client and one of this machine share what they store."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of thirty-two bytes, yes")
    secret.chmod(0o600)
    tenants = {"here": {"uids": [os.getuid()], "secret_file": str(secret)}}
    ids, expected = prompt_of(9), cold(model_of("Gemma3"), prompt_of(9), NEW).tolist()
    with Service(tmp_path, tenants, listen="127.0.0.1:0") as service:
        far = Where(service.addresses["listen"], tenant="here", secret=secret.read_bytes())
        for where, hit in ((far, 0), (far, 96), (service.path, 96)):
            with _over("Gemma3", where) as cached:
                assert _answer(cached, ids).tolist() == expected
                assert _served(cached) == hit
        service.check()


@pytest.mark.parametrize("name", ["Gemma3", "Falcon-H1"])
def test_conversations_with_branches_get_the_same_tokens(name: str, service: Service) -> None:
    """Two generators take turns in the same conversations; each turn is checked against cold."""
    model = model_of(name)
    talks = Talks(model, 5, 2)
    with _over(name, service.path) as one, _over(name, service.path) as other:
        for step in range(8):
            cached = (one, other)[step % 2]
            talks.turn(cached, step // 2 % 2)
            cached.flush()
            cached.check()
        assert _served(one) and _served(other)
        assert talks.counts["hit"] >= 0.4 * talks.counts["prompt"], talks.counts


def test_a_service_that_dies_costs_hits_and_comes_back(tmp_path: Path) -> None:
    """Killed while a generator is open, and not there when one opens: the tokens are right. Once it
    is there again what was durable is hit, by who was there all the time too.
    """
    name, ids = "Gemma3", prompt_of(4)
    expected = cold(model_of(name), ids, NEW).tolist()
    quick = Where(str(tmp_path / "radix.sock"), timeout_s=1.0)
    with _service(tmp_path) as service, _over(name, quick) as cached:
        _answer(cached, ids)
        cached.flush()
        service.until(lambda told: not told["stores"][0]["transfers_under_way"])
        service.kill()
        for seed in (5, 6):
            more = prompt_of(seed)
            assert _answer(cached, more).tolist() == cold(cached.model, more, NEW).tolist()
        assert _answer(cached, ids).tolist() == expected
        assert _served(cached, "host") == 96
        with _over(name, quick) as opened:
            assert _answer(opened, ids).tolist() == expected
            assert _served(opened) == 0
            opened.cache.reset()  # needs no answer
            assert _answer(opened, ids).tolist() == expected
            opened.check()
        with _service(tmp_path) as again:
            end = time.monotonic() + 60.0
            while cached.cache.tiers[-1].mode is not TierMode.ON:
                assert time.monotonic() < end
                time.sleep(0.05)
                cached.cache.poll()
            cached.cache.evict(0, 1 << 30, tier=0)
            cached.cache.evict(1, 1 << 30, tier=0)
            assert _answer(cached, ids).tolist() == expected
            assert _served(cached) == 96
            again.check()
        cached.check()


def test_what_computes_otherwise_is_a_miss(service: Service) -> None:
    """Other weights, another tenant's salt: under one service, and its own is hit again."""
    model, ids = model_of("Llama"), prompt_of(7)
    other = BY_NAME["Llama"].model(1)
    for one, salt, hit in (
        (model, b"", 0),
        (other, b"", 0),
        (model, b"b", 0),
        (other, b"", 96),
        (model, b"", 96),
    ):
        with PrefixGenerator(one, [HostTier(16 << 20)], service=service.path, salt=salt) as cached:
            assert _answer(cached, ids).tolist() == cold(one, ids, NEW).tolist()
            assert _served(cached) == hit


def test_a_reset_hides_what_is_older_from_this_process_alone(service: Service) -> None:
    ids = prompt_of(8)
    with _over("Llama", service.path) as cached, _over("Llama", service.path) as other:
        _answer(cached, ids)
        cached.flush()
        cached.cache.reset()
        expected = cold(cached.model, ids, NEW).tolist()
        assert _answer(cached, ids).tolist() == expected
        assert _served(cached) == _served(cached, "host") == 0
        assert _answer(other, ids).tolist() == expected
        assert _served(other) == 96


def test_what_a_service_refuses_is_told_and_leaves_nothing_open(tmp_path: Path) -> None:
    """A tenant that may not name this model; an address that is none."""
    tenants = {"chats": {"uids": [os.getuid()], "namespaces": ["other"]}}
    with Service(tmp_path, tenants) as service, pytest.raises(DeniedError, match="llama"):
        _over("Llama", service.path)
    with pytest.raises(ValueError, match="host:port"):
        _over("Llama", "nowhere")
    with pytest.raises(TypeError, match="address must be text"):
        Where(7)  # type: ignore[arg-type]  # what a user may write


def test_what_is_refused_leaves_no_connection_behind(service: Service) -> None:
    """Fault: a generator that was refused for another argument kept its connections. Mechanism: the
    cache closes the tiers that it has opened, and it had opened none. Source: a reader.
    """
    with pytest.raises(ValueError, match="policy"):
        _over("Llama", service.path, policy="nonsense")
    service.until(lambda status: not status["connections"])
