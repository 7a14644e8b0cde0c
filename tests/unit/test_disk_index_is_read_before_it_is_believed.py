"""An index that does not hold together costs the hits, never the process: LMDB believes what it
maps, and a page of zeros aborts it, a file that is too short kills it with SIGBUS (I22, I24, C92).
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import numpy as np
import pytest

from radix.errors import TierUnavailableError
from radix.groups import Group
from tests.crash.diskrig import BLOCK_BYTES, DiskRig
from tiers.index_pages import _DamageError, _Pages, damage_of
from tiers.inspection import DiskReader
from tiers.purging import purge_disk

ROOT = Path(__file__).resolve().parents[2]
PAGE = 4096
LIMIT = 4 << 20
KNOWN = range(4000)

# Opens damaged directories, uses whatever it finds, and opens them again; a value that is damaged
# where LMDB alone sees it may stop the stores of one life, not those of the next.
CHILD = """
import sys
from pathlib import Path
from tests.crash.diskrig import DiskRig

payload = sys.argv[1]
for folder in sys.argv[2:]:
    with DiskRig(Path(folder), payload=payload, limit_bytes=4 << 20) as rig:
        found = rig.adopt(range(4000))
        good = rig.verify(found)
        rig.free([n for n in found if n not in good] + good[::3])
        done = rig.store(range(3000, 3008))
        assert done.good.all() or payload == "lmdb", done.error
        rig.verify(rig.slots)
        rig.tier.flush()
        rig.tier.check()
    with DiskRig(Path(folder), payload=payload, limit_bytes=4 << 20) as rig:
        found = rig.adopt(range(4000))
        assert not done.good.all() or set(range(3000, 3008)) <= set(found)
        good = rig.verify(found)
        rig.free([n for n in found if n not in good])
        assert rig.store(range(3100, 3108)).good.all()
    with DiskRig(Path(folder), payload=payload, limit_bytes=4 << 20) as rig:
        rig.adopt(range(4000))
        assert set(range(3100, 3108)) <= set(rig.verify(rig.slots))
