"""RadixServiceTier: a service of ours under vLLM's own CPU tier, so that engines share what they
computed: two that serve the same model, or one that prefills for one that decodes. Keys are asked
for together, by a thread, and answered a step later; jobs move rows of vLLM's host pool through the
memory of the service, by threads. Every job is answered exactly once (I22); whatever fails here,
the service itself among it, costs a hit.

    scheduler   lookup: RETRY . . . . . . . lookup: HIT     submit_load . . . . get_finished_jobs
    threads              has(all keys asked)                 lease, copy, look, release
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from radix.engines.vllm.disk_names import Names, Part
from radix.engines.vllm.disk_options import DiskOptions
from radix.engines.vllm.identity import KEY_BYTES
from radix.engines.vllm.secondary import _Lent, _Outermost, _rows_of
from radix.engines.vllm.service_options import ServiceOptions
from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import Mask
from radix.service import Client
from radix.tier import Slots

logger = logging.getLogger(__name__)

_KNOWN_S = {True: 2.0, False: 0.2}  # how long an answer is believed: what is there may go, or come
_MOST_KNOWN = 1 << 16


class RadixServiceTier(SecondaryTierManager):  # type: ignore[misc]  # no types of the engine here
    """``type="RadixServiceTier"``, ``module_path="radix.engines.vllm"``: blocks of vLLM's CPU tier
    in a service that other engines use too.

    All calls come from vLLM's manager, under its lock, in the scheduler's process; none waits for
    the service but ``drain_jobs`` and ``shutdown``.
    """

    medium = Medium.STORAGE
    tolerates_off_thread_polling = False

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        """Connects with the first question. ``primary_kv_view``: (chunks, row bytes), writable, the
        engine's own; lent until ``shutdown`` returns. ``options``: those of
        :class:`ServiceOptions`. Raises as ``RadixDiskTier``, ``OSError`` for a secret that cannot
        be read.
        """
        self.options = ServiceOptions.of(options)
        rows = _rows_of(primary_kv_view)
        named = DiskOptions(
            directory=self.options.service, limit_bytes=1, revision=self.options.revision
        )
        self._names = Names(offloading_spec, named, *rows.shape)
        super().__init__(
            offloading_spec=offloading_spec,
            primary_kv_view=primary_kv_view,
            tier_type=tier_type,
            backpressure_detector=backpressure_detector,
        )
        self._row_bytes = rows.shape[1]
        memory = np.asarray(_Lent(rows))
        self._clients = [self._client(memory, self.options.secret) for _ in range(3)]
        self._threads = [ThreadPoolExecutor(1, "radix-service") for _ in self._clients]
        self._lock = threading.Lock()  # of what threads and the scheduler share
        self._asked: dict[bytes, tuple[Namespace, bytes]] = {}  # keys that nobody asked for yet
        self._asking = False
        self._known: dict[bytes, tuple[bool, float]] = {}
        self._sweep_at = _MOST_KNOWN
        self._finished: deque[JobResult] = deque()
        self._running: set[Any] = set()
        self.counts: Counter[str] = Counter()
        self._held = False
        self._open = True

    def _client(self, memory: np.ndarray[Any, Any], secret: bytes | None) -> Client:
        options = self.options
        return Client(
            options.service,
            [Group.full("row", self._row_bytes)],
            key_bytes=KEY_BYTES,
            memory=[[memory]],
            tenant=options.tenant,
            secret=secret,
            timeout_s=options.timeout_s,
            pool_bytes=options.pool_bytes,
        )

    # ------------------------------------------------------------------ asking
    def on_new_request(self, req_context: Any) -> Any:
        """Takes what is new, chunk by chunk."""
        if not self._names.known and self._open:
            self._names.spaces()
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> Any:
        """HIT or MISS where the service said so lately; RETRY: it is being asked. Never blocks."""
        answer = LookupResult.MISS
        with _Outermost("lookup", self.counts):
            if self._open and not self._held:
                answer = self._look(bytes(key))
        self.counts[f"lookup_{answer.name.lower()}"] += 1
        return answer

    def _look(self, key: bytes) -> LookupResult:
        with self._lock:
            found, until = self._known.get(key, (False, 0.0))
            if time.monotonic() < until:
                return LookupResult.HIT if found else LookupResult.MISS
            self._asked[key] = self._names.one(key)
            if not self._asking:
                self._asking = True
                self._threads[0].submit(self._ask)
            return LookupResult.RETRY

    def _ask(self) -> None:
        """In a thread: all keys that were looked for meanwhile, a namespace at a time."""
        while True:
            with self._lock:
                asked, self._asked = self._asked, {}
                if not asked:
                    self._asking = False
                    return
            there: dict[bytes, bool] = dict.fromkeys(asked, False)
            with _Outermost("has", self.counts):
                for space in dict.fromkeys(space for space, _ in asked.values()):
                    mine = [key for key, (each, _) in asked.items() if each == space]
                    raw = b"".join(asked[key][1] for key in mine)
                    names = np.frombuffer(raw, np.uint8).reshape(-1, KEY_BYTES)
                    found = self._clients[0].has(names, namespace=space, seek=True) >= 0
                    there.update(zip(mine, found.tolist(), strict=True))
            self._learn(there)

    def _learn(self, there: dict[bytes, bool]) -> None:
        now = time.monotonic()
        with self._lock:
            if len(self._known) > self._sweep_at:  # its cost is spread over as many new ones
                self._known = {k: v for k, v in self._known.items() if v[1] > now}
                self._sweep_at = max(_MOST_KNOWN, 2 * len(self._known))
            for key, found in there.items():
                self._known[key] = found, now + _KNOWN_S[found]

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Makes the keys the most recently used, a little later."""
        if self._open:
            with _Outermost("touch", self.counts):
                parts = self._names.split(list(keys), req_context.get_offload_key_position)
                self._start(self._threads[0], lambda: self._touch(parts))

    def _touch(self, parts: list[Part]) -> None:
        for part in parts:
            self._clients[0].touch(part.keys, namespace=part.space, positions=part.positions)

    # ------------------------------------------------------------------ jobs
    def submit_store(self, job_metadata: Any) -> None:
        """Starts bringing rows of the host pool. Never raises, never blocks."""
        self._held = False
        self._submit(job_metadata, 1, self._store_part)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts bringing blocks into rows. What is gone is not among the result's
        ``successful_keys``. Never raises, never blocks.
        """
        self._submit(job_metadata, 2, self._load_part)

    def _submit(self, job: Any, thread: int, move: Callable[[Part, Slots], Mask]) -> None:
        keys, started_s = list(job.keys), time.monotonic()
        parts: list[Part] = []
        rows = np.empty(0, np.int32)
        with _Outermost("submit", self.counts):
            rows = np.asarray(job.chunk_ids, np.int32)
            if rows.shape != (len(keys),):
                raise ValueError(f"chunk_ids must be one a key, {len(keys)}, not {rows.shape}")
            if self._open:
                parts = self._names.split(keys, job.req_context.get_offload_key_position)

        def run() -> None:
            good = np.zeros(len(keys), np.bool_)
            with _Outermost("move", self.counts):
                for part in parts:
                    good[part.index] = move(part, rows[part.index])
            self._finish(job, keys, good, time.monotonic() - started_s)

        self._start(self._threads[thread], run)

    def _store_part(self, part: Part, rows: Slots) -> Mask:
        client = self._clients[1]
        return client.store(
            *(part.keys, rows), namespace=part.space, positions=part.positions, durable=False
        )

    def _load_part(self, part: Part, rows: Slots) -> Mask:
        return self._clients[2].load(part.keys, rows, namespace=part.space)

    def _start(self, thread: ThreadPoolExecutor, run: Callable[[], None]) -> None:
        with self._lock:
            future = thread.submit(run)
            self._running.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: Any) -> None:
        with self._lock:
            self._running.discard(future)

    def _finish(self, job: Any, keys: list[bytes], good: Mask, seconds: float) -> None:
        came = [key for key, there in zip(keys, good.tolist(), strict=True) if there]
        whole = len(came) == len(keys)
        self.counts["loaded_blocks" if job.is_promotion else "stored_blocks"] += len(came)
        self.counts["missed_blocks"] += len(keys) - len(came)
        self._learn(dict(zip(map(bytes, keys), good.tolist(), strict=True)))
        part = tuple(came) if job.is_promotion and not whole else None
        self._finished.append(
            JobResult(
                job_id=job.job_id,
                success=whole,
                successful_keys=part or None,
                transfer_time=seconds,
                transfer_bytes=len(came) * self._row_bytes,
            )
        )

    def get_finished_jobs(self) -> Iterable[Any]:
        """The results of jobs that ended since the last call, each once. Never blocks."""
        finished = []
        while self._finished:
            finished.append(self._finished.popleft())
        return finished

    def has_pending_work(self) -> bool:
        """Whether a result or an answer is still to come: the engine goes on stepping for it."""
        with self._lock:
            return bool(self._running or self._asking or self._finished)

    def drain_jobs(self) -> None:
        """Blocks until every job has ended. What was stored until now is not found any more by this
        process, unless ``after_reset`` is ``keep``: its weights may change. All is a miss until the
        next store, as of ``RadixDiskTier``.
        """
        self._settle()
        self._held = True
        if self.options.after_reset == "hide":
            self._names.hide()
        with self._lock:
            self._known.clear()

    def _settle(self) -> None:
        while True:
            with self._lock:
                running = list(self._running)
            if not running:
                return
            wait(running)

    def shutdown(self) -> None:
        """Ends every job and gives the rows back. Idempotent; what is asked then is a miss."""
        if not self._open:
            return
        self._open = False
        for thread in self._threads:
            thread.shutdown(wait=True)
        for client in self._clients:
            client.close()
