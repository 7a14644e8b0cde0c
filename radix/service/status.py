"""What `/status` shows: frozen values that are JSON as they stand, made of the counters and the
usage of caches and stores. Building one changes nothing and touches no block.

Kept here: what is asked is the hits by tier and the misses by reason, never one number for all
(I34); a field that is not known is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from radix.cache import PrefixCache
from radix.store import FlatStore
from radix.tenants import TenantUse

MOST_TRANSFERS = 64
Facade = PrefixCache | FlatStore


@dataclass(frozen=True, slots=True)
class TierStatus:
    """A tier of one store. ``blocks``: in use, by group; ``mode``: on, read-only or off."""

    name: str
    mode: str
    used_bytes: int
    limit_bytes: int
    blocks: Mapping[str, int]
    persistent: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, in ``unit`` (tokens of prompts, or blocks of keys).

    ``asked`` is the sum of ``hits`` (by tier) and ``misses`` (by reason).
    """

    unit: str
    asked: int
    hits: Mapping[str, int]
    misses: Mapping[str, int]

    @property
    def hit_ratio(self) -> float | None:
        """The part of it that was hit; None if nothing was asked."""
        return sum(self.hits.values()) / self.asked if self.asked else None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """What goes down. ``written_bytes``: by tier that counts them, index and padding included;
    ``budget_bytes_per_day``: of each tier that lasts (None: no end), ``budget_left_bytes``: by such
    a tier, below 0 what was written beyond; ``chances``: how likely pages that were asked for once,
    twice, three times and more often are read back from there (None: not learned).
    """

    policy: str
    written_bytes: Mapping[str, int]
    budget_bytes_per_day: int | None
    budget_left_bytes: Mapping[str, int]
    chances: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """A transfer under way; ``source`` "engine": memory that no tier owns. ``age_s``: None where
    the store has no clock.
    """

    number: int
    source: str
    target: str
    group: str
    blocks: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """One cache or flat store.

    ``transfers``: the first 64 under way, of ``transfers_under_way``; ``index_bytes``: of the tree;
    ``tenants``: by account, empty where they are not told apart.
    """

    name: str
    domain: str
    groups: Mapping[str, int]
    tiers: tuple[TierStatus, ...]
    asked: Asked
    tenants: Mapping[str, TenantUse]
    writes: WriteStatus
    transfers_under_way: int
    transfers: tuple[TransferStatus, ...]
    namespaces: int
    nodes: int
    leases: int
    index_bytes: int
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """A tenant: its limits (None: none of its own), who is connected, what it asked for and holds.

    ``account``: under which its blocks are counted, with those of the tenants that share them.
    ``used_bytes``, ``evicted_blocks`` by tier, ``refused_blocks`` (that got no room): None where
    the account is not its own.
    """

    name: str
    domain: str
    weight: float
    quota_bytes: int | None
    disk_quota_bytes: int | None
    floor_bytes: int | None
    disk_floor_bytes: int | None
    account: str
    used_bytes: Mapping[str, int] | None
    evicted_blocks: Mapping[str, int] | None
    refused_blocks: int | None
    connections: int
    leases: int
    asked: Asked


@dataclass(frozen=True, slots=True)
class Status:
    """A service, or a cache inside a program. ``state``: "running" or "draining"; ``boot``: drawn
    anew at each start; ``addresses``: what it listens on, by "socket", "listen", "admin".
    """

    version: str
    boot: str
    pid: int
    state: str
    started_unix_s: float
    uptime_s: float
    addresses: Mapping[str, str]
    connections: int
    stores: tuple[StoreStatus, ...]
    tenants: tuple[TenantStatus, ...]
    counters: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Its fields, nested, and each hit ratio beside what it is of. Cost: its size."""
        told = asdict(self)
        for kind in ("stores", "tenants"):
            items: tuple[StoreStatus | TenantStatus, ...] = getattr(self, kind)
            for entry, item in zip(told[kind], items, strict=True):
                entry["asked"]["hit_ratio"] = item.asked.hit_ratio
        return told


def store_status(
    name: str, store: Facade, domain: str = "", now_ns: int | None = None, write: str = ""
) -> StoreStatus:
    """The status of a cache or a store. Called by the thread that owns it.

    ``now_ns``: of the clock that it was given (None: it has none); ``write``: its policy of
    writing. Cost: its counters and groups, never its blocks; a persistent tier's usage may ask
    the file system.
    """
    groups = [group.name for group in store.groups]
    usage, jobs = store.usage(), store.transfers.jobs
    tree = store.tree.stats()
    tiers = tuple(
        TierStatus(
            name=tier.name,
            mode=tier.mode.value,
            used_bytes=usage[tier.name].used_bytes,
            limit_bytes=usage[tier.name].limit_bytes,
            blocks=dict(zip(groups, usage[tier.name].used_blocks, strict=True)),
            persistent=tier.capability.persistent,
        )
        for tier in store.opened
    )
    return StoreStatus(
        name=name,
        domain=domain,
        groups={group.name: group.block_bytes for group in store.groups},
        tiers=tiers,
        asked=asked_of(store),
        tenants=store.tenant_use(),
        writes=_writes(store, write),
        transfers_under_way=len(jobs),
        transfers=_transfers(store, groups, now_ns),
        namespaces=tree.roots,
        nodes=tree.nodes,
        leases=tree.leases,
        index_bytes=tree.bytes,
        counters=store.counters(),
    )


def asked_of(store: Facade) -> Asked:
    """What a cache (tokens of admitted prompts) or a store (blocks of keys) was asked for."""
    metrics = store.metrics
    tokens = isinstance(store, PrefixCache)
    begin, hit, unit = ("match", "hit_tokens", "tokens") if tokens else ("has", "hit", "blocks")
    hits = metrics.below(begin, hit)
    misses = metrics.below(begin, "miss")
    return Asked(unit, sum(hits.values()) + sum(misses.values()), hits, misses)


def _writes(store: Facade, policy: str) -> WriteStatus:
    transfers, written = store.transfers, {}
    for tier in store.opened:
        if (so_far := tier.written()) is not None:
            written[tier.name] = so_far.total_bytes
    expected = transfers.expected
    return WriteStatus(
        policy=policy,
        written_bytes=written,
        budget_bytes_per_day=transfers.limits.write_budget_bytes_per_day,
        budget_left_bytes=transfers.wear.left(transfers.now().ns),
        chances=None if expected is None else tuple(expected.chances()),
    )


def _transfers(
    store: Facade, groups: Sequence[str], now_ns: int | None
) -> tuple[TransferStatus, ...]:
    names = {number: tier.name for number, tier in enumerate(store.tiers)}
    jobs = store.transfers.jobs
    shown = []
    for number in sorted(jobs)[:MOST_TRANSFERS]:
        job = jobs[number]
        shown.append(
            TransferStatus(
                number=number,
                source=names.get(job.move.source, "engine"),
                target=names.get(job.move.target, "engine"),
                group=groups[job.move.group],
                blocks=job.move.blocks,
                age_s=None if now_ns is None else max(0, now_ns - job.start_ns) / 1e9,
            )
        )
    return tuple(shown)
