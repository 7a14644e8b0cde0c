"""`/metrics`: a status as Prometheus reads it. Everything is made of one `Status` at the moment of
asking, so that the numbers of one answer belong together, and nothing is counted twice.

Hits by tier, misses by reason, copies by direction, tier and group stay apart (I34). What has no
metric of its own is in `radix_events_total` under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from radix.service.status import Asked, Status, StoreStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STORE = ("domain", "store")

# name: what it counts, and its labels
GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "radix_start_time_seconds": ("When the service started, Unix time.", ()),
    "radix_draining": ("1 while the service takes nothing new.", ()),
    "radix_connections": ("Connections that are open.", ()),
    "radix_tier_used_bytes": ("Bytes that a tier takes.", (*_STORE, "tier")),
    "radix_tier_limit_bytes": ("Bytes that a tier may take.", (*_STORE, "tier")),
    "radix_tier_blocks": ("Blocks in a tier.", (*_STORE, "tier", "group")),
    "radix_tier_on": ("1: on, 0.5: read-only, 0: off.", (*_STORE, "tier")),
    "radix_write_budget_left_bytes": ("Bytes that may be written now.", (*_STORE, "tier")),
    "radix_write_budget_bytes_per_day": ("Bytes that may be written a day.", _STORE),
    "radix_transfers": ("Transfers under way.", _STORE),
    "radix_leases": ("Leases that are held.", _STORE),
    "radix_index_nodes": ("Nodes of the index.", _STORE),
    "radix_index_bytes": ("Memory of the index.", _STORE),
    "radix_namespaces": ("Namespaces of the index.", _STORE),
    "radix_tenant_connections": ("Connections of a tenant.", ("tenant",)),
    "radix_tenant_leases": ("Leases of a tenant.", ("tenant",)),
    "radix_tenant_used_bytes": ("Bytes of a tenant in a tier.", ("tenant", "tier")),
    "radix_tenant_quota_bytes": ("Bytes of memory that a tenant may take.", ("tenant",)),
    "radix_tenant_disk_quota_bytes": ("Bytes of disk that a tenant may take.", ("tenant",)),
    "radix_tenant_floor_bytes": ("Bytes of memory that others leave it.", ("tenant",)),
    "radix_tenant_disk_floor_bytes": ("Bytes of disk that others leave it.", ("tenant",)),
    "radix_tenant_weight": ("Its share where room is short.", ("tenant",)),
}
COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "radix_asked": ("Blocks or tokens asked for.", (*_STORE, "unit")),
    "radix_hits": ("Of those, found, by the tier that had them.", (*_STORE, "unit", "tier")),
    "radix_misses": ("Of those, not found, by reason.", (*_STORE, "unit", "reason")),
    "radix_moved_blocks": (
        "Blocks copied to (store) or from (load) a tier.",
        (*_STORE, "what", "tier", "group"),
    ),
    "radix_moved_bytes": (
        "Bytes copied to (store) or from (load) a tier.",
        (*_STORE, "what", "tier", "group"),
    ),
    "radix_written_bytes": (
        "Bytes that a tier gave its medium, index and padding included.",
        (*_STORE, "tier"),
    ),
    "radix_failed_blocks": ("Blocks whose copy failed.", (*_STORE, "what", "tier", "group")),
    "radix_corrupt_blocks": (
        "Blocks found corrupt and dropped.",
        (*_STORE, "what", "tier", "group"),
    ),
    "radix_declined_blocks": ("Blocks that a tier did not take.", (*_STORE, "tier", "group")),
    "radix_evicted_blocks": ("Blocks that made room for others.", (*_STORE, "tier", "group")),
    "radix_tenant_asked": ("Blocks that a tenant asked for.", ("tenant", "unit")),
    "radix_tenant_hits": ("Of those, found.", ("tenant", "unit", "tier")),
    "radix_tenant_evicted_blocks": ("Blocks of a tenant that made room.", ("tenant", "tier")),
    "radix_tenant_refused_blocks": ("Blocks for which a tenant got no room.", ("tenant",)),
    "radix_events": ("What else was counted, by its own name.", (*_STORE, "event")),
}
# (stage, what) of our counters: the metric, and the words of its labels before what follows
_PLACES: Mapping[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    **{
        (stage, what): (f"radix_{metric}", (stage,))
        for stage in ("load", "store")
        for what, metric in (
            ("blocks", "moved_blocks"),
            ("bytes", "moved_bytes"),
            ("failed", "failed_blocks"),
            ("corrupt", "corrupt_blocks"),
        )
    },
    ("store", "declined"): ("radix_declined_blocks", ()),
    ("evict", "blocks"): ("radix_evicted_blocks", ()),
}
_ASKED = ("has", "match", "lookup")  # told as asked, hits and misses already
_MODES = {"on": 1.0, "read-only": 0.5, "off": 0.0}


class _Families:
    """The metrics of one answer, by name."""

    def __init__(self) -> None:
        self._gauges = {
            name: GaugeMetricFamily(name, text, labels=labels)
            for name, (text, labels) in GAUGES.items()
        }
        self._counters = {
            name: CounterMetricFamily(name, text, labels=labels)
            for name, (text, labels) in COUNTERS.items()
        }

    def set(self, name: str, value: float, *labels: str) -> None:
        self._gauges[name].add_metric(labels, value)

    def count(self, name: str, value: float, *labels: str) -> None:
        self._counters[name].add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        yield from self._gauges.values()
        yield from self._counters.values()


class StatusCollector:
    """What Prometheus' library asks for metrics: made of ``status()`` each time."""

    def __init__(self, status: Callable[[], Status]) -> None:
        """``status``: may be called by any thread."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric, at this moment. Cost: the status."""
        status = self._status()
        yield InfoMetricFamily(
            "radix", "The service.", value={"version": status.version, "boot": status.boot}
        )
        families = _Families()
        families.set("radix_start_time_seconds", status.started_unix_s)
        families.set("radix_draining", float(status.state == "draining"))
        families.set("radix_connections", status.connections)
        for store in status.stores:
            _tell_store(families, store)
        _tell_tenants(families, status)
        for name, count in status.counters.items():
            families.count("radix_events", count, "", "", name)
        yield from families.all()


