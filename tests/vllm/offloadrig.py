"""The scheduler's side of the adapter over real host memory and a real directory, without an
engine: ``OffloadRig`` plays single calls of the connector and the workers behind them. The bytes of
a block are a digest of its key and of the weights that computed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, TierFilter

from radix._native import ffi
from radix.engines.hinting import KEY
from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.offload import Offload
from radix.engines.vllm.options import Options
from radix.engines.vllm.worker import Slots
from radix.events import RequestState
from radix.keys import Namespace
from radix.store import FlatStore
from radix.tier import Tier
from tests.oracle import expand
from tests.vllm.workerrig import config_of
from tiers.disk import DiskTier
from tiers.host import HostTier

HIT, MISS, PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING
BLOCK = 4096
TOKENS = 32
SPACE = Namespace("tiny")
DISK_BYTES = 96 << 20
SEGMENT_BYTES = 1 << 20


def key_of(number: int, group: int = 0) -> bytes:
    """The engine's key of a block: a hash and the group."""
    return hashlib.sha256(b"block %d" % number).digest() + group.to_bytes(4, "big")


def keys_of(*numbers: int, group: int = 0) -> list[bytes]:
    """Keys of several blocks of one group."""
    return [key_of(number, group) for number in numbers]


def content(key: bytes, weights: int = 0, size: int = BLOCK) -> np.ndarray:
    """What the block of a key holds under certain weights: float32 values, all finite."""
    seed = hashlib.blake2b(key + weights.to_bytes(4, "little"), digest_size=8).digest()
    raw = expand([int.from_bytes(seed, "little")], size)[0]
    return (raw.astype(np.float32)[: size // 4] - 128.0).view(np.uint8)


def context_of(
    name: str,
    keys: Sequence[bytes] = (),
    *,
    tiers: TierFilter = TierFilter.ALL,
    hints: object = None,
) -> ReqContext:
    """A request whose blocks, in each group, are ``keys`` in this order; what it says of them."""
    params = None if hints is None else {KEY: hints}
    context = ReqContext(name, params, load_tier_filter=tiers)
    seen: dict[bytes, int] = {}
    for key in keys:
        seen[key[-4:]] = seen.get(key[-4:], 0) + 1
        context.set_offload_key_position(key, seen[key[-4:]] * TOKENS)
    return context


class OffloadRig:
    """``offload`` over ``host_blocks`` blocks of host memory, and a directory if one is given.
    ``now_s``: what time it is; nobody else moves it.
    """

    def __init__(
        self,
        host_blocks: int = 16,
        directory: Path | None = None,
        *,
        groups: int = 1,
        events: bool = False,
        space: Namespace = SPACE,
        disk: Tier | None = None,
        **options: Any,
    ) -> None:
        host_bytes = host_blocks * BLOCK
        below: list[Tier] = [] if disk is None else [disk]
        if directory is not None:
            below = [DiskTier(directory, limit_bytes=DISK_BYTES, segment_bytes=SEGMENT_BYTES)]
        self.geometry = Geometry(1, 1, tuple(range(groups)), ((BLOCK,),) * groups)
        self.host = HostTier(host_bytes, segment_bytes=BLOCK if groups > 1 else None)
        self.now_s = 1
        self.store = FlatStore(
            self.geometry.groups(),
            [self.host, *below],
            key_bytes=32,
            policy=options.get("policy", "lru"),
            events=events,
            clock=lambda: self.now_s * 10**9,
        )
        self.offload = Offload(
            store=self.store,
            geometry=self.geometry,
            namespace=lambda: space,
            options=Options(host_bytes=host_bytes, **options),
            config=config_of(groups, enable_kv_cache_events=events),
        )
        self.ends: list[tuple[str, RequestState]] = []
        self.offload.lives.watch = lambda name, state: self.ends.append((name, state))
        self.requests = 0

    def request(self, keys: Sequence[bytes] = (), **options: Any) -> ReqContext:
        """A new request."""
        self.requests += 1
        context = context_of(f"r{self.requests}", keys, **options)
        self.offload.on_new_request(context)
        return context

    def memory(self, group: int, slot: int) -> np.ndarray:
        """The bytes of a host slot: a view."""
        plane = self.host.planes(group)[0]
        place = int(plane["base"]) + slot * int(plane["stride"])
        return np.frombuffer(ffi.buffer(ffi.cast("char *", place), BLOCK), np.uint8)

    # ------------------------------------------------------------ the connector and its workers
    def fill(self, keys: Sequence[bytes], slots: Slots, weights: int = 0) -> None:
        """The workers' part of a store."""
        for key, group, slot in zip(keys, slots.groups.tolist(), slots.slots.tolist(), strict=True):
            self.memory(group, slot)[:] = content(key, weights)

    def wrong(self, keys: Sequence[bytes], slots: Slots, weights: int = 0) -> list[bytes]:
        """Keys whose slots do not hold what they should."""
        return [
            key
            for key, group, slot in zip(
                keys, slots.groups.tolist(), slots.slots.tolist(), strict=True
            )
            if not np.array_equal(self.memory(group, slot), content(key, weights))
        ]

    def keep(self, keys: Sequence[bytes], context: ReqContext | None = None) -> None:
        """Blocks are computed, offered and stored, as far as they are wanted."""
        request = context or self.request(keys)
        out = self.offload.prepare_store(keys, request)
        assert out is not None, "no room"
        self.fill(out.keys_to_store, out.store_spec)
        if out.keys_to_store:
            self.offload.complete_store(set(out.keys_to_store), request)
        if context is None:
            self.offload.on_request_finished(request)

    def look(self, keys: Sequence[bytes], context: ReqContext) -> list[LookupResult]:
        """Answers of one step for these keys."""
        return [self.offload.lookup(key, context) for key in keys]

    def step(self, context: ReqContext | None = None, preempted: Sequence[str] = ()) -> None:
        """A step of the engine is scheduled."""
        self.offload.on_schedule_end(ScheduleEndContext([], preempted))
        self.offload.check()

    def settle(self) -> None:
        """Everything that is under way below ends."""
        while not self.store.transfers.idle():
            self.store.wait(1.0)
            self.offload._poll()
        self.offload.check()

    def answer(self, keys: Sequence[bytes], context: ReqContext) -> list[LookupResult]:
        """Answers after as many steps as it takes until none is pending."""
        for _ in range(50):
            found = self.look(keys, context)
            if PENDING not in found:
                return found
            self.step()
            self.settle()
        raise AssertionError(f"still pending: {found}")

    def load(self, keys: Sequence[bytes], context: ReqContext) -> list[bytes]:
        """Loads blocks that were answered as hits in this step: those that hold what is wrong."""
        slots = self.offload.prepare_load(keys, context)
        wrong = self.wrong(keys, slots)
        self.offload.complete_load(set(keys), context)
        return wrong

    def evict_host(self) -> None:
        """Other blocks take all of host memory."""
        groups = len(self.store.groups)
        self.settle()
        count = self.host.capacity_blocks(0) // groups
        for first in range(0, count, max(1, count // 4)):
            fresh = range(10**6 + first, 10**6 + min(count, first + max(1, count // 4)))
            self.keep([key_of(number, group) for group in range(groups) for number in fresh])
            self.settle()

    def below(self, *numbers: int) -> list[bytes]:
        """Blocks that only the tier below the host has."""
        keys = keys_of(*numbers)
        self.keep(keys)
        self.evict_host()
        return keys

    def count(self, name: str) -> int:
        """One of the adapter's counters."""
        return self.offload.counters().get(name, 0)

    def close(self) -> None:
        """Ends the engine, its workers first."""
        self.offload.shutdown()
