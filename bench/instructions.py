"""Instructions of a match and of an insert, counted by callgrind: a figure that no noise touches.

Kept here: what is counted is the compiled code of the extension in release mode, and only what the
call itself runs, without Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.measure import (
    OURS,
    Benchmark,
    Outcome,
    Place,
    Row,
    Sizes,
    Skip,
    Target,
    ratio,
)

ROOT = Path(__file__).resolve().parent.parent
MIXED = ", with a window and a state"
FLAGS = ("-O3", "-std=c11", "-pthread")


def compile_program(folder: Path) -> Path:
    """The program, in ``folder``: linked from the objects of the extension where its build left
    them and they are newer than their source. Raises ``RuntimeError``.
    """
    program = folder / "instructions"
    native = ROOT / "native"
    headers = max(path.stat().st_mtime for path in native.rglob("*.h"))
    parts: list[Path] = []
    for source in sorted((native / "src").glob("*.c")):
        built = ROOT / "build" / "native-release" / f"{source.stem}.o"
        written = max(headers, source.stat().st_mtime)
        parts.append(built if built.is_file() and built.stat().st_mtime > written else source)
    command = [os.environ.get("CC", "cc"), *FLAGS, f"-I{native / 'include'}"]
    command += [str(Path(__file__).with_suffix(".c")), *map(str, parts), "-o", str(program)]
    _output(command)
    return program


def _output(command: Sequence[str]) -> str:
    """What a program prints. ``RuntimeError`` with its last words where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {words}")
    return done.stdout


def count(program: Path, function: str, arguments: list[str]) -> tuple[int, int]:
    """Instructions inside ``function``, in all of its calls, and what the program printed."""
    counts = program.with_name("callgrind.out")
    command = [
        *["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"],
        *[f"--toggle-collect={function}", str(program), *arguments],
    ]
    printed = _output(command)
    found = re.search(r"^(?:summary|totals): (\d+)", counts.read_text(), re.MULTILINE)
    counts.unlink()
    if found is None:
        raise RuntimeError("callgrind wrote no summary")
    return int(found[1]), int(printed)


def run_instructions(sizes: Sizes, place: Place) -> Outcome:
    """Instructions a call: a full hit, and an insert of a prompt that shares nothing."""
    if shutil.which("valgrind") is None:
        raise Skip("valgrind is not installed")
    program = compile_program(place.data)
    prompts = sizes["prompts"]
    rows: list[Row] = []
    hits: set[int] = set()
    for groups, which in ((1, ""), (3, MIXED)):
        arguments = [str(prompts), str(sizes["tokens"]), str(sizes["page_tokens"]), str(groups)]
        match, pages = count(program, "rdx_tree_match", arguments)
        insert, _ = count(program, "rdx_tree_insert", arguments)
        hits.add(pages)
        rows.append(Row(f"match, full hit{which}", OURS, "instructions", (float(match),)))
        rows.append(
            Row(f"insert, nothing shared{which}", OURS, "instructions", (insert / prompts,))
        )
    program.unlink()
    if len(hits) != 1:
        raise AssertionError(f"both models hold the same prompts, and hit {hits}")
    names = [row.name for row in rows[:2]]
    return Outcome(
        rows=rows,
        facts={"hit_pages": hits.pop()},
        ratios=[ratio(rows, name + MIXED, name) for name in names],
        targets=[Target(f"{name + MIXED} / {name}", "at most", 2.0) for name in names],
    )


BENCHMARKS = (
    Benchmark(
        "instructions",
        "Instructions of a 4,096-token match and insert (callgrind)",
        run_instructions,
        smoke={"prompts": 4, "tokens": 512, "page_tokens": 16},
        full={"prompts": 20, "tokens": 4096, "page_tokens": 16},
    ),
)
