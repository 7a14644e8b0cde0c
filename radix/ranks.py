"""One control plane for all ranks of a model. Its tiers only keep the books: what is to be moved,
and what is to be copied inside the device, goes as frozen orders to every rank; each moves the
bytes of its shards between its own device and the host memory that all ranks map, and reports a
number for each job, of which the element-wise minimum is what the cache acts on. The process that
decides also owns the disk. Keeps the ranks' part of I22 and I23: a block is there once all who
write it say so.

    control   decides, owns host slots and disk      Orders -->       <-- minimum of the numbers
    rank r    device, its view of each block         step: begin, move, report

Who writes a block that several ranks hold follows from its host slot and the rank alone
(``radix.shards``): no rank asks anybody, and who has nothing to write acknowledges at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from radix.errors import TierError, TierFullError, TierUnavailableError, UnsupportedError
from radix.front import FrontTier
from radix.groups import Group
from radix.reports import BEYOND, Values, heard_of, said_of, width_of
from radix.shards import Shards
from radix.tier import Capability, Slots, Tier, TierMode, Transfer, TransferDone, View

MOST_JOBS = 1024  # under way at once


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer between device and host, of the whole block: each rank moves its share."""

    transfer: Transfer
    storing: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """Blocks to copy inside the device, before what is begun later."""

    group: int
    sources: Slots
    targets: Slots


@dataclass(frozen=True, slots=True)
class Orders:
    """What every rank does in one step, in this order: forget the jobs ``over``, skip what has not
    begun of ``cancel``, begin the rest.
    """

    over: tuple[int, ...]
    cancel: tuple[int, ...]
    begin: tuple[Move | Copy, ...]


# Gives orders to all ranks; the element-wise minimum of their numbers and these.
Exchange = Callable[[Orders, Values], Values]


@dataclass(frozen=True, slots=True)
class _Open:
    group: int
    blocks: int


class Ranks:
    """The ranks as the control plane sees them. ``device`` and ``host``: its tiers, for
    ``PrefixCache``; below them any tier of its own process may stand.

    Orders travel at the next ``poll``, in their order: the engine polls between what orders a copy
    (an admission that runs at once, a snapshot) and the forward that follows it.
    """

    def __init__(self, exchange: Exchange) -> None:
        """``exchange``: called in each poll with something to order or outstanding, not else."""
        self._exchange = exchange
        self._begin: list[Move | Copy] = []
        self._over: list[int] = []
        self._cancel: list[int] = []
        self._jobs: dict[int, _Open] = {}
        self.groups: tuple[Group, ...] = ()

    def device(self, books: Tier) -> Tier:
        """The device tier: ``books`` counts its slots, of which each rank has as many."""
        return _Device(books, self)

    def host(self, memory: Tier) -> Tier:
        """The tier below it: ``memory`` is mapped here and on every rank, and owned here."""
        return _Host(memory, self)

    # ------------------------------------------------------------ what the tiers do
    def order(self, what: Move | Copy) -> None:
        """For the next step. ``TierFullError`` (retryable) for more than may be under way."""
        if isinstance(what, Move):
            if len(self._jobs) >= MOST_JOBS:
                raise TierFullError("host", f"{MOST_JOBS} jobs are under way", retryable=True)
            transfer = what.transfer
            self._jobs[transfer.job] = _Open(transfer.group, len(transfer.upper_slots))
        self._begin.append(what)

    def cancel(self, job: int) -> None:
        """What has not begun of a job is skipped by every rank."""
        if job in self._jobs:
            self._cancel.append(job)

    @property
    def pending(self) -> int:
        """Jobs that some rank has not reported."""
        return len(self._jobs)

    def step(self, name: str) -> list[TransferDone]:
        """Gives the orders, and takes what has ended on every rank. Nothing is exchanged where
        there is neither. Cost: the jobs.
        """
        if not (self._begin or self._jobs or self._over):
            return []
        orders = Orders(tuple(self._over), tuple(self._cancel), tuple(self._begin))
        widths = [self._width(number) for number in sorted(self._jobs)]
        heard = np.asarray(self._exchange(orders, np.full(sum(widths), BEYOND, np.int64)))
        if heard.shape != (sum(widths),) or heard.dtype != np.int64:
            raise ValueError(
                f"exchange gave {heard.dtype} of {heard.shape}, expected int64 of {(sum(widths),)}"
            )
        self._begin, self._over, self._cancel = [], [], []
        done: list[TransferDone] = []
        rows = np.split(heard, np.cumsum(widths))
        for number, row in zip(sorted(self._jobs), rows, strict=False):
            job = self._jobs[number]
            ended = heard_of(row, number, job.blocks, _in_order(self.groups[job.group]), name)
            if ended is not None:
                done.append(ended)
                del self._jobs[number]
                self._over.append(number)
        return done

    def _width(self, number: int) -> int:
        job = self._jobs[number]
        return width_of(job.blocks, _in_order(self.groups[job.group]))


