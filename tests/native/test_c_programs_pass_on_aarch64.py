"""Every program of native/tests ends well on the other architecture that wheels are built for: as
aarch64, where vectors are compared by NEON, plain char has no sign and memory is ordered weakly (of
which an emulator on this machine shows little), run by qemu.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.native.cprograms import PROGRAMS, SOURCES, compile_all, run_program

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
STATIC = ("-static",)  # its libraries are not where those of this machine are


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    for name in (COMPILER, EMULATOR):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    return compile_all(SOURCES, STATIC, tmp_path_factory.mktemp("aarch64"), COMPILER)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_ends_well_on_aarch64(program: Path, objects: list[Path]) -> None:
    run_program(program, objects, STATIC, (EMULATOR,), COMPILER)
