"""Packaging: what is pinned and where, what the distribution declares, what a wheel carries."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _project() -> dict[str, Any]:
    """Return pyproject's table [project]."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _name(requirement: str) -> str:
    """Return the distribution that a requirement names, in one spelling."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_pyproject_pins_nothing_exactly_and_needs_three_packages() -> None:
    project = _project()
    assert sorted(map(_name, project["dependencies"])) == ["cffi", "lmdb", "numpy"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    assert not [
        requirement for part in lists for requirement in part if re.search(r"==|~=|<", requirement)
    ]


def test_constraints_pin_exactly_what_setup_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==\d[\w.]*", pin)]
    assert "torch==2.13.0" in pins
    extras = _project()["optional-dependencies"]
    needed = [*_project()["dependencies"], *extras["torch"], *extras["plot"], *extras["cli"]]
    missing = {*map(_name, [*needed, *extras["test"]])} - {*map(_name, pins)}
    assert not missing


def test_what_continuous_integration_runs_is_two_make_targets() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if "make" in line and not line.startswith("#")] == [
        "make deps",
        "RADIX_NO_SKIP=1 make test",
    ]


@pytest.mark.long
def test_the_wheel_is_abi3_and_carries_two_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path), "."]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("radix_tiers-") and "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "radix = radix.cli:main" in archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"radix", "tiers"}
    assert {"radix/_native.abi3.so", "radix/py.typed", "tiers/py.typed"} <= set(names)
    page = [str(path.relative_to(ROOT)) for path in (ROOT / "radix/service/web").iterdir()]
    assert page and {*page} <= set(names)
