"""The scheduler's side of the adapter: the engine asks here, key by key and in its own order, what
is kept, and is told which slots of the host pool its workers fill and read. Thin over the flat
store: what is pinned, promoted, under way, compared and told has a module of its own beside this.
Keeps I19 (what was answered as a hit is there until the step ends), I22, I30 and I31.

    step    lookup* -> prepare_load* -> on_schedule_end -> prepare_store* -> on_request_finished*
            (from 0.33 on, on_schedule_end comes last)     complete_*: whenever workers are done
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingManager,
    OffloadPolicy,
    PrepareStoreOutput,
    RequestOffloadingContext,
    TierFilter,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from radix.engines.vllm.blocks import HOST, Blocks
from radix.engines.vllm.canary import Canary, Comparison, types_of
from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.hinted import Hinted
from radix.engines.vllm.identity import GROUP_BYTES, KEY_BYTES
from radix.engines.vllm.ledger import Ledger, Where, order_of
from radix.engines.vllm.lives import Life, Lives
from radix.engines.vllm.metrics import Report
from radix.engines.vllm.options import Options
from radix.engines.vllm.pins import Pins
from radix.engines.vllm.promotions import Promotions
from radix.engines.vllm.seeking import Seeking
from radix.engines.vllm.stream import Stream
from radix.engines.vllm.worker import Slots
from radix.errors import CapacityError, InvariantError, TierError
from radix.events import KeysDone
from radix.keys import Namespace
from radix.keysets import Reservation
from radix.metrics import Metrics
from radix.store import FlatStore
from radix.tier import TierMode

_LOG = logging.getLogger(__name__)
_HIT, _MISS, _PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
_RETRY = LookupResult.RETRY
_ANY_TIER = TierFilter.ALL
_GENERATION_BYTES = 16
_MOST_OF_HOST = 0.5  # what one offer may take of the host tier; the rest of it is left out


class Offload(OffloadingManager):  # type: ignore[misc]  # the engine's classes have no types here
    """What the engine's connector calls, in the order of its scheduler.

    Beside that: ``lives`` (``lives.watch`` is told of the three events of each request's end),
    ``counters``, ``check``. One thread at a time: from 0.33 on whoever calls holds ``lock``.
    """

    def __init__(
        self,
        *,
        store: FlatStore,
        geometry: Geometry,
        namespace: Callable[[], Namespace],
        options: Options,
        config: Any,
    ) -> None:
        """``store``: over the host tier and, below it, what there is; it is closed with this.
        ``namespace``: asked once, when the first request comes.
        """
        self.store = store
        self.metrics = Metrics()
        self.lives = Lives(self.metrics)
        self._namespace: Callable[[], Namespace] | None = namespace
        self._blocks = Blocks(store, geometry, config)
        self._numbers = {
            group_id.to_bytes(GROUP_BYTES, "big"): number
            for number, group_id in enumerate(geometry.group_ids)
        }
        self._pins = Pins(self._blocks, geometry.group_ids)
        self._promotions = Promotions(self._blocks, self.lives, self.metrics)
        self._seeking = Seeking(self._blocks, options.wait_s)
        self._hinted = Hinted(self._blocks, self.metrics)
        self._ledger = Ledger(self._blocks, self.lives, self._hinted, self.metrics)
        self._canary = Canary(
            self._blocks,
            self.metrics,
            options.canary,
            options.canary_tolerance,
            types_of(config, geometry),
        )
        self._stream = Stream(self._blocks, geometry.group_ids, self.metrics)
        self._tells = bool(config.enable_kv_cache_events)
        self._report = Report(self.metrics, store.metrics)
        self._filling = self._ledger.filling
        self._ask: Callable[[bytes, int], int] = store.probe  # of a namespace, once there is one
        self._answers: dict[bytes, Any] = {}  # of this step, where they hold for every request
        self._asked: set[Life] = set()  # who looked in this step, of those that wait
        self._seen = self._made_room = False  # whether this step polled, before answers and stores
        self._step = 0
        self._generation = b""  # of the weights that the model's name stands for
        self._off = False
        self._lock = threading.RLock()

    # ------------------------------------------------------------ requests
    def on_new_request(self, req_context: Any) -> Any:
        """A request came; its blocks are offered as they are computed. Of one that says hints all
        are, those that were on the device before included: else nobody would name them.
        """
        if self._namespace is not None:
            self._begin(self._namespace())
            self._namespace = None
        if self._hinted.begin(self.lives.of(req_context), req_context):
            return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL)
        return RequestOffloadingContext()

    def _begin(self, space: Namespace) -> None:
        self._blocks.begin(replace(space, content=self._generation))
        self._ask = self.store.prober(self._blocks.space)

    def on_request_finished(self, req_context: Any) -> None:
        """Nothing more will be stored or loaded for a request; ends of jobs may follow."""
        life = self.lives.of(req_context)
        self._promotions.leave(life)
        self._hinted.end(life)
        self.lives.finish(life)

    # ------------------------------------------------------------ looking
    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Whether a block is in host memory (HIT, until the step ends), on its way there
        (HIT_PENDING: it ends), being asked for where other engines store (RETRY), or nowhere
        (MISS). Cost: O(1), a few microseconds.
        """
        answer = self._answers.get(key)
        if answer is None or req_context.load_tier_filter is not _ANY_TIER:
            return self._look(key, req_context)
        return answer

    def _look(self, key: bytes, context: Any) -> Any:
        if not self._seen and not self._first():
            return _MISS
        name, group = key[:-GROUP_BYTES], self._numbers.get(key[-GROUP_BYTES:], -1)
        if len(name) != KEY_BYTES or group < 0:
            name, group = self._rename(key)
        if self._promotions.waiting:
            self._asked.add(self.lives.of(context))
        filling = self._filling.get(key)
        if filling is not None and filling.places[key][0] >= 0:
            return _PENDING if self._allows(context, HOST) else _MISS
        tier = self._ask(name, group)
        if tier < 0:
            if self._seeking.able:
                position = self._blocks.position(key, group, context)
                if self._seeking.ask(self.lives.of(context), key, name, group, position):
                    return _RETRY
            self._pins.misses.append(name + key[-GROUP_BYTES:])
            if not self._seeking.able:  # else requests may ask further that wait longer
                self._answers[key] = _MISS
            return _MISS
        if context.load_tier_filter is not _ANY_TIER:
            tier = self._allowed_tier(name, group, context)
            if tier < 0:
                self.metrics.add(("missed", "tier filter"))
                return _MISS
        if self._canary.share:
            life = self.lives.of(context)
            if self._canary.refuses(life, key, group, context):
                if tier > HOST:  # brought up, to be compared there
                    self._promote(key, name, group, tier, context)
                return _MISS
        if tier > HOST:
            return _PENDING if self._promote(key, name, group, tier, context) else _MISS
        if key not in self._answers:
            self._pins.hits.append(name + key[-GROUP_BYTES:])
            self._answers[key] = _HIT
        return _HIT

    def _first(self) -> bool:
        """The first answer of a step: takes what has ended below. Whether there is a cache."""
        if self._off or self._namespace is not None:
            return False
        self._seen = True
        self._poll()
        return True

    def _promote(self, key: bytes, name: bytes, group: int, tier: int, context: Any) -> bool:
        position, life = self._blocks.position(key, group, context), self.lives.of(context)
        if self.store.tiers[tier].capability.shared:
            life.far.add(key)
        return self._promotions.ask(life, key, name, group, position)

    def _rename(self, key: bytes) -> tuple[bytes, int]:
        """Name and group of a key whose hash is not ours as it stands; raises for a foreign
        group.
        """
        self._stream.plain = False
        groups, names = self._blocks.reader.read([key])
        return names.tobytes(), int(groups[0])

    @staticmethod
    def _allows(context: Any, tier: int) -> bool:
        medium = Medium.CPU if tier == HOST else Medium.STORAGE
        return bool(context.load_tier_filter.allows(medium, Locality.LOCAL))

    def _allowed_tier(self, name: bytes, group: int, context: Any) -> int:
        """Where to take a block from for a request that takes it from some tiers only: host memory
        is on the way of every block, so what another tier has too may come from there.
        """
        asked = np.frombuffer(name, np.uint8).reshape(1, -1)
        having = [
            tier
            for tier in range(len(self._blocks.tiers))
            if self.store.tiers[tier].mode is not TierMode.OFF
            and self.store.slots(asked, group, tier=tier, namespace=self._blocks.space)[0] >= 0
        ]
        return having[0] if any(self._allows(context, tier) for tier in having) else -1

    def get_load_source(self, key: bytes, req_context: Any) -> Any:
        """The tier that a block came from for this request, also where it went through the host."""
        life = self.lives.of(req_context)
        if key in life.far:
            return CacheHitSource.EXTERNAL_UNSPECIFIED
        return CacheHitSource.DISK if key in life.deep else CacheHitSource.HOST

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Blocks count as used. The connector does not call it: lookups and offers say so too."""
        if keys and not self._off and self._namespace is None:
            listed = list(keys)
            groups, names = self._blocks.reader.read(listed)
            positions = self._blocks.positions(listed, groups.tolist(), req_context)
            self.store.touch(names, namespace=self._blocks.space, positions=positions)

    # ------------------------------------------------------------ loading
    def prepare_load(self, keys: Collection[bytes], req_context: Any) -> Any:
        """The slots of blocks that were answered as hits in this step, in order; they stay until
        ``complete_load``. Cost: the keys.
        """
        listed = list(keys)
        life = self.lives.of(req_context)
        groups, names = self._blocks.reader.read(listed)
        positions = self._blocks.positions(listed, groups.tolist(), req_context)
        lease = self._blocks.lease(names, positions)
        slots = np.full(len(listed), -1, np.int32)
        for group, rows in order_of(groups):
            slots[rows] = self.store.slots(names[rows], group, namespace=self._blocks.space)
        if (slots < 0).any():
            lease.release()
            missing = listed[int(np.argmin(slots))].hex()
            raise InvariantError("I19", f"{missing} was not answered as a hit in this step")
        self._ledger.read(life, listed, lease)
        self._hinted.use(life, names, positions)
        self._promotions.release(life)
        self._count_loaded(life, listed)
        return Slots(groups, slots)

    def _count_loaded(self, life: Life, keys: list[bytes]) -> None:
        far = sum(key in life.far for key in keys)
        deep = sum(key in life.deep for key in keys) - far
        for tier, count in ((HOST, len(keys) - deep - far), (HOST + 1, deep), (-1, far)):
            if count:
                self.metrics.add(("loaded", self._blocks.tiers[tier]), count)

    def complete_load(self, keys: Collection[bytes], req_context: Any) -> None:
        """Workers have read these blocks."""
        self._ledger.read_out(self.lives.of(req_context), keys)

    # ------------------------------------------------------------ storing
    def prepare_store(self, keys: Collection[bytes], req_context: Any) -> Any | None:
        """Slots for what is neither kept nor on its way, in the order of ``keys``; None where there
        is no room now: nothing was taken. Cost: the keys.
        """
        life = self.lives.of(req_context)
        if not self._made_room:
            self._made_room = True
            self._poll()
        offered = [key for key in keys if key not in self._filling]
        if not offered or self._off or life.finished or self._namespace is not None:
            return PrepareStoreOutput([], Slots([], []), [])
        self._pins.hold()
        return self._reserve(life, offered, req_context)

    def _reserve(self, life: Life, offered: list[bytes], context: Any) -> Any | None:
        groups, names = self._blocks.reader.read(offered)
        positions = self._blocks.positions(offered, groups.tolist(), context)
        share = self._share(groups)
        slots = np.full(len(offered), -1, np.int32)
        parts: list[Reservation] = []
        places: dict[bytes, Where] = {}
        kept: list[int] = []
        try:
            for group, rows in order_of(groups):
                rows = rows[: int(len(rows) * share)]
                part = self.store.reserve(
                    names[rows],
                    group,
                    namespace=self._blocks.space,
                    positions=positions[rows],
                    keep=names,
                )
                parts.append(part)
                taken = rows[part.granted]
                slots[taken] = part.slots
                here = [
                    (offered[row], (len(parts) - 1, at)) for at, row in enumerate(taken.tolist())
                ]
                places.update(here)
                kept += rows[part.there].tolist()
        except (CapacityError, TierError):
            for part in parts:
                self.store.abort(part)
            self.metrics.add(("declined", "no room"))
            return None
        checks: list[Comparison] = []
        if self._canary.share:
            checks = self._compare(
                life, [(row, offered[row]) for row in kept], groups, names, context
            )
            for at, check in enumerate(checks):
                places[check.key] = (-1, at)
                slots[offered.index(check.key)] = check.scratch.slots[0]
        self._hinted.use(life, names, positions)
        if places:
            self._ledger.fill(life, parts, places, checks)
        else:
            for part in parts:
                self.store.abort(part)
        order = np.flatnonzero(slots >= 0)
        stored = [offered[row] for row in order.tolist()]
        return PrepareStoreOutput(stored, Slots(groups[order], slots[order]), [])

    def _share(self, groups: Any) -> float:
        """How much of an offer is taken: what would drive out everything else is not."""
        sizes = [group.block_bytes for group in self.store.groups]
        asked = int(np.array(sizes, np.int64)[groups].sum())
        most = int(self.store.tiers[HOST].usage().limit_bytes * _MOST_OF_HOST)
        if asked <= max(most, max(sizes)):
            return 1.0
        self.metrics.add(("declined", "too large"))
        return most / asked

    def _compare(
        self, life: Life, kept: list[tuple[int, bytes]], groups: Any, names: Any, context: Any
    ) -> list[Comparison]:
        """Of kept blocks that are offered again, those that the canary compares."""
        checks = []
        for row, key in kept:
            group = int(groups[row])
            if self._canary.wants(life, key, group, context):
                check = self._canary.scratch(key, names[row : row + 1], group)
                if check is not None:
                    checks.append(check)
        return checks

    def complete_store(
        self, keys: Collection[bytes], req_context: Any, success: bool = True
    ) -> None:
        """Workers have filled these slots (``success``), or will not; they come in any order, and
        also after the request has gone.
        """
        self._ledger.filled(keys, success)
        self._answers.clear()

    # ------------------------------------------------------------ steps
    def on_schedule_end(self, context: Any) -> None:
        """The step's answers are over: counted, unpinned; what was wanted from below is fetched."""
        self._step += 1
        self._answers.clear()
        self._seen = self._made_room = False
        self._ledger.step()
        if self._off:
            return
        self._pins.end()
        self._promotions.settle(self._asked, self._step)
        self._asked.clear()
        self._promotions.submit(self._step)
        self._seeking.submit()
        self._poll()

    def _poll(self) -> None:
        """Takes what has ended below, when nothing that was answered can go by it."""
        self._pins.hold()
        for event in self.store.poll():
            if isinstance(event, KeysDone):
                self._promotions.done(event)
                self._seeking.done(event)
            elif self._tells:
                self._stream.tell(event)

    def has_pending_work(self) -> bool:
        """Whether the engine must go on stepping: a request waits for blocks from below, or slots
        rest after a reset.
        """
        return self._promotions.busy or self._seeking.busy or self._ledger.draining

    # ------------------------------------------------------------ reset
    def reset_cache(self) -> None:
        """Nothing that was stored before is found again, in no tier and after no restart; what is
        stored from now on, perhaps by weights that no name tells, is found by this process alone.
        Slots of jobs under way, whose ends will not be told, rest until no worker can touch them.

        Raises ``TierError`` of a disk that cannot keep this: everything is answered as missing
        from then on, and the directory must not be opened again.
        """
        self._answers.clear()
        self._asked.clear()
        self._pins.drop()
        self._promotions.reset()
        self._seeking.reset()
        self._canary.reset()
        self._ledger.drop()
        self._generation = os.urandom(_GENERATION_BYTES)
        if self._namespace is None:
            self._begin(self._blocks.space)
        try:
            self.store.reset()
        except TierError as error:
            self._off, self._seen = True, False
            _LOG.error(
                "the cache is switched off: a reset could not be made durable (%s); remove the "
                "directory, or give another revision, before the next start",
                error,
            )
            raise

    def on_reset_flushed(self) -> None:
        """No worker touches slots of jobs before the reset any more (from 0.33 on)."""
        self._ledger.lift()

    @property
    def lock(self) -> Any:
        """Held by whoever calls, where several threads do (from 0.33 on)."""
        return self._lock

    # ------------------------------------------------------------ seeing
    def take_events(self) -> Iterable[Any]:
        """Blocks stored and removed since the last call, if the engine publishes them."""
        if not self._tells or self._namespace is not None or self.store.gate.closed:
            return ()
        return self._stream.take()

    def counters(self) -> dict[str, int]:
        """Every counter of the adapter and its store by its dotted name."""
        return {**self.store.counters(), **self.metrics.snapshot()}

    def get_stats(self) -> Any | None:
        """What was counted since the last call, as the engine's own metrics."""
        if self.store.gate.closed:
            return None
        return self._report.since_last(self.store.usage)

    def config_info(self) -> list[dict[str, str]]:
        """What the engine shows of the cache's configuration (from 0.33 on): one series."""
        tiers = self.store.tiers
        return [{f"{tier.name}_limit_bytes": str(tier.usage().limit_bytes) for tier in tiers}]

    def check(self) -> None:
        """Every invariant of the store: each slot has one owner, jobs under way and dropped ones
        included. Raises ``InvariantError``. Cost: everything.
        """
        self.store.check()

    def shutdown(self) -> None:
        """Makes durable what is stored and closes the tiers. Idempotent."""
        if self.store.gate.closed:
            return
        self._pins.drop()
        self._promotions.reset()
        self._ledger.drop()
        self._ledger.lift()
        try:
            self.store.flush()
        except TierError as error:
            _LOG.warning("not everything is durable: %s", error)
        self.store.close()
