"""A slab has exactly the memory that was asked for, on the node and on the huge pages that the
kernel grants, which are told and not assumed; a node that is not there is refused by name.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from radix.errors import TierUnavailableError
from radix.groups import Group
from tiers.host import AdoptedTier, HostTier
from tiers.memory import SharedMemory
from tiers.placement import (
    Residence,
    node_of_pci,
    nodes_with_memory,
    prefer_node,
    residence_of,
)

MIB = 1 << 20
SMAPS = """7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me dc hg
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:      2048 kB
7f0000800000-7f0000801000 ---p 00000000 00:00 0
AnonHugePages:         0 kB
"""
NUMA_MAPS = """7f0000000000 default anon=9 N0=9 kernelpagesize_kB=4
7f0000400000 prefer:1 anon=1024 dirty=1024 N0=24 N1=1000 kernelpagesize_kB=4
"""


def _resident_bytes(address: int) -> int:
    text = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{address:x}-.*?^Rss:\s+(\d+) kB", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found.group(1)) * 1024


def _huge_pages_are_given() -> bool:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.exists() and "[never]" not in path.read_text()


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000, 2 * MIB, 5 * MIB + 4096, 16 * MIB])
def test_a_slab_takes_the_bytes_that_it_was_given_and_no_page_more(nbytes: int) -> None:
    """Huge pages must not round it up: the limit of a control group may lie just above."""
    memory = SharedMemory("host", nbytes, None, 2)
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    assert _resident_bytes(memory.address) == pages
    ctypes.memset(memory.address, 0x5A, nbytes)
    assert memory.residence().huge_bytes <= nbytes
    memory.close()
    memory.close()
    assert memory.residence() == Residence(0, 0)


@pytest.mark.skipif(not _huge_pages_are_given(), reason="the kernel gives no huge pages")
def test_huge_pages_are_asked_for_and_told() -> None:
    memory = SharedMemory("host", 32 * MIB, None, 1)
    told = memory.residence().huge_bytes
    memory.close()
    assert told % (2 * MIB) == 0
    if told == 0:
        pytest.skip("the kernel has no huge page free")


@pytest.mark.parametrize("name", [None, "radix-unit-placed"])
def test_a_slab_lies_on_the_node_that_was_named(name: str | None) -> None:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    node = nodes_with_memory()[-1]
    host = HostTier(8 * MIB, numa_node=node, file_name=name)
    engine = AdoptedTier([[np.zeros((2, 4096), np.uint8)]])
    engine.attach((Group.full("kv", 4096),), 64, None)
    host.attach((Group.full("kv", 4096),), 64, engine)
    assert host.numa_node == node
    assert 0 < host.residence().node_bytes <= 8 * MIB
    begin = f"{int(host.planes(0)['base'][0]):x} prefer:{node} "
    assert begin in Path("/proc/self/numa_maps").read_text()
    host.close()


def test_a_node_that_is_not_there_is_refused_by_name() -> None:
    absent = nodes_with_memory()[-1] + 1
    with pytest.raises(TierUnavailableError, match=f"no NUMA node {absent}"):
        HostTier(MIB, numa_node=absent)
    with pytest.raises(TierUnavailableError, match="'host'"):
        SharedMemory("host", MIB, None, 1, node=-1)


def test_the_kernel_refuses_a_node_beyond_its_own() -> None:
    """So that a call which does nothing at all is noticed."""
    memory = SharedMemory("host", MIB, None, 1)
    assert prefer_node(memory.address, MIB, nodes_with_memory()[0])
    assert not prefer_node(memory.address + 1, MIB, 0), "no page begins there"
    assert not prefer_node(memory.address, MIB, 1023)
    memory.close()


def test_what_the_kernel_says_is_read_for_one_mapping(tmp_path: Path) -> None:
    (tmp_path / "smaps").write_text(SMAPS)
    (tmp_path / "numa_maps").write_text(NUMA_MAPS)
    second = 0x7F0000400000
    assert residence_of(second, 1, tmp_path) == Residence(6 * MIB, 1000 * 4096)
    assert residence_of(second, 0, tmp_path) == Residence(6 * MIB, 24 * 4096)
    assert residence_of(second, None, tmp_path) == Residence(6 * MIB, 0)
    assert residence_of(0x7F0000800000, 0, tmp_path) == Residence(0, 0)
    assert residence_of(second, 1, tmp_path / "absent") == Residence(0, 0)


@pytest.mark.parametrize(
    ("text", "nodes"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2-3", (0, 2, 3)), (None, (0,))]
)
def test_nodes_are_those_with_memory(
    tmp_path: Path, text: str | None, nodes: tuple[int, ...]
) -> None:
    if text is not None:
        (tmp_path / "has_memory").write_text(text + "\n")
    assert nodes_with_memory(tmp_path) == nodes


def test_a_device_says_its_node_where_there_is_memory(tmp_path: Path) -> None:
    for bus, text in ((1, "0"), (2, "-1"), (3, "977"), (4, "")):
        (tmp_path / f"0000:{bus:02x}:00.0").mkdir()
        (tmp_path / f"0000:{bus:02x}:00.0" / "numa_node").write_text(text + "\n")
    found = [node_of_pci(0, bus, 0, tmp_path) for bus in range(1, 6)]
    assert found == [0, None, None, None, None]
