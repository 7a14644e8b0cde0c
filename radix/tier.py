"""The protocol between the control plane and a tier. The control plane decides: it hands a tier
frozen :class:`Transfer` values; the tier moves the bytes and reports each exactly once as a
:class:`TransferDone`. Keeps the tier side of I7 (a slot has one owner), I22 (a job is
acknowledged once, a failed one leaves no visible entry) and I25 (bytes <= limit).

Between two neighbours the *lower* tier moves the bytes, in both directions:

    device  <-- load ---  host  <-- load ---  disk
            --- store -->       --- store -->
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix.errors import TierError
from radix.groups import Group

Slots = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint8]


class TierMode(Enum):
    """``ON``; ``READ_ONLY``: loads only; ``OFF``: neither, and its blocks count for no hit."""

    ON = "on"
    READ_ONLY = "read-only"
    OFF = "off"


class Urgency(IntEnum):
    """The class of a transfer: a lower one goes first. Equal to RDX_CLASS_*."""

    DEMAND = 0
    PREFETCH = 1
    STORE = 2


@dataclass(frozen=True, slots=True)
class Capability:
    """What a tier can do. ``persistent``: survives close and reopen. ``shared``: other processes
    see it. ``layer_wise``: reports layers as they arrive. ``address_mapped``: ``planes(group)``
    names memory that another tier may copy from and to. ``shares_bytes``: its groups share one
    budget of bytes, so that evicting one makes room for another. ``holds_bytes``: False for slots
    without memory behind them, as replays use that only count. ``finds``: it is a ``Finder``: its
    stores take records, and what other processes stored is found by key.
    """

    persistent: bool
    shared: bool
    layer_wise: bool
    address_mapped: bool
    shares_bytes: bool
    holds_bytes: bool
    finds: bool


@dataclass(frozen=True, slots=True)
class Records:
    """What a persistent tier keeps beside the bytes of n blocks, to find them again.

    ``namespace``: canonical bytes; ``keys``, ``parents``: (n, 16) uint8 chained keys, or keys
    (n, 32) with zero parents in the flat store; ``pages``: (n, page_bytes) uint8 or None where
    only keys are known; ``positions``: (n,) int64, pages before this one, -1 where unknown.
    Where no group has a block a page, ``pages`` are all of a block, and its parent is the key
    before the first of them; ``page_bytes``, as a tier is attached with, are of so many.
    """

    namespace: bytes
    keys: Keys
    parents: Keys
    pages: Keys | None
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class View:
    """A part of every block of a group: layers [lo, hi) and store shards [lo, hi) of its layout.

    What it covers is ``Layout.view(layers, shards)``: whole runs, replicated ones among them. A
    tier that holds a view keeps those runs one after the other, in the order of the stored block.
    Raises: ``TypeError`` for what is not a pair of ints, ``ValueError`` for an empty range.
    """

    layers: tuple[int, int]
    shards: tuple[int, int]

    def __post_init__(self) -> None:
        for name, span in (("layers", self.layers), ("shards", self.shards)):
            if not isinstance(span, tuple) or [type(end) for end in span] != [int, int]:
                raise TypeError(f"view {name} must be a pair of ints, not {span!r}")
            if not 0 <= span[0] < span[1]:
                raise ValueError(f"view {name} must not be empty or negative, not {span}")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A frozen plan: n blocks of one group between two neighbouring tiers.

    ``upper_slots[i]`` and ``lower_slots[i]`` hold (or will hold) the same block. The tier owns
    neither; both sides stay reserved or pinned until the transfer is reported done. ``part``: only
    these runs of each block move, each verified by its own checksum; None: all that both sides
    hold. A store brings of them the pieces that begin in its shards: what several shards hold, the
    first of them writes, so that the stores of all shards bring every byte once. ``by_layer``: a
    load moves layer after layer, for ``Tier.layers`` to tell how far it is.
    """

    job: int
    group: int
    upper_slots: Slots
    lower_slots: Slots
    urgency: Urgency
    records: Records | None
    part: View | None = None
    by_layer: bool = False


