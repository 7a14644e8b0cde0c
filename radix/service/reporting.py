"""What a server tells of itself: the status that the admin page, the metrics and STAT are made of.
Called by the thread that owns the stores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import radix
from radix.service.context import Context
from radix.service.hosting import Hosted, digest_of
from radix.service.session import Session
from radix.service.status import Asked, Status, StoreStatus, TenantStatus, store_status
from radix.service.tenants import Tenant


def name_of(hosted: Hosted) -> str:
    """A store's name for people: its domain, and the first digits of its kind."""
    return f"{hosted.domain}/{digest_of(hosted.signature)[:12]}"


def _status_of_store(context: Context, hosted: Hosted) -> StoreStatus:
    told = store_status(
        *(name_of(hosted), hosted.flat, hosted.domain),
        *(time.monotonic_ns(), context.config.write),
    )
    if hosted.remote is None:
        return told
    return replace(told, counters={**told.counters, **hosted.remote.counters()})


def status_of(
    context: Context, sessions: Sequence[Session], addresses: Mapping[str, str], began: float
) -> Status:
    """Everything, at this moment; ``began``: Unix time. Cost: stores, tenants and connections."""
    now = time.time()
    stores = tuple(_status_of_store(context, hosted) for hosted in context.stores())
    tenants = []
    for tenant in context.config.tenants:
        mine = [session for session in sessions if session.tenant is tenant]
        counted = context.counted[tenant.name]
        hits, misses = counted.below("has", "hit"), counted.below("has", "miss")
        asked = Asked("blocks", sum(hits.values()) + sum(misses.values()), hits, misses)
        accounts = context.domains[tenant.domain].accounts
        account = accounts.account(tenant)
        own = _held_by(context, tenant) if len(accounts.members[account]) == 1 else None
        tenants.append(
            TenantStatus(
                name=tenant.name,
                domain=tenant.domain,
                weight=tenant.weight,
                quota_bytes=tenant.quota_bytes,
                disk_quota_bytes=tenant.disk_quota_bytes,
                floor_bytes=tenant.floor_bytes,
                disk_floor_bytes=tenant.disk_floor_bytes,
                account=account,
                used_bytes=None if own is None else own.used_bytes,
                evicted_blocks=None if own is None else own.evicted,
                refused_blocks=None if own is None else own.refused,
                connections=len(mine),
                leases=sum(len(session.leases) for session in mine),
                asked=asked,
            )
        )
    return Status(
        version=radix.__version__,
        boot=context.boot.hex(),
        pid=os.getpid(),
        state="draining" if context.draining else "running",
        started_unix_s=began,
        uptime_s=now - began,
        addresses=dict(addresses),
        connections=len(sessions),
        stores=stores,
        tenants=tuple(tenants),
        counters=context.counters(),
    )


@dataclass(slots=True)
class _Held:
    """What an account holds, by tier, and lost, in all stores of its domain."""

    used_bytes: dict[str, int]
    evicted: dict[str, int]
    refused: int


def _held_by(context: Context, tenant: Tenant) -> _Held:
    """What one tenant alone has; of a domain with one account all that is there."""
    domain, held = context.domains[tenant.domain], _Held({}, {}, 0)
    for hosted in domain.stores.values():
        flat = hosted.flat
        if domain.tenants is None:
            evicted = flat.metrics.below("evict", "blocks")
            for name, usage in flat.usage().items():
                _add(held, name, usage.used_bytes, evicted.get(name, 0))
        elif (use := flat.tenant_use().get(tenant.name)) is not None:
            held.refused += use.refused
            for name, share in use.tiers.items():
                _add(held, name, share.used_bytes, share.evicted)
    return held


def _add(held: _Held, tier: str, used_bytes: int, evicted: int) -> None:
    held.used_bytes[tier] = held.used_bytes.get(tier, 0) + used_bytes
    held.evicted[tier] = held.evicted.get(tier, 0) + evicted
