"""Requests through a cache over device, host and disk with real bytes: what the replay with bytes
and the demo share.

Kept here: a block is written where a request computes it and compared with what it must hold where
a request gets it back, before anything is built on it; every count comes from the cache's own
counters and events; and no more is on its way at once than a quarter of the smallest memory tier,
because what waits to be copied cannot make room.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from radix.cache import PrefixCache
from radix.errors import CapacityError, TierError, UnsupportedError
from radix.events import BlocksRemoved, BlocksStored, Event, TransferEvent
from radix.groups import Group
from radix.keys import Namespace, Tokens
from radix.options import OptionError
from radix.policy.limits import Limits
from radix.replay.content import Content
from radix.replay.history import History, Sample
from radix.replay.interrupt import Interrupt
from radix.replay.options import TierSizes
from radix.replay.report import Check, TieredRun
from radix.replay.traces import Unit
from radix.request import Request
from radix.tier import Keys, Tier
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import HostTier
from tiers.memory import memory_limit_bytes
from tiers.slab import stride_bytes

if TYPE_CHECKING:
    from tiers.device import DeviceTier

GROUP = "kv"
WAIT_S = 0.02
# Something is wrong where nothing has moved for so long while somebody waited for it.
PATIENCE_S = 60.0
LONGER_THAN_DEVICE = "longer than the device"


@dataclass(frozen=True, slots=True)
class Shape:
    """The tiers of a run. `data` is the disk tier's directory, None where there is no disk; `unit`
    is what one entry of a prompt is: in a block trace each stands for a whole block. `write`: the
    policy of writing; `budget_bytes`: what the disk may be given to write in a day.
    """

    sizes: TierSizes
    block_bytes: int
    page_tokens: int
    data: Path | None
    unit: Unit = "token"
    write: str = "write_through"
    budget_bytes: int | None = None

    @property
    def capacity_bytes(self) -> dict[str, int]:
        """Bytes of blocks that each tier holds at most, from the fastest down. Cost: O(tiers)."""
        sizes = {"device": self.sizes.device, "host": self.sizes.host, "disk": self.sizes.disk}
        return {tier: blocks * self.block_bytes for tier, blocks in sizes.items() if blocks}

    @property
    def most_in_flight(self) -> int:
        """Blocks that may be on their way while a new request begins. Cost: O(1)."""
        return max(1, min(self.sizes.device, self.sizes.host or self.sizes.device) // 4)


@contextmanager
def opened(
    shape: Shape, clock: Callable[[], int], *, events: bool
) -> Iterator[tuple[PrefixCache, DeviceTier]]:
    """Open the cache of a run; when the body ends early, what has not begun to move is left out.

    Raises:
        OptionError: the tiers do not fit this machine, or the directory cannot be used.
    """
    cache, device = _open(shape, clock, events)
    try:
        yield cache, device
    except BaseException:
        for number, job in cache.transfers.jobs.items():
            cache.tiers[max(job.move.source, job.move.target)].cancel(number)
        raise
    finally:
        cache.close()


def _open(shape: Shape, clock: Callable[[], int], events: bool) -> tuple[PrefixCache, DeviceTier]:
    from tiers.device import DeviceTier

    sizes, group = shape.sizes, Group.full(GROUP, shape.block_bytes)
    host_bytes = sizes.host * stride_bytes(shape.block_bytes)
    device = DeviceTier(blocks=sizes.device)
    taken_bytes = host_bytes
    if device.device.type == "cpu":
        taken_bytes += sizes.device * shape.block_bytes
    most, source = memory_limit_bytes()
    if taken_bytes > most:
        what = f"device and host take {taken_bytes} bytes of memory; {source} is {most}"
        raise OptionError("--tiers", what)
    if shape.data is not None:
        _check_drive(shape.data, sizes.disk * shape.block_bytes)
    try:
        tiers: list[Tier] = [device]
        if sizes.host:
            tiers.append(HostTier(host_bytes, verify=True))
        if shape.data is not None:
            limit = limit_for([group], sizes.disk, shape.page_tokens * 4)
            tiers.append(DiskTier(shape.data, limit_bytes=limit))
        cache = PrefixCache(
            [group],
            tiers,
            page_tokens=shape.page_tokens,
            events=events,
            clock=clock,
            write=shape.write,
            limits=Limits(write_budget_bytes_per_day=shape.budget_bytes),
        )
    except TierError as error:
        option = "--data" if error.tier == "disk" else "--tiers"
        raise OptionError(option, str(error)) from error
    except (UnsupportedError, ValueError, MemoryError, RuntimeError) as error:
        # torch says that a device has too little memory with a RuntimeError.
        raise OptionError("--tiers", str(error)) from error
    return cache, device


def _check_drive(directory: Path, needed_bytes: int) -> None:
    """Refuse a disk tier that is larger than the drive that it would lie on."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    drive_bytes = shutil.disk_usage(place).total
    if needed_bytes > drive_bytes:
        what = f"the disk tier takes {needed_bytes} bytes; the drive of {place} has {drive_bytes}"
        raise OptionError("--tiers", what)


