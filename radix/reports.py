"""How a job ended on one rank, as numbers of which the element-wise minimum is how it ended on all:
what every rank has is good, what one of them found wrong is wrong. Keeps the ranks' part of I22: a
minimum of counts would call blocks good that one rank lacks, and free slots that another uses.

    a job of n blocks     0 pending, 1 failed, 2+k good up to block k, in order
    a flag a block        0 wrong, 1 not there, 2 good: where a hit needs some of the blocks only,
                          what is good on all ranks is no prefix, and the flags are intersected
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix.errors import CorruptBlockError, TierError
from radix.tier import TransferDone

Values = npt.NDArray[np.int64]

PENDING, FAILED = 0, 1  # then 2+k: good up to block k
BEYOND = 1 << 62  # what has no say in a minimum
HEAD = 4  # of a job: its number, the first wrong block, bytes moved, blocks verified
WRONG, ABSENT, THERE = 0, 1, 2  # a flag


def width_of(blocks: int, prefix: bool) -> int:
    """How many numbers a rank says of a job of so many blocks."""
    return HEAD + (0 if prefix else blocks)


def said_of(done: TransferDone | None, blocks: int, prefix: bool) -> Values:
    """The numbers of a rank for a job of so many blocks; None: it is pending. ``prefix``: what is
    behind the first block that is not good is worth nothing. Cost: the blocks.
    """
    row = np.full(width_of(blocks, prefix), BEYOND, np.int64)
    row[0] = PENDING
    if done is None:
        return row
    good = done.good & ~done.corrupt
    gaps, ends = np.flatnonzero(~good), np.flatnonzero(good)
    reach = len(good) if not len(gaps) else int(gaps[0])
    if not prefix:
        reach = int(ends[-1]) + 1 if len(ends) else 0
        row[HEAD:] = np.where(done.corrupt, WRONG, np.where(good, THERE, ABSENT))
    row[0] = FAILED + reach
    if done.corrupt.any():
        row[1] = int(done.corrupt.argmax())
    row[2:HEAD] = done.nbytes, done.verified_blocks
    return row


def heard_of(
    row: Values, job: int, blocks: int, prefix: bool, tier: str, mine: TierError | None = None
) -> TransferDone | None:
    """The end of a job as the minimum of all ranks' numbers tells it; None: it is pending on some.

    Of what counts in order the first wrong block alone is told, the others when they are read
    again. ``mine``: this rank's own error, as the cause. Cost: the blocks.
    """
    if row[0] == PENDING:
        return None
    good = np.arange(blocks) < int(row[0]) - FAILED
    corrupt = np.zeros(blocks, np.bool_)
    if prefix:
        corrupt[int(row[1]) :][:1] = True
    else:
        good &= row[HEAD:] == THERE
        corrupt = np.asarray(row[HEAD:] == WRONG, np.bool_)
    error: TierError | None = None
    if not good.all():
        kind = CorruptBlockError if corrupt.any() else TierError
        lost = blocks - int(good.sum())
        error = kind(tier, f"job {job}: {lost} of {blocks} blocks are not good on every rank")
        error.__cause__ = mine
    return TransferDone(job, good, corrupt, int(row[2]), int(row[3]), error)
