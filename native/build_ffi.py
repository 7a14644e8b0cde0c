"""Builds ``radix._native``, the one extension module: C11 sources behind a cffi API-mode wrapper.

``native/include/rdx.h`` is both the public C header and, without its preprocessor lines, the cdef.
``native/src/*.c`` are compiled apart; ``native/fastcall.c`` is included into the generated file,
because its METH_FASTCALL entries must land in the same module object as ``lib`` and ``ffi``.
setuptools enters by ``make_ffi`` (see setup.py), people by ``python native/build_ffi.py``, which
recompiles what changed and puts ``_native.abi3.so`` in place.

A source that needs more than C11 of libc defines ``_GNU_SOURCE`` in its own first line.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import filecmp
import io
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
MODULE = "radix._native"
TARGET_NAME = "_native.abi3.so"
LIMITED_API = "0x030b0000"

# A function of Python that the limited API lacks would otherwise be missed only at import.
STRICT = "-Werror=implicit-function-declaration"
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", STRICT]
EVERY_MODE = [*WARNINGS, "-pthread", "-fPIC", "-fvisibility=hidden"]
COMPILE = {
    "release": ["-O3"],
    "debug": ["-O0", "-g", "-UNDEBUG", "-DRDX_DEBUG"],
    "sanitize": [
        *["-O1", "-g", "-UNDEBUG", "-DRDX_DEBUG", "-fno-omit-frame-pointer"],
        *["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    ],
}
LINK = {
    "release": ["-pthread"],
    "debug": ["-pthread"],
    "sanitize": ["-pthread", "-fsanitize=address,undefined"],
}

PREAMBLE = """
#include "rdx.h"
#include "fastcall.c"
/* The generated PyInit returns what _cffi_init gives; a macro does not expand within itself, so
 * this hands that very module to fastcall.c, which adds its functions (NULL passes through). */
#define _cffi_init(name, version, context) rdx_add_methods(_cffi_init(name, version, context))
"""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CPLUSPLUS = re.compile(
    r"^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus\b.*?^[ \t]*#[ \t]*endif\b[^\n]*$", re.M | re.S
)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_STATIC_ASSERT = re.compile(r"^[ \t]*(?:_Static_assert|static_assert)\s*\(.*?\)\s*;", re.M | re.S)
_DIRECTIVE = re.compile(r"^\s*#\s*(\w+)\s*(.*?)\s*$")
_DEFINE = re.compile(r"^(\w+)\s+(.+)$")
_INTEGER = re.compile(r"^\(?(-?(?:0[xX][0-9a-fA-F]+|\d+))[uUlL]*\)?$")
_EXPRESSION = re.compile(r"^[\s\dA-Fa-fxXuUlL()<>|&+*~-]+$")


def build_mode() -> str:
    """Return the mode that RADIX_NATIVE_MODE asks for: release, debug or sanitize."""
    mode = os.environ.get("RADIX_NATIVE_MODE", "") or "release"
    if mode not in COMPILE:
        raise SystemExit(f"RADIX_NATIVE_MODE is {mode!r}, expected one of {', '.join(COMPILE)}")
    return mode


def cdef_of_header(header: str) -> str:
    """Return the declarations of a C header in the dialect that cffi reads.

    Integer macros stay (an expression becomes ``...``, which the compiler fills in), all other
    preprocessor lines, comments, attributes and static assertions go. A conditional other than the
    include guard and ``#ifdef __cplusplus`` is refused: cffi could not know which branch holds.
    """
    text = _COMMENT.sub(lambda match: "\n" * match.group().count("\n") or " ", header)
    text = _CPLUSPLUS.sub("", text.replace("\\\n", " "))
    text = _STATIC_ASSERT.sub("", _ATTRIBUTE.sub("", text))
    kept: list[str] = []
    guard_seen = False
    for line in text.splitlines():
        directive = _DIRECTIVE.match(line)
        if directive is None:
            kept.append(line)
            continue
        word, rest = directive.groups()
        if word == "define":
            kept += _cdef_of_macro(rest)
        elif word == "ifndef" and not guard_seen:
            guard_seen = True
        elif word not in ("include", "endif", "undef", "pragma", "error"):
            raise SystemExit(f"rdx.h: cffi cannot follow '#{word} {rest}'")
    return "\n".join(kept)


def _cdef_of_macro(rest: str) -> list[str]:
    """Return the cdef line of one ``#define``: integers as they are, the others none."""
    macro = _DEFINE.match(rest)
    if macro is None:
        return []
    name, value = macro.groups()
    integer = _INTEGER.match(value)
    if integer is not None:
        return [f"#define {name} {integer.group(1)}"]
    return [f"#define {name} ..."] if _EXPRESSION.match(value) else []


def native_sources() -> list[Path]:
    """Return native/src/*.c in a fixed order; an empty list would link to nothing, so it raises."""
    sources = sorted((ROOT / "native" / "src").glob("*.c"))
    if not sources:
        raise SystemExit("native/src holds no C source")
    return sources


