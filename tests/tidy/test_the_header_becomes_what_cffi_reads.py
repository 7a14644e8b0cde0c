"""native/build_ffi.py turns the C header into cffi's dialect without losing or inventing anything,
and refuses what it cannot follow.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build_ffi() -> ModuleType:
    """The build script, loaded from its file: native/ is no package."""
    spec = importlib.util.spec_from_file_location("build_ffi", ROOT / "native" / "build_ffi.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEADER = """
/* A drawing
 * #define NOT_THIS 1
 */
#ifndef RDX_H
#define RDX_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define RDX_PAGE 16      // pages
#define RDX_FLAG (1u << 3)
#define RDX_WIDE \\
    0x20
#define RDX_CALL(x) ((x) + 1)
#define RDX_API __attribute__((visibility("default")))
_Static_assert(sizeof(int) == 4,
               "int");
typedef struct rdx_key { uint8_t bytes[RDX_PAGE]; } rdx_key;
int rdx_add(int a, int b) __attribute__((pure));
#ifdef __cplusplus
}
#endif
#endif
"""


def test_the_header_keeps_declarations_and_integer_macros(build_ffi: ModuleType) -> None:
    text = build_ffi.cdef_of_header(HEADER)
    kept = [line for line in text.splitlines() if line.strip()]
    assert [line for line in kept if "#" in line] == [
        "#define RDX_PAGE 16",
        "#define RDX_FLAG ...",
        "#define RDX_WIDE 0x20",
    ]
    ffi = FFI()
    ffi.cdef(text)
    assert ffi.sizeof("rdx_key") == 16


def test_the_header_of_the_project_is_read_by_cffi(build_ffi: ModuleType) -> None:
    text = build_ffi.cdef_of_header((ROOT / "native" / "include" / "rdx.h").read_text())
    FFI().cdef(text)
    assert "RDX_OK" in text


def test_a_conditional_that_cffi_cannot_follow_is_refused(build_ffi: ModuleType) -> None:
    with pytest.raises(SystemExit, match="RDX_DEBUG"):
        build_ffi.cdef_of_header("#ifndef RDX_H\n#define RDX_H\n#ifdef RDX_DEBUG\n#endif\n#endif\n")


def test_a_mode_that_nobody_knows_is_refused(
    build_ffi: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIX_NATIVE_MODE", "fast")
    with pytest.raises(SystemExit, match="release, debug, sanitize"):
        build_ffi.build_mode()


def test_only_what_changed_is_compiled_again(
    build_ffi: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    run = build_ffi._run

    def counted(line: list[str]) -> None:
        compiled.append(line[-3])
        run(line)

    monkeypatch.setattr(build_ffi, "_run", counted)
    (tmp_path / "part.h").write_text("#define PART 1\n")
    (tmp_path / "part.c").write_text('#include "part.h"\nint rdx_part(void) { return PART; }\n')
    command = ["cc", f"-I{tmp_path}"]

    def build(line: list[str] = command) -> int:
        compiled.clear()
        build_ffi._compile(line, tmp_path / "part.c", tmp_path)
        return len(compiled)

    assert [build(), build()] == [1, 0]
    (tmp_path / "part.h").write_text("#define PART 2\n")
    assert [build(), build()] == [1, 0]
    assert [build([*command, "-O1"]), build([*command, "-O1"])] == [1, 0]
