"""Builds the states that a power loss may leave behind, and judges each: a disk tier opens it,
serves every block that was acknowledged and not freed, nothing that was never stored, and only
right bytes.

A crash point is a barrier: the moment before it, when most is not yet durable. What a crash in
between leaves is found there too, because some of the changes may be lost; a state counts as one of
all moments at which it may arise, so it owes what was promised at any of them.

    python -m tests.powerloss.replay CASE.pickle PART PARTS AFTER    lines of JSON, a tally the last
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import lmdb
import lmdb.verify

from radix.errors import CacheError, TierUnavailableError
from tests.powerloss.blocks import GROUPS, Config, Disk, group_of, kind_of
from tests.powerloss.ledger import Known, Ledger, ledger_of
from tests.powerloss.medium import Element, Medium, Torn, tear
from tests.powerloss.recording import Recording

WRONG = (AssertionError, CacheError, LookupError, OSError, ValueError, lmdb.Error)
MEMORY = "/dev/shm"
ALL_SUBSETS = 12  # up to so many changes that are not durable, all subsets of them


@dataclass(frozen=True, slots=True)
class Effort:
    """How many states of a crash point are tried: all subsets, but at most ``most`` seeded ones
    (``subsets`` where there are too many changes for all), and as many with ``torn`` writes. Every
    ``deep``-th state is worked on after it was opened. ``share``: of the crash points.
    """

    subsets: int = 500
    torn: int = 100
    most: int = 1 << ALL_SUBSETS
    deep: int = 8
    share: float = 1.0
    most_faults: int = 100  # so many faulty states are enough


@dataclass(frozen=True, slots=True)
class Case:
    """A recording, what was promised when it began, and how it is replayed."""

    recording: Recording
    before: Known
    seed: int
    effort: Effort


@dataclass(frozen=True, slots=True)
class State:
    """One state: ``point`` and ``number`` name it within its case."""

    point: int
    number: int
    kept: tuple[Element, ...]
    torn: Torn
    promised: Known
    config: Config
    medium: Medium

    def write(self, root: Path, seed: int) -> None:
        """Makes the state below ``root``, an empty folder; before the next state is taken."""
        rng = random.Random(f"{seed}/{self.point}/{self.number}")
        self.medium.write(root, self.kept, self.torn, rng)


def _choices(
    count: int, effort: Effort, rng: random.Random
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Indices of the changes that are kept, and whether some of them are torn."""
    everything = tuple(range(count))

    def some() -> tuple[int, ...]:
        part = rng.random()
        return tuple(i for i in everything if rng.random() < part)

    if count <= ALL_SUBSETS and 1 << count <= effort.most:
        sizes = range(count + 1)
        subsets = itertools.chain.from_iterable(
            itertools.combinations(everything, size) for size in sizes
        )
        yield from ((subset, False) for subset in subsets)
    else:
        yield (), False
        yield everything, False
        # What came last alone is what a wrong order shows first.
        yield from (((i,), False) for i in everything[-2:])
        for _ in range(min(effort.subsets, effort.most)):
            yield some(), False
    for index in range(effort.torn):
        yield everything if index % 4 == 0 else some(), True


def states(case: Case, ledger: Ledger) -> Iterator[State]:
    """Every state to try, those in which the same is found and promised once."""
    medium, passed = Medium(case.recording), -1
    seen: set[tuple[bytes, Known, Config]] = set()
    for point, operation in enumerate(case.recording.operations):
        medium.apply(point, operation)
        if medium.barrier(operation) is None:
            continue
        rng = random.Random(f"{case.seed}/{point}")
        if rng.random() < case.effort.share:
            yield from _states_at(case, ledger, medium, point, passed, seen)
        medium.settle(point, operation)
        passed = point


def _states_at(
    case: Case,
    ledger: Ledger,
    medium: Medium,
    point: int,
    passed: int,
    seen: set[tuple[bytes, Known, Config]],
) -> Iterator[State]:
    rng = random.Random(f"{case.seed}/{point}/states")
    elements, config = medium.relevant(), ledger.config(point)
    medium.forget_digests()
    for number, (chosen, is_torn) in enumerate(_choices(len(elements), case.effort, rng)):
        kept = tuple(elements[i] for i in chosen)
        torn = tear(kept, rng) if is_torn else {}
        if is_torn and not torn:
            continue
        first = max([passed, *(element.at for element in kept)])
        promised = ledger.promised(min(first, point - 1), point)
        key = (medium.digest(kept, torn), promised, config)
        if key not in seen:
            seen.add(key)
            yield State(point, number, kept, torn, promised, config, medium)


# ---------------------------------------------------------------------- judging


