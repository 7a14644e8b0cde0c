"""Every program of native/tests ends well with the address and undefined-behaviour sanitizers, the
transfer threads with the thread sanitizer too, and none reads memory that nobody has written.

The fault that the last guards against: a field of a new entry in a grown array was read before it
was written, so that what the allocator had left there decided (``native/tests/test_flat.c``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
SOURCES = sorted((NATIVE / "src").glob("*.c"))
PROGRAMS = sorted((NATIVE / "tests").glob("test_*.c"))
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREAD = ("-fsanitize=thread",)
FLAGS = ("-std=c11", "-g", "-O1", "-fno-omit-frame-pointer", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")
LONG = {"test_copy", "test_keys"}  # they compute on a caller's bytes, and take long there
INCLUDE = (f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}")


def lacks(sanitizers: tuple[str, ...], folder: Path) -> str:
    """Return why programs with these sanitizers cannot be built and run here, or nothing."""
    if shutil.which("gcc") is None:
        return "gcc is not installed"
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    program = str(folder / "empty")
    built = subprocess.run(["gcc", *sanitizers, str(source), "-o", program], capture_output=True)
    if built.returncode != 0:
        return f"gcc lacks the libraries of {sanitizers[0]}"
    ran = subprocess.run([program], capture_output=True)
    return "" if ran.returncode == 0 else f"{sanitizers[0]} does not run on this kernel"


def compile_all(sources: list[Path], sanitizers: tuple[str, ...], folder: Path) -> list[Path]:
    """Compile sources into ``folder``, two at a time."""

    def one(source: Path) -> Path:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        command = [
            "gcc",
            *FLAGS,
            *WARNINGS,
            *sanitizers,
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
    program: Path, objects: list[Path], sanitizers: tuple[str, ...], under: tuple[str, ...] = ()
) -> None:
    """Link and run one program in an empty folder of its own, and expect it to leave nothing."""
    folder = objects[0].parent
    executable = folder / program.stem
    [main] = compile_all([program], sanitizers, folder)
    command = ["gcc", *sanitizers, str(main), *map(str, objects), "-pthread", "-o", str(executable)]
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


@pytest.fixture(scope="module")
def address_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("address")
    why = lacks(ADDRESS, folder)
    if why:
        pytest.skip(why)
    return compile_all(SOURCES, ADDRESS, folder)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_ends_well_under_the_address_sanitizer(
    program: Path, address_objects: list[Path]
) -> None:
    run_program(program, address_objects, ADDRESS)


def test_transfer_threads_run_without_a_data_race(tmp_path: Path) -> None:
    why = lacks(THREAD, tmp_path)
    if why:
        pytest.skip(why)
    objects = compile_all(SOURCES, THREAD, tmp_path)
    run_program(NATIVE / "tests" / "test_io.c", objects, THREAD)


@pytest.fixture(scope="module")
def plain_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    for name in ("gcc", "valgrind"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    return compile_all(SOURCES, (), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "program", [path for path in PROGRAMS if path.stem not in LONG], ids=lambda path: path.stem
)
def test_program_reads_no_memory_that_nobody_wrote(
    program: Path, plain_objects: list[Path]
) -> None:
    valgrind = ("valgrind", "-q", "--error-exitcode=1")
    run_program(program, plain_objects, (), valgrind)


def test_every_part_of_the_native_code_has_a_program() -> None:
    names = {program.stem for program in PROGRAMS}
    assert {"test_alloc", "test_copy", "test_flat", "test_io", "test_keys", "test_pool"} <= names
