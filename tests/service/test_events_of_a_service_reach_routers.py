"""Whoever hears `radix events` knows what a service holds, in memory and on disk, and nothing of
other domains: from the start, after a gap, after a store was closed, after a restart (I32, C67,
C105). Dynamo's index, fed with it, finds of every prompt what is there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from dynamo._core import RadixTree

from radix.errors import ClosedError
from radix.groups import Group
from radix.keys import Namespace, page_keys
from radix.service import ServiceGoneError, hosting
from radix.service.kv_bridge import Bridge
from radix.service.kv_wire import AllBlocksCleared, BlockRemoved, BlockStored
from radix.service.protocol import ProtocolError
from radix.service.watching import Watch
from tests.bridgerig import (
    GROUPS,
    NOBODY,
    PAGE,
    Domain,
    agree,
    bridge_of,
    catch_up,
    router_of,
    write_prompt,
)
from tests.routers import Router, nonempty
from tests.service.program import Program
from tests.service.rig import ROOT, Service, contents, keys_of


def test_routers_know_what_memory_and_disk_hold(tmp_path: Path) -> None:
    with Domain(tmp_path, data=str(tmp_path / "data"), disk_bytes="16MiB") as domain:
        bridge = bridge_of(domain)
        early = router_of(bridge)
        nobody = bridge_of_nobody(tmp_path)
        with pytest.raises(ServiceGoneError):
            nobody.step()
        nobody.close()
        half = {"pool_bytes": 1 << 19}
        with domain.client(**half) as keyed, domain.client(page_tokens=PAGE, **half) as asked:
            agree(domain, bridge, early)
            for turn in range(8):
                names: list[object] = [(turn, i) for i in range(24)]
                keyed.write(keys_of(names), contents(names), namespace=Namespace(f"m{turn % 3}"))
                write_prompt(asked, range(turn * 7, turn * 7 + 5 * PAGE))
                agree(domain, bridge, early)
            keyed.forget(keys_of([(7, 3)]), namespace=Namespace("m1"))
            late = router_of(bridge)  # who was not there at the beginning asks for it
            agree(domain, bridge, early, late)
            places = {place[0] for place in nonempty(late.held)}
            assert places == {"CPU", "STORAGE"}
            assert any(isinstance(event, BlockRemoved) for event in early.events)
            keyed.reset()
            agree(domain, bridge, early, late)
        for router in (early, late):
            router.close()
        bridge.close()


def bridge_of_nobody(folder: Path) -> Bridge:
    return Bridge(lambda: Watch(str(folder / "nobody"), NOBODY), "tcp://127.0.0.1:*")


def test_nothing_is_told_twice_and_positions_are_those_of_the_prompt(tmp_path: Path) -> None:
    with Domain(tmp_path) as domain:
        bridge = bridge_of(domain)
        catch_up(bridge)
        router = router_of(bridge)
        prompt = list(range(7 * PAGE))
        with domain.client(page_tokens=PAGE) as client:
            write_prompt(client, prompt[: 4 * PAGE])
            agree(domain, bridge, router)
            write_prompt(client, prompt)
            agree(domain, bridge, router)
        stored = [event for event in router.events if isinstance(event, BlockStored)]
        names = [name for event in stored for name in event.block_hashes]
        assert len(names) == len(set(names)) == 7
        keys = page_keys(seed_of(domain), np.array(prompt, np.int32), PAGE)
        wanted = keys[:, :8].copy().view("<u8").ravel().tolist()
        assert router.positions == {name: i * PAGE for i, name in enumerate(wanted)}
        assert all(event.extra_keys and event.block_size == PAGE for event in stored)
        router.close()
        bridge.close()


def seed_of(domain: Domain) -> bytes:
    """What the keys of the one namespace chain from: its root key, which begins every id."""
    (seed,) = {event.keys[0, :16].tobytes() for _, event in domain.resident()}
    return seed


def test_a_gap_becomes_cleared_and_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "MOST_EVENTS", 8)
    with Domain(tmp_path) as domain, domain.client() as client:
        bridge = bridge_of(domain)
        client.write(keys_of(["first"]), contents(["first"]))
        router = router_of(bridge)
        agree(domain, bridge, router)
        for turn in range(40):  # each of them some events
            names: list[object] = [(turn, i) for i in range(20)]
            space = Namespace(f"m{turn % 3}")
            client.write(keys_of(names), contents(names), namespace=space)
        domain.idle()
        before = len(router.events)
        agree(domain, bridge, router)
        told = router.events[before:]
        assert sum(isinstance(event, AllBlocksCleared) for event in told) == 1
        router.close()
        bridge.close()


def test_watching_a_store_holds_it_open_for_nobody(tmp_path: Path) -> None:
    """A store that no client has open still makes room for others, and its blocks are told gone."""
    with Domain(tmp_path) as domain:
        bridge = bridge_of(domain)
        router = router_of(bridge)
        with domain.client() as client:
            client.write(keys_of(["a", "b"]), contents(["a", "b"]))
            agree(domain, bridge, router)
            assert len(router.held["CPU", 0]) == 2
        other = [Group.full("other", 1 << 15)]
        with domain.client(other) as client:
            client.write(keys_of(["c"]), contents(["c"], 1 << 15))
            agree(domain, bridge, router)
            assert len(router.held["CPU", 0]) == 1
        router.close()
        bridge.close()


def test_a_store_gets_the_number_of_no_other_that_was_closed(tmp_path: Path) -> None:
    """What is known of the one, the width of its keys say, would be taken for the other's."""
    with Domain(tmp_path) as domain:
        bridge, watch = bridge_of(domain), domain.watch()
        router = router_of(bridge)
        with domain.client() as client:
            client.write(keys_of(["a", "b"]), contents(["a", "b"]))
            agree(domain, bridge, router)
        (first,) = watch.stores()
        with domain.client([Group.full("other", 1 << 15)], page_tokens=PAGE) as client:
            prompt = range(3 * PAGE)
            write_prompt(client, prompt, 1 << 15)
            agree(domain, bridge, router)
            assert len(router.held["CPU", 0]) == 3
            (second,) = watch.stores()
        assert second.number != first.number and second.key_bytes != first.key_bytes
        with pytest.raises(ClosedError, match=f"store {first.number} was closed"):
            watch.events(first, 0)
        with pytest.raises(ClosedError, match=f"store {first.number} was closed"):
            list(watch.resident(first))
        with pytest.raises(ProtocolError, match="was not opened"):
            watch.events(replace(second, number=second.number + 1), 0)
        watch.close()
        router.close()
        bridge.close()


