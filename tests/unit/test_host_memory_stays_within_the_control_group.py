"""The memory that a slab may take is the least that any control group above the process allows, in
either version, and what sets it is named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tiers.memory import memory_limit_bytes


def _group(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")


def test_version_2_takes_the_least_of_all_above(tmp_path: Path) -> None:
    process = tmp_path / "cgroup"
    process.write_text("0::/outer/inner\n")
    _group(tmp_path / "mount", "memory.max", "max")
    _group(tmp_path / "mount/outer", "memory.max", "300000")
    _group(tmp_path / "mount/outer/inner", "memory.max", "400000")
    most, source = memory_limit_bytes(process, tmp_path / "mount")
    assert most == 300000 and str(tmp_path / "mount/outer/memory.max") in source


def test_version_1_reads_the_memory_controller(tmp_path: Path) -> None:
    process = tmp_path / "cgroup"
    process.write_text("5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n")
    _group(tmp_path / "mount/cpu,cpuacct/job", "memory.limit_in_bytes", "1")
    _group(tmp_path / "mount/memory/job", "memory.limit_in_bytes", "200000")
    assert memory_limit_bytes(process, tmp_path / "mount")[0] == 200000


def test_a_path_of_the_host_falls_back_to_the_root_of_the_mount(tmp_path: Path) -> None:
    process = tmp_path / "cgroup"
    process.write_text("0::/docker/0123\n")
    _group(tmp_path / "mount", "memory.max", "100000")
    assert memory_limit_bytes(process, tmp_path / "mount")[0] == 100000


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_no_limit_leaves_the_physical_memory(tmp_path: Path, text: str) -> None:
    process = tmp_path / "cgroup"
    process.write_text("0::/\n")
    _group(tmp_path / "mount", "memory.max", text)
    most, source = memory_limit_bytes(process, tmp_path / "mount")
    assert source == "the physical memory" and most > 1 << 20
    assert memory_limit_bytes(tmp_path / "absent", tmp_path / "mount")[0] == most
