"""A process that writes to a disk tier until it is killed, and says on standard output what it was
told: ``S`` numbers acknowledged durable, ``F`` numbers that it is about to free.

    python -m tests.crash.writer FOLDER PAYLOAD SEED FIRST_NUMBER
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from radix.errors import TierFullError
from radix.tier import Transfer, Urgency
from tests.crash.diskrig import DiskRig, records_of
from tests.oracle import expand

LIMIT_BYTES = 1 << 20
BATCH = 4
IN_FLIGHT = 3


def say(word: str, numbers: list[int]) -> None:
    """One line, in one write."""
    sys.stdout.write(" ".join([word, *map(str, numbers)]) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Stores for ever, freeing the oldest when the tier is full; several stores at a time."""
    folder, payload, seed, first = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    random.seed(seed)
    rig = DiskRig(folder, limit_bytes=LIMIT_BYTES, payload=payload)
    kept = rig.adopt(range(first))
    say("S", [])
    flying: dict[int, tuple[list[int], np.ndarray]] = {}
    free_rows = [range(i * BATCH, (i + 1) * BATCH) for i in range(IN_FLIGHT)]
    rows_of: dict[int, range] = {}
    while True:
        count = random.randint(1, BATCH)
        if not free_rows:
            rig.tier.wait(1.0)
        elif rig.tier.free_blocks(0) < count:
            victims = [kept.pop(0) for _ in range(min(len(kept), random.randint(1, 6)))]
            say("F", victims)
            rig.free(victims)
        else:
            numbers = list(range(first, first + count))
            first += count
            try:
                slots = rig.tier.reserve(0, count)
            except TierFullError:
                continue
            rows = free_rows.pop()
            at = np.array(rows[:count], np.int32)
            rig.rows[0][at] = expand(np.array(numbers, np.uint64), rig.groups[0].block_bytes)
            rig.jobs += 1
            rows_of[rig.jobs], flying[rig.jobs] = rows, (numbers, slots)
            records = records_of(numbers)
            rig.tier.store(Transfer(rig.jobs, 0, at, slots, Urgency.STORE, records), rig.upper)
        for done in rig.tier.poll():
            numbers, slots = flying.pop(done.job)
            free_rows.append(rows_of.pop(done.job))
            assert done.good.all(), done
            say("S", numbers)
            rig.tier.commit(0, slots)
            rig.slots |= dict(zip(numbers, slots.tolist(), strict=True))
            kept += numbers


if __name__ == "__main__":
    main()
