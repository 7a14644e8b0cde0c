"""Two services over one backend, each a process of its own as on a machine of its own, with clients
in this one: what one stored the other finds, leases and reads, bytes right; domains see nothing of
each other; a RESET and a purge reach the backend; kill -9 loses nothing that is there.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from radix.cli import main
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.service import AsyncClient, Client
from tests.remote.servicesrig import Pair, is_on, remote_blocks
from tests.remoterig import RedisNodes, mooncake_store, redis_nodes
from tests.service.rig import GROUPS, ROOT, SIZE, content, contents, keys_of

NAMES: list[object] = [f"shared {number}" for number in range(24)]
PAGE = 16
PROMPT_GROUPS = [
    Group("full", Layout.opaque(SIZE)),
    Group("near", Layout.opaque(2 * SIZE), Retention("window", 3 * PAGE)),
    Group("state", Layout.opaque(SIZE), Retention("state"), grid_tokens=PAGE),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with redis_nodes() as running:
        yield running


@pytest.fixture
def pair(nodes: RedisNodes, tmp_path: Path) -> Iterator[Pair]:
    nodes.clear()
    with Pair(tmp_path, nodes.url) as services:
        yield services


def leased(client: Client, names: list[object]) -> int:
    """How many of the names a lease holds; the bytes of each are its own."""
    with client.lease(keys=keys_of(names)) as lease:
        for name, block in zip(names, lease.blocks(), strict=True):
            assert block is None or (block == content(name)).all()
        assert lease.intact()
        return int(lease.held().sum())


def test_what_one_stored_the_other_leases(pair: Pair) -> None:
    keys = keys_of(NAMES)
    with pair.one.client() as here, pair.two.client() as there:
        assert (there.has(keys) == -1).all()
        assert here.write(keys, contents(NAMES)).all()
        pair.stored(len(NAMES))
        assert (there.has(keys) == -1).all()  # what nobody asked the backend for is not known
        assert (there.has(keys, seek=True) == 2).all()  # behind memory and disk
        assert leased(there, NAMES) == len(NAMES)
        assert (there.has(keys) == 0).all()
        assert leased(there, [*NAMES, "nobody's"]) == len(NAMES)
    for each in (pair.one, pair.two):
        each.check()


def test_a_lease_alone_finds_it(pair: Pair) -> None:
    with pair.one.client() as here, pair.two.client() as there:
        here.write(keys_of(NAMES), contents(NAMES))
        pair.stored(len(NAMES))
        with there.lease(keys=keys_of(NAMES), load=False) as lease:
            assert not lease.held().any()
        assert leased(there, NAMES) == len(NAMES)
        status = pair.two.status()
        (store,) = status["stores"]
        assert store["asked"]["hits"]["remote"] == len(NAMES)
        assert store["counters"]["load.blocks.remote.kv"] == len(NAMES)
        counted = [store["counters"][f"remote.{what}"] for what in ("found", "loaded", "outages")]
        assert counted == [len(NAMES), len(NAMES), 0]


async def _hit(path: str) -> tuple[int, int]:
    async with AsyncClient(path, GROUPS) as client:
        found = await client.lookup(keys=keys_of(NAMES), leave=0, seek=True)
        there = await client.has(keys_of(NAMES), seek=True)
        return found.pages, int((there >= 0).sum())


def test_it_is_found_by_both_kinds_of_client(pair: Pair) -> None:
    with pair.one.client() as here:
        here.write(keys_of(NAMES), contents(NAMES))
        pair.stored(len(NAMES))
    assert asyncio.run(_hit(pair.two.path)) == (len(NAMES), len(NAMES))


def put_prompt(client: Client, tokens: np.ndarray, pages: int) -> None:
    """Stores what a hit of ``pages`` pages needs, and all of what needs every page."""
    for number, group in enumerate(PROMPT_GROUPS):
        room = client.reserve(tokens=tokens, group=number)
        good = np.zeros(len(room.granted), np.bool_)
        first = 0 if group.name == "full" else pages - (1 if group.name == "state" else 3)
        for page in range(first, pages):
            if room.granted[page]:
                room.block(page)[:] = content((group.name, page), group.block_bytes)
                good[page] = True
        client.commit(room, good)


def test_a_prompt_reaches_as_far_as_all_groups_have_it_elsewhere(pair: Pair) -> None:
    tokens = np.arange(10 * PAGE + 5, dtype=np.int32)
    settings = {"groups": PROMPT_GROUPS, "page_tokens": PAGE}
    with pair.one.client(**settings) as here, pair.two.client(**settings) as there:
        put_prompt(here, tokens, 9)  # of ten pages
        pair.stored(9 + 3 + 1)
        assert there.lookup(tokens).pages == 0
        assert there.lookup(tokens, seek=True).pages == 9
        with there.lease(tokens) as lease:
            assert lease.pages == 9
            for number, group in enumerate(PROMPT_GROUPS):
                blocks = lease.blocks(number)
                held = [page for page, block in enumerate(blocks) if block is not None]
                assert held == list(range(9))[{"full": 0, "near": 6, "state": 8}[group.name] :]
                for page in held:
                    wanted = content((group.name, page), group.block_bytes)
                    block = blocks[page]
                    assert block is not None and (block == wanted).all()
        other = tokens.copy()
        other[0] = 999
        assert there.lookup(other, seek=True).pages == 0
        pair.two.check()


def tenants_of(folder: Path) -> dict[str, dict[str, object]]:
    """Two tenants, each a domain of its own, who prove themselves over TCP."""
    told = {}
    for name in ("acme", "other"):
        secret = folder / f"{name}.secret"
        secret.write_text(name * 8)
        secret.chmod(0o600)
        told[name] = {"secret_file": str(secret)}
    return told


def test_domains_have_nothing_in_common_in_the_backend(nodes: RedisNodes, tmp_path: Path) -> None:
    nodes.clear()
    keys = keys_of(NAMES)
    with Pair(tmp_path, nodes.url, tenants_of(tmp_path), listen="127.0.0.1:0") as pair:

        def client(service: str, tenant: str) -> Client:
            address = getattr(pair, service).addresses["listen"]
            return Client(address, GROUPS, tenant=tenant, secret=(tenant * 8).encode())

        with client("one", "acme") as acme, client("two", "other") as other:
            assert acme.write(keys, contents(NAMES)).all()
            pair.stored(len(NAMES))
            assert (other.has(keys, seek=True) == -1).all()
            assert not other.read(keys)[0].any()
            assert other.lookup(keys=keys, leave=0, seek=True).pages == 0
            mine = contents([("other", name) for name in NAMES])
            assert other.write(keys, mine).all()  # the same keys, other bytes
            pair.two.until(lambda status: remote_blocks(status) == len(NAMES))
        with client("two", "acme") as acme, client("one", "other") as other:
            there, blocks = acme.read(keys)
            assert there.all() and (blocks == contents(NAMES)).all()
            there, blocks = other.read(keys)
            assert there.all() and (blocks == mine).all()
            acme.reset()  # of one domain, nothing to the other
        with client("one", "acme") as acme, client("two", "other") as other:
            assert other.read(keys)[0].all()
        names = {name.decode().split(":")[1] for _, name in nodes.names() if name[:6] == b"radix:"}
        assert names == {"acme", "other"}


def test_a_reset_reaches_every_service(pair: Pair) -> None:
    keys = keys_of(NAMES)
    with pair.one.client() as here, pair.two.client() as there:
        here.write(keys, contents(NAMES))
        pair.stored(len(NAMES))
        there.has(keys[:1], seek=True)  # it knows the epoch
        there.reset()
        assert (there.has(keys, seek=True) == -1).all()
        assert leased(there, NAMES) == 0
        there.write(keys[:4], contents(NAMES[:4]))
        assert leased(there, NAMES) == 4
        pair.two.check()
    pair.one.kill()
    pair.one = pair.start(0)  # its disk has its own blocks still; of the backend's old it sees none
    with pair.one.client() as again:
        assert leased(again, [*NAMES, "x"]) == len(NAMES)


def test_what_is_forgotten_is_found_nowhere(pair: Pair) -> None:
    keys = keys_of(NAMES)
    with pair.one.client() as here, pair.two.client() as there:
        here.write(keys, contents(NAMES))
        pair.stored(len(NAMES))
        assert leased(there, NAMES[:4]) == 4
        here.forget(keys[:4])
        assert leased(here, NAMES) == len(NAMES) - 4
        there.forget(keys[4:8])
        assert leased(there, NAMES) == len(NAMES) - 4  # the first four are in its own memory
        pair.one.check()
        pair.two.check()


@pytest.mark.parametrize("data", ["none", "disk"])
def test_kill_9_loses_nothing_that_is_there(nodes: RedisNodes, tmp_path: Path, data: str) -> None:
    nodes.clear()
    flags = {"data": "none"} if data == "none" else {}
    with Pair(tmp_path, nodes.url, **flags) as pair:
        with pair.one.client() as here:
            assert here.write(keys_of(NAMES), contents(NAMES)).all()
            pair.stored(len(NAMES))
        pair.one.kill()
        pair.one = pair.start(0)
        with pair.one.client() as again:
            assert leased(again, NAMES) == len(NAMES)
            first = again.has(keys_of(NAMES))
            assert (first == 0).all()
        pair.one.check()


def test_mooncake_is_shared_by_services_too(tmp_path: Path) -> None:
    flags = {"data": "none", "limits.remote_s": "2"}
    with mooncake_store() as (master, owner), Pair(tmp_path, master.url, **flags) as pair:
        with pair.one.client() as here, pair.two.client() as there:
            assert (here.has(keys_of(NAMES)) == -1).all()
            assert (there.has(keys_of(NAMES)) == -1).all()
            for each in (pair.one, pair.two):
                each.until(is_on, 60.0)  # its client takes its time to join
            assert here.write(keys_of(NAMES), contents(NAMES)).all()
            pair.stored(len(NAMES))
            assert leased(there, NAMES) == len(NAMES)
            owner.kill()
            more: list[object] = [f"later {number}" for number in range(8)]
            assert here.write(keys_of(more), contents(more)).all()
            assert leased(there, [*NAMES, *more]) == len(NAMES)  # in its memory by now
            master.server.kill()
            for number in range(3):
                assert leased(there, [f"nothing {number}"]) == 0
            pair.two.until(lambda status: not is_on(status), 60.0)
            assert leased(there, NAMES) == len(NAMES)
        pair.one.check()
        pair.two.check()


def test_radix_serve_takes_it_from_its_file_and_purges_it(
    nodes: RedisNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.clear()
    running = []
    try:
        for name in ("one", "two"):
            file = tmp_path / f"{name}.toml"
            file.write_text(
                f'socket = "{tmp_path / name}.sock"\nadmin = "127.0.0.1:0"\nhost_bytes = "8MiB"\n'
                f'remote = "{nodes.url}"\nremote_blocks = 4096\n[limits]\nremote_s = 5\n'
            )
            command = [sys.executable, "-m", "radix.cli", "serve", "--config", str(file)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        told = [json.loads(each.stdout.readline()) for each in running if each.stdout is not None]
        with Client(told[0]["socket"], GROUPS) as here, Client(told[1]["socket"], GROUPS) as there:
            assert here.write(keys_of(NAMES), contents(NAMES)).all()
            here.flush()  # there is no disk: it waits for the backend, so long
            assert leased(there, NAMES) == len(NAMES)
            with urlopen(f"http://{told[1]['admin']}/metrics", timeout=20) as answer:
                lines = answer.read().decode().splitlines()
            (on,) = [
                line for line in lines if line.startswith("radix_tier_on") and "remote" in line
            ]
            assert on.endswith(" 1.0")
            assert main(["top", "--once", "--admin", told[1]["admin"]]) == 0
            assert "remote" in capsys.readouterr().out
            assert main(["purge", "--tenant", "default", "--socket", told[1]["socket"]]) == 0
            assert "of 1 stores nothing is found in the remote tier" in capsys.readouterr().err
            assert leased(there, NAMES) == 0  # nor from the backend, where its values still lie
        for each in running:
            each.terminate()
        assert [each.wait(30) for each in running] == [0, 0]
    finally:
        for each in running:
            each.kill()
            each.communicate()
