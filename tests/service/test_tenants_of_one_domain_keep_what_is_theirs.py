"""Tenants of one domain share its pool, and a scan of one pushes out its own blocks: with numbers,
through a real service and its clients. What each holds, hit and lost is told, and holds after a
restart. Those that share their blocks are one account.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from radix.options import OptionError
from radix.service import Client
from radix.service.config import read_config
from radix.service.hosting import domains_of
from tests.service.rig import GROUPS, SIZE, Service, contents, keys_of

CAPACITY = 256  # blocks: a pool of 1 MiB
TALKS, TURNS, GROWS = 8, 8, 2  # at the end 128 blocks: as much as half of the pool
SCANNED = 40  # blocks of the scan between any two turns: ten times the pool in all


def _tenants(folder: Path, own: bool, **terms: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("chats", "batch"):
        file = folder / name
        file.write_text(f"the secret of {name}")
        file.chmod(0o600)
        found[name] = {"domain": "acme", "secret_file": str(file), "own_blocks": own}
        found[name] |= terms.get(name, {})
    return found


def _client(service: Service, name: str) -> Client:
    secret = f"the secret of {name}".encode()
    return Client(service.addresses["listen"], GROUPS, tenant=name, secret=secret)


def _asked(client: Client, names: list[object]) -> int:
    """A use as an engine's: what is there of the names is read, the rest is brought; the hits."""
    keys = keys_of(names)
    there = client.has(keys) >= 0
    good, blocks = client.read(keys)
    assert (good == there).all()
    wanted = contents([name for name, here in zip(names, there, strict=True) if here])
    assert (blocks == wanted).all()
    missing = [name for name, here in zip(names, there, strict=True) if not here]
    client.write(keys_of(missing), contents(missing))
    return int(there.sum())


def _talks(service: Service, scanned: int) -> tuple[int, int]:
    """Conversations that grow by turns, a scan between any two of them: hits, and blocks asked."""
    hits = asked = 0
    read = iter(range(10**6))
    with _client(service, "chats") as chats, _client(service, "batch") as batch:
        for turn in range(1, TURNS + 1):
            for talk in range(TALKS):
                names: list[object] = [f"talk {talk} {n}" for n in range(turn * GROWS)]
                hits += _asked(chats, names)
                asked += len(names)
                assert _asked(batch, [f"scan {next(read)}" for _ in range(scanned)]) == 0
    return hits, asked


def _told(service: Service) -> dict[str, dict[str, Any]]:
    return {tenant["name"]: tenant for tenant in service.status()["tenants"]}


def test_a_scan_of_one_leaves_the_conversations_of_another(tmp_path: Path) -> None:
    found: dict[str, tuple[int, int]] = {}
    for case, own, scanned in (
        ("quiet", True, 0),
        ("apart", True, SCANNED),
        ("one", False, SCANNED),
    ):
        folder = tmp_path / case
        folder.mkdir()
        told = {"listen": "127.0.0.1:0", "host_bytes": "1MiB"}
        with Service(folder, _tenants(folder, own), **told) as service:
            found[case] = _talks(service, scanned)
            tenants = _told(service)
            service.check()
        if case == "apart":
            chats, batch = tenants["chats"], tenants["batch"]
            assert chats["used_bytes"]["host"] == TALKS * TURNS * GROWS * SIZE
            assert chats["used_bytes"]["host"] + batch["used_bytes"]["host"] == CAPACITY * SIZE
            assert chats["evicted_blocks"] == {"host": 0}
            scan = SCANNED * TALKS * TURNS
            assert scan == 10 * CAPACITY
            assert batch["evicted_blocks"]["host"] == scan - batch["used_bytes"]["host"] // SIZE
            assert (chats["refused_blocks"], batch["refused_blocks"]) == (0, 0)
    hits, asked = found["quiet"]
    assert hits / asked > 0.75  # all but the blocks that each turn adds
    assert found["apart"] == found["quiet"]
    assert found["one"][0] < 0.1 * asked


@pytest.mark.parametrize("policy", ["arc", "s3fifo", "hit_density"])
def test_under_another_order_a_scan_leaves_them_too(tmp_path: Path, policy: str) -> None:
    told = {"listen": "127.0.0.1:0", "host_bytes": "1MiB", "policy": policy}
    with Service(tmp_path, _tenants(tmp_path, True), **told) as service:
        hits, asked = _talks(service, SCANNED)
        service.check()
        assert hits / asked > 0.75
        assert _told(service)["chats"]["evicted_blocks"] == {"host": 0}


