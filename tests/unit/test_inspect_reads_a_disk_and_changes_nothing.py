"""A directory of the disk tier is read beside its owner or without one: what is counted is what the
owner would find, damage is found block by block, and no byte of it changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from radix import Group, Layout, Namespace, Part, PrefixCache, Retention
from radix.cli import main
from radix.errors import TierUnavailableError
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.disk_report import Verifying, inspect_disk
from tiers.host import HostTier
from tiers.inspection import DiskReader

BLOCK_BYTES = 16384
PAGE = 16
HEADS = (("layer", 3), ("token", PAGE), ("head", 4), ("dim", 8))
GROUPS = [
    Group("near", Layout((Part("k", "float32", HEADS, "head", 2),), 2), Retention("window", 64)),
    Group.full("kv", BLOCK_BYTES),
]


def fill(
    paths: list[Path],
    groups: list[Group],
    *,
    payload: str = "slab",
    salts: tuple[bytes, ...] = (b"acme", b"\x00\xff"),
    reset_after: int | None = None,
) -> None:
    """A cache that serves twelve prompts of 100 tokens and keeps them on disk."""
    disk = DiskTier(paths, limit_bytes=64 << 20, payload=payload)
    tiers = [DeviceTier(blocks=64), HostTier(limit_bytes=8 << 20), disk]
    with PrefixCache(groups, tiers, page_tokens=PAGE) as cache:
        for number in range(12):
            name = Namespace("llama", salt=salts[number % len(salts)], revision="r1")
            prompt = np.arange(number * 500, number * 500 + 100, dtype=np.int32)
            request = cache.admit(prompt, namespace=name)
            request.wait()
            request.computed(100)
            request.finish()
            cache.flush()
            if number == reset_after:
                cache.reset(["disk"])


def marks(folder: Path) -> dict[str, str]:
    """What each file holds; LMDB's table of readers is for readers to write."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.name != "lock.mdb"
    }


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_what_is_there_is_counted_by_namespace_and_group(tmp_path: Path, payload: str) -> None:
    folder = tmp_path / "disk"
    fill([folder], GROUPS, payload=payload)
    before = marks(folder)
    report = inspect_disk([folder], verify=True)
    assert marks(folder) == before
    assert (report.owner, report.damaged, report.unusable, report.foreign) == (None, 0, 0, 0)
    assert report.limit_bytes == 64 << 20 and report.page_bytes == 4 * PAGE
    (new, old) = report.namespaces
    assert (new.tenant, old.tenant, new.model, new.revision) == ("00ff", "acme", "llama", "r1")
    counts = {each.group: (each.entries, each.payload_bytes) for each in new.groups}
    assert counts["kv"] == (36, 36 * BLOCK_BYTES)  # 6 prompts of 6 pages
    assert counts["near"][0] > 0
    assert report.entries == new.entries + old.entries == sum(report.ages)
    assert report.verified is not None
    assert report.verified.good == report.verified.blocks == report.entries
    assert report.verified.nbytes == report.payload_bytes


def test_entries_of_older_epochs_are_told_apart(tmp_path: Path) -> None:
    fill([tmp_path], [GROUPS[1]], reset_after=5)
    report = inspect_disk([tmp_path])
    # The tier may have removed those before the reset already; it must not show them as entries.
    assert report.entries == 36 and report.epoch == 1 and report.stale in (0, 36)


def test_each_damaged_block_is_found_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill([tmp_path], GROUPS)
    with open(tmp_path / "slab-0000", "r+b") as file:
        content = file.read()
        place = content.find(content[:64], 1) if not any(content[:64]) else 0
        file.seek(place + 100)
        byte = file.read(1)
        file.seek(place + 100)
        file.write(bytes([byte[0] ^ 1]))
    verified = inspect_disk([tmp_path], verify=True).verified
    assert verified is not None
    assert (verified.corrupt, verified.short, len(verified.faults)) == (1, 0, 1)
    os.truncate(tmp_path / "slab-0000", BLOCK_BYTES)
    verified = inspect_disk([tmp_path], verify=True).verified
    assert verified is not None and verified.short > 0
    assert verified.good + verified.corrupt + verified.short == verified.blocks
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    assert "damaged entries; each is a miss" in capsys.readouterr().err


