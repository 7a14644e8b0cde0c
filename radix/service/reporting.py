"""What a server tells of itself: the status that the admin page, the metrics and STAT are made of.
Called by the thread that owns the stores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import radix
from radix.service.context import Context
from radix.service.hosting import Hosted, digest_of
from radix.service.session import Session
from radix.service.status import Asked, Status, TenantStatus, store_status


def name_of(hosted: Hosted) -> str:
    """A store's name for people: its domain, and the first digits of its kind."""
    return f"{hosted.domain}/{digest_of(hosted.signature)[:12]}"


def status_of(
    context: Context, sessions: Sequence[Session], addresses: Mapping[str, str], began: float
) -> Status:
    """Everything, at this moment; ``began``: Unix time. Cost: stores, tenants and connections."""
    now = time.time()
    stores = tuple(
        store_status(
            *(name_of(hosted), hosted.flat, hosted.domain),
            *(time.monotonic_ns(), context.config.write),
        )
        for hosted in context.stores()
    )
    held = _held_by(context)
    tenants = []
    for tenant in context.config.tenants:
        mine = [session for session in sessions if session.tenant is tenant]
        counted = context.counted[tenant.name]
        hits, misses = counted.below("has", "hit"), counted.below("has", "miss")
        asked = Asked("blocks", sum(hits.values()) + sum(misses.values()), hits, misses)
        tenants.append(
            TenantStatus(
                name=tenant.name,
                domain=tenant.domain,
                weight=tenant.weight,
                quota_bytes=tenant.quota_bytes,
                disk_quota_bytes=tenant.disk_quota_bytes,
                used_bytes=held[tenant.domain] if alone(context, tenant.domain) else None,
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


def alone(context: Context, domain: str) -> bool:
    """Whether one tenant has a domain for itself: what the domain holds is his then."""
    return sum(tenant.domain == domain for tenant in context.config.tenants) == 1


def _held_by(context: Context) -> dict[str, dict[str, int]]:
    """Bytes of blocks by domain and tier."""
    held: dict[str, dict[str, int]] = {domain: {} for domain in context.domains}
    for hosted in context.stores():
        used = held[hosted.domain]
        for name, usage in hosted.flat.usage().items():
            used[name] = used.get(name, 0) + usage.used_bytes
    return held
