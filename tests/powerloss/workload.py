"""The process that is recorded: it works on a real disk tier below a folder and marks in the log
what it was told, so that each operation on the storage stands between what was acknowledged before
it and after it. A mark is one line of JSON:

    {"open": config, "loses": bool}   about to open; ``loses``: what was there may be dropped
    {"ready": numbers}                open; these were found and are durable
    {"begin": numbers}                about to store
    {"stored": numbers}               acknowledged
    {"freed": numbers}                about to be freed

    python -m tests.powerloss.workload SCRIPT.json
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from radix.errors import TierFullError
from tests.powerloss.blocks import GROUPS, LIMITS, ROWS, Config, Disk, config_of, group_of, kind_of
from tests.powerloss.faults import FAULTS

BATCH = 4


def mark(**what: Any) -> None:
    """Writes a mark into the log of the shim, in its place among the operations."""
    ctypes.CDLL(None).powerloss_mark(json.dumps(what).encode())


class Workload:
    """Seeded work. ``first``: blocks below this number may be there already. ``flying``: stores in
    flight at a time; with one the process waits for the committer too, and its run depends on the
    seed alone.
    """

    def __init__(self, root: Path, config: Config, seed: int, first: int, flying: int) -> None:
        self.root, self.config, self.rng = root, config, random.Random(seed)
        self.next = [first + (group - first) % len(GROUPS) for group in range(len(GROUPS))]
        self.most = flying
        self.gone: list[int] = []
        self.jobs: dict[int, tuple[list[int], np.ndarray, list[int]]] = {}
        self._open(loses=False)

    def _open(self, *, loses: bool) -> None:
        mark(open=asdict(self.config), loses=loses)
        self.disk = Disk(self.root, self.config)
        found = self.disk.adopt(max(self.next))
        mark(ready=found)
        self.rows = [
            [list(range(at, at + BATCH)) for at in range(0, self.most * BATCH, BATCH)]
            for _ in GROUPS
        ]

    def run(self, steps: int) -> None:
        """That many steps, and the end of what is in flight."""
        for _ in range(steps):
            step = self.rng.choices(
                [self.store, self.free, self.load, self.flush, self.reopen],
                [10, 1, 1, 1, 0.7],
            )[0]
            step()
        self.flush()
        self.disk.close()

    def _batch(self) -> list[int]:
        """Numbers of one group and kind: new ones, or ones that were there before."""
        if self.gone and self.rng.random() < 0.2:
            return [self.gone.pop(self.rng.randrange(len(self.gone)))]
        group = self.rng.choices(range(len(GROUPS)), [6, 4, 2, 2])[0]
        batch = [self.next[group]]
        while len(batch) < self.rng.randint(1, BATCH):
            number = batch[-1] + len(GROUPS)
            if kind_of(number) != kind_of(batch[0]):
                break
            batch.append(number)
        self.next[group] = batch[-1] + len(GROUPS)
        return batch

    def store(self) -> None:
        """Starts a store, making room first; in lockstep waits for it."""
        batch = self._batch()
        group = group_of(batch[0])
        while not self.rows[group]:
            self.collect(wait=True)
        if self.disk.tier.free_blocks(group) < len(batch):
            self.free(group)
        try:
            slots = self.disk.tier.reserve(group, len(batch))
        except TierFullError:
            return
        rows = self.rows[group].pop()
        mark(begin=batch)
        job = self.disk.start_store(batch, rows, slots)
        self.jobs[job] = batch, slots, rows
        while len(self.jobs) >= self.most:
            self.collect(wait=True)
        self.collect(wait=False)

    def collect(self, *, wait: bool) -> None:
        """Takes acknowledgements."""
        if wait:
            self.disk.tier.wait(5.0)
        for done in self.disk.tier.poll():
            batch, slots, rows = self.jobs.pop(done.job)
            mark(stored=[n for n, good in zip(batch, done.good.tolist(), strict=True) if good])
            self.disk.keep(batch, slots, done)
            self.rows[group_of(batch[0])].append(rows)

    def free(self, group: int | None = None) -> None:
        """Frees the oldest blocks of a group, or any."""
        mine = [n for n in self.disk.slots if group in (None, group_of(n))]
        if group is None:
            self.rng.shuffle(mine)
        victims = mine[: self.rng.randint(1, 5)]
        if not victims:
            return
        mark(freed=victims)
        self.gone += victims
        if self.most > 1:
            self.disk.free(victims)
            return
        for each in range(len(GROUPS)):  # the committer may be at work by itself
            self.disk.free([n for n in victims if group_of(n) == each])
            self.disk.tier.flush()

    def load(self) -> None:
        """Loads some blocks; what they hold must be right while nothing has failed."""
        while self.jobs:
            self.collect(wait=True)
        mine = sorted(self.disk.slots)
        faults = self.disk.verify(self.rng.sample(mine, min(len(mine), ROWS)))
        if faults:
            mark(fault=faults)

    def flush(self) -> None:
        """Waits for what runs, and for the removals."""
        while self.jobs:
            self.collect(wait=True)
        self.disk.tier.flush()

    def reopen(self) -> None:
        """Closes the tier in order and opens it again, now and then with another limit."""
        while self.jobs:
            self.collect(wait=True)
        self.disk.close()
        change = self.rng.random()
        if change < 0.3:
            self.config = replace(self.config, limit_bytes=self.rng.choice(LIMITS))
        self._open(loses=change < 0.3)


def main() -> None:
    """Runs a script: what to open, for how long, and what is done wrongly on purpose."""
    script = json.loads(Path(sys.argv[1]).read_text())
    with FAULTS[script["fault"]]():
        work = Workload(
            Path(script["root"]),
            config_of(script["config"]),
            script["seed"],
            script["first"],
            script["flying"],
        )
        work.run(script["steps"])


if __name__ == "__main__":
    main()
