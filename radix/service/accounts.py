"""Whose a block is among tenants that share a domain, and on what terms: each tenant with
``own_blocks`` has an account of its own, all others of the domain have one together. Kept here: an
account follows from the namespace alone, so that after a restart a block is whose it was.

    domain "acme"   chats   own_blocks                "chats"
                    batch   own_blocks                "batch"
                    a, b                              "acme/shared", hit each other's blocks
"""

from __future__ import annotations

from collections.abc import Sequence

from radix.keys import Namespace
from radix.options import OptionError
from radix.service.choosing import owner_of
from radix.service.config import ServiceConfig
from radix.service.tenants import Tenant
from radix.tenants import LEAST_WEIGHT, Tenants
from radix.tenants import Tenant as Terms

Room = tuple[int, int]  # bytes of memory and of disk


class Accounts:
    """The accounts of one domain, by name, with their members in ``members``."""

    def __init__(self, domain: str, config: ServiceConfig) -> None:
        self.domain = domain
        self._tenants = tuple(each for each in config.tenants if each.domain == domain)
        self._tiers = ("host",) if config.data is None else ("host", "disk")
        sharers = [each for each in self._tenants if not each.own_blocks]
        self._shared = sharers[0].name if len(sharers) == 1 else f"{domain}/shared"
        self.members: dict[str, tuple[Tenant, ...]] = {
            each.name: (each,) for each in self._tenants if each.own_blocks
        }
        if sharers:
            self.members[self._shared] = tuple(sharers)
        self._parts: dict[str, float] = {}  # of the pool, by account, where there are several

    def of(self, namespace: Namespace) -> str:
        """The account of a namespace of this domain."""
        return owner_of(namespace.salt).tenant or self._shared

    def account(self, tenant: Tenant) -> str:
        """The account of a tenant."""
        return tenant.name if tenant.own_blocks else self._shared

    def part(self, account: str) -> float:
        """The part of a pool that is an account's by weight, and within its quota."""
        return self._parts.get(account, 1.0)

    def terms(self, room: Room) -> Tenants | None:
        """What each account may have of the domain's room, as shares of it, so that each store of
        the domain keeps them; None where there is one account only.

        Raises ``OptionError`` for what the room cannot keep.
        """
        if len(self.members) < 2:
            return None
        known = {name: self._terms(members, room) for name, members in self.members.items()}
        for tier, what in zip(self._tiers, ("floor_bytes", "disk_floor_bytes"), strict=False):
            if (share := sum(terms.floor.get(tier, 0.0) for terms in known.values())) > 1:
                of = dict(zip(("host", "disk"), room, strict=True))[tier]
                raise OptionError(
                    f"tenants.{self._tenants[0].name}.{what}",
                    f"the floors of domain {self.domain!r} are {share * of:.0f} of {of} bytes",
                )
        whole = sum(terms.weight for terms in known.values())
        self._parts = {
            name: min(terms.weight / whole, float(terms.quota.get("host", 1.0)))
            for name, terms in known.items()
        }
        # Of a tenant that the configuration has no more blocks may lie on the disk: they go first.
        return Tenants(known, default=Terms(weight=LEAST_WEIGHT), of=self.of)

    def _terms(self, members: Sequence[Tenant], room: Room) -> Terms:
        quota: dict[str, float] = {}
        floor: dict[str, float] = {}
        for number, tier in enumerate(self._tiers):
            most = [(each.quota_bytes, each.disk_quota_bytes)[number] for each in members]
            least = [(each.floor_bytes, each.disk_floor_bytes)[number] for each in members]
            bounds = [each for each in most if each is not None]
            if len(bounds) == len(most):
                quota[tier] = min(1.0, sum(bounds) / max(1, room[number]))
            if kept := sum(each or 0 for each in least):
                floor[tier] = kept / max(1, room[number])
        return Terms(sum(each.weight for each in members), quota, floor)