def _tell_store(families: _Families, store: StoreStatus) -> None:
    where = (store.domain, store.name)
    for tier in store.tiers:
        families.set("radix_tier_used_bytes", tier.used_bytes, *where, tier.name)
        families.set("radix_tier_limit_bytes", tier.limit_bytes, *where, tier.name)
        families.set("radix_tier_on", _MODES[tier.mode], *where, tier.name)
        for group, blocks in tier.blocks.items():
            families.set("radix_tier_blocks", blocks, *where, tier.name, group)
    writes = store.writes
    for name, count in writes.written_bytes.items():
        families.count("radix_written_bytes", count, *where, name)
    for name, left in writes.budget_left_bytes.items():
        families.set("radix_write_budget_left_bytes", left, *where, name)
    if writes.budget_bytes_per_day is not None:
        families.set("radix_write_budget_bytes_per_day", writes.budget_bytes_per_day, *where)
    families.set("radix_transfers", store.transfers_under_way, *where)
    families.set("radix_leases", store.leases, *where)
    families.set("radix_index_nodes", store.nodes, *where)
    families.set("radix_index_bytes", store.index_bytes, *where)
    families.set("radix_namespaces", store.namespaces, *where)
    _tell_asked(families, "radix", store.asked, where)
    for reason, count in store.asked.misses.items():
        families.count("radix_misses", count, *where, store.asked.unit, reason)
    for name, count in store.counters.items():
        _tell_counter(families, where, name.split("."), count)


def _tell_asked(families: _Families, prefix: str, asked: Asked, where: Sequence[str]) -> None:
    families.count(f"{prefix}_asked", asked.asked, *where, asked.unit)
    for tier, count in asked.hits.items():
        families.count(f"{prefix}_hits", count, *where, asked.unit, tier)


def _tell_counter(
    families: _Families, where: Sequence[str], words: Sequence[str], count: int
) -> None:
    if words[0] in _ASKED:
        return
    place = _PLACES.get((words[0], words[1] if len(words) > 1 else ""))
    if place is not None:
        name, first = place
        labels = (*first, *words[2:])
        if len(labels) == len(COUNTERS[name][1]) - len(where):
            families.count(name, count, *where, *labels)
            return
    families.count("radix_events", count, *where, ".".join(words))


def _tell_tenants(families: _Families, status: Status) -> None:
    for tenant in status.tenants:
        families.set("radix_tenant_connections", tenant.connections, tenant.name)
        families.set("radix_tenant_leases", tenant.leases, tenant.name)
        families.set("radix_tenant_weight", tenant.weight, tenant.name)
        for bound in ("quota_bytes", "disk_quota_bytes", "floor_bytes", "disk_floor_bytes"):
            if (nbytes := getattr(tenant, bound)) is not None:
                families.set(f"radix_tenant_{bound}", nbytes, tenant.name)
        for tier, used in (tenant.used_bytes or {}).items():
            families.set("radix_tenant_used_bytes", used, tenant.name, tier)
        for tier, count in (tenant.evicted_blocks or {}).items():
            families.count("radix_tenant_evicted_blocks", count, tenant.name, tier)
        if tenant.refused_blocks is not None:
            families.count("radix_tenant_refused_blocks", tenant.refused_blocks, tenant.name)
        _tell_asked(families, "radix_tenant", tenant.asked, (tenant.name,))


def exposition(status: Callable[[], Status]) -> bytes:
    """All metrics as text. Cost: the status."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return generate_latest(registry)