class Serving:
    """One pass of requests through an open cache, and what came of it.

    A request: `admit`, `ready`, `compute`. Between requests: `poll`, `wait`, `pace`, `settle`.
    Result: `sample`, `run`, `checks`. What was heard and seen: `loaded_blocks`,
    `verified_blocks`, `compared_blocks`, `wrong_blocks`, `on_disk`.
    """

    def __init__(
        self,
        cache: PrefixCache,
        device: DeviceTier,
        shape: Shape,
        history: History,
        interrupt: Interrupt,
        *,
        verify: bool,
        listen: Callable[[Event], None] | None = None,
    ) -> None:
        """Begin a pass over a cache that was just opened and that nobody else uses.

        Args:
            history: where `sample` adds to; its counters go on from its last sample.
            verify: whether blocks that a request gets back are compared with what they must hold.
            listen: told every event of the cache, in order.
        """
        self.cache = cache
        self.content = Content(device, cache.namespace(), shape.page_tokens)
        self.on_disk: set[bytes] = set()
        self.requests = 0
        self.cut_tokens = 0
        self._ran_tokens = 0
        self.loaded_blocks = 0
        self.verified_blocks = 0
        self.compared_blocks = 0
        self.wrong_blocks = 0
        self._shape = shape
        self._history = history
        self._interrupt = interrupt
        self._verify = verify
        self._listen = listen
        self._moved: dict[str, int] = {}
        self._began = time.perf_counter()
        self._before = history.samples[-1] if history.samples else None
        self.poll()

    # ------------------------------------------------------------ a request
    def admit(
        self,
        prompt: Tokens,
        new_tokens: int = 0,
        make_room: Callable[[], bool] = lambda: False,
        namespace: Namespace | None = None,
    ) -> Request:
        """Admit a prompt; one that the device can never hold is cut to what fits.

        While there is no room, wait for copies under way to end; when there are none,
        `make_room` ends another request, or says that there is none.

        Raises:
            CapacityError: there is no room and none can be made.
        """
        fits = self._shape.sizes.device * self._shape.page_tokens - new_tokens
        self.cut_tokens += max(0, len(prompt) - fits)
        prompt = prompt[:fits]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                request = self.cache.admit(prompt, namespace=namespace, new_tokens=new_tokens)
            except CapacityError:
                idle = not self.cache.transfers.jobs
                if (idle and not make_room()) or time.monotonic() > deadline:
                    raise
                self.wait()
                continue
            self.requests += 1
            return request

    def ready(self, request: Request) -> Keys:
        """Wait until the hit is on the device and compare it with what it must hold.

        Returns the keys of its full pages. Call it once a request, before anything is computed.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not request.ready:
            self.wait()
            if time.monotonic() > deadline:
                raise TierError("device", f"request {request.id} has loaded for {PATIENCE_S} s")
        self._ran_tokens += len(request)
        keys = self.content.keys(request.tokens())
        if self._verify:
            loaded, hit = request.loaded(), request.hit_tokens // self._shape.page_tokens
            # What arrived behind a load that failed is no hit, and yet was loaded.
            wanted = np.ones(max(hit, len(loaded)), np.bool_)
            wanted[hit : len(loaded)] = loaded[hit:]
            pages = np.flatnonzero(wanted)
            self.wrong_blocks += self.content.wrong(request.slots()[pages], keys[pages])
            self.compared_blocks += len(pages)
            self.verified_blocks += int(np.count_nonzero(loaded))
        return keys

    def compute(self, request: Request, keys: Keys, computed: int, upto: int) -> None:
        """Write the blocks of the full pages of [computed, upto) tokens and share them."""
        first, end = computed // self._shape.page_tokens, upto // self._shape.page_tokens
        if end > first:
            self.content.write(request.slots()[first:end], keys[first:end])
        request.computed(upto)

    # ------------------------------------------------------------ between requests
    def poll(self) -> None:
        """Take what has ended. Raises KeyboardInterrupt if Ctrl-C was pressed."""
        self._interrupt.check()
        self._heard(self.cache.poll())

    def wait(self) -> None:
        """Wait a little for something to end, then `poll`."""
        self.cache.wait(WAIT_S)
        self.poll()

    def pace(self) -> None:
        """Wait while too much is on its way for anybody to find room."""
        most = self._shape.most_in_flight
        jobs = self.cache.transfers.jobs
        while sum(job.move.blocks for job in jobs.values()) > most:
            self.wait()

    def settle(self) -> None:
        """Wait until everything has ended and is durable."""
        while self.cache.transfers.jobs:
            self.wait()
        self._heard(self.cache.flush())

    def _heard(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TransferEvent):
                direction = f"{event.source} to {event.target}"
                self._moved[direction] = self._moved.get(direction, 0) + event.nbytes
                if event.target == "device":
                    self.loaded_blocks += event.good
            elif isinstance(event, BlocksStored) and event.tier == "disk":
                self.on_disk.update(map(bytes, event.keys))
            elif isinstance(event, BlocksRemoved) and event.tier == "disk":
                self.on_disk.difference_update(map(bytes, event.keys))
            if self._listen is not None:
                self._listen(event)

    # ------------------------------------------------------------ results
    def _hits(self) -> dict[str, int]:
        metrics = self.cache.metrics
        return {
            tier: metrics.get("match", "hit_tokens", tier) for tier in self._shape.capacity_bytes
        }

    def _missed(self) -> dict[str, int]:
        missed = {reason: count for reason, count in self.cache.metrics.misses().items() if count}
        if self.cut_tokens:
            missed[LONGER_THAN_DEVICE] = self.cut_tokens
        return dict(sorted(missed.items(), key=lambda item: -item[1]))

    def _moved_bytes(self) -> dict[str, int]:
        """Bytes by direction: all the way down, then all the way up."""
        names = list(self._shape.capacity_bytes)
        pairs = [*pairwise(names), *pairwise(reversed(names))]
        return {f"{a} to {b}": self._moved.get(f"{a} to {b}", 0) for a, b in pairs}

    def _blocks(self, *what: str) -> dict[str, int]:
        """A count of the cache's by tier, of tiers where it is not 0."""
        metrics = self.cache.metrics
        counts = {tier: metrics.total(*what, tier) for tier in self._shape.capacity_bytes}
        return {tier: count for tier, count in counts.items() if count}

    def _written(self) -> dict[str, dict[str, int]]:
        """By tier that wears what it was given to write, by what it was."""
        counts = {tier.name: tier.written() for tier in self.cache.opened}
        return {
            name: {
                "payload": count.payload_bytes,
                "index": count.index_bytes,
                "ahead": count.ahead_bytes,
            }
            for name, count in counts.items()
            if count is not None
        }

    def sample(self, seconds: float) -> dict[str, int]:
        """Add a sample to the history; returns the blocks that each tier holds. Cost: O(tiers)."""
        before = self._before
        held = {tier: usage.used_blocks[0] for tier, usage in self.cache.usage().items()}
        size = self._shape.block_bytes
        self._history.add(
            Sample(
                seconds=seconds,
                # A hit is counted when its request runs, so its prompt is too.
                prompt_tokens=self._ran_tokens
                + self.cut_tokens
                + (before.prompt_tokens if before else 0),
                hit_tokens=_sum(self._hits(), before.hit_tokens if before else {}),
                used_bytes={tier: blocks * size for tier, blocks in held.items()},
                moved_bytes=_sum(self._moved_bytes(), before.moved_bytes if before else {}),
                written_bytes=_sum(
                    {tier: sum(kinds.values()) for tier, kinds in self._written().items()},
                    before.written_bytes if before else {},
                ),
            )
        )
        return held

    def run(self, label: str, spanned_s: float = 0.0) -> TieredRun:
        """Return what this pass has counted so far. Cost: O(counters).

        Args:
            spanned_s: how long it took by the trace's own time; 0 where that says nothing.
        """
        seconds, written = time.perf_counter() - self._began, self._written()
        metrics = self.cache.metrics
        return TieredRun(
            label=label,
            unit=self._shape.unit,
            requests=self.requests,
            prompt_tokens=self.cache.metrics.get("match", "queried_tokens") + self.cut_tokens,
            hit_tokens=self._hits(),
            missed_tokens=self._missed(),
            moved_bytes=self._moved_bytes(),
            evicted_blocks=self._blocks("evict", "blocks"),
            declined_blocks=self._blocks("store", "declined"),
            corrupt_blocks=self._blocks("load", "corrupt"),
            restored_blocks=self.cache.metrics.get("restore", "blocks", "disk"),
            loaded_blocks=self.loaded_blocks,
            verified_blocks=self.verified_blocks,
            seconds=seconds,
            stored_bytes={tier: metrics.total("store", "bytes", tier) for tier in written},
            written_bytes=written,
            over_budget_blocks=self._blocks("store", "over_budget"),
            spanned_s=spanned_s or seconds,
        )

    def checks(self, label: str = "", *, loads_expected: bool = False) -> list[Check]:
        """Return what must be true of this pass, and what was found. Cost: O(counters)."""
        run, before = self.run(label), f"{label}: " if label else ""
        saved, missed = run.saved_tokens, sum(run.missed_tokens.values())
        checks = [
            Check(
                f"{before}hits and misses add up",
                saved + missed == run.prompt_tokens,
                f"{saved:,} + {missed:,} of {run.prompt_tokens:,}",
            )
        ]
        if self._verify:
            least = 1 if loads_expected else 0
            checks += [
                Check(
                    f"{before}loaded blocks were verified",
                    run.loaded_blocks == run.verified_blocks >= least,
                    f"{run.verified_blocks:,} of {run.loaded_blocks:,}",
                ),
                Check(
                    f"{before}hits held the right bytes",
                    self.wrong_blocks == 0,
                    f"{self.wrong_blocks:,} of {self.compared_blocks:,} wrong",
                ),
            ]
        return checks


def _sum(counts: dict[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: count + more.get(name, 0) for name, count in counts.items()}
