"""Every program of native/tests ends well with the address and undefined-behaviour sanitizers, the
transfer threads with the thread sanitizer too, and none reads memory that nobody has written.

The fault that the last guards against: a field of a new entry in a grown array was read before it
was written, so that what the allocator had left there decided (``native/tests/test_flat.c``).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.cprograms import NATIVE, PROGRAMS, SOURCES, compile_all, run_program

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREAD = ("-fsanitize=thread",)
LOOSE = ("-DRDX_LOOSE_BUFFERS",)  # each edge a block of the heap: memcheck knows who wrote it
LONG = {"test_copy", "test_keys"}  # they compute on a caller's bytes, and take long there


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
    return compile_all(SOURCES, LOOSE, tmp_path_factory.mktemp("plain"))


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
