"""Imports run one way (import-linter over a skeleton with one bad edge each), and importing the
library loads nothing heavy: disk, service and index-only replay work without torch installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODULES = [
    *["radix/__init__", "radix/errors", "radix/groups", "radix/tree", "radix/lease", "radix/store"],
    *["radix/policy/__init__", "radix/policy/eviction", "radix/admission", "radix/lifecycle"],
    *["radix/cache", "radix/replay/__init__", "radix/replay/run", "radix/cli"],
    *["tiers/__init__", "tiers/disk", "tiers/slab"],
]

GOOD = [
    *[("tiers/disk", "radix.errors"), ("radix/cache", "radix.tree"), ("radix/cli", "radix.replay")],
    *[("radix/replay/run", "tiers.disk"), ("radix/replay/run", "radix.cache")],
    *[("radix/policy/eviction", "radix.lease"), ("radix/admission", "radix.policy.eviction")],
]
BAD = [
    *[
        ("radix/errors", "radix.tree"),
        ("radix/tree", "radix.lease"),
        ("radix/lease", "radix.cache"),
    ],
    *[("radix/lease", "radix.policy.eviction"), ("radix/policy/eviction", "radix.admission")],
    *[
        ("radix/lifecycle", "radix.cache"),
        ("radix/cache", "radix.replay"),
        ("radix/cache", "tiers"),
    ],
    *[
        ("radix/errors", "tiers.disk"),
        ("radix/replay/run", "radix.cli"),
        ("tiers/disk", "radix.cli"),
    ],
    *[("tiers/disk", "radix.tree"), ("tiers/slab", "radix.cache"), ("tiers/disk", "radix.store")],
]


def _lint(folder: Path, edges: list[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Run import-linter with our contracts over a skeleton that imports along these edges."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for module in MODULES:
        path = folder / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"import {to}\n" for source, to in edges if source == module))
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_imports_down_the_layers_are_let_pass(tmp_path: Path) -> None:
    run = _lint(tmp_path, GOOD)
    assert run.returncode == 0, run.stdout


def test_every_import_up_the_layers_is_named(tmp_path: Path) -> None:
    run = _lint(tmp_path, BAD)
    assert run.returncode == 1, run.stdout
    for module, to in BAD:
        edge = f"{module.replace('/', '.')} -> {to}"
        assert edge in run.stdout, edge


def test_a_module_that_no_layer_names_is_an_error(tmp_path: Path) -> None:
    assert _lint(tmp_path, GOOD).returncode == 0
    (tmp_path / "radix" / "stray.py").write_text("")
    run = _lint(tmp_path, GOOD)
    assert run.returncode != 0 and "radix.stray" in run.stdout


def test_two_leaves_that_import_each_other_are_an_error(tmp_path: Path) -> None:
    run = _lint(tmp_path, [("radix/errors", "radix.groups"), ("radix/groups", "radix.errors")])
    assert run.returncode == 1 and "no two modules import each other BROKEN" in run.stdout


def _python(program: str) -> str:
    """Run a program in a fresh interpreter at the root and return what it printed."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["radix", "tiers"])
def test_importing_the_package_loads_nothing_heavy(package: str) -> None:
    heavy = "{'torch', 'lmdb', 'rich', 'matplotlib', 'xxhash'}"
    assert _python(f"import sys, {package}; print(sorted({heavy} & set(sys.modules)))") == "[]\n"


def test_every_module_but_the_device_tier_imports_without_torch() -> None:
    program = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
import radix, tiers
walk = [pkgutil.walk_packages(p.__path__, p.__name__ + ".") for p in (radix, tiers)]
names = [found.name for modules in walk for found in modules]
for name in names:
    if name not in ("tiers.device", "tiers.device_side") and "radix.engines." not in name:
        importlib.import_module(name)
print(len(names))
"""
    assert int(_python(program)) > 3


def test_free_threaded_python_is_refused_at_import() -> None:
    program = """
import sys
sys.abiflags += "t"
try:
    import radix
except ImportError as refused:
    print(refused)
"""
    assert "free-threaded" in _python(program)
