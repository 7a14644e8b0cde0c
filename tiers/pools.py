"""The books that tiers with a fixed number of slots a group share: one native pool for each
group, a mode, and the acknowledgements not yet polled. An adapter inherits them and adds where
the bytes lie and how they move. Keeps the tier side of I7, I8 (every slot of [0, capacity) has
exactly one state), I11 (a call that fails leaves all counts as before) and I22 (one
acknowledgement a job).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.errors import (
    ClosedError,
    InvariantError,
    TierError,
    TierFullError,
    TierUnavailableError,
    UnsupportedError,
)
from radix.groups import Group, check_groups
from radix.pool import FREE, QUARANTINE, RESERVED, USED, SlotError, SlotPool
from radix.tier import (
    Capability,
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
    Transfer,
    TransferDone,
    View,
    Written,
)
from tiers.arrivals import Arrivals
from tiers.transfer import status_text
from tiers.views import Cut, Cuts, copy_blocks, view_bytes

_ON = TierMode.ON  # members of an Enum are slow to look up


def all_of(transfer: Transfer, good: bool, nbytes: int, error: TierError | None) -> TransferDone:
    """The acknowledgement of a transfer whose blocks all fared alike; none of them is corrupt."""
    count = len(transfer.upper_slots)
    return TransferDone(
        job=transfer.job,
        good=np.full(count, good, np.bool_),
        corrupt=np.zeros(count, np.bool_),
        nbytes=nbytes,
        verified_blocks=0,
        error=error,
    )


def checked_count(value: object, what: str) -> int:
    """``value`` as a count of at least 1; ``TypeError`` or ``ValueError`` names ``what``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{what} must be at least 1, not {value}")
    return value


def blocks_of_groups(blocks: int | Sequence[int], groups: int | None, what: str) -> tuple[int, ...]:
    """``blocks`` as one count a group; an int counts for each of ``groups``, where known.

    Raises: ``TypeError`` for what is not an int, ``ValueError`` below 1 or for another length.
    """
    if not isinstance(blocks, Sequence):
        return (checked_count(blocks, what),) * (1 if groups is None else groups)
    counts = tuple(checked_count(count, what) for count in blocks)
    if groups is not None and len(counts) != groups:
        raise ValueError(f"{what} names {len(counts)} groups, the cache has {groups}")
    return counts


@dataclass(slots=True)
class LoadedLayers:
    """A load whose end was not polled: the layers [first, end) that it moves, and how many of them
    are complete.
    """

    span: tuple[int, int]
    done: int = 0