@dataclass(slots=True)
class Tally:
    """Counts over states. ``refused``: creations that were cut short and are refused; ``blocks``:
    found and verified; ``deep``: states that were worked on and opened again.
    """

    states: int = 0
    torn: int = 0
    refused: int = 0
    blocks: int = 0
    deep: int = 0
    faulty: int = 0


def judge(root: Path, state: State, *, deep: bool, tally: Tally) -> list[str]:
    """What is wrong with the state that lies below ``root``; the directory is used up."""
    tally.states += 1
    tally.torn += bool(state.torn)
    tally.deep += deep
    try:
        disk = Disk(root, state.config)
    except TierUnavailableError as error:
        if state.promised.is_made:
            return [f"it does not open: {error}"]
        tally.refused += 1
        return []
    except WRONG as error:
        return [f"it does not open: {error!r}"]
    try:
        faults = _judge_open(root, disk, state, tally)
        if deep and not faults:
            faults = _work(disk, state.promised)
    except WRONG as error:
        faults = [repr(error)]
    finally:
        disk.close()
    if deep and not faults:
        faults = _judge_again(root, disk, state)
    return faults


def _judge_open(root: Path, disk: Disk, state: State, tally: Tally) -> list[str]:
    known = state.promised
    found = disk.adopt(known.last)
    tally.blocks += len(found)
    faults = [f"block {n} was found, but never stored" for n in set(found) - known.begun]
    lost = sorted(known.held - set(found))
    if lost:
        faults.append(f"blocks {lost} were acknowledged and are not there")
    faults += disk.verify(found)
    disk.tier.check()
    taken = bytes_below(root, state.config)
    if taken > state.config.limit_bytes:
        faults.append(f"{taken} bytes are taken, the limit is {state.config.limit_bytes}")
    return faults


def bytes_below(root: Path, config: Config) -> int:
    """Bytes that the file system says the directories of a tier take."""
    files = (path for folder in config.folders for path in (root / folder).rglob("*"))
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file())


def _work(disk: Disk, known: Known) -> list[str]:
    """Frees a block and stores new ones, so that slots are used again."""
    disk.free(sorted(disk.slots)[:1])
    for group in range(len(GROUPS)):
        number = known.last + (group - known.last) % len(GROUPS)
        batch = [n for n in (number, number + len(GROUPS)) if kind_of(n) == kind_of(number)]
        if disk.tier.free_blocks(group) < len(batch):
            disk.free([n for n in disk.slots if group_of(n) == group][: len(batch)])
        if disk.tier.free_blocks(group) >= len(batch):
            done = disk.store(batch)
            if not done.good.all():
                return [f"a store after the restart failed: {done.error}"]
    return disk.verify(sorted(disk.slots))


def _judge_again(root: Path, disk: Disk, state: State) -> list[str]:
    """After a restart in order all of it is there, and the index is sound page by page."""
    faults = list(lmdb.verify.verify(str(root / state.config.folders[0])))
    again = Disk(root, state.config)
    try:
        found = again.adopt(state.promised.last + 3 * len(GROUPS))
        if found != sorted(disk.slots):
            faults.append(f"blocks {sorted(set(disk.slots) ^ set(found))} after a second restart")
        faults += again.verify(found)
        again.tier.check()
    except WRONG as error:
        faults.append(repr(error))
    finally:
        again.close()
    return faults


# ---------------------------------------------------------------------- a process of its own


def folder_for_states() -> str | None:
    """Memory where there is some: a state lives for a few milliseconds."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def _judge_part(case: Case, part: int, parts: int, after: int, say: Callable[..., None]) -> None:
    """Judges every ``parts``-th state, those behind number ``after`` in the order of all."""
    ledger, tally = ledger_of(case.recording, case.before), Tally()
    with tempfile.TemporaryDirectory(dir=folder_for_states()) as scratch:
        for index, state in enumerate(states(case, ledger)):
            if index <= after or index % parts != part:
                continue
            root = Path(scratch, str(index))
            root.mkdir()
            say(index=index, point=state.point, number=state.number)
            state.write(root, case.seed)
            deep = index // parts % case.effort.deep == 0
            faults = judge(root, state, deep=deep, tally=tally)
            for fault in faults:
                say(fault=fault, point=state.point, number=state.number)
            tally.faulty += bool(faults)
            shutil.rmtree(root)
            if tally.faulty >= case.effort.most_faults:
                break
    say(tally=asdict(tally))


def main() -> None:
    """Judges a part of a case; what it says before each state tells where it died."""
    case: Case = pickle.loads(Path(sys.argv[1]).read_bytes())
    part, parts, after = map(int, sys.argv[2:5])

    def say(**what: object) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    _judge_part(case, part, parts, after, say)


if __name__ == "__main__":
    main()
