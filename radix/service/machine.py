"""What a machine gives a cache: limits, memory, huge pages, NUMA, file systems, versions. Each
check is a finding that says what was found and what to do about it; looking changes nothing but for
a probe file in the directory of the disk tier, which is removed.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from radix.options import size_text
from tiers.memory import memory_limit_bytes
from tiers.placement import nodes_with_memory
from tiers.slab_files import has_direct_io

GOOD, NOTE, WARNING, BAD = "good", "note", "warning", "bad"
_IPC_LOCK = 14  # CAP_IPC_LOCK: no limit on locked memory
_LEAST_PYTHON = (3, 11)
_LEAST_KERNEL = (5, 1)  # F_SEAL_FUTURE_WRITE
_LEAST_FILES = 1024
_LEAST_DISK_BYTES = 1 << 30
_NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "lustre")
_IN_MEMORY = ("tmpfs", "ramfs")
_NEEDED = ("numpy", "cffi", "lmdb")
_EXTRAS = ("torch", "rich", "prometheus_client", "redis")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: ``level`` is "good", "note", "warning" (works, worse) or "bad" (does not work);
    ``advice`` is empty where nothing is to be done.
    """

    check: str
    level: str
    found: str
    advice: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cache is to take: None where nobody said."""

    host_bytes: int | None
    disk_bytes: int | None
    data: Path | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the kernel tells about itself. Tests give other folders."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: Path = Path("/dev/shm")

    def text(self, path: Path) -> str:
        """A small file, stripped; empty where there is none."""
        try:
            return path.read_text().strip()
        except OSError:
            return ""


def findings(machine: Machine, wanted: Wanted, engines: dict[str, str]) -> Iterator[Finding]:
    """Every check, in the order in which it matters. ``engines``: those that are installed, with
    what there is to say of their versions. Cost: some small files, and a probe of 4 KiB.
    """
    yield kernel(platform.release())
    yield from versions(engines)
    yield memory(machine, wanted.host_bytes)
    yield locked_memory(
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], may_lock(machine), wanted.host_bytes
    )
    yield shared_memory(machine, wanted.host_bytes)
    yield from huge_pages(machine)
    yield numa(machine)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if wanted.data is not None:
        yield from disk(machine, wanted.data, wanted.disk_bytes)


def kernel(release: str) -> Finding:
    """Whether the service can seal its memory."""
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < _LEAST_KERNEL:
        advice = "the service needs Linux 5.1 or newer to seal the memory that it shares"
        return Finding("kernel", BAD, f"{platform.system()} {release}", advice)
    return Finding("kernel", GOOD, f"{platform.system()} {release}", "")


def versions(engines: dict[str, str]) -> Iterator[Finding]:
    """Python, the packages that are needed and those that add something, and engines."""
    text = platform.python_version()
    if sys.version_info < _LEAST_PYTHON:
        yield Finding("python", BAD, text, "install Python 3.11 or newer")
    else:
        yield Finding("python", GOOD, text, "")
    for name in _NEEDED:
        found = installed(name)
        advice = "" if found else f"pip install {name}"
        yield Finding(name, GOOD if found else BAD, found or "not installed", advice)
    for name in _EXTRAS:
        found = installed(name)
        if found:
            yield Finding(name, GOOD, found, "")
    for name, what in engines.items():
        yield Finding(name, NOTE if what else GOOD, installed(name) or "unknown version", what)


def installed(name: str) -> str:
    """The version of a package, empty where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def memory(machine: Machine, host_bytes: int | None) -> Finding:
    """Whether the host tier fits in the memory that this process may take."""
    limit, what = memory_limit_bytes(machine.proc / "self/cgroup", machine.sys / "fs/cgroup")
    available = available_bytes(machine)
    found = f"{size_text(limit)} by {what}, {size_text(available)} available"
    if host_bytes is None:
        return Finding("memory", GOOD, found, "")
    if host_bytes > limit:
        advice = f"give --host-bytes at most {size_text(limit * 4 // 5)}, or raise the limit"
        return Finding("memory", BAD, found, advice)
    if host_bytes > available:
        advice = f"the host tier wants {size_text(host_bytes)}: others would be swapped or killed"
        return Finding("memory", WARNING, found, advice)
    return Finding("memory", GOOD, found, "")


