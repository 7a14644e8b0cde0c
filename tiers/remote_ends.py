"""How a transfer of the remote tier is told to its owner: what is good, what is a miss for good,
and why. A value that is gone or does not verify is a miss and nobody's failure; a backend that does
not answer is one. Keeps the telling half of I22.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radix.errors import CorruptBlockError, TierError, TierFullError, TierUnavailableError
from radix.tier import TransferDone
from tiers.remote_jobs import Job, State


@dataclass(slots=True)
class RemoteCounts:
    """What happened since the tier was attached: blocks ``stored``, ``loaded``, ``gone`` (no value
    any more), ``corrupt`` (a value that did not verify), and those of which a store or a load
    failed; ``found``: that other caches had stored; values ``removed`` because they were no good;
    calls that were ``late``; ``outages`` of the backend.
    """

    stored: int = 0
    loaded: int = 0
    gone: int = 0
    corrupt: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    found: int = 0
    removed: int = 0
    late: int = 0
    outages: int = 0


def done_of(name: str, job: Job, why: str, counts: RemoteCounts) -> TransferDone:
    """The acknowledgement of a job, counted; ``why``: what ended it before its time, if anything.
    Cost: its blocks.
    """
    states = job.states.copy()
    good = states == State.GOOD
    moved = int(np.count_nonzero(good))
    if job.storing:
        counts.stored += moved
        counts.failed_stores += job.count - moved
        lost = np.zeros(job.count, np.bool_)
        # A part of the backend that does not answer has its share declined: the rest goes on.
        declined = not why and np.isin(states, (State.GOOD, State.FAILED)).all()
        error = None if declined else _refused(name, job, why)
    else:
        lost = (states == State.GONE) | (states == State.WRONG)
        counts.loaded += moved
        counts.gone += int(np.count_nonzero(states == State.GONE))
        counts.corrupt += int(np.count_nonzero(states == State.WRONG))
        counts.failed_loads += job.count - moved
        error = None
        if not (good | lost).all():
            error = TierError(name, f"load: {why or 'the backend failed'}", retryable=True)
        elif lost.any():
            error = CorruptBlockError(name, f"{int(lost.sum())} blocks are gone or damaged")
    return TransferDone(
        job=job.transfer.job,
        good=good,
        corrupt=lost,
        nbytes=moved * job.cut.nbytes,
        verified_blocks=0 if job.storing else moved,
        error=error,
    )


def _refused(name: str, job: Job, why: str) -> TierError:
    states = job.states
    if why:
        return TierError(name, f"store: {why}", retryable=True)
    if (states == State.FULL).any():
        return TierFullError(name, "store: the backend has no room", retryable=True)
    if (states == State.WAITING).any():
        return TierUnavailableError(name, "store: the backend failed", retryable=True)
    return CorruptBlockError(job.upper.name, "a block rotted before it was stored below")
