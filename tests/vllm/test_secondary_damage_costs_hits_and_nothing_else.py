"""What a medium does to the bytes, or refuses to do, costs hits and is counted: a job of vLLM's
then says which keys did not come, and no key ever gets other bytes than its own (I24).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from radix.tier import TierMode
from tests.vllm.secondaryrig import Host, content, key

NAMES = [key(number) for number in range(16)]
PAGE = 4096


def slab_files(folder: Path) -> list[Path]:
    """The files that hold blocks."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "slab" in str(path))


def rot(folder: Path, names: list[bytes], rng: random.Random) -> int:
    """Flips a bit in the blocks of some keys, where they lie; how many were found."""
    found = 0
    for path in slab_files(folder):
        data = bytearray(path.read_bytes())
        for name in names:
            at = data.find(content(name))
            if at >= 0:
                data[at + rng.randrange(len(content(name)))] ^= 1 << rng.randrange(8)
                found += 1
        path.write_bytes(bytes(data))
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_a_block_that_rotted_is_a_key_that_did_not_come(tmp_path: Path, restart: bool) -> None:
    rng = random.Random(5)
    bad = NAMES[3:9:2]
    with Host(tmp_path) as host:
        host.store(NAMES, range(16))
        if not restart:
            assert rot(tmp_path, bad, rng) == 3
            _comes_in_part(host, bad)
    if restart:
        assert rot(tmp_path, bad, rng) == 3
        with Host(tmp_path) as host:
            _comes_in_part(host, bad)


def _comes_in_part(host: Host, bad: list[bytes]) -> None:
    good = [name for name in NAMES if name not in bad]
    assert host.lookup(*NAMES) == "H" * 16
    result = host.load(NAMES, range(8, 24))
    assert not result.success
    assert set(result.successful_keys) == set(good)
    for row, name in enumerate(NAMES, start=8):
        if name in good:
            assert host.row(row) == content(name)
    assert host.lookup(*bad) == "MMM", "dropped: never tried again"
    told = host.counted()
    assert (told["corrupt_blocks"], told["failed_load_blocks"]) == (3, 3)
    assert host.store(bad, range(3)).success
    assert host.load(bad, range(3, 6)).success, "and taken again"
    host.tier.store.check()


def test_a_slab_file_that_was_cut_off_costs_its_blocks(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES, range(16))
    for path in slab_files(tmp_path):
        data = path.read_bytes()
        last = max((at for name in NAMES if (at := data.find(content(name))) >= 0), default=0)
        if last:
            path.write_bytes(data[: last + PAGE])
    with Host(tmp_path) as host:
        result = host.load(NAMES, range(16))
        came = set(result.successful_keys or (NAMES if result.success else ()))
        assert not result.success and 0 < len(came) < 16
        assert all(host.row(i) == content(name) for i, name in enumerate(NAMES) if name in came)


def test_an_index_that_is_gone_is_a_cold_start(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES, range(16))
    for path in tmp_path.rglob("*.mdb"):
        path.unlink()
    with Host(tmp_path) as host:
        assert host.lookup(*NAMES) == "M" * 16
        assert host.store(NAMES, range(16)).success
        assert host.load(NAMES, range(8, 24)).success


def test_a_medium_that_takes_nothing_more_declines_and_goes_on_serving(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES[:8], range(8))
        host.tier.store.set_mode("disk", TierMode.READ_ONLY)
        result = host.store(NAMES[8:], range(8, 16))
        assert (result.success, result.transfer_bytes) == (False, 0)
        assert host.load(NAMES[:8], range(8)).success
        told = host.counted()
        assert (told["declined_blocks"], told["writable"]) == (8, 0)
        host.tier.store.set_mode("disk", TierMode.ON)
        assert host.store(NAMES[8:], range(8, 16)).success
        assert host.counted()["writable"] == 1
