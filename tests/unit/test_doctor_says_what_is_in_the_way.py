"""Each check of a machine says what it found and what to do about it; only what does not work makes
the status 1, and the sizes planned for a model are plain arithmetic over its bytes.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from radix.cli import main
from radix.commands.doctor import command_of
from radix.commands.sizing import plan_sizes
from radix.replay.models import PRESETS
from radix.service.machine import (
    BAD,
    GOOD,
    NOTE,
    WARNING,
    Machine,
    disk,
    file_system,
    huge_pages,
    kernel,
    locked_memory,
    may_lock,
    memory,
    numa,
    open_files,
    shared_memory,
    worst,
)

GIB = 1 << 30


def written(folder: Path, **files: str) -> Machine:
    """A machine whose kernel says these things; in a name two underscores are a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(folder / "proc", folder / "sys", folder / "shm")


def test_an_old_kernel_and_few_files_are_in_the_way() -> None:
    assert kernel("6.1.0-13-amd64").level == kernel("5.1").level == GOOD
    assert kernel("4.19.0-1").level == BAD and "5.1" in kernel("4.19.0-1").advice
    assert (open_files(256).level, open_files(65536).level) == (WARNING, GOOD)
    assert open_files(resource.RLIM_INFINITY).found == "no limit"


def test_a_host_tier_beyond_the_control_group_is_in_the_way(tmp_path: Path) -> None:
    machine = written(
        tmp_path,
        proc__self__cgroup="0::/box\n",
        sys__fs__cgroup__box__memory_max="",
        proc__meminfo="MemTotal: 99 kB\nMemAvailable: 4194304 kB\n",
    )
    (tmp_path / "sys/fs/cgroup/box/memory.max").write_text(f"{8 * GIB}\n")
    assert memory(machine, None).level == GOOD
    assert "8 GiB by the control group's limit" in memory(machine, None).found
    assert memory(machine, 3 * GIB).level == GOOD
    assert memory(machine, 5 * GIB).level == WARNING
    found = memory(machine, 9 * GIB)
    assert found.level == BAD and "at most 6.4 GiB" in found.advice


def test_what_may_be_locked_is_told_by_limit_and_capability(tmp_path: Path) -> None:
    assert not may_lock(written(tmp_path, proc__self__status="CapEff:\t0000000000003fff\n"))
    assert may_lock(written(tmp_path, proc__self__status="CapEff:\t0000000000004000\n"))
    assert locked_memory(8 << 20, False, None).level == WARNING
    assert "LimitMEMLOCK" in locked_memory(8 << 20, False, 1 << 30).advice
    assert locked_memory(8 << 20, False, 4 << 20).level == GOOD
    assert locked_memory(8 << 20, True, 1 << 30).level == GOOD
    assert locked_memory(resource.RLIM_INFINITY, False, 1 << 30).level == GOOD


def test_huge_pages_are_told_for_private_and_for_shared_memory(tmp_path: Path) -> None:
    folder = "sys__kernel__mm__transparent_hugepage__"
    machine = written(
        tmp_path,
        **{
            folder + "enabled": "always [madvise] never",
            folder + "shmem_enabled": "always within_size advise [never] deny force",
        },
    )
    private, shared = huge_pages(machine)
    assert (private.level, private.found) == (GOOD, "madvise")
    assert (shared.level, shared.found) == (NOTE, "never") and "echo advise" in shared.advice
    assert [each.found for each in huge_pages(Machine(sys=tmp_path / "none"))] == [
        "the kernel has none"
    ] * 2


def test_several_memory_nodes_are_told(tmp_path: Path) -> None:
    machine = written(tmp_path, sys__devices__system__node__has_memory="0-1,3")
    assert numa(machine).found == "3 nodes: 0, 1, 3" and "numactl" in numa(machine).advice
    assert numa(Machine(sys=tmp_path / "none")).level == GOOD


def test_too_little_shared_memory_is_told(tmp_path: Path) -> None:
    assert shared_memory(Machine(shm=tmp_path), 1 << 60).level == NOTE
    assert shared_memory(Machine(shm=tmp_path), 1).level == GOOD
    assert shared_memory(Machine(shm=tmp_path / "none"), 1).level == NOTE