def test_a_restarted_service_is_told_anew(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    spaces = [Namespace(f"m{number}") for number in range(3)]
    with Domain(tmp_path, data=data) as domain, domain.client() as client:
        bridge = bridge_of(domain)
        router = router_of(bridge)
        names: list[object] = list(range(20))
        for name in spaces:  # each a namespace, and a list of its own
            client.write(keys_of(names), contents(names), namespace=name)
        agree(domain, bridge, router)
    with pytest.raises(ServiceGoneError):
        bridge.step()
    router.hear(bridge.stream.batches)
    assert not nonempty(router.held) and isinstance(router.events[-1], AllBlocksCleared)
    with Domain(tmp_path, data=data) as domain, domain.client() as client:
        bridge._connect = domain.watch
        for name in spaces:
            assert (client.has(keys_of(names), namespace=name) == 1).all()
        agree(domain, bridge, router)
        assert len(router.held["STORAGE", 0]) == 60 and "CPU" not in router.held
    router.close()
    bridge.close()


def test_numbers_of_another_life_are_lost_and_never_taken_for_its_own(tmp_path: Path) -> None:
    numbers = []
    for _ in range(2):
        with Domain(tmp_path) as domain, domain.client() as client:
            for since in numbers:
                assert client.events(since).lost
            client.write(keys_of(["a", "b"]), contents(["a", "b"]))
            domain.idle()
            told = client.events(0)
            assert told.events and not told.lost
            numbers += [told.following, told.following - 1]
            assert not client.events(told.following).lost


def test_dynamo_finds_of_each_prompt_what_the_service_holds(tmp_path: Path) -> None:
    """By their keys, which tell a page and all before it: a service never sees tokens again."""
    rng = random.Random(3)
    with Domain(tmp_path, host_bytes="1MiB") as domain:
        bridge, tree, count = bridge_of(domain), RadixTree(), 0
        router = router_of(bridge)

        def apply(event: Any) -> None:
            nonlocal count
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                data: Any = "cleared"
            elif kind == "BlockRemoved":
                data = {"removed": {"block_hashes": list(event.block_hashes)}}
            else:
                blocks = [
                    {"block_hash": name, "tokens_hash": name, "mm_extra_info": None}
                    for name in event.block_hashes
                ]
                for block in blocks:
                    stored = {"stored": {"parent_hash": None, "blocks": [block]}}
                    tell(tree, count, stored)
                    count += 1
                return
            tell(tree, count, data)
            count += 1

        router.apply = apply  # type: ignore[method-assign]  # Dynamo's tree instead of ours
        partly = 0
        with domain.client(page_tokens=4) as client:
            prompts: list[list[int]] = []
            for _ in range(60):
                prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 40) * 4)]
                prompts.append(prompt)
                write_prompt(client, prompt)
                domain.idle()
                catch_up(bridge)
                router.hear(bridge.stream.batches)
                seed = seed_of(domain)
                for known in prompts[-12:]:
                    keys = page_keys(seed, np.array(known, np.int32), 4)
                    there = client.has(keys) >= 0
                    names = keys[:, :8].copy().view("<u8").ravel().tolist()
                    found = [bool(tree.find_matches([name]).scores) for name in names]
                    assert found == there.tolist()
                    partly += 0 < sum(found) < len(found)
        assert partly, "nothing was evicted: it could not be seen whether a removal is told"
        router.close()
        bridge.close()


