"""An index that does not hold together costs the hits, never the process: LMDB believes what it
maps, and a page of zeros aborts it, a file that is too short kills it with SIGBUS (I22, I24, C92).
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radix.errors import TierUnavailableError
from radix.groups import Group
from tests.crash.diskrig import BLOCK_BYTES, DiskRig
from tiers.index_pages import damage_of
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