def _in_order(group: Group) -> bool:
    return group.retention.rule == "full"


class _Device(FrontTier):
    """The first tier of the control plane: slots that have memory on the ranks alone."""

    def __init__(self, books: Tier, ranks: Ranks) -> None:
        super().__init__(books)
        self._ranks = ranks

    @property
    def capability(self) -> Capability:
        """Bytes, though not here."""
        return replace(self.inner.capability, holds_bytes=True, address_mapped=False)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Ordered from every rank, before whatever is begun later."""
        self.inner.clone(group, sources, targets)
        if len(sources):
            self._ranks.order(Copy(group, sources.copy(), targets.copy()))


class _Host(FrontTier):
    """The tier below the device: its slots and bytes are here, what moves them is on the ranks."""

    def __init__(self, memory: Tier, ranks: Ranks) -> None:
        super().__init__(memory)
        self._ranks = ranks

    @property
    def capability(self) -> Capability:
        """Of the memory; layers that arrive are known on the ranks alone."""
        return replace(self.inner.capability, layer_wise=False)

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Opens the memory; the device has none here to be registered."""
        self.inner.attach(groups, page_bytes, None)
        self._ranks.groups = groups

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Ordered from every rank."""
        self._move(transfer, storing=True)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Ordered from every rank."""
        self._move(transfer, storing=False)

    def _move(self, transfer: Transfer, *, storing: bool) -> None:
        if self.mode is TierMode.OFF or (storing and self.mode is not TierMode.ON):
            what = "takes no stores" if storing else "gives no loads"
            raise TierUnavailableError(self.name, f"is {self.mode.value} and {what}")
        self._ranks.order(Move(replace(transfer, records=None, by_layer=False), storing))

    def cancel(self, job: int) -> None:
        """What has not begun is skipped on every rank; the acknowledgement still comes."""
        self._ranks.cancel(job)

    def layers(self, job: int) -> int:
        """0: layers are waited for on the rank that computes."""
        return 0

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """False: layers are waited for on the rank that computes."""
        return False

    def poll(self) -> list[TransferDone]:
        """One step of all ranks."""
        return self._ranks.step(self.name)

    def wait(self, timeout_s: float) -> None:
        """At once: ranks wait in their step."""

    def pending(self) -> int:
        """Jobs that some rank has not reported."""
        return self._ranks.pending