"""


def _moments(folder: Path, payload: str) -> list[bytes]:
    """The index of a tier that lives on, at five moments of its life."""
    draw, number, found = random.Random(7), 0, []
    with DiskRig(folder, payload=payload, limit_bytes=LIMIT) as rig:
        for _ in range(5):
            for _ in range(10):
                if number > 120:
                    rig.free(draw.sample(sorted(rig.slots), 8))
                assert rig.store(range(number, number + 8)).good.all()
                number += 8
            rig.tier.flush()
            found.append((folder / "data.mdb").read_bytes())
    return found


def _short(moments: list[bytes], draw: random.Random) -> bytes:
    return moments[-1][: draw.randrange(2 * PAGE, len(moments[-1]))]


def _zeros(moments: list[bytes], draw: random.Random) -> bytes:
    data = bytearray(moments[-1])
    for page in draw.sample(range(2, len(data) // PAGE), 2):
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return bytes(data)


def _noise(moments: list[bytes], draw: random.Random) -> bytes:
    data = bytearray(moments[-1])
    page = draw.randrange(2, len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = draw.randbytes(PAGE)
    return bytes(data)


def _torn(moments: list[bytes], draw: random.Random) -> bytes:
    """As a copy is that was made while the file was written."""
    size = max(map(len, moments))
    wide = [each.ljust(size, b"\0") for each in moments]
    few = draw.choices(wide, k=3)
    return b"".join(draw.choice(few)[at : at + PAGE] for at in range(0, size, PAGE))


DAMAGES: dict[str, Callable[[list[bytes], random.Random], bytes]] = {
    "short": _short,
    "zeros": _zeros,
    "noise": _noise,
    "torn": _torn,
}


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_costs_hits_and_no_process(
    tmp_path: Path, damage: str, payload: str
) -> None:
    """A page of zeros in the index ended the process with LMDB's "Assertion 'IS_LEAF(mp)' failed",
    a file that was cut short with SIGBUS, one copied while it was written refused to open with
    MDB_BAD_VALSIZE or MDB_NOTFOUND, each at every start: nobody looked at what LMDB walks blindly.
    """
    moments = _moments(tmp_path / "d", payload)
    folders = []
    for seed in range(8):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        for path in (tmp_path / "d").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "data.mdb").write_bytes(DAMAGES[damage](moments, random.Random(seed)))
        folders.append(str(folder))
    command = [sys.executable, "-c", CHILD, payload, *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page_bytes", [64, 3000])
@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_sound_index_is_never_called_damaged(
    tmp_path: Path, payload: str, page_bytes: int
) -> None:
    """Whatever a tier did: removals, other namespaces, epochs, records with pages of their own."""
    draw, number = random.Random(page_bytes), 0
    options = {"payload": payload, "limit_bytes": LIMIT, "page_bytes": page_bytes}
    for turn in range(4):
        with DiskRig(tmp_path / "d", **options) as rig:
            rig.adopt(range(number))
            for _ in range(30):
                count = draw.randrange(1, 16)
                while rig.tier.free_blocks(0) < count or draw.random() < 0.4:
                    if not rig.slots:
                        break
                    some = draw.sample(sorted(rig.slots), min(len(rig.slots), count))
                    rig.free(some)
                space = b"model-%d" % draw.randrange(3)
                rig.store(range(number, number + count), namespace=space)
                number += count
                if draw.random() < 0.3:
                    rig.tier.flush()
                    assert damage_of(tmp_path / "d" / "data.mdb") == ""
            if turn == 2:
                rig.tier.renew()
            kept = len(rig.slots)
        assert damage_of(tmp_path / "d" / "data.mdb") == "" and kept > 8


def test_a_value_that_was_written_twice_in_a_transaction_is_no_damage(tmp_path: Path) -> None:
    """A sound index was called damaged, and a warm tier started cold: LMDB writes a shorter value
    over a longer one of the same transaction and leaves it its pages, which were counted from the
    value's size. It does so with its own list of free pages, too.
    """
    sizes = [9000, 100, 5000, 30000, 3000]
    with lmdb.open(str(tmp_path), max_dbs=4, map_size=LIMIT) as env:
        table = env.open_db(b"state")
        for first in sizes:
            for then in sizes:
                with env.begin(write=True) as txn:
                    for name in (b"a", b"b"):
                        txn.put(name, bytes(first), db=table)
                        txn.put(name, bytes(then), db=table)
                assert damage_of(tmp_path / "data.mdb") == "", (first, then)


def test_a_value_that_says_more_pages_than_are_its_own_is_damage(tmp_path: Path) -> None:
    """LMDB frees as many as its first page says, and would write to those of others."""
    with lmdb.open(str(tmp_path), max_dbs=4, map_size=LIMIT) as env:
        table = env.open_db(b"state")
        with env.begin(write=True) as txn:
            for name in (b"a", b"b"):
                txn.put(name, bytes(9000), db=table)
    path = tmp_path / "data.mdb"
    data = np.frombuffer(path.read_bytes(), "<u4").reshape(-1, PAGE // 4).copy()
    values = np.flatnonzero(data[:, 2] >> 16 == 4)
    assert data[values, 3].tolist() == [3, 3] and damage_of(path) == ""
    for count in (2, 5, 1 << 31):
        data[values[0], 3] = count
        path.write_bytes(data.tobytes())
        assert "value" in damage_of(path)


@pytest.mark.parametrize("bit", [20, 36, 44, 47])
def test_a_last_page_beyond_the_map_starts_cold(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit of it refused the directory at every start: memory for as many pages was asked for,
    or LMDB was to compact what it took for a file of that size.
    """
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(8))
    path = tmp_path / "d" / "data.mdb"
    data = np.frombuffer(path.read_bytes(), "<u8").reshape(-1, PAGE // 8).copy()
    last, txn = 17, 18  # words of a page that is a meta page
    data[np.argmax(data[:2, txn]), last] |= 1 << bit
    path.write_bytes(data.tobytes())
    with DiskRig(tmp_path / "d") as rig:
        assert rig.restored == [] and "its last page is" in caplog.text
        assert rig.store(range(8)).good.all()


@pytest.mark.parametrize("bit", [1, 2, 3])
def test_a_main_table_of_another_kind_starts_cold(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit of its flags refused the directory at every start: LMDB opened no table in it, with
    MDB_INCOMPATIBLE, or looked for the names of tables in another order.
    """
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(8))
    path = tmp_path / "d" / "data.mdb"
    data = bytearray(path.read_bytes())
    for meta in (0, PAGE):
        data[meta + 92] ^= 1 << bit
    path.write_bytes(data)
    with DiskRig(tmp_path / "d") as rig:
        assert rig.restored == [] and "table b'' is of another kind" in caplog.text
        assert rig.store(range(8)).good.all()


def test_blocks_in_the_index_cost_their_own_pages_and_not_the_whole_file_each_time(
    tmp_path: Path,
) -> None:
    """The pages of the whole file were summed up, eight bytes each, for every thousand leaves: of
    1 TiB of blocks four GiB of memory, and as often as there were leaves.
    """
    pages = _Pages(-1, PAGE, 1 << 26, (1 << 26) * PAGE)
    tracemalloc.start()
    try:
        pages.take_values(np.arange(2, 2002, 2), np.full(1000, 5000), look=False)
        with pytest.raises(_DamageError, match="in use already"):
            pages.take_values(np.array([2001]), np.array([100]), look=False)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        pages.take_values(np.array([3000, 1 << 24]), np.full(2, (8 << 30) + 5), look=False)
    finally:
        tracemalloc.stop()
    assert int(pages.taken.sum()) == 2000 + 2 * ((8 << 30) // PAGE + 1)


def test_what_the_medium_does_not_give_back_starts_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Read through LMDB's map such a page is a SIGBUS."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(8))
    read, refused = os.preadv, []

    def refuse(descriptor: int, buffers: list[memoryview], at: int) -> int:
        if at >= 2 * PAGE and not refused:
            refused.append(at)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", refuse)
    with DiskRig(tmp_path / "d") as rig:
        assert refused and rig.restored == [] and "Input/output error" in caplog.text
        assert rig.store(range(8)).good.all()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(8)) == list(range(8))


def test_people_who_look_at_a_damaged_index_are_told(tmp_path: Path) -> None:
    """``inspect`` and ``purge`` refuse it by name, and leave it as it is."""
    with DiskRig(tmp_path / "d", groups=(Group.full("kv", BLOCK_BYTES),)) as rig:
        rig.store(np.arange(8).tolist())
    path = tmp_path / "d" / "data.mdb"
    data = path.read_bytes()
    path.write_bytes(data[: 2 * PAGE])
    with pytest.raises(TierUnavailableError, match=r"its index cannot be read: .* beyond the end"):
        DiskReader(tmp_path / "d")
    with pytest.raises(TierUnavailableError, match=r"its index cannot be read: .* beyond the end"):
        purge_disk([tmp_path / "d"], lambda canonical: True)
    assert path.read_bytes() == data[: 2 * PAGE]


OWNER = """
import sys
from pathlib import Path
from radix.groups import Group
from tests.crash.diskrig import BLOCK_BYTES, DiskRig

with DiskRig(Path(sys.argv[1]), groups=(Group.full("kv", BLOCK_BYTES),)):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_an_owner_that_starts_while_somebody_looks_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``inspect`` called a sound index damaged: it looked for an owner, saw none, and read pages
    while one that had just started wrote to them.
    """
    with DiskRig(tmp_path / "d", groups=(Group.full("kv", BLOCK_BYTES),)) as rig:
        rig.store(range(8))
    command = [sys.executable, "-c", OWNER, str(tmp_path / "d")]
    owners: list[subprocess.Popen[str]] = []

    def torn(path: Path) -> str:
        if not owners:
            pipe = subprocess.PIPE
            owners.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
            assert owners[0].stdout is not None and owners[0].stdout.readline() == "open\n"
        return "a page is another one"

    monkeypatch.setattr("tiers.inspection.damage_of", torn)
    try:
        with closing(DiskReader(tmp_path / "d")) as reader:
            assert reader.owner is not None and reader.entries() == 8
    finally:
        for owner in owners:
            owner.communicate()
    assert [owner.returncode for owner in owners] == [0]
    with pytest.raises(TierUnavailableError, match="a page is another one"):
        DiskReader(tmp_path / "d")
