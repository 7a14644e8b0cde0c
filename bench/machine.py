"""What a figure was measured on: facts of the machine and versions, never its name or a path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import lmdb
import numpy as np

from radix import __version__
from radix._native import lib

_PATHS = {0: "scalar", 1: "AVX2", 2: "NEON"}


def machine_block(data: Path) -> dict[str, str | int | float]:
    """The machine as JSON values; ``data`` is where the disk benchmarks write."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "l3_bytes": _l3_bytes(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "system": platform.machine(),
        "compare": _PATHS.get(lib.rdx_dispatch_get(), "unknown"),
        "huge_pages": _choice(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "data_file_system": _file_system(data),
        "load_1min_at_start": round(os.getloadavg()[0], 2),
    }


def versions_block() -> dict[str, str]:
    """Versions of what takes part."""
    return {
        "radix": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cffi": importlib.metadata.version("cffi"),
        "py-lmdb": importlib.metadata.version("lmdb"),
        "lmdb": ".".join(str(part) for part in lmdb.version()),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.processor() or "unknown"


def _l3_bytes() -> int:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return 0
    return int(text.rstrip("K")) * 1024 if text.rstrip("K").isdigit() else 0


def _choice(path: Path) -> str:
    try:
        text = path.read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0]


def _file_system(data: Path) -> str:
    found = subprocess.run(
        ["stat", "-f", "-c", "%T", str(data)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