def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(tmp_path: Path) -> None:
    deep = tmp_path / "a b" / "c"
    deep.mkdir(parents=True)
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    machine = written(
        tmp_path,
        proc__self__mountinfo=(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
            f"2 1 0:5 / {escaped} rw,relatime shared:1 - nfs4 host:/x rw\n"
        ),
    )
    assert file_system(machine, deep) == ("nfs4", "host:/x")
    assert file_system(machine, tmp_path) == ("ext4", "/dev/sda1")
    found = {each.check: each for each in disk(machine, deep / "not" / "yet", 1 << 60)}
    assert found["file system"].level == WARNING and "local drive" in found["file system"].advice
    assert found["free disk"].level == BAD and "--disk-bytes" in found["free disk"].advice
    assert found["O_DIRECT"].level in (GOOD, WARNING)
    assert list(deep.iterdir()) == []  # the probe is gone
    assert {each.check: each for each in disk(machine, deep, None)}["free disk"].level == GOOD


def test_the_worst_finding_decides_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worst([]) == GOOD
    arguments = ["doctor", "--data", str(tmp_path), "--json", "-"]
    assert main([*arguments, "--host-bytes", "1MiB", "--disk-bytes", "1MiB"]) == 0
    found = json.loads(capsys.readouterr().out)
    checks = [each["check"] for each in found["findings"]]
    assert {"kernel", "python", "numpy", "lmdb", "memory", "O_DIRECT", "NUMA"} <= set(checks)
    assert found["plan"] is None and found["worst"] in (GOOD, NOTE, WARNING)
    assert main([*arguments, "--host-bytes", "4000TiB"]) == 1
    assert json.loads(capsys.readouterr().out)["worst"] == BAD


def test_tiers_are_planned_by_what_the_model_keeps() -> None:
    plan = plan_sizes(PRESETS["Llama-3.1-8B"], 1024, 8, 64 * GIB, 100 * GIB)
    assert (plan.token_bytes, plan.fixed_bytes) == (131072, 0)
    assert (plan.session_bytes, plan.needed_bytes) == (128 << 20, GIB)
    assert (plan.host_bytes, plan.host_sessions, plan.disk_sessions) == (GIB, 8, 8)
    assert GIB < plan.disk_bytes <= GIB * 1.11
    gemma = plan_sizes(PRESETS["Gemma-3-27B"], 512, 1, GIB, 0)
    assert gemma.fixed_bytes == 512 * 52 * 2 * 16 * 128 * 2  # a window longer than the context
    hybrid = plan_sizes(PRESETS["Jamba-v0.1"], 1000, 1, GIB, 0)
    assert hybrid.fixed_bytes == 2 * PRESETS["Jamba-v0.1"].snapshot_bytes


def test_what_does_not_fit_is_planned_within_the_machine() -> None:
    plan = plan_sizes(PRESETS["Llama-3.1-70B"], 32768, 100, 16 * GIB, 60 * GIB)
    assert plan.session_bytes == 10 * GIB
    assert (plan.host_bytes, plan.host_sessions) == (12 * GIB, 1)
    assert (plan.disk_bytes, plan.disk_sessions) == (54 * GIB, 5)
    command = command_of(plan, Path("/data"))
    assert command == "radix serve --host-bytes 12288MiB --disk-bytes 55296MiB --data /data"
    assert plan_sizes(PRESETS["Llama-3.1-8B"], 100, 1, GIB, 0).disk_bytes == 0


def test_options_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--context", "5"], ["--host-bytes", "x"], ["--model", "GPT-0"]):
        assert main(["doctor", *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"radix: {arguments[0]}: ")


def test_a_folder_that_cannot_be_written_is_in_the_way() -> None:
    found = {each.check: each for each in disk(Machine(), Path("/proc/self/fdinfo"), 1)}
    assert found["file system"].found.startswith("proc")
    assert found["O_DIRECT"].level == BAD and "make it writable" in found["O_DIRECT"].advice