def make_ffi(mode: str | None = None) -> FFI:
    """Return the cffi builder of ``radix._native``; setuptools wants its paths relative."""
    mode = mode or build_mode()
    header = ROOT / "native" / "include" / "rdx.h"
    ffi = FFI()
    ffi.cdef(cdef_of_header(header.read_text()))
    headers = sorted((ROOT / "native").rglob("*.h"))
    relative = [str(path.relative_to(ROOT)) for path in native_sources()]
    depends = [str(path.relative_to(ROOT)) for path in [*headers, ROOT / "native" / "fastcall.c"]]
    ffi.set_source(
        MODULE,
        PREAMBLE,
        sources=relative,
        depends=depends,
        include_dirs=["native/include", "native/src", "native"],
        define_macros=[("Py_LIMITED_API", LIMITED_API)],
        extra_compile_args=[*EVERY_MODE, *COMPILE[mode]],
        extra_link_args=LINK[mode],
        py_limited_api=True,
    )
    return ffi


def build_in_place(mode: str, into: Path, jobs: int, work: Path | None = None) -> bool:
    """Compile what changed and put the module into ``into``; tell whether it was replaced.

    Objects lie in ``work``, build/native-MODE unless it is given. A lock file makes concurrent
    builds wait for each other, and the finished library replaces the old one in one rename: a
    process that has the old one loaded keeps it.
    """
    work = ROOT / "build" / f"native-{mode}" if work is None else work
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        generated = work / "_native.c"
        with contextlib.redirect_stdout(io.StringIO()):
            make_ffi(mode).emit_c_code(str(generated))  # an equal file stays as it is
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        include = [ROOT / "native" / "include", ROOT / "native" / "src", ROOT / "native"]
        include.append(Path(sysconfig.get_path("include")))
        flags = [*EVERY_MODE, *COMPILE[mode], f"-DPy_LIMITED_API={LIMITED_API}", "-DNDEBUG"]
        if mode != "release":
            flags.remove("-DNDEBUG")
        command = [*compiler, *flags, *(f"-I{directory}" for directory in include)]
        sources = [*native_sources(), generated]
        with ThreadPoolExecutor(jobs) as pool:
            objects = list(pool.map(lambda source: _compile(command, source, work), sources))
        linked = work / TARGET_NAME
        if not linked.is_file() or any(_mtime(path) > _mtime(linked) for path in objects):
            _run([*compiler, "-shared", *map(str, objects), *LINK[mode], "-o", str(linked)])
        return _put_in_place(linked, into)


def _put_in_place(linked: Path, into: Path) -> bool:
    """Copy the library unless an equal one is there; tell whether it was copied."""
    target = into / TARGET_NAME
    if target.is_file() and filecmp.cmp(linked, target, shallow=False):
        return False
    into.mkdir(parents=True, exist_ok=True)
    fresh = into / f".{TARGET_NAME}.{os.getpid()}"
    shutil.copyfile(linked, fresh)
    os.replace(fresh, target)
    return True


def _mtime(path: Path) -> int:
    """Return when a file was last written, in nanoseconds."""
    return path.stat().st_mtime_ns


def _run(command: list[str]) -> None:
    """Run a compiler command; its own message, above ours, says what was wrong."""
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"build_ffi: status {done.returncode} from: {shlex.join(command)}")


def _compile(command: list[str], source: Path, work: Path) -> Path:
    """Compile one source unless its object is newer than all that it includes."""
    target = work / f"{source.stem}.o"
    flags_file = target.with_suffix(".flags")
    line = shlex.join(command)
    if _is_fresh(target) and flags_file.is_file() and flags_file.read_text() == line:
        return target
    print(f"cc {source.name}", flush=True)
    begun = time.time_ns()
    depfile = str(target.with_suffix(".d"))
    target.unlink(missing_ok=True)
    _run([*command, "-MMD", "-MF", depfile, "-c", str(source), "-o", str(target)])
    # An edit made while the compiler ran must look newer than the object.
    os.utime(target, ns=(begun, begun))
    flags_file.write_text(line)
    return target


def _is_fresh(target: Path) -> bool:
    """Tell whether an object is newer than every file its dependency list names."""
    depfile = target.with_suffix(".d")
    if not target.is_file() or not depfile.is_file():
        return False
    names = depfile.read_text().replace("\\\n", " ").split(":", 1)[1]
    made = _mtime(target)
    paths = [Path(name.replace("\\ ", " ")) for name in re.split(r"(?<!\\)\s+", names.strip())]
    return all(path.is_file() and _mtime(path) < made for path in paths)


def main() -> None:
    """Build in place: ``python native/build_ffi.py [--mode MODE] [--into DIR] [--jobs N]``."""
    parser = argparse.ArgumentParser(description="Build radix._native in place.")
    parser.add_argument("--mode", choices=sorted(COMPILE), default=build_mode())
    parser.add_argument("--into", type=Path, default=ROOT / "radix")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    if build_in_place(chosen.mode, chosen.into.resolve(), chosen.jobs):
        print(f"built {chosen.into / TARGET_NAME} ({chosen.mode})")


if __name__ == "__main__":
    main()
