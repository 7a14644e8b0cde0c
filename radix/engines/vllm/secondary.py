"""RadixDiskTier: our disk tier under vLLM's own CPU tier. vLLM lends rows of its host pool; a job
of its manager becomes one store or load a cache group, straight between rows and slab files. Every
job is answered exactly once (I22), a block whose checksum does not hold is a key that did not come
(I24), the directory stays within its limit (I25). Whatever fails here costs a hit.

    vLLM's host pool      row = one chunk of all workers, page-aligned, pinned until the answer
      | store   ^ load    threads of the disk tier, O_DIRECT where the medium takes it
    slab files + index    namespace = model, revision, layout; cache group; generation of weights
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadPolicy,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from radix.engines.versions import require
from radix.engines.vllm.disk_hints import DiskHints, Saying
from radix.engines.vllm.disk_metrics import Reporter, definitions
from radix.engines.vllm.disk_names import EndOf, LastingDisk, Names, Part
from radix.engines.vllm.disk_options import DiskOptions
from radix.engines.vllm.identity import KEY_BYTES, ROOT_BYTES
from radix.engines.vllm.options import replica_folder
from radix.events import BlocksRemoved, BlocksStored, Event, KeysDone
from radix.groups import Group
from radix.ownership import Ownership
from radix.store import FlatStore
from radix.tier import Slots, TierMode
from tiers.host import AdoptedTier

logger = logging.getLogger(__name__)

_ROW = "row"
_MOST_NOTED = 1024
# What we rely on of the engine's classes, by method and parameter.
_TIER_NEEDS = {
    "__init__": ("offloading_spec", "primary_kv_view", "tier_type", "backpressure_detector"),
    "lookup": ("key", "req_context"),
    "submit_store": ("job_metadata",),
    "submit_load": ("job_metadata",),
    "get_finished_jobs": (),
    "drain_jobs": (),
    "on_new_request": ("req_context",),
    "on_request_finished": ("req_context",),
    "on_schedule_end": ("context",),
    "shutdown": (),
}
_RESULT_NEEDS = {"__init__": ("job_id", "success", "successful_keys", "transfer_bytes")}

Rows = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Work:
    """A job of vLLM's from its submission to its answer. ``good[i]``: key i is where it was to go;
    ``moves[i]``: its bytes are moved for it; ``left``: parts whose end is still to come;
    ``saying``: what its request says of the keys.
    """

    job: int
    keys: list[bytes]
    promotion: bool
    started_s: float
    good: Mask
    moves: Mask
    left: int = 0
    saying: Saying | None = None


class _Lent:
    """Foreign memory for numpy that keeps nobody from giving it back: the tier's own hold on it
    ends when it says so, not when the last reference to a tier of ours is collected.
    """

    def __init__(self, rows: Rows) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": rows.shape,
            "strides": rows.strides,
            "data": (rows.ctypes.data, False),
        }


class _Outermost:
    """The end of a call of the engine's, whose scheduler no failure here may reach: what raises
    inside is counted as a fault, told in the log, and costs a hit, or an order that is less exact.
    """

    def __init__(self, what: str, counts: Counter[str]) -> None:
        self._what, self._counts = what, counts

    def __enter__(self) -> None:
        """Nothing to do yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Whether that was all: not where the process is to end."""
        if not isinstance(error, Exception):
            return False
        self._counts["faults"] += 1
        logger.error("RadixDiskTier: %s failed: %s", self._what, error, exc_info=error)
        return True


class RadixDiskTier(SecondaryTierManager):  # type: ignore[misc]  # no types of the engine here
    """``type="RadixDiskTier"``, ``module_path="radix.engines.vllm"``: blocks of vLLM's CPU tier on
    disk, within a byte limit, verified, found again after a restart.

    All calls come from vLLM's manager, under its lock, in the scheduler's process.
    """

    medium: ClassVar[Any] = Medium.STORAGE
    tolerates_off_thread_polling: ClassVar[bool] = False

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        """Opens the directory: what an earlier process kept there can be hit from now on.

        ``primary_kv_view``: (chunks, row bytes), writable, the engine's own; lent until
        ``shutdown`` returns. ``options``: those of :class:`DiskOptions`.
        Raises: ``ValueError`` or ``TypeError`` for a bad option or view; ``UnsupportedError`` for
        an engine or a hash algorithm that cannot work; ``TierUnavailableError`` for a directory
        that cannot be had. Cost: one scan of the directory's index.
        """
        require("vllm", SecondaryTierManager, _TIER_NEEDS)
        require("vllm", JobResult, _RESULT_NEEDS)
        self.options = DiskOptions.of(options)
        rows = _rows_of(primary_kv_view)
        config = offloading_spec.config
        self._names = Names(offloading_spec, self.options, *rows.shape)
        super().__init__(
            offloading_spec=offloading_spec,
            primary_kv_view=primary_kv_view,
            tier_type=tier_type,
            backpressure_detector=backpressure_detector,
        )
        if self.options.locality is not None:
            self.locality = Locality(self.options.locality)
        self._works: dict[int, _Work] = {}
        self._parts: dict[int, tuple[_Work, npt.NDArray[np.int64]]] = {}
        self._finished: list[JobResult] = []
        self._used: list[tuple[bytes, int | None]] = []  # hits since the last touch, and their ends
        self._untold: list[BlocksStored | BlocksRemoved] = []
        self._counts: Counter[str] = Counter()
        self._tells_events = bool(config.enable_kv_cache_events)
        self._held = False
        self._open(rows, config.parallel)

    def _open(self, rows: Rows, parallel: Any) -> None:
        folder = replica_folder(self.options.directory, parallel)
        self._disk = LastingDisk(
            folder, limit_bytes=self.options.limit_bytes, threads=self.options.threads
        )
        lent: npt.NDArray[np.uint8] = np.asarray(_Lent(rows))
        self._row_bytes = rows.shape[1]
        self.store = FlatStore(
            [Group.full(_ROW, self._row_bytes)],
            [AdoptedTier([[lent]], name="engine"), self._disk],
            key_bytes=KEY_BYTES,
            ownership=Ownership.BORROWED,
            policy=self.options.policy,
            events=self._tells_events,
            clock=time.monotonic_ns,
        )
        self._hinted = DiskHints(self.store, self._names)
        self._reporter = Reporter(str(folder))
        self._restored = self.store.metrics.get("restore", "blocks", self._disk.name)
        self._closer = weakref.finalize(self, _close, self.store, rows, os.getpid())
        logger.info(
            "RadixDiskTier: %d blocks of earlier runs in %s, limit %d bytes",
            self._restored,
            folder,
            self.options.limit_bytes,
        )

    # ------------------------------------------------------------------ asking
    def on_new_request(self, req_context: Any) -> Any:
        """Takes what is new, chunk by chunk, of a request that says hints all. Raises
        ``UnsupportedError`` at the first request where its hashes turn out to start from a random
        seed.
        """
        if not self._names.known and self._closer.alive:
            self._names.spaces()
        if self._hinted.begin(req_context):
            return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """What a request says holds of all of its blocks from now on. Never raises."""
        if self._closer.alive:
            with _Outermost("hint", self._counts):
                self._touch_used()  # told later they were a use of what is over
                self._hinted.end(req_context)

    def lookup(self, key: Any, req_context: Any) -> Any:
        """HIT: durable here, and used now; RETRY: still being written; MISS. Never blocks.

        Cost: O(1), five to ten microseconds.
        """
        answer = "lookup_misses"
        with _Outermost("lookup", self._counts):
            if self._closer.alive:
                answer = self._look(key, req_context)
        self._counts[answer] += 1
        return _ANSWERS[answer]

    def _look(self, key: bytes, context: Any) -> str:
        if self._held:
            return "lookup_misses"
        space, name = self._names.one(key)
        if self.store.probe(name, namespace=space) >= 0:
            self._used.append((key, context.get_offload_key_position(key)))
            if len(self._used) >= _MOST_NOTED:
                self._touch_used()
            return "lookup_hits"
        names = np.frombuffer(name, np.uint8)[None]
        coming = self._works and self.store.coming(names, namespace=space)[0]
        return "lookup_retries" if coming else "lookup_misses"

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Makes the keys the most recently used, the deepest of each group the oldest of them."""
        if not self._closer.alive:
            return
        with _Outermost("touch", self._counts):
            self._touch_used()
            self._touch(list(keys), req_context.get_offload_key_position)

    def _touch_used(self) -> None:
        """Tells the order of what was hit since the last time, all at once: a hit costs less."""
        used, self._used = self._used, []
        if used:
            ends = dict(used)
            self._touch(list(ends), ends.get)

    def _touch(self, keys: list[bytes], end_of: EndOf) -> None:
        for part in self._names.split(keys, end_of):
            self.store.touch(part.keys, namespace=part.space, positions=part.positions)

    # ------------------------------------------------------------------ jobs
    def submit_store(self, job_metadata: Any) -> None:
        """Starts writing rows of the host pool. What is there is left out; what finds no room even
        by eviction is declined: the job ends without success. Never raises, never blocks.
        """
        self._held = False
        self._submit(job_metadata, self._store_part)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts reading into rows of the host pool, each verified. What is gone, or wrong, is not
        among the result's ``successful_keys``. Never raises, never blocks.
        """
        self._submit(job_metadata, self._load_part)

    def _submit(self, job: Any, start: Callable[[_Work, Part, Slots], int]) -> None:
        keys = list(job.keys)
        still = np.zeros(len(keys), np.bool_)
        work = _Work(job.job_id, keys, job.is_promotion, time.monotonic(), still, still.copy())
        self._works[work.job] = work
        with _Outermost("submit", self._counts):
            rows = np.asarray(job.chunk_ids, np.int32)
            if rows.shape != (len(keys),):
                raise ValueError(f"chunk_ids must be one a key, {len(keys)}, not {rows.shape}")
            if self._closer.alive:
                self._touch_used()
                work.saying = self._hinted.use(keys, job.req_context)
                for part in self._names.split(keys, job.req_context.get_offload_key_position):
                    number = start(work, part, rows[part.index])
                    self._parts[number] = (work, part.index)
                    work.left += 1
        if not work.left:
            self._finish(work)

    def _store_part(self, work: _Work, part: Part, rows: Slots) -> int:
        there = self.store.slots(part.keys, namespace=part.space) >= 0
        self._counts["present_blocks"] += int(there.sum())
        work.moves[part.index] = ~there
        # What is there is given too: to be offered again counts as use.
        self.store.touch(part.keys[there], namespace=part.space, positions=part.positions[there])
        return self.store.store(part.keys, rows, namespace=part.space, positions=part.positions)

    def _load_part(self, work: _Work, part: Part, rows: Slots) -> int:
        work.moves[part.index] = True
        return self.store.load(
            part.keys, rows, namespace=part.space, positions=part.positions
        ).number

    def get_finished_jobs(self) -> Iterable[Any]:
        """The results of jobs that ended since the last call, each once. Never blocks."""
        self._take()
        finished, self._finished = self._finished, []
        return finished

    def _take(self) -> None:
        if not self._closer.alive:
            return
        events: list[Event] = []  # of a poll that fails: what has ended is told with the next call
        with _Outermost("poll", self._counts):
            events = self.store.poll()
        for event in events:
            self._heed(event)

    def _heed(self, event: Event) -> None:
        if isinstance(event, KeysDone):
            work, index = self._parts.pop(event.number)
            work.good[index] = event.good
            work.left -= 1
            if not work.left:
                self._finish(work)
        elif isinstance(event, BlocksStored | BlocksRemoved):
            self._untold.append(event)

    def _finish(self, work: _Work) -> None:
        del self._works[work.job]
        good, count = work.good, len(work.keys)
        arrived, whole = int(good.sum()), bool(good.all())
        if work.promotion:
            self._counts["loaded_blocks"] += arrived
            self._counts["failed_load_blocks"] += count - arrived
        else:
            self._counts["stored_blocks"] += int((good & work.moves).sum())
            self._counts["declined_blocks"] += count - arrived
        part = None
        if work.promotion and not whole:
            part = tuple(key for key, came in zip(work.keys, good.tolist(), strict=True) if came)
        if work.saying is not None:
            with _Outermost("hint", self._counts):
                self._hinted.say(work.saying, work.keys)
        self._finished.append(
            JobResult(
                job_id=work.job,
                success=whole,
                successful_keys=part or None,
                transfer_time=time.monotonic() - work.started_s,
                transfer_bytes=int((good & work.moves).sum()) * self._row_bytes,
            )
        )

    def has_pending_work(self) -> bool:
        """Whether a job's result is still to come: the engine goes on stepping for it."""
        return bool(self._works or self._finished)

    def drain_jobs(self) -> None:
        """Blocks until every job has ended; the results come with ``get_finished_jobs``.

        The engine's caches are being reset, perhaps because its weights change: of what was stored
        until now nothing is found any more before the next start, unless ``after_reset`` is
        ``keep``; it stays on disk. What is stored from now on is this process's alone. Either way
        all is a miss until the next store: its rows came from the workers after all that they were
        still writing at the reset, where a row of the pool may be one that we would load into.
        """
        self._settle()
        self._counts["resets"] += 1
        self._held = True
        self._used.clear()
        if self.options.after_reset == "hide":
            self._names.hide()
            self._untold.clear()  # who follows the events was told of the reset by the engine

    def _settle(self) -> None:
        while self._parts and self._closer.alive:
            self.store.wait()
            for event in self.store.poll():
                self._heed(event)

    # ------------------------------------------------------------------ around
    def on_schedule_end(self, context: Any) -> None:
        """The step is over: its hits become the most recently used."""
        if self._closer.alive:
            with _Outermost("touch", self._counts):
                self._touch_used()

    def take_events(self) -> Iterable[Any]:
        """Blocks stored in the directory and removed from it since the last call, those found at
        the start among them; only while the engine publishes cache events.
        """
        if not self._closer.alive or not self._tells_events:
            return
        if self._untold and not self._names.known:
            return  # whose blocks those are that were found is known with the first request
        if not self._names.reversible:
            self._untold.clear()
        untold, self._untold = self._untold, []
        for event in untold:
            keys = self._told(event)
            if keys:
                yield OffloadingEvent(
                    keys=keys,
                    medium=Medium.STORAGE,
                    removed=isinstance(event, BlocksRemoved),
                    locality=self.locality,
                )

    def _told(self, event: BlocksStored | BlocksRemoved) -> list[Any]:
        """The engine's keys of the blocks of an event that are its own now."""
        owners = {self.store.root_key(s): group for group, s in enumerate(self._names.spaces())}
        return [
            self._names.key_of(bytes(name[ROOT_BYTES:]), group)
            for name in event.keys
            if (group := owners.get(bytes(name[:ROOT_BYTES]))) is not None
        ]

    def get_stats(self) -> Any | None:
        """What changed since the last call, for the engine's metrics; None where nothing did."""
        if not self._closer.alive:
            return None
        metrics, usage = self.store.metrics, self._disk.usage()
        counts = {
            **self._counts,
            "corrupt_blocks": metrics.get("load", "corrupt", self._disk.name, _ROW),
            "evicted_blocks": metrics.get("evict", "blocks", self._disk.name, _ROW),
            "hints_taken": metrics.get("hints", "taken"),
            "hints_refused": metrics.get("hints", "refused"),
        }
        state = {
            "used_bytes": usage.used_bytes,
            "limit_bytes": usage.limit_bytes,
            "blocks": usage.used_blocks[0],
            "restored_blocks": self._restored,
            "writable": int(self._disk.mode is TierMode.ON),
        }
        return self._reporter.report(counts, state)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The tier's metrics; ``extra_config`` is its entry of ``secondary_tiers``."""
        return definitions()

    def shutdown(self) -> None:
        """Ends every job, makes what was stored durable and gives rows and directory back.

        Idempotent; what is asked afterwards is a miss.
        """
        try:
            self._settle()
        finally:
            self._closer()


_ANSWERS = {
    "lookup_hits": LookupResult.HIT,
    "lookup_retries": LookupResult.RETRY,
    "lookup_misses": LookupResult.MISS,
}


def _rows_of(view: memoryview) -> Rows:
    """The engine's rows as an array that holds on to them."""
    if not isinstance(view, memoryview):
        raise TypeError(f"primary_kv_view must be a memoryview, not {type(view).__name__}")
    if view.ndim != 2 or view.itemsize != 1 or view.readonly or not view.nbytes:
        raise ValueError(
            "primary_kv_view must be writable bytes of shape (chunks, row bytes), neither 0; not "
            f"{'read-only ' if view.readonly else ''}items of {view.itemsize} bytes in {view.shape}"
        )
    return np.asarray(view)


def _close(store: FlatStore, rows: Rows, process: int) -> None:
    """Ends what is under way and closes. ``rows``: lent memory, held until this is done."""
    del rows
    if os.getpid() != process:  # a child that was forked owns neither
        return
    try:
        store.flush()
    finally:
        store.close()
