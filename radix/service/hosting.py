"""The stores of a service. A domain is those who trust each other: it has memory of its own, which
no other domain's clients are ever given, and in it a store for each kind of block. Keeps of every
store that one thread calls it (the loop's), and of a domain that its stores together take no more
than is its own (I25).

    domain "a"   store of groups G, pool (sealed memory file)    data/a/<digest of G>/   disk
                 store of groups H, pool                         data/a/<digest of H>/
    domain "b"   store of groups G, pool                         data/b/<digest of G>/
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from radix.errors import ClosedError, TierError, UnsupportedError
from radix.events import BlocksRemoved, BlocksStored, Event, KeysDone
from radix.groups import Group
from radix.keysets import FlatLease, Mask
from radix.options import OptionError
from radix.policy.limits import Limits, Patience
from radix.service.accounts import Accounts
from radix.service.config import ServiceConfig
from radix.service.opening import Signature
from radix.service.protocol import ProtocolError, Status
from radix.service.remote import StoreRemote
from radix.service.settling import Settling, Settlings
from radix.store import FlatStore
from radix.tenants import Tenants
from radix.tier import Tier
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier
from tiers.slab import ALIGNMENT_BYTES, stride_bytes
from tiers.transfer import Planes

_LOG = logging.getLogger("radix.service")
MOST_EVENTS = 65536
_LEAST_DISK_BYTES = 8 << 20
_LOAD_NS = 60 * 10**9  # after which a load is given up: who waits for it goes on without
_FETCH_S = 75.0  # and who was told nothing even then


@dataclass(frozen=True, slots=True)
class Kept:
    """A KEEP: what is pinned, so many keys, until when by the monotonic clock, for which account,
    and the tenant who may end it.
    """

    until: float
    lease: FlatLease
    keys: int
    account: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Resetting:
    """A reset that waits for the epoch in the backend; ``whole``: of every tier, else of the remote
    one alone.
    """

    tell: Callable[[Exception | None], None]
    whole: bool


class Hosted:
    """A store of one domain with its pool. ``flat``: called by the loop alone. ``run`` once a turn;
    ``after`` for what a fetch brings, ``settled`` for what becomes durable, ``keep`` for pins that
    outlive their connection.
    """

    def __init__(
        self,
        domain: str,
        signature: Signature,
        config: ServiceConfig,
        room: tuple[int, int],
        tenants: Tenants | None,
    ) -> None:
        """``room``: bytes of the pool and of the disk; ``tenants``: whose its blocks are, None
        where that is not told apart. Raises what ``FlatStore`` raises.
        """
        self.domain = domain
        self.signature = signature
        self.pool_bytes, self.disk_bytes = room
        self.host = HostTier(self.pool_bytes, sealed=True, verify=True, threads=config.threads)
        tiers: list[Tier] = [self.host]
        if config.data is not None:
            folder = config.data / domain / digest_of(signature)
            config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in (folder.parent, folder):
                each.mkdir(mode=0o700, exist_ok=True)
            (folder / "signature").write_text(signature.text)
            tiers.append(DiskTier(folder / "disk", limit_bytes=self.disk_bytes))
        self.remote: StoreRemote | None = None
        if config.remote is not None:
            self.remote = StoreRemote(config, domain, digest_of(signature))
            tiers.append(self.remote.tier)
        # The number of the last tier that outlives the process, 0 where none does.
        self.lasting = max(n for n, tier in enumerate(tiers) if not n or tier.capability.persistent)
        self.persistent = self.lasting > 0
        self.flat = FlatStore(
            signature.groups,
            tiers,
            key_bytes=signature.key_bytes,
            policy=config.policy,
            write=config.write,
            events=True,
            clock=time.monotonic_ns,
            limits=limits_of(config, self.disk_bytes),
            tenants=tenants,
        )
        self.users = 0  # connections that have it open
        self.used = time.monotonic()
        self.events: deque[tuple[int, BlocksStored | BlocksRemoved]] = deque(maxlen=MOST_EVENTS)
        # The number of the next event. Where they begin no other life of a store does, so that
        # numbers of one are never taken for those of another.
        self.began = self.told = secrets.randbits(38) << 24
        self.closed = False
        self.keeps: dict[int, Kept] = {}
        self._kept: dict[str, tuple[int, int]] = {}  # by account: KEEPs, and keys in them
        self._pending: dict[int, tuple[float, Callable[[Mask | None], None]]] = {}
        self._settlings = Settlings(self.flat, self.lasting)
        self._resetting: list[Resetting] = []
        self._idle: list[tuple[float, Callable[[], None]]] = []

    def planes(self, group: int) -> Planes:
        """Where its blocks lie in this process."""
        return self.host.planes(group)

    def stride(self, group: int) -> int:
        """The unit in which slots of the pool are counted, in bytes: a block may take several."""
        return int(self.host.planes(group)[0]["stride"])

    def after(
        self, number: int, tell: Callable[[Mask | None], None], patience_s: float = _FETCH_S
    ) -> None:
        """``tell`` is called with how each key of a fetch fared, or were found that were sought;
        None where that is not known in time.
        """
        self._pending[number] = time.monotonic() + patience_s, tell

    def settled(self, waits: Settling) -> None:
        """Its ``tell`` is called once every key is durable, or will not be, at once if so now."""
        self._settlings.add(waits)

    def when_idle(self, tell: Callable[[], None]) -> None:
        """``tell`` is called once nothing is under way and what was stored is durable; for what is
        on its way to a remote tier nobody waits longer than for its answer.
        """
        patience_s = 0.0 if self.remote is None else self.remote.patience_s
        self._idle.append((time.monotonic() + patience_s, tell))

    def reset(self, tell: Callable[[Exception | None], None], *, whole: bool = True) -> None:
        """A new epoch in every tier, or in the remote one alone; ``tell`` is called once: with None
        when it has begun, else with the error. Those who ask until an epoch stands in the backend
        share it: the store is reset once, in each tier that any of them means, and all are told how
        that ended. Never blocks on the backend.
        """
        if self.closed:
            tell(ClosedError("the store is closed"))
            return
        self._resetting.append(Resetting(tell, whole))
        if self.remote is None:
            self._reset(None)
        elif len(self._resetting) == 1:
            self.remote.begin_epoch(self._reset)

    def _reset(self, failure: Exception | None) -> None:
        """Resets for all who wait, unless the epoch could not be begun; tells them."""
        resetting, self._resetting = self._resetting, []
        if failure is None:
            whole = self.remote is None or any(each.whole for each in resetting)
            try:
                self.flat.reset(None if whole or self.remote is None else [self.remote.tier.name])
            except TierError as error:
                failure = error
        for each in resetting:
            each.tell(failure)

    @property
    def busy(self) -> bool:
        """Whether ``run`` has something to see to."""
        if self.closed:
            return False
        waited = self._pending or self._settlings or self._idle
        return (
            bool(waited)
            or not self.flat.transfers.idle()
            or (self.remote is not None and self.remote.busy)
        )

    def run(self) -> None:
        """Takes what ended, tells who waits; nothing of a store that is closed. Never blocks."""
        if self.closed:
            return
        for event in self.flat.poll():
            self._tell(event)
        if self.remote is not None:
            self.remote.run()
        now = time.monotonic()
        for number in [n for n, (until, _) in self._pending.items() if until <= now]:
            _, tell = self._pending.pop(number, (0.0, None))
            if tell is not None:
                tell(None)
        self._settlings.run(now)
        if self._idle:
            self._tell_idle(now)

    def _tell_idle(self, now: float) -> None:
        """Those who wait until nothing is under way; for a remote tier they wait so long only."""
        idle = self.flat.transfers.idle()
        if not idle and (self.remote is None or self.flat.transfers.sinking(self.lasting)):
            return
        told = [tell for until, tell in self._idle if idle or until <= now]
        self._idle = [each for each in self._idle if not idle and each[0] > now]
        if told:
            self.make_durable()
        for tell in told:
            tell()

    def make_durable(self) -> None:
        """What was stored outlives the process. Blocks, on the disk alone."""
        for tier in self.flat.tiers:
            if self.remote is None or tier.name != self.remote.tier.name:
                tier.flush()

    def _tell(self, event: Event) -> None:
        if isinstance(event, KeysDone):
            _, tell = self._pending.pop(event.number, (0.0, None))
            if tell is not None:
                tell(event.good)
        elif isinstance(event, BlocksStored | BlocksRemoved):
            self.events.append((self.told, event))
            self.told += 1
            if isinstance(event, BlocksStored):
                self._settlings.came(event)

    def kept(self, account: str) -> tuple[int, int]:
        """KEEPs of an account, and the keys in them."""
        return self._kept.get(account, (0, 0))

    def keep(self, number: int, kept: Kept) -> None:
        """Takes a KEEP over, until ``unkeep``."""
        count, keys = self.kept(kept.account)
        self.keeps[number] = kept
        self._kept[kept.account] = count + 1, keys + kept.keys

    def unkeep(self, number: int, tenant: str | None = None) -> bool:
        """Ends a KEEP, of ``tenant`` where one is given; whether there was one."""
        kept = self.keeps.get(number)
        if kept is None or tenant not in (None, kept.tenant):
            return False
        del self.keeps[number]
        count, keys = self._kept.pop(kept.account)
        if count > 1:
            self._kept[kept.account] = count - 1, keys - kept.keys
        kept.lease.release()
        return True

    def expire(self, now: float) -> None:
        """Lets go what was kept until now. Cost: what is kept."""
        for number in [number for number, kept in self.keeps.items() if kept.until <= now]:
            self.unkeep(number)

    def close(self, until: float) -> None:
        """Makes durable what is under way, ends it. Who still waits is told that nothing came. For
        what is on its way to a remote tier it waits ``until`` then, by the monotonic clock.
        """
        self.closed = True
        for number in list(self.keeps):
            self.unkeep(number)
        self._sink(self.lasting, None)
        if self.remote is not None:
            self._sink(len(self.flat.tiers) - 1, until)
            self.remote.close()
        self.make_durable()
        for event in self.flat.poll():
            self._tell(event)
        self._settlings.close()
        self.flat.close()

    def _sink(self, deepest: int, until: float | None) -> None:
        """Ends the copies down to a tier; ``until``: then they are given up."""
        while self.flat.transfers.sinking(deepest):
            if until is not None and time.monotonic() >= until:
                return
            self.flat.wait()
            for event in self.flat.poll():
                self._tell(event)


def limits_of(config: ServiceConfig, disk_bytes: int) -> Limits:
    """The bounds of a store with so much of the disk, whose share of what may be written it has."""

    def share(nbytes: int | None) -> int | None:
        return None if nbytes is None else max(1, nbytes * disk_bytes // config.disk_bytes)

    return Limits(
        write_after=config.write_after,
        write_expected=config.write_expected,
        write_budget_bytes_per_day=share(config.write_budget_bytes_per_day),
        write_burst_bytes=share(config.write_burst_bytes),
        load_deadline=Patience(ns=_LOAD_NS),
    )


def digest_of(signature: Signature) -> str:
    """A folder's name for a kind of store."""
    return hashlib.sha256(signature.text.encode()).hexdigest()[:32]


