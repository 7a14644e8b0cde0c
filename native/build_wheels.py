"""Builds the wheels of a release: for each architecture the same Python files and one extension,
compiled by clang against the symbols of an old glibc, so that any later one loads it.

``python native/build_wheels.py [--into DIR] [ARCH ...]`` wants ``ziglang``, which brings compiler
and headers for every target, and ``zopflipy``, which packs tighter than zlib (``make wheels``
installs both in an environment of its own).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wheel.wheelfile import WheelFile
from zopfli import ZipFile as ZopfliZip

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_ffi import ROOT, TARGET_NAME, build_in_place

GLIBC = (2, 17)  # of manylinux2014
ARCHITECTURES = ("x86_64", "aarch64")
MOST_BYTES = 1_000_000  # of a wheel
# gcc, by which figures are measured, unrolls no loops either. Without --gc-sections the library of
# the compiler's own functions is linked whole on some targets: 190,000 bytes that nothing calls.
LEAN = "-Wl,-s -Wl,--gc-sections -fno-unroll-loops"


def platform_tag(architecture: str) -> str:
    """Return the platform of a wheel, in its new and its old spelling."""
    major, minor = GLIBC
    return f"manylinux_{major}_{minor}_{architecture}.manylinux2014_{architecture}"


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def build_extension(architecture: str, into: Path) -> Path:
    """Compile the extension for one architecture; return its path."""
    target = f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    compiler = f"{sys.executable} -m ziglang cc -target {target} {LEAN}"
    with _variables(CC=compiler):
        objects = ROOT / "build" / f"native-{architecture}"
        build_in_place("release", into, os.cpu_count() or 1, objects)
    return into / TARGET_NAME


def build_pure(into: Path) -> Path:
    """Build the wheel without its extension; return its path."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(into), "."]
    with _variables(RADIX_NATIVE_SKIP="1"):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = into.glob("*.whl")
    return wheel


def join(pure: Path, extension: Path, architecture: str, into: Path) -> Path:
    """Write the wheel of one architecture: what ``pure`` holds, the extension, and its tags."""
    tag = f"cp311-abi3-{platform_tag(architecture)}"
    name, version = pure.name.split("-")[:2]
    target = into / f"{name}-{version}-{tag}.whl"
    plain = extension.parent / target.name
    with zipfile.ZipFile(pure) as source, WheelFile(str(plain), "w") as wheel:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                continue  # written anew when the wheel is closed
            if item.filename.endswith(".dist-info/WHEEL"):
                data = _tagged(data.decode(), architecture).encode()
            wheel.writestr(item, data)
        wheel.write(str(extension), f"radix/{TARGET_NAME}")
    _squeeze(plain, target)
    size = target.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"build_wheels: {target.name} has {size} bytes, at most {MOST_BYTES}")
    return target


def _squeeze(plain: Path, target: Path) -> None:
    """Write a wheel again, each file as small as deflate lets it be (seconds); check it whole."""
    target.unlink(missing_ok=True)
    with zipfile.ZipFile(plain) as source, ZopfliZip(target, "w", iterations=5) as small:
        for item in source.infolist():
            small.writestr(item, source.read(item))
    with WheelFile(str(target)) as written:
        for item in written.infolist():
            written.read(item)  # raises where bytes are not those of RECORD


def _tagged(text: str, architecture: str) -> str:
    kept = [line for line in text.splitlines() if line and not line.startswith(("Tag:", "Root-Is"))]
    tags = [f"Tag: cp311-abi3-{each}" for each in platform_tag(architecture).split(".")]
    return "\n".join([*kept, "Root-Is-Purelib: false", *tags, ""])


def versions_needed(extension: Path) -> list[tuple[int, ...]]:
    """Return the versions of glibc whose symbols a library asks for."""
    found = set(re.findall(rb"GLIBC_(\d+(?:\.\d+)+)", extension.read_bytes()))
    return sorted(tuple(map(int, each.split(b"."))) for each in found)


def main() -> None:
    """Build the wheels that are named, or all of them."""
    parser = argparse.ArgumentParser(description="Build the wheels of a release.")
    parser.add_argument("architectures", nargs="*", default=list(ARCHITECTURES), metavar="ARCH")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    chosen = parser.parse_args()
    if unknown := set(chosen.architectures) - set(ARCHITECTURES):
        raise SystemExit(f"build_wheels: {sorted(unknown)} is not one of {list(ARCHITECTURES)}")
    chosen.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pure = build_pure(Path(scratch))
        for architecture in chosen.architectures:
            extension = build_extension(architecture, Path(scratch) / architecture)
            needed = versions_needed(extension)
            if needed and needed[-1] > GLIBC:
                raise SystemExit(f"build_wheels: {architecture} asks for glibc {needed[-1]}")
            made = join(pure, extension, architecture, chosen.into)
            print(f"{made} ({made.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