def test_a_damaged_record_is_counted(tmp_path: Path) -> None:
    fill([tmp_path], [GROUPS[1]])
    with closing(lmdb.open(str(tmp_path), max_dbs=16)) as environment:
        with environment.begin() as txn:
            names = [bytes(key) for key, _ in txn.cursor() if key.startswith(b"records-")]
        table = environment.open_db(names[0], create=False)
        with environment.begin(write=True, db=table) as txn, txn.cursor() as cursor:
            cursor.first()
            key, value = bytes(cursor.key()), bytearray(cursor.value())
            value[9] ^= 1
            txn.put(key, bytes(value))
    report = inspect_disk([tmp_path])
    assert (report.damaged, report.entries) == (1, 71)


OWNER = """\
import sys
import numpy as np
from radix import Group, PrefixCache
from tiers.disk import DiskTier
from tiers.index import IndexTier
from tiers.host import HostTier
from tiers.inspection import DiskReader

disk = DiskTier(sys.argv[1], limit_bytes=3 << 20)
tiers = [HostTier(limit_bytes=1 << 20), disk]
with PrefixCache([Group.full("kv", 16384)], tiers, page_tokens=16) as cache:
    number = 0
    while True:
        for _ in range(5):
            request = cache.admit(np.arange(number, number + 100, dtype=np.int32))
            request.wait()
            request.computed(100)
            request.finish()
            cache.poll()
            number += 101
        cache.flush()
        if number > 30_000:
            print(number, flush=True)
"""


def test_an_owner_that_evicts_all_the_while_shows_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        for _ in range(5):
            report = inspect_disk([folder], verify=True)
            assert report.owner is not None and f"pid {child.pid}" in report.owner
            assert report.entries > 50 and report.damaged == 0
            verified = report.verified
            assert verified is not None and verified.good > 0
            assert (verified.corrupt, verified.short) == (0, 0)
        assert child.poll() is None
        for _ in range(3):  # it goes on storing after it was read
            assert child.stdout.readline()
    finally:
        child.kill()
        child.wait()


def test_what_is_removed_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    """A slot is written anew only once the removal of its record is durable."""
    fill([tmp_path], [GROUPS[1]])
    program = (
        "import lmdb, os, sys\n"
        "environment = lmdb.open(sys.argv[1], max_dbs=16)\n"
        "with environment.begin() as txn:\n"
        "    name = [bytes(key) for key, _ in txn.cursor() if key.startswith(b'records-')][0]\n"
        "table = environment.open_db(name, create=False)\n"
        "with environment.begin(write=True) as txn:\n"
        "    txn.drop(table, delete=False)\n"
        "os.truncate(sys.argv[1] + '/slab-0000', 0)\n"
    )
    with DiskReader(tmp_path) as reader:
        verifying = Verifying(reader, [tmp_path])
        ((rows, _),) = reader.records()
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
        verifying.read(rows)
        verifying.close()
    found = verifying.result()
    assert (found.blocks, found.gone, found.good, found.short) == (72, 72, 0, 0)


