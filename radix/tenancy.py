"""What both facades tell of tenants, and take. Keeps no invariant of its own."""

from __future__ import annotations

from radix.errors import RequestError
from radix.facade import Facade
from radix.residency import Residency
from radix.tenants import Tenants, TenantUse


class Tenancy(Facade):
    """A facade whose cache may tell tenants apart (``tenants`` at its construction)."""

    residency: Residency

    def tenant_use(self) -> dict[str, TenantUse]:
        """What each tenant asked for and has, by name; empty where they are not told apart. A
        tenant without terms of its own is forgotten with its last namespace. Cost: tenants x tiers.
        """
        with self.gate:
            return {} if self.residency.shares is None else self.residency.shares.use()

    def set_tenants(self, tenants: Tenants) -> None:
        """Other weights, quotas and floors from now on. What stands above a new quota goes when its
        tenant needs room next.

        Raises ``RequestError`` where tenants are not told apart, ``ValueError`` for terms that the
        tiers cannot keep, or another way of telling them apart; all is as before.
        """
        if not isinstance(tenants, Tenants):
            raise TypeError(f"tenants must be Tenants, not {type(tenants).__name__}")
        with self.gate:
            if self.residency.shares is None:
                raise RequestError("set_tenants: the cache was made without tenants")
            self.residency.shares.set(tenants)