def available_bytes(machine: Machine) -> int:
    """What the kernel thinks could be taken without swapping, within the control group's limit."""
    limit, _ = memory_limit_bytes(machine.proc / "self/cgroup", machine.sys / "fs/cgroup")
    for line in machine.text(machine.proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return min(limit, int(line.split()[1]) * 1024)
    return limit


def may_lock(machine: Machine) -> bool:
    """Whether this process may lock memory without a limit (CAP_IPC_LOCK)."""
    for line in machine.text(machine.proc / "self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _IPC_LOCK & 1)
    return False


def locked_memory(limit: int, unlimited: bool, host_bytes: int | None) -> Finding:
    """Whether the host tier can be locked, which a GPU's copies are faster from."""
    if unlimited:
        return Finding("locked memory", GOOD, "no limit (CAP_IPC_LOCK)", "")
    if limit == resource.RLIM_INFINITY:
        return Finding("locked memory", GOOD, "no limit", "")
    found = f"limit {size_text(limit)}"
    if host_bytes is not None and host_bytes <= limit:
        return Finding("locked memory", GOOD, found, "")
    advice = (
        "the host tier works unlocked, but may be swapped: ulimit -l unlimited, LimitMEMLOCK="
        "infinity in a systemd unit, --ulimit memlock=-1 for a container"
    )
    return Finding("locked memory", WARNING, found, advice)


def shared_memory(machine: Machine, host_bytes: int | None) -> Finding:
    """Whether a slab that is shared by name (vLLM's workers) fits."""
    try:
        there = os.statvfs(machine.shm)
    except OSError as error:
        found = f"{machine.shm}: {error.strerror}"
        return Finding("shared memory", NOTE, found, "vLLM's workers share the host tier there")
    free = there.f_bavail * there.f_frsize
    found = f"{size_text(free)} free in {machine.shm}"
    if host_bytes is not None and host_bytes > free:
        advice = (
            "vLLM's workers share the host tier there: --shm-size of a container, or remount it"
        )
        return Finding("shared memory", NOTE, found, advice)
    return Finding("shared memory", GOOD, found, "")


def huge_pages(machine: Machine) -> Iterator[Finding]:
    """Whether the kernel gives huge pages to private memory, and to memory that is shared."""
    folder = machine.sys / "kernel/mm/transparent_hugepage"
    for check, name, good, advice in (
        (
            "huge pages",
            "enabled",
            ("always", "madvise"),
            f"echo madvise > {folder / 'enabled'}: lookups in a large index get faster",
        ),
        (
            "huge pages, shared",
            "shmem_enabled",
            ("always", "within_size", "advise", "force"),
            f"echo advise > {folder / 'shmem_enabled'}: for the pools that a service shares",
        ),
    ):
        text = machine.text(folder / name)
        chosen = text.partition("[")[2].partition("]")[0]
        if not chosen:
            yield Finding(check, NOTE, "the kernel has none", "")
        elif chosen in good:
            yield Finding(check, GOOD, chosen, "")
        else:
            yield Finding(check, NOTE, chosen, advice)


def numa(machine: Machine) -> Finding:
    """Whether memory is nearer to some cores than to others."""
    nodes = nodes_with_memory(machine.sys / "devices/system/node")
    if len(nodes) == 1:
        return Finding("NUMA", GOOD, "1 node", "")
    found = f"{len(nodes)} nodes: {', '.join(map(str, nodes))}"
    advice = (
        "put the host tier on the node of the GPU (HostTier(..., node=N)), the service there with "
        "numactl --cpunodebind=N --preferred=N"
    )
    return Finding("NUMA", NOTE, found, advice)


def open_files(limit: int) -> Finding:
    """Whether clients and slab files get their descriptors."""
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILES:
        advice = f"ulimit -n {_LEAST_FILES} or more: each client and each 4 GiB of disk takes one"
        return Finding("open files", WARNING, f"limit {limit:,}", advice)
    text = "no limit" if limit == resource.RLIM_INFINITY else f"limit {limit:,}"
    return Finding("open files", GOOD, text, "")


def disk(machine: Machine, data: Path, disk_bytes: int | None) -> Iterator[Finding]:
    """What the file system of the disk tier is, and what it can do."""
    folder = existing(data)
    kind, source = file_system(machine, folder)
    found = f"{kind or 'unknown'} on {source or 'unknown'} ({folder})"
    if kind in _NETWORKED:
        advice = "its lock and its syncs are only as good as the server's: use a local drive"
        yield Finding("file system", WARNING, found, advice)
    elif kind in _IN_MEMORY:
        advice = "nothing there outlives the machine, and it takes the memory of the host tier"
        yield Finding("file system", WARNING, found, advice)
    else:
        yield Finding("file system", GOOD, found, "")
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    yield _free_disk(free, disk_bytes)
    try:
        with tempfile.TemporaryDirectory(prefix=".radix-doctor-", dir=folder) as probe:
            direct = has_direct_io(Path(probe))
    except OSError as error:
        advice = f"make it writable for user {os.getuid()}"
        yield Finding("O_DIRECT", BAD, f"{folder}: {error.strerror}", advice)
        return
    if direct:
        yield Finding("O_DIRECT", GOOD, "taken", "")
    else:
        advice = "blocks go through the page cache, which takes memory: use ext4 or xfs"
        yield Finding("O_DIRECT", WARNING, "not taken", advice)


def _free_disk(free: int, disk_bytes: int | None) -> Finding:
    wanted = disk_bytes if disk_bytes is not None else _LEAST_DISK_BYTES
    if free < wanted:
        advice = f"give --disk-bytes at most {size_text(free * 9 // 10)}, or another --data"
        level = BAD if disk_bytes is not None else WARNING
        return Finding("free disk", level, size_text(free), advice)
    return Finding("free disk", GOOD, size_text(free), "")


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    for folder in (path.absolute(), *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path("/")


def file_system(machine: Machine, folder: Path) -> tuple[str, str]:
    """Type and source of the mount that a folder lies on; empty where the kernel does not say."""
    best, found = -1, ("", "")
    for line in machine.text(machine.proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point, rest = Path(_plain(before.split()[4])), after.split()
        if folder.resolve().is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), (rest[0], _plain(rest[1]))
    return found


def _plain(text: str) -> str:
    """A field of mountinfo without its octal escapes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def worst(found: Sequence[Finding]) -> str:
    """The gravest level among findings."""
    levels = (GOOD, NOTE, WARNING, BAD)
    return max((each.level for each in found), key=levels.index, default=GOOD)