def test_blocks_of_their_own_are_not_seen_by_others_of_the_domain(tmp_path: Path) -> None:
    names: list[object] = list(range(20))
    with Service(tmp_path, _tenants(tmp_path, True), listen="127.0.0.1:0") as service:
        with _client(service, "chats") as chats, _client(service, "batch") as batch:
            assert chats.write(keys_of(names), contents(names)).all()
            assert (batch.has(keys_of(names)) == -1).all()
            assert batch.write(keys_of(names), contents(names)).all()
            batch.forget(keys_of(names))
            assert (chats.read(keys_of(names))[1] == contents(names)).all()
    (tmp_path / "two").mkdir()
    with Service(tmp_path / "two", _tenants(tmp_path, False), listen="127.0.0.1:0") as service:
        with _client(service, "chats") as chats, _client(service, "batch") as batch:
            assert chats.write(keys_of(names), contents(names)).all()
            assert (batch.has(keys_of(names)) == 0).all()  # those that share do
        assert _told(service)["chats"]["used_bytes"] is None  # whose would they be
        assert {tenant["account"] for tenant in _told(service).values()} == {"acme/shared"}


def test_quotas_and_floors_hold_in_memory_and_on_disk_and_after_a_restart(tmp_path: Path) -> None:
    terms: dict[str, dict[str, Any]] = {
        "batch": {"quota_bytes": "256KiB", "disk_quota_bytes": "4MiB"},
        "chats": {"floor_bytes": "512KiB", "weight": 3},
    }
    told = {
        "listen": "127.0.0.1:0",
        "host_bytes": "1MiB",
        "disk_bytes": "16MiB",
        "data": str(tmp_path / "data"),
    }
    with Service(tmp_path, _tenants(tmp_path, True, **terms), **told) as service:
        with _client(service, "batch") as batch, _client(service, "chats") as chats:
            for first in range(0, 4000, 40):
                batch.write(keys_of(list(range(first, first + 40))), contents(list(range(40))))
            chats.write(keys_of(list(range(40))), contents(list(range(40))))
            chats.flush()
        before = _told(service)
        assert before["batch"]["used_bytes"]["host"] == 256 << 10  # though the rest is empty
        assert 3 << 20 < before["batch"]["used_bytes"]["disk"] <= 4 << 20
        assert before["chats"]["used_bytes"] == {"host": 40 * SIZE, "disk": 40 * SIZE}
        (store,) = service.status()["stores"]
        share = store["tenants"]["chats"]["tiers"]["host"]
        assert share["floor_bytes"] == 512 << 10
        assert store["tenants"]["batch"]["tiers"]["host"]["quota_bytes"] == 256 << 10
        service.check()
        assert service.drain() == 0
    with Service(tmp_path, _tenants(tmp_path, True, **terms), **told) as service:
        with _client(service, "chats") as chats, _client(service, "batch") as batch:
            assert (chats.read(keys_of(list(range(40))))[1] == contents(list(range(40)))).all()
            assert (batch.has(keys_of([3999])) >= 0).all()
        again = _told(service)
        for name in ("chats", "batch"):
            assert again[name]["used_bytes"]["disk"] == before[name]["used_bytes"]["disk"]
        service.check()


def _refused(tmp_path: Path, **terms: dict[str, Any]) -> str:
    with pytest.raises(OptionError) as refused:
        domains_of(read_config(None, {"host_bytes": "1MiB"}, _tenants(tmp_path, True, **terms)))
    return str(refused.value)


def test_terms_that_cannot_be_kept_are_refused_by_name(tmp_path: Path) -> None:
    floors = {name: {"floor_bytes": "768KiB"} for name in ("chats", "batch")}
    assert "tenants.chats.floor_bytes: the floors" in _refused(tmp_path, **floors)
    both = {"quota_bytes": "1MiB", "floor_bytes": "2MiB"}
    assert "at most its quota_bytes" in _refused(tmp_path, chats=both)
    assert "expected true or false" in _refused(tmp_path, chats={"own_blocks": "yes"})
    assert "expected a number of 0.001" in _refused(tmp_path, chats={"weight": 1e9})
    with pytest.raises(OptionError, match="--policy"):
        domains_of(read_config(None, {"policy": "best"}))


def test_more_room_than_there_is_is_promised_to_nobody(tmp_path: Path) -> None:
    tenants = {name: {"quota_bytes": "768KiB", "uids": [n]} for n, name in enumerate("ab")}
    with pytest.raises(OptionError, match="quota_bytes: the quotas are 1572864 of 1048576 bytes"):
        domains_of(read_config(None, {"host_bytes": "1MiB"}, tenants))
    disk = {"a": {"uids": [0], "disk_quota_bytes": "64GiB"}}
    assert domains_of(
        read_config(None, {}, disk)
    )  # of a disk that there is not nothing is promised
    with pytest.raises(OptionError, match="disk_quota_bytes"):
        domains_of(read_config(None, {"data": str(tmp_path)}, disk))


def test_a_name_means_the_blocks_of_one_owner(tmp_path: Path) -> None:
    tenants: dict[str, Any] = {
        "acme": {"uids": [os.getuid()], "own_blocks": True},
        "other": {"uids": [os.getuid() + 1], "domain": "acme"},
    }
    with pytest.raises(OptionError, match=r"tenants\.acme\.own_blocks"):
        read_config(None, {}, tenants)
