"""A named slab is one piece of memory for several processes: whoever comes first makes it, the
others attach, only slot numbers cross, and nothing of it stays behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radix.errors import TierUnavailableError
from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.host import AdoptedTier, HostTier
from tiers.memory import SHARED_FOLDER, SharedMemory

GROUPS = (Group.full("kv", 5000),)
LIMIT = 8 * 8192
ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys
import numpy as np
from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.host import AdoptedTier, HostTier

groups = (Group.full("kv", 5000),)
rows = np.zeros((2, 5000), np.uint8)
engine = AdoptedTier([[rows]])
engine.attach(groups, 64, None)
host = HostTier(8 * 8192, file_name=sys.argv[1])
host.attach(groups, 64, engine)
slots = np.array([int(sys.argv[2])], np.int32)
host.load(Transfer(1, 0, np.array([1], np.int32), slots, Urgency.DEMAND, None), engine)
host.wait(10.0)
assert host.poll()[0].good.all()
print(host.created, rows[1].tobytes().hex())
host.close()
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no other test uses; gone afterwards whatever happens."""
    name = f"radix-unit-{os.getpid()}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


def _attached(name: str, limit: int = LIMIT) -> tuple[HostTier, AdoptedTier, np.ndarray]:
    rows = np.random.default_rng(1).integers(0, 256, (4, 5000), dtype=np.uint8)
    engine = AdoptedTier([[rows]])
    engine.attach(GROUPS, 64, None)
    host = HostTier(limit, file_name=name)
    host.attach(GROUPS, 64, engine)
    return host, engine, rows


def test_a_second_process_reads_what_the_first_stored(name: str) -> None:
    host, engine, rows = _attached(name)
    assert host.created and host.capability.shared
    slots = host.reserve(0, 3)
    upper = np.arange(3, dtype=np.int32)
    host.store(Transfer(1, 0, upper, slots, Urgency.STORE, None), engine)
    host.wait(10.0)
    assert host.poll()[0].good.all()
    command = [sys.executable, "-c", WORKER, name, str(slots[2])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", rows[2].tobytes().hex()]
    assert Path("/dev/shm", name).exists(), "a process that attached took the name away"
    host.close()
    assert not Path("/dev/shm", name).exists()


def test_attaching_with_another_size_is_refused(name: str) -> None:
    host, _, _ = _attached(name)
    with pytest.raises(TierUnavailableError, match=f"{LIMIT} bytes, asked for {LIMIT + 8192}"):
        _attached(name, LIMIT + 8192)
    host.check()
    assert Path("/dev/shm", name).stat().st_size == LIMIT
    host.close()


@pytest.mark.parametrize("left", [LIMIT, 4096, 0])
def test_a_file_left_by_a_dead_process_is_taken_over(name: str, left: int) -> None:
    Path("/dev/shm", name).write_bytes(b"\xff" * left)
    host, _, _ = _attached(name)
    assert host.created and host.free_blocks(0) == 8
    host.close()
    assert not Path("/dev/shm", name).exists()


def test_the_slab_takes_exactly_the_asked_bytes(name: str) -> None:
    """C72 (pytorch#95823): pinned memory from torch's caching allocator is rounded up to a power
    of two, so a budget of 129 MiB takes 256. Here 129 pages are 129 pages, all of them there.
    """
    host = HostTier(129 * 4096, file_name=name)
    host.attach((Group.full("kv", 4096),), 64, None)
    status = Path("/dev/shm", name).stat()
    assert status.st_size == 129 * 4096 == status.st_blocks * 512
    assert host.capacity_blocks(0) == 129
    host.close()


def test_a_fork_does_not_inherit_the_slab() -> None:
    host = HostTier(4 * 4096)
    host.attach((Group.full("kv", 4096),), 64, None)
    address = int(host.planes(0)["base"][0])
    child = os.fork()
    if child == 0:
        lines = Path("/proc/self/maps").read_text().splitlines()
        inherited = any(line.startswith(f"{address:x}-") for line in lines)
        os._exit(int(inherited))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    host.close()


def test_more_than_shared_memory_holds_is_refused_with_what_to_change(name: str) -> None:
    """Before anything of it is filled, and leaves no name: the default of a container is 64 MiB."""
    with pytest.raises(TierUnavailableError, match=r"/dev/shm has room for \d+; .*--shm-size"):
        SharedMemory("host", 1 << 50, name, 1)
    assert not (SHARED_FOLDER / name).exists()
