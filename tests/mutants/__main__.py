"""Breaks the code on purpose, one fault after another, and runs the tests that must notice. It
works in a copy of the tree; what is found is a line a mutant and one line of JSON.

    copy --> tests pass --> for each mutant: change, build (C only), tests fail?, change back
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutation import ROOT, Mutation, RottenError, mutations

LEFT_OUT = (".*", "__pycache__", "build", "dist", "demo-report", "docs", "*.egg-info")
OBJECTS = "build/native-release"
LIMIT_S = 120.0
NATIVE = "radix/_native.abi3.so"


class Copy:
    """A copy of the tree that is broken and repaired. ``fails`` tells of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        if (ROOT / OBJECTS).is_dir():
            shutil.copytree(ROOT / OBJECTS, root / OBJECTS)
        self._env = {**os.environ, "PYTHONPATH": str(root)}
        self._env.pop("RADIX_NATIVE_MODE", None)
        self.build()
        self._native = (root / NATIVE).read_bytes()
        self.said = ""  # by the last test

    def build(self) -> None:
        """Compiles what changed. ``RottenError`` where that fails: a mutant has to be valid C."""
        command = [sys.executable, "native/build_ffi.py"]
        built = subprocess.run(command, cwd=self.root, env=self._env, capture_output=True)
        if built.returncode:
            raise RottenError(f"it does not compile:\n{built.stderr.decode()}")

    def write(self, file: str, text: str) -> None:
        """A changed source; what Python compiled of the other text goes, however alike the two."""
        path = self.root / file
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def fails(self, *tests: str) -> bool:
        """Whether one of these tests fails, crashes or hangs. ``RottenError``: it did not run."""
        quiet = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        ran = subprocess.Popen(
            [sys.executable, "-m", "pytest", *quiet, *tests],
            cwd=self.root,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self.said = ran.communicate(timeout=LIMIT_S)[0].decode()
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)
            ran.communicate()
            return True
        if ran.returncode > 1:
            raise RottenError(f"{', '.join(tests)} did not run:\n{self.said}")
        return ran.returncode != 0

    def survivors(self, mutation: Mutation) -> list[str]:
        """The tests that do not notice; the copy is whole again when this returns."""
        whole = (self.root / mutation.file).read_text()
        try:
            self.write(mutation.file, mutation.applied(self.root))
            if mutation.native:
                self.build()
            return [test for test in mutation.tests if not self.fails(test)]
        finally:
            self.write(mutation.file, whole)
            if mutation.native:
                (self.root / NATIVE).write_bytes(self._native)


def _run(chosen: list[Mutation], root: Path) -> int:
    """How many are caught."""
    print(f"copying and building, {len(chosen)} mutants", flush=True)
    copy = Copy(root)
    tests = sorted({test for mutation in chosen for test in mutation.tests})
    print(f"the {len(tests)} tests on the code as it is: ", end="", flush=True)
    began = time.monotonic()
    if copy.fails(*tests):
        raise RottenError(f"a test fails, or is too slow, where nothing is broken:\n{copy.said}")
    print(f"pass in {time.monotonic() - began:.0f} s", flush=True)
    caught = 0
    for number, mutation in enumerate(chosen, 1):
        head = f"[{number:2}/{len(chosen)}] {mutation.invariant:3} {mutation.name}: "
        print(head, end="", flush=True)
        began = time.monotonic()
        missed = copy.survivors(mutation)
        caught += not missed
        verdict = f"NOT caught by {', '.join(missed)}" if missed else "caught"
        print(f"{verdict} ({time.monotonic() - began:.1f} s)", flush=True)
    return caught


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Every seeded fault is noticed by its tests.")
    parser.add_argument("--only", action="append", metavar="NAME", help="these mutants alone")
    asked = parser.parse_args()
    try:
        listed = mutations()
        for mutation in listed:
            mutation.check(ROOT)
        chosen = [each for each in listed if not asked.only or each.name in asked.only]
        unknown = set(asked.only or ()) - {each.name for each in chosen}
        if unknown:
            parser.error(f"no mutant is named {', '.join(sorted(unknown))}")
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            caught = _run(chosen, Path(folder))
    except RottenError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"mutants": len(chosen), "caught": caught}))
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