@dataclass(frozen=True, slots=True)
class TransferDone:
    """The one acknowledgement of a transfer. ``good[i]``: block i arrived and, for a store into a
    persistent tier, is durable; for a load, was verified. A store of a part says so of that part:
    the block is whole, and in a persistent tier found again, with the store that brings the last
    run of it. ``corrupt[i]``: it was read and is wrong, or is gone: drop it. ``nbytes`` really
    moved between the tiers: of what is good exactly the bytes asked for, without padding.
    ``error``: why a block is not good; None where the tier is well and only did not take it.
    """

    job: int
    good: npt.NDArray[np.bool_]
    corrupt: npt.NDArray[np.bool_]
    nbytes: int
    verified_blocks: int
    error: TierError | None


@dataclass(frozen=True, slots=True)
class Restored:
    """Blocks found when a persistent tier was opened: one namespace and group, oldest first.
    Slots are already claimed; what the cache does not adopt it frees.
    """

    group: int
    records: Records
    slots: Slots


@dataclass(frozen=True, slots=True)
class Seek:
    """A question to a ``Finder``: which of these blocks of a group other processes stored.
    ``chained``: each is of use only with all before it.
    """

    number: int
    group: int
    records: Records
    chained: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Its answer: ``there[i]``: block i seems to be there, with every shard piece that the tier
    holds. A hint: what is loaded decides.
    """

    number: int
    there: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Bytes that the tier takes now, its limit, and blocks used a group."""

    used_bytes: int
    limit_bytes: int
    used_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes that a tier gave its medium to write since it was opened: ``payload_bytes``, blocks
    with their padding; ``index_bytes``, whatever names them, pages that are written anew included
    (and blocks that lie in it); ``ahead_bytes``, room made ready. ``total_bytes``: what a budget
    goes by, all of these; of replicas the most that one of them wrote.
    """

    payload_bytes: int
    index_bytes: int
    ahead_bytes: int
    total_bytes: int


@runtime_checkable
class Tier(Protocol):
    """One tier. All methods are called by the owner's thread; none blocks on I/O but ``open``,
    ``flush``, ``wait``, ``wait_layer`` and ``close``.
    """

    @property
    def name(self) -> str:
        """Short and unique in a cache: "device", "host", "disk"."""
        ...

    @property
    def capability(self) -> Capability:
        """What it can do, as data."""
        ...

    @property
    def mode(self) -> TierMode:
        """On, read-only or off; a tier turns itself read-only or off when its medium fails."""
        ...

    def set_mode(self, mode: TierMode) -> None:
        """Switches it at run time. Transfers under way finish."""
        ...

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Makes its pools for these groups; ``upper`` is its neighbour above (None: it is the
        first). Called once. Raises what is wrong by name and leaves nothing behind.
        """
        ...

    def restore(self) -> Sequence[Restored]:
        """What a persistent tier holds from before; once, after ``attach``. Else empty."""
        ...

    def planes(self, group: int) -> Any:
        """rdx_plane values (numpy structured, base/stride/bytes uint64) of an address-mapped
        tier; ``TierError`` for others.
        """
        ...

    def view(self, group: int) -> View | None:
        """The part of each block of the group that it holds, as a rank or a stage does; None: all.
        Its ``planes`` are the bytes of that part.
        """
        ...

    def sums(self, group: int, slots: Slots) -> npt.NDArray[np.uint64] | None:
        """xxh3-64 of the runs of committed blocks as they were committed, (n, pieces, layers); None
        where none are kept. A tier below compares what it copied: what rotted above must not get a
        true checksum below.
        """
        ...

    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """The most blocks of this group that can ever be resident at once (R0): alone, or while so
        many of each other group are there (``beside``, by group; its own entry counts for nothing).
        """
        ...

    def free_blocks(self, group: int) -> int:
        """Blocks of this group that ``reserve`` could give now."""
        ...

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing. Raises ``TierFullError`` (nothing is taken)."""
        ...

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes now. Raises ``TierError`` for any not reserved, and for
        one of which some parts have arrived and others have not (nothing is committed).
        """
        ...

    def arrived(self, group: int, slots: Slots, part: View) -> None:
        """Told by the tier that moves the bytes: this part of reserved slots was written, others
        perhaps not. A tier that others read from commits such a slot only once it is whole.
        """
        ...

    def abort(self, group: int, slots: Slots) -> None:
        """Gives reserved slots back."""
        ...

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back. In a persistent tier they are reused only once their
        removal is durable.
        """
        ...

    def fence(self, group: int, slots: Slots) -> None:
        """Committed or reserved slots are given up but must not be reused yet (quarantine)."""
        ...

    def lift(self, group: int, slots: Slots) -> None:
        """The fence of these slots has passed: they are free."""
        ...

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies whole blocks inside the tier, ``sources[i]`` to ``targets[i]``, in the order of
        the calls: before whatever is started on the tier later, after what was started before on
        the stream that computes. ``TierError`` for a tier that cannot, and where a target is a
        source too or is named twice. Cost: the bytes.
        """
        ...

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying upper -> self. Raises ``TierFullError(retryable)`` when its queue is
        full: nothing was started.
        """
        ...

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying self -> upper; the demand of a request that waits."""
        ...

    def layers(self, job: int) -> int:
        """How many layers of a load are complete in the tier above, all blocks of it, counted from
        the first that it moves; they ascend. 0 before the end where it was not asked for
        ``by_layer``. Never blocks. Raises ``TierError`` for a job whose end was polled, or that is
        no load.
        """
        ...

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """Blocks until this layer of the group, and each before it that the load moves, is complete
        in the tier above. False where the time is over, or the load has ended without it. Raises
        ``ValueError`` for a layer that the load does not move, else as ``layers``.
        """
        ...

    def cancel(self, job: int) -> None:
        """What has not begun is skipped; the acknowledgement still comes."""
        ...

    def poll(self) -> list[TransferDone]:
        """Acknowledgements since the last call, each once. Never blocks."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Blocks until ``poll`` has something to give, or the time is over."""
        ...

    def pending(self) -> int:
        """Transfers started whose acknowledgement was not polled yet."""
        ...

    def renew(self) -> None:
        """Begins a new epoch: what a persistent tier stored before, or has under way, is not found
        when it is opened again. Durable when it returns; blocks. Raises ``TierError``: nothing has
        changed then. The owner frees the slots.
        """
        ...

    def flush(self) -> None:
        """Makes durable what was stored and is still on the way. Blocks."""
        ...

    def usage(self) -> TierUsage:
        """Bytes and blocks in use."""
        ...

    def written(self) -> Written | None:
        """What its medium was given to write, for one that wears; None for others. Cost: O(1)."""
        ...

    def check(self) -> None:
        """Raises ``InvariantError`` if its own books disagree (I7, I8, I25)."""
        ...

    def close(self) -> None:
        """Finishes or cancels what is under way, gives everything back. Idempotent."""
        ...


@runtime_checkable
class Finder(Protocol):
    """What a tier offers beside the protocol that other processes write to as well
    (``Capability.finds``). Called by the owner's thread; nothing blocks.
    """

    def seek(self, seek: Seek) -> None:
        """Asks; the answer comes once with ``found``. ``TierFullError`` (retryable) where too much
        was asked, ``TierUnavailableError`` while it is off: there is no answer then.
        """
        ...

    def found(self) -> list[Found]:
        """Answers since the last call, each once."""
        ...

    def lose(self, group: int, records: Records) -> None:
        """Blocks turned out to be wrong: they go for everybody, as far as that is possible now."""
        ...

    def claim(self, group: int, slots: Slots, records: Records) -> None:
        """Reserved slots stand for blocks that were found; ``commit`` makes them final."""
        ...
