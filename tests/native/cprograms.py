"""Builds the programs of native/tests and runs each in an empty folder of its own."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
SOURCES = sorted((NATIVE / "src").glob("*.c"))
PROGRAMS = sorted((NATIVE / "tests").glob("test_*.c"))
FLAGS = ("-std=c11", "-g", "-O1", "-fno-omit-frame-pointer", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")
INCLUDE = (f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}")


def compile_all(
    sources: list[Path], flags: tuple[str, ...], folder: Path, compiler: str = "gcc"
) -> list[Path]:
    """Compile sources into ``folder``, two at a time."""

    def one(source: Path) -> Path:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        command = [
            compiler,
            *FLAGS,
            *WARNINGS,
            *flags,
            *INCLUDE,
            "-c",
            str(source),
            "-o",
            str(target),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, sources))


def run_program(
    program: Path,
    objects: list[Path],
    flags: tuple[str, ...],
    under: tuple[str, ...] = (),
    compiler: str = "gcc",
) -> None:
    """Link and run one program in an empty folder of its own, and expect it to leave nothing."""
    folder = objects[0].parent
    executable = folder / program.stem
    [main] = compile_all([program], flags, folder, compiler)
    command = [compiler, *flags, str(main), *map(str, objects), "-pthread", "-o", str(executable)]
    linked = subprocess.run(command, capture_output=True, text=True)
    assert linked.returncode == 0, linked.stderr
    place = folder / f"{program.stem}-files"
    place.mkdir()
    variables = dict(os.environ, ASAN_OPTIONS="detect_leaks=1", TSAN_OPTIONS="halt_on_error=1")
    command = [*under, str(executable)]
    done = subprocess.run(
        command, cwd=place, env=variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(place.iterdir())