def tell(tree: RadixTree, number: int, data: Any) -> None:
    event = {"event_id": number, "data": data, "dp_rank": 0}
    tree.apply_event(0, json.dumps(event).encode())


# ---------------------------------------------------------------------- the command
@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "secret"
    file.write_bytes(b"red secret of many bytes")
    file.chmod(0o600)
    yield file


class Publisher:
    """`radix events` as people start it."""

    def __init__(self, *flags: str) -> None:
        endpoints = ("--publish", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radix.cli", "events", *endpoints, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=20)
        told = json.loads(line)
        self.endpoint, self.replay_endpoint = told["publish"], told["replay"]

    def publish(self, events: object) -> None:
        """It answers by itself."""

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def until(router: Router, holds: Callable[[dict[Any, set[Any]]], bool]) -> None:
    """Asks again and again for what it does not know yet."""
    end = time.monotonic() + 60
    while not holds(nonempty(router.held)):
        assert time.monotonic() < end, router.held
        router.again()


def test_the_command_tells_its_own_domain_over_tcp_and_lives_through_a_restart(
    tmp_path: Path, secret: Path
) -> None:
    tenants = {"red": {"secret_file": str(secret)}, "here": {"uids": [os.getuid()]}}
    data = str(tmp_path / "data")
    service = Service(tmp_path, tenants, listen="127.0.0.1:0", data=data)
    address = service.addresses["listen"]
    red = {"tenant": "red", "secret": secret.read_bytes()}
    flags = ("--connect", address, "--tenant", "red", "--secret-file", str(secret))
    names: list[object] = list(range(12))
    from radix.service import Client

    with Publisher(*flags, "--topic", "kv", "--rank", "3") as publisher:
        router = Router(publisher)  # type: ignore[arg-type]  # it has what a router asks of one
        try:
            with service.client() as here, Client(address, GROUPS, **red) as client:
                here.write(keys_of(["of here"]), contents(["of here"]))
                assert client.write(keys_of(names), contents(names)).all()
                both = {("CPU", 0), ("STORAGE", 0)}
                until(router, lambda held: {p for p in held if len(held[p]) == 12} == both)
                heard = {name[16:] for name in router.held["CPU", 0]}
                assert heard == {row.tobytes() for row in keys_of(names)}
            service.kill()
            until(router, lambda held: not held)
            service = Service(tmp_path, tenants, listen=address, data=data)
            with Client(address, GROUPS, **red) as client:
                assert (client.has(keys_of(names)) == 1).all()
                until(router, lambda held: list(map(len, held.values())) == [12])
        finally:
            service.kill()
            router.close()
        publisher.process.send_signal(signal.SIGTERM)
        out, told = publisher.process.communicate(timeout=30)
        assert publisher.process.returncode == 0 and "trying again" in told and not out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--connect", "nowhere"), "--connect"),
        (("--publish", "tcp://127.0.0.1:nothing"), "--publish"),
        (("--every", "soon"), "--every"),
        (("--rank", "first"), "--rank"),
        (("--secret-file", "/dev/null/none"), "--secret-file"),
        (("--tls-key", "key"), "--tls-key"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    flags: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from radix.cli import main

    assert main(["events", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and told in lines[0]


def test_who_is_no_tenant_is_told_so(tmp_path: Path, secret: Path) -> None:
    tenants = {"red": {"secret_file": str(secret)}}
    with Service(tmp_path, tenants, listen="127.0.0.1:0") as service:
        for flags in (("--connect", f"unix:{service.path}"), ("--connect", service.path)):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "radix.cli",
                    "events",
                    "--publish",
                    "tcp://127.0.0.1:*",
                    *flags,
                ],
                capture_output=True,
                text=True,
                timeout=60,
                cwd=ROOT,
            )
            assert done.returncode == 1 and "no tenant" in done.stderr


def test_a_service_program_is_followed_from_its_socket(tmp_path: Path) -> None:
    with Program(tmp_path) as program, Publisher("--connect", program.path) as publisher:
        subscriber = zmq.Context()
        link = subscriber.socket(zmq.SUB)
        link.connect(publisher.endpoint)
        link.setsockopt(zmq.SUBSCRIBE, b"")
        router = Router(publisher)  # type: ignore[arg-type]  # it has what a router asks of one
        with program.client() as client:
            client.write(keys_of(["one"]), contents(["one"]))
            until(router, lambda held: list(map(len, held.values())) == [1])
        router.close()
        subscriber.destroy(linger=0)