class PooledTier:
    """What every tier of this package answers alike.

    Switch: ``mode``, ``set_mode``. Slots: ``reserve``, ``commit``, ``abort``, ``free``, ``fence``,
    ``lift``, ``clone``. Count: ``capacity_blocks``, ``free_blocks``, ``usage``, ``check``.
    Acknowledge: ``poll``, ``wait``, ``pending``, ``layers``, ``wait_layer``, ``cancel``, ``flush``.
    An adapter gives ``_open`` and, where it moves bytes itself, ``store``, ``load``, ``_progress``.
    """

    def __init__(self, name: str, capability: Capability) -> None:
        if not name:
            raise ValueError("tier name must not be empty")
        self._name = name
        self._capability = capability
        self._mode = TierMode.ON
        self._closed = False
        self._groups: tuple[Group, ...] = ()
        self._pools: list[SlotPool] = []
        self._done: list[TransferDone] = []
        self._running: dict[int, Transfer] = {}
        self._views: tuple[View | None, ...] = ()
        self._loads: dict[int, LoadedLayers] = {}

    # ------------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        """Short and unique in a cache."""
        return self._name

    @property
    def capability(self) -> Capability:
        """What it can do, as data."""
        return self._capability

    @property
    def mode(self) -> TierMode:
        """On, read-only or off."""
        return self._mode

    def set_mode(self, mode: TierMode) -> None:
        """Switches it at run time; transfers under way finish.

        Raises: ``TypeError`` unless ``mode`` is a TierMode, ``ClosedError`` after close.
        """
        if not isinstance(mode, TierMode):
            raise TypeError(f"mode must be a TierMode, not {type(mode).__name__}")
        self._open_or_raise()
        self._mode = mode

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Makes the pools for these groups; once. What is wrong is raised by name.

        Raises: ``TierError`` for a second call, ``ClosedError`` after close, ``ValueError``.
        """
        self._open_or_raise()
        if self._groups:
            raise TierError(self._name, "is attached to a cache already")
        checked = check_groups(groups)
        if page_bytes < 1:
            raise ValueError(f"page_bytes must be at least 1, not {page_bytes}")
        pools = self._open(checked, upper)
        self._take_up(checked)
        self._pools = pools

    def _take_up(self, groups: tuple[Group, ...]) -> None:
        """It is open: these are its groups from now on."""
        self._groups = groups
        self._views = self._views or (None,) * len(groups)
        self._cuts = Cuts(groups)
        self._arrivals = Arrivals([group.layout for group in groups])

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        """The pools of an adapter; it raises and leaves nothing behind, or is open."""
        raise NotImplementedError

    def restore(self) -> Sequence[Restored]:
        """Nothing: what lies here is gone at close."""
        return ()

    def planes(self, group: int) -> Any:
        """``TierError``: its blocks lie in no memory that another tier could reach."""
        raise TierError(self._name, f"group {group} is not mapped into addresses")

    def view(self, group: int) -> View | None:
        """The part of each block of the group that it holds; None: all. Cost: O(1)."""
        return self._views[group]

    def sums(self, group: int, slots: Slots) -> npt.NDArray[np.uint64] | None:
        """None: no checksums are kept."""
        return None

    # ------------------------------------------------------------------ slots
    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """Slots of the group's pool, whatever is ``beside``. Cost: O(1)."""
        return self._pools[group].capacity

    def free_blocks(self, group: int) -> int:
        """Free slots of the group's pool, none unless the tier is on. Cost: O(1)."""
        return self._pools[group].count(FREE) if self._mode is _ON else 0

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing. Cost: count.

        Raises: ``TierFullError`` (retryable), ``TierUnavailableError`` unless the tier is on.
        """
        self._may_reserve()
        slots = self._pools[group].reserve(count)
        if slots is None:
            raise self._shortage(group, count)
        return slots

    def _may_reserve(self) -> None:
        if self._closed or self._mode is not _ON:
            self._refuse("gives no slots")

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes. Cost: the slots."""
        self._require_whole(group, slots)
        self._move(group, slots, RESERVED, USED)

    def _require_whole(self, group: int, slots: Slots) -> None:
        some = self._arrivals.incomplete(group, slots) if self._groups else []
        if some:
            raise TierError(
                self._name,
                f"group {self._groups[group].name!r}: of slot {some[0]} only some parts have "
                "arrived: it cannot be committed",
            )

    def arrived(self, group: int, slots: Slots, part: View) -> None:
        """Nothing: whoever reads from here knows what it asked for."""

    def abort(self, group: int, slots: Slots) -> None:
        """Gives reserved slots back. Cost: the slots."""
        self._move(group, slots, RESERVED, FREE)

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back. Cost: the slots."""
        self._move(group, slots, USED, FREE)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies blocks inside the tier at once. Nothing where it holds no bytes.

        Raises: ``TierError`` where the tier has no addresses. Cost: the bytes.
        """
        self._check_clone(group, sources, targets)
        if not self._capability.holds_bytes or not len(sources):
            return
        planes = self.planes(group)
        status = copy_blocks(planes, targets, planes, sources)
        if status != lib.RDX_OK:
            raise TierError(self._name, f"clone: {status_text(status)}")

    def _check_clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Open, as many sources as targets, each of them a place that there is, and no target a
        source or named twice: what such a copy leaves would depend on the order of its bytes.
        """
        self._open_or_raise()
        if len(sources) != len(targets):
            raise ValueError(f"clone: {len(sources)} sources, {len(targets)} targets")
        most = self._slot_limit(group)
        for slots in (sources, targets):
            if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= most):
                raise TierError(self._name, f"clone: a slot outside of [0, {most})")
        written = set(targets.tolist())
        if len(written) < len(targets) or not written.isdisjoint(sources.tolist()):
            raise TierError(self._name, "clone: a target is a source too, or is named twice")

    def _slot_limit(self, group: int) -> int:
        """All slot numbers of the group are below this."""
        return self._pools[group].capacity

    def fence(self, group: int, slots: Slots) -> None:
        """Gives slots up, all committed or all reserved; they are not reused before ``lift``.

        Cost: the slots.
        """
        try:
            self._move(group, slots, USED, QUARANTINE)
        except TierError:
            self._move(group, slots, RESERVED, QUARANTINE)

    def lift(self, group: int, slots: Slots) -> None:
        """The fence of these slots has passed: they are free. Cost: the slots."""
        self._move(group, slots, QUARANTINE, FREE)

    def _move(self, group: int, slots: Slots, source: int, target: int) -> None:
        if self._closed:
            self._refuse("moves no slots")
        try:
            self._pools[group].move(slots, source, target)
        except SlotError as error:
            raise TierError(self._name, f"group {self._groups[group].name!r}: {error}") from None
        if source == RESERVED:
            self._arrivals.forget(group, slots)

    # ------------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Refused by name: an uppermost tier has no neighbour to take blocks from."""
        raise UnsupportedError(f"tier {self._name!r} takes no stores: it is a first tier")

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Refused by name: an uppermost tier has no neighbour to give blocks to."""
        raise UnsupportedError(f"tier {self._name!r} gives no loads: it is a first tier")

    def cancel(self, job: int) -> None:
        """Nothing is left to skip; the acknowledgement comes as it would have."""
        self._open_or_raise()

    def poll(self) -> list[TransferDone]:
        """Acknowledgements since the last call, each once. Never blocks."""
        self._open_or_raise()
        self._progress()
        done, self._done = self._done, []
        for ended in done if self._loads else ():
            self._loads.pop(ended.job, None)
        return done

    def layers(self, job: int) -> int:
        """Layers of a load that are complete in the tier above. Never blocks. Cost: what ended."""
        return self._layers_of(job).done

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """Blocks until that layer of a load is complete, the load has ended or the time is over.

        Raises: ``ValueError`` for a layer that the load does not move, ``TierError`` for a job that
        is no load, or whose end was polled.
        """
        deadline = time.monotonic() + timeout_s
        load = self._layers_of(job)
        first, end = load.span
        if not first <= layer < end:
            raise ValueError(f"layer {layer}: job {job} moves layers {load.span}")
        while load.done <= layer - first and job in self._running:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._wait_step(left)
            self._progress()
        return self._layers_of(job).done > layer - first

    def _layers_of(self, job: int) -> LoadedLayers:
        self._open_or_raise()
        self._progress()
        load = self._loads.get(job)
        if load is None:
            raise TierError(self._name, f"job {job} is no load that is under way")
        if job not in self._running:
            ended = next((done for done in self._done if done.job == job), None)
            if ended is not None and ended.good.all():
                load.done = load.span[1] - load.span[0]
        return load

    def _wait_step(self, timeout_s: float) -> None:
        """Waits until ``_progress`` may have something to do, or the time is over."""

    def wait(self, timeout_s: float) -> None:
        """Returns once ``poll`` has something to give, nothing runs, or the time is over."""
        self._open_or_raise()

    def pending(self) -> int:
        """Transfers whose acknowledgement was not polled yet. Cost: O(1)."""
        return len(self._running) + len(self._done)

    def renew(self) -> None:
        """Nothing here is found again after the process, so there is no epoch to begin."""
        self._open_or_raise()

    def flush(self) -> None:
        """Nothing here outlives the process, so nothing has to be made durable."""
        self._open_or_raise()

    def _progress(self) -> None:
        """Moves what has ended from ``_running`` to ``_done``; an adapter that copies has some."""

    def _accept(self, transfer: Transfer, upper: Tier, *, storing: bool) -> Cut:
        """Lets a transfer in: open, switched so, sane, its job number not in use. What of each
        block it moves.
        """
        self._open_or_raise()
        if self._mode is TierMode.OFF or (storing and self._mode is not TierMode.ON):
            self._refuse("takes no stores" if storing else "gives no loads")
        job, group = transfer.job, transfer.group
        if job in self._running:
            raise TierError(self._name, f"job {job} is under way")
        if len(transfer.upper_slots) != len(transfer.lower_slots):
            raise ValueError(
                f"job {job}: {len(transfer.upper_slots)} upper slots, "
                f"{len(transfer.lower_slots)} lower slots"
            )
        if not 0 <= group < len(self._groups):
            raise ValueError(f"job {job}: group {group} is not one of {len(self._groups)}")
        if storing and transfer.by_layer:
            raise ValueError(f"job {job}: by_layer is for loads, this is a store")
        cut = self._cuts.find(
            group,
            transfer.part,
            upper.view(group),
            self._views[group],
            f"job {job}:",
            storing=storing,
        )
        if not storing:
            self._loads[job] = LoadedLayers(cut.view.layers)
        return cut

    def _will_write(self, transfer: Transfer, cut: Cut) -> None:
        """A store of these runs was started."""
        if not cut.whole and self._views[transfer.group] is None:
            self._arrivals.expect(transfer.group, np.asarray(transfer.lower_slots))

    def _wrote(self, transfer: Transfer, cut: Cut, good: npt.NDArray[np.bool_]) -> None:
        """A store of these runs into the good slots has ended."""
        slots = np.asarray(transfer.lower_slots)[good]
        if cut.whole or self._views[transfer.group] is not None:
            self._arrivals.forget(transfer.group, slots)
        else:
            self._arrivals.add(transfer.group, slots, cut.chosen)

    # ------------------------------------------------------------------ books and end
    def usage(self) -> TierUsage:
        """Bytes and blocks in use; a fenced slot still counts. Cost: the groups."""
        used = tuple(pool.capacity - pool.count(FREE) for pool in self._pools)
        sizes = [
            view_bytes(group.layout, view)
            for group, view in zip(self._groups, self._views, strict=True)
        ]
        pools = zip(used, self._pools, sizes, strict=True)
        taken, limit = 0, 0
        for blocks, pool, size in pools:
            taken += blocks * size
            limit += pool.capacity * size
        return TierUsage(taken, limit, used)

    def written(self) -> Written | None:
        """None: memory does not wear."""
        return None

    def check(self) -> None:
        """Raises ``InvariantError`` where the books disagree (I7, I8). Cost: all slots."""
        for group, pool in zip(self._groups, self._pools, strict=True):
            total = sum(pool.count(state) for state in (FREE, RESERVED, USED, QUARANTINE))
            if total != pool.capacity:
                raise InvariantError(
                    "I8",
                    f"tier {self._name!r} group {group.name!r}: states sum "
                    f"to {total}, the pool holds {pool.capacity}",
                )
            if not pool.check():
                raise InvariantError(
                    "I7",
                    f"tier {self._name!r} group {group.name!r}: counts and "
                    "states of the pool disagree",
                )

    def close(self) -> None:
        """Gives everything back. Idempotent; every later call but this one raises."""
        self._closed = True
        self._running.clear()
        self._done.clear()
        self._loads.clear()

    def _open_or_raise(self) -> None:
        if self._closed:
            raise ClosedError(f"tier {self._name!r} is closed")

    def _refuse(self, what: str) -> None:
        self._open_or_raise()
        raise TierUnavailableError(self._name, f"is {self._mode.value} and {what}", retryable=True)

    def _shortage(self, group: int, count: int) -> Exception:
        if count < 0:
            return ValueError(f"count must not be negative, not {count}")
        return TierFullError(
            self._name,
            f"group {self._groups[group].name!r}: {count} slots asked for, "
            f"{self.free_blocks(group)} free",
            retryable=True,
        )
