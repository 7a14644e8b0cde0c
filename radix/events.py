"""What a cache tells its owner: completions, the life of requests, and the stream of blocks stored
in and removed from tiers (I30, I32). Values only; the wire form belongs to the service.

In the stream a parent is stored before its child and a child removed before its parent, nothing is
stored or removed twice, and replaying it into a dictionary gives what is resident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from radix.plan import LoadDecision, PersistDecision
from radix.tier import Keys


class RequestState(Enum):
    """The life of a request; the last three are the three events of its end. A preempted one may be
    resumed, and then is LOADING again.
    """

    LOADING = "loading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    GENERATION_DONE = "generation done"
    FINALIZED = "finalized"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request entered a state at ``time_ns`` of the cache's clock."""

    request: int
    state: RequestState
    time_ns: int


@dataclass(frozen=True, slots=True)
class TransferEvent:
    """A transfer ended: ``good`` of ``blocks`` arrived, ``nbytes`` moved in [start, end]."""

    job: int
    source: str
    target: str
    group: str
    blocks: int
    good: int
    nbytes: int
    start_ns: int
    end_ns: int
    error: str | None


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks became resident in a tier: ``keys`` (n, 16) in the order of the path, those of the
    pages with which they end, from page ``first`` on, behind the block ``parent`` (16 bytes; the
    root key of the namespace before the first). ``pages`` (m, page bytes): what the pages of these
    blocks are in the tree, tokens or digests; of a block of several pages all of them.
    ``namespace``: its canonical bytes.

    Of a flat store: ``keys`` (n, 16 + width), each the root key of its namespace and then the key
    itself; ``parent`` is that root key, ``first`` -1 where positions are unknown, ``pages`` None.
    """

    tier: str
    group: str
    parent: bytes
    keys: Keys
    first: int
    pages: Keys | None
    namespace: bytes


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks left a tier, children before parents; ``keys`` as in BlocksStored."""

    tier: str
    group: str
    keys: Keys
    reason: str


@dataclass(frozen=True, slots=True)
class KeysDone:
    """A fetch, load or store of a flat store ended: ``good[i]`` tells whether key i of that call is
    where it was to go.
    """

    number: int
    good: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TierEvent:
    """A tier is in another mode than at the last poll: switched, or full, read-only, failed."""

    tier: str
    mode: str


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An interval of the engine's own, a draft, a verification, an all-gather: ``name`` lasted
    over [start, end] of the cache's clock; ``args``: what the engine wants to see beside it.
    """

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class LoadDecided:
    """How much of its hit a request loads, and the numbers that decided it (``Economy``)."""

    request: int
    decision: LoadDecision


@dataclass(frozen=True, slots=True)
class PersistDecided:
    """Whether a tier is written from now on, and the numbers that decided it (``Economy``); told
    when that is decided first, and when it changes.
    """

    decision: PersistDecision


Event = (
    RequestEvent
    | TransferEvent
    | BlocksStored
    | BlocksRemoved
    | KeysDone
    | TierEvent
    | SpanEvent
    | LoadDecided
    | PersistDecided
)