class RankWorker:
    """One rank: it executes orders and reports. ``step`` for each order of the control plane."""

    def __init__(
        self, rank: int, shards: Sequence[Shards], device: Tier, host: Tier, page_bytes: int = 1
    ) -> None:
        """``shards``: every group of the cache under the run's parallelism; ``device``: attached,
        holding the view of this rank; ``host``: the memory that all ranks map, not attached.
        Raises ``UnsupportedError`` where a rank would not hold a share of every block.
        """
        for each in shards:
            first, end = each.layers_of(rank)
            if each.parallelism.context > 1 or first == end:
                raise UnsupportedError(
                    f"group {each.group.name!r}: rank {rank} has no share of every block"
                )
        self.rank = rank
        self._shards = tuple(shards)
        self._device, self._host = device, host
        self._moves: dict[int, Move] = {}
        self._mine: dict[int, npt.NDArray[np.bool_]] = {}  # the blocks of a job that it moves
        self._reports: dict[int, TransferDone] = {}
        self._held: list[int] = []  # jobs that a full queue refused
        host.attach(tuple(each.group for each in shards), page_bytes, device)

    def step(self, orders: Orders, wait_s: float = 0.001) -> Values:
        """Does what is ordered and gives this rank's numbers, for the minimum over all ranks.

        ``wait_s``: so long it waits for something to end where nothing has. Orders whose answer was
        lost come once more: what was begun is not begun again. Raises ``TierError`` for a copy
        inside the device that fails. Cost: the orders, and the jobs outstanding.
        """
        for number in orders.over:
            self._forget(number)
        for number in orders.cancel:
            self._skip(number)
        held, self._held = self._held, []
        for number in held:
            self._start(number)
        for what in orders.begin:
            if isinstance(what, Copy):
                self._device.clone(what.group, what.sources, what.targets)
            elif what.transfer.job not in self._moves:
                self._moves[what.transfer.job] = what
                self._start(what.transfer.job)
        self._collect()
        if self._moves and not self._reports:
            self._host.wait(wait_s)
            self._collect()
        rows = [self._said(number) for number in sorted(self._moves)]
        return np.concatenate([np.empty(0, np.int64), *rows])

    def _forget(self, number: int) -> None:
        for known in (self._moves, self._reports, self._mine):
            known.pop(number, None)

    def _skip(self, number: int) -> None:
        if number in self._held:
            self._held.remove(number)
            self._fail(number, TierError(self._host.name, "cancelled", retryable=True))
        elif number in self._moves and number not in self._reports:
            self._host.cancel(number)

    def _start(self, number: int) -> None:
        move = self._moves[number]
        transfer, shards = move.transfer, self._shards[move.transfer.group]
        slots = np.asarray(transfer.lower_slots)
        mine = np.ones(len(slots), np.bool_)
        if move.storing:
            mine = shards.writes(self.rank, slots)
        self._mine[number] = mine
        if not mine.any():
            none = np.zeros(len(slots), np.bool_)
            self._reports[number] = TransferDone(number, ~none, none, 0, 0, None)
            return
        part = replace(
            transfer, upper_slots=np.asarray(transfer.upper_slots)[mine], lower_slots=slots[mine]
        )
        try:
            if move.storing:
                self._host.store(part, self._device)
            else:
                # it is ordered because all writers have acknowledged: no run of it is missing
                layout = shards.group.layout
                whole = View((0, layout.layers), (0, layout.store_shards))
                self._host.arrived(transfer.group, slots, whole)
                self._host.load(part, self._device)
        except TierFullError as error:
            if not error.retryable:
                self._fail(number, error)
                return
            self._held.append(number)
        except TierError as error:
            self._fail(number, error)

    def _fail(self, number: int, error: TierError) -> None:
        none = np.zeros(len(self._mine[number]), np.bool_)
        self._reports[number] = TransferDone(number, none, none, 0, 0, error)

    def _collect(self) -> None:
        for done in self._host.poll():
            mine = self._mine[done.job]
            good, corrupt = ~mine, np.zeros(len(mine), np.bool_)
            good[mine], corrupt[mine] = done.good, done.corrupt
            self._reports[done.job] = replace(done, good=good, corrupt=corrupt)

    def _said(self, number: int) -> Values:
        move = self._moves[number]
        group = self._shards[move.transfer.group].group
        blocks = len(move.transfer.upper_slots)
        return said_of(self._reports.get(number), blocks, _in_order(group))

    def close(self) -> None:
        """Ends what is under way, then lets go of host and device. Idempotent."""
        self._host.close()
        self._device.close()
