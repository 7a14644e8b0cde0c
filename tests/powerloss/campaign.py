"""From one seed a chain of recordings, each begun from a state that a power loss of the one before
may have left, and the replay of each. What is wrong is told with the seed, the generation and the
crash point, and the case is kept in a file from which the state can be made again.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.powerloss.blocks import LIMITS, Config
from tests.powerloss.ledger import Known, ledger_of
from tests.powerloss.medium import ARBITRARY, Medium
from tests.powerloss.recording import ROOT, Kind, Recording, Script, marks, record
from tests.powerloss.replay import Case, Effort, State, states

NOTHING = Known()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done for each seed. ``parts``: processes that judge at a time."""

    generations: int = 3
    steps: int = 40
    effort: Effort = field(default_factory=Effort)
    parts: int = 2
    fault: str = "none"


@dataclass(slots=True)
class Outcome:
    """Counts, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def config_for(rng: random.Random, threads: int) -> Config:
    """A tier of one or two folders, which need not exist yet, nor those above them."""
    payload = rng.choice(("slab", "slab", "lmdb"))
    folders = rng.choice((("disk",), ("a/b/disk",), ("a/one", "two")))
    if payload == "lmdb":
        folders = folders[:1]
    return Config(folders, payload, rng.choice(LIMITS[1:]), threads)


def run_seed(seed: int, plan: Plan, shim: Path, place: Path) -> Outcome:
    """All generations of a seed; ``place``: an empty folder, where the cases are kept.

    Even seeds do one thing at a time, and give the same recording each time; odd ones have several
    stores in flight on two threads.
    """
    rng, outcome = random.Random(seed), Outcome()
    flying, threads = ((1, 1), (3, 2))[seed % 2]
    config, known = config_for(rng, threads), NOTHING
    root = place / "root"
    for generation in range(plan.generations):
        dies_after = rng.choice((0, 0, rng.randint(1, 40), rng.randint(1, 300)))
        script = Script(
            config, rng.getrandbits(32), plan.steps, known.last, flying, plan.fault, dies_after
        )
        case = _record(script, known, seed, plan.effort, shim, place)
        _judge(case, generation, plan.parts, place, outcome)
        if outcome.violations or generation + 1 == plan.generations:
            break
        state = _some_state(case, rng)
        config, known = state.config, state.promised
        shutil.rmtree(root)
        root.mkdir()
        state.write(root, seed)
        known = _misfortune(root, config, known, rng)
    return outcome


def run_case(
    script: Script, effort: Effort, shim: Path, place: Path, before: Known = NOTHING
) -> tuple[Outcome, Recording]:
    """One script, over what lies in the folder ``root`` of ``place``."""
    outcome = Outcome()
    case = _record(script, before, script.seed, effort, shim, place)
    _judge(case, 0, 1, place, outcome)
    return outcome, case.recording


def _record(
    script: Script, known: Known, seed: int, effort: Effort, shim: Path, place: Path
) -> Case:
    (place / "root").mkdir(parents=True, exist_ok=True)
    return Case(record(shim, place / "root", script, place), known, seed, effort)


def _judge(case: Case, generation: int, parts: int, place: Path, outcome: Outcome) -> None:
    """Replays a case, and keeps it."""
    where = f"seed {case.seed} generation {generation}"
    told = ledger_of(case.recording, case.before).faults + missed(case.recording, place / "root")
    outcome.violations += [f"{where}: {fault}" for fault in told]
    outcome.counts["recordings"] += 1
    _count(case.recording, outcome.counts)
    kept = place / f"case-{generation}.pickle"
    kept.write_bytes(pickle.dumps(case))
    _replay(kept, where, parts, outcome)


def missed(recording: Recording, root: Path) -> list[str]:
    """Where the recorded operations, all kept, do not give what lies below ``root``: the recorder
    has not seen everything.
    """
    medium = Medium(recording)
    for point, operation in enumerate(recording.operations):
        medium.apply(point, operation)
        if medium.barrier(operation) is not None:
            medium.settle(point, operation)
    kept = medium.pending
    found = {}
    for path, inode in medium.files(kept):
        image = medium.image(inode, kept, {})
        content = bytes(image.bytes[: image.size]).ljust(image.size, b"\0")
        found[path] = None if inode.is_folder else content
    wrong = []
    for name in sorted(found.keys() | {str(p.relative_to(root)) for p in root.rglob("*")}):
        place = root / name
        there = place.read_bytes() if place.is_file() else None
        if not place.exists() or name not in found:
            wrong.append(f"the recorder has lost {name}")
        elif place.name not in ARBITRARY and there != found[name]:
            wrong.append(f"the recorder has not seen all that was written to {name}")
    return wrong


def _count(recording: Recording, counts: Counter[str]) -> None:
    """What the recorded processes have done, so that nothing is missed unseen."""
    kinds = Counter(operation.kind for operation in recording.operations)
    counts["operations"] += len(recording.operations) - kinds[Kind.MARK]
    counts["barriers"] += kinds[Kind.SYNC]
    counts["holes"] += kinds[Kind.ZERO]
    told = [mark for _, mark in marks(recording)]
    counts["openings"] += sum("open" in mark for mark in told)
    counts["stored"] += sum(len(mark.get("stored", ())) for mark in told)
    counts["freed"] += sum(len(mark.get("freed", ())) for mark in told)
    made = [op.text for op in recording.operations if op.kind is Kind.MKDIR]
    counts["compactions"] += sum(path.endswith("compact.new") for path in made)


def _misfortune(root: Path, config: Config, known: Known, rng: random.Random) -> Known:
    """Now and then the index rots, too. What is stored after that has to be as durable as ever."""
    index = root / config.folders[0] / "data.mdb"
    if rng.randrange(6) or not index.exists() or not index.stat().st_size:
        return known
    with index.open("r+b") as file:
        file.write(b"\xff" * min(8192, index.stat().st_size))
    return replace(known, held=frozenset())


def _some_state(case: Case, rng: random.Random) -> State:
    """A state from which the next generation begins, its files still to be written. Creations that
    were cut short are chosen more often than they are."""
    few = Case(case.recording, case.before, rng.getrandbits(32), Effort(1, 1, 1))
    ledger = ledger_of(case.recording, case.before)
    points = [state.point for state in states(few, ledger)]
    early = points[: len(points) // 8 + 1]
    point = rng.choice(early if rng.random() < 0.3 else points)
    return next(state for state in states(few, ledger) if state.point == point)


def _replay(kept: Path, where: str, parts: int, outcome: Outcome) -> None:
    with ThreadPoolExecutor(parts) as pool:
        for part in pool.map(lambda part: _replay_part(kept, where, part, parts), range(parts)):
            outcome.counts += part.counts
            outcome.violations += part.violations


def _replay_part(kept: Path, where: str, part: int, parts: int) -> Outcome:
    """Judges a part in a process of its own, again from the next state on where one kills it."""
    outcome, after = Outcome(), -1
    while True:
        command = [sys.executable, "-m", "tests.powerloss.replay", str(kept)]
        numbers = [str(part), str(parts), str(after)]
        done = subprocess.run([*command, *numbers], cwd=ROOT, capture_output=True, text=True)
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        last: dict[str, Any] = {}
        for line in lines:
            if "fault" in line:
                place = f"point {line['point']} state {line['number']}"
                outcome.violations.append(f"{where} {place}: {line['fault']}")
            if "index" in line:
                last = line
        if lines and "tally" in lines[-1]:
            outcome.counts.update(lines[-1]["tally"])
            return outcome
        place = f"point {last.get('point')} state {last.get('number')}"
        outcome.violations.append(
            f"{where} {place}: the process ended with {done.returncode}: {done.stderr[-500:]}"
        )
        if not last or len(outcome.violations) > 20:
            return outcome
        after = last["index"]