def test_several_directories_of_a_service_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/0f/disk", "b/1f/disk"):
        (tmp_path / name).mkdir(parents=True)
        fill([tmp_path / name], [GROUPS[1]])
    assert main(["inspect", str(tmp_path), "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [each["directory"] for each in found["directories"]] == [
        str(tmp_path / "a/0f/disk"),
        str(tmp_path / "b/1f/disk"),
    ]
    assert found["directories"][0]["namespaces"][0]["groups"] == [
        {"group": "kv", "entries": 36, "payload_bytes": 36 * BLOCK_BYTES}
    ]


def test_blocks_over_several_paths_need_all_of_them(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    fill(paths, GROUPS)
    verified = inspect_disk(paths[::-1], verify=True).verified
    assert verified is not None and verified.good == verified.blocks > 0
    assert inspect_disk(paths[:1]).entries == verified.blocks
    with pytest.raises(TierUnavailableError, match="its blocks lie on 2 paths"):
        inspect_disk(paths[:1], verify=True)
    with pytest.raises(TierUnavailableError, match="give the first"):
        inspect_disk(paths[1:])
    others = [tmp_path / "three", tmp_path / "four"]
    fill(others, GROUPS)
    with pytest.raises(TierUnavailableError, match="belongs to another tier"):
        inspect_disk([paths[0], others[1]])


def test_drives_are_verified_and_purged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes has gone from each drive, its bytes too; one drive alone, or another tier's, is
    refused, and nothing of either is touched.
    """
    drives, others = ([tmp_path / f"{a}{b}" for b in range(3)] for a in "ab")
    fill(drives, GROUPS)
    fill(others, GROUPS)
    mine, theirs = [*map(str, drives)], [*map(str, others)]
    mixed = [mine[1], mine[2], mine[0]]  # the order does not matter

    def kept(folder: Path) -> dict[str, str]:
        return {name: mark for name, mark in marks(folder).items() if name != "lock"}

    def verified() -> dict[str, Any]:
        assert main(["inspect", *mixed, "--verify", "--json", "-"]) == 0
        (report,) = json.loads(capsys.readouterr().out)["directories"]
        assert report["verified"]["good"] == report["entries"]
        told: dict[str, Any] = report
        return told

    before = verified()
    written = [sum(f.stat().st_blocks for f in drive.glob("slab-*")) for drive in drives]
    held = [kept(drive) for drive in (*drives, *others)]
    for wrong, why in (
        (mine[:1], "its blocks lie on 3 paths"),
        (mine[:2], "its blocks lie on 3 paths"),
        (mine[1:], "give the first"),
        ([*mine[:2], theirs[2]], "belongs to another tier"),
    ):
        assert main(["purge", "--tenant", "acme", "--data", *wrong]) == 1
        assert why in capsys.readouterr().err
        assert main(["inspect", *wrong, "--verify"]) == 1
        assert why in capsys.readouterr().err
    assert [kept(drive) for drive in (*drives, *others)] == held
    assert main(["purge", "--tenant", "acme", "--data", *mixed, "--json", "-"]) == 0
    went = json.loads(capsys.readouterr().out)["entries"]
    after = verified()
    assert went > 0 and after["entries"] == before["entries"] - went
    assert [each["tenant"] for each in after["namespaces"]] != [
        each["tenant"] for each in before["namespaces"]
    ]
    left = [sum(f.stat().st_blocks for f in drive.glob("slab-*")) for drive in drives]
    assert sum(now < then for now, then in zip(left, written, strict=True)) >= 2
    assert [kept(drive) for drive in others] == held[3:]


def test_what_is_no_disk_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argument in (str(tmp_path / "nowhere"), str(tmp_path)):
        assert main(["inspect", argument]) == 2
        assert capsys.readouterr().err.startswith("radix: DIR: ")
    (tmp_path / "format").write_text('{"format": "radix-disk", "version": 99}\n')
    assert main(["inspect", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "version 99" in err and "left untouched" in err and err.count("\n") == 1


def test_inspecting_needs_no_torch(tmp_path: Path) -> None:
    fill([tmp_path], GROUPS)
    program = (
        "import sys\nsys.modules['torch'] = None\nimport radix.cli\n"
        f"sys.exit(radix.cli.main(['inspect', {str(tmp_path)!r}, '--verify', '--json', '-']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["directories"][0]["verified"]["corrupt"] == 0