class Domain:
    """Those who share a pool: ``store`` finds or makes what an OPEN asks for. ``accounts``: whose
    its blocks are, ``tenants`` their terms, None where there is one account only.
    """

    def __init__(self, name: str, config: ServiceConfig, room: tuple[int, int]) -> None:
        """``room``: bytes of memory and of disk that its stores may take together.

        Raises ``OptionError`` for terms that it cannot keep, or that its policy does not know.
        """
        self.name = name
        self.accounts = Accounts(name, config)
        self.tenants = self.accounts.terms(room)
        _try_policy(config.policy, self.tenants)
        self._config = config
        self.host_bytes, self.disk_bytes = room
        self.stores: dict[str, Hosted] = {}

    def store(self, signature: Signature, pool_bytes: int) -> Hosted:
        """The store of this kind; made with ``pool_bytes`` of what is left (0: the share of it that
        the configuration says, so that there is room for others) if it is new. Stores that nobody
        has open go first, the one unused for longest before the others.

        Raises ``ProtocolError`` where the rest is too small, and what a store raises.
        """
        found = self.stores.get(signature.text)
        if found is not None:
            return found
        least = least_bytes(signature)
        wanted = max(pool_bytes, least)
        idle = sorted((s for s in self.stores.values() if not s.users), key=lambda s: s.used)
        deep = 0 if self._config.data is None else _LEAST_DISK_BYTES
        while idle and (self._left()[0] < wanted or self._left()[1] < deep):
            self._close(idle.pop(0))
        left, disk = self._left()
        if left < least:
            raise ProtocolError(
                f"domain {self.name!r} has {left} of its {self.host_bytes} bytes left, and the "
                f"least pool of this kind takes {least}: {len(self.stores)} others are open, with "
                "what they said as pool_bytes, or store_share of what was left",
                Status.NEVER_FITS,
            )
        if disk < deep:
            raise ProtocolError(
                f"domain {self.name!r} has {disk} of its {self.disk_bytes} bytes of disk left, and "
                f"a store takes {deep} at least: {len(self.stores)} others are open",
                Status.NEVER_FITS,
            )
        pool = min(pool_bytes or max(least, int(self._config.store_share * left)), left)
        share = max(deep, disk * pool // max(left, 1))
        pool = pool // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        made = Hosted(self.name, signature, self._config, (pool, share), self.tenants)
        self.stores[signature.text] = made
        _LOG.info(
            "domain %s: opened a store of %d groups, %d bytes",
            self.name,
            len(made.flat.groups),
            pool,
        )
        return made

    def _left(self) -> tuple[int, int]:
        stores = self.stores.values()
        host = self.host_bytes - sum(store.pool_bytes for store in stores)
        return host, self.disk_bytes - sum(store.disk_bytes for store in stores)

    def _close(self, store: Hosted) -> None:
        del self.stores[store.signature.text]
        store.close(time.monotonic())

    def close(self, until: float) -> None:
        """Ends every store; for what goes to remote tiers it waits ``until`` then."""
        for store in list(self.stores.values()):
            del self.stores[store.signature.text]
            store.close(until)


def _try_policy(policy: str, tenants: Tenants | None) -> None:
    """``OptionError`` for an order of eviction that no store of the service could go by."""
    apart = None if tenants is None else Tenants()
    try:
        tiers = [IndexTier(1, "host")]
        FlatStore([Group.full("any", 1)], tiers, key_bytes=16, policy=policy, tenants=apart).close()
    except (ValueError, UnsupportedError) as error:
        raise OptionError("--policy", str(error)) from None


def least_bytes(signature: Signature) -> int:
    """The smallest pool in which each group has room for some blocks."""
    largest = max(stride_bytes(group.block_bytes) for group in signature.groups)
    return 4 * largest * len(signature.groups)


def domains_of(config: ServiceConfig) -> dict[str, Domain]:
    """A domain for each that the tenants name. A quota is taken as it is said; what is left of the
    service's bytes is divided by weight among the domains without one.
    """
    names = list(dict.fromkeys(tenant.domain for tenant in config.tenants))
    hosts = dict(zip(names, _shares(config, names, config.host_bytes, "quota_bytes"), strict=True))
    disks = _shares(config, names, config.disk_bytes, "disk_quota_bytes")
    return {
        name: Domain(name, config, (hosts[name], disk))
        for name, disk in zip(names, disks, strict=True)
    }


def _shares(config: ServiceConfig, names: list[str], total: int, quota: str) -> Iterator[int]:
    fixed: dict[str, int] = {}
    weights: dict[str, float] = {}
    for name in names:
        members = [tenant for tenant in config.tenants if tenant.domain == name]
        quotas = [getattr(tenant, quota) for tenant in members]
        if None in quotas:
            weights[name] = sum(tenant.weight for tenant in members)
        else:
            fixed[name] = sum(quotas)
    nowhere = quota == "disk_quota_bytes" and config.data is None
    if (promised := sum(fixed.values())) > total and not nowhere:
        what = f"the quotas are {promised} of {total} bytes"
        raise OptionError(f"tenants.{config.tenants[0].name}.{quota}", what)
    rest = max(0, total - promised)
    whole = sum(weights.values()) or 1.0
    for name in names:
        yield fixed[name] if name in fixed else int(rest * weights[name] / whole)
