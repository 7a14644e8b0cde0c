"""Room for a tenant. What it wants counts as its own already when it is decided whose blocks go, so
that who scans evicts his own once he stands above his share. Beyond its quota its own go first, and
if they are not enough it gets nothing; what floors keep for others it does not get at all. Keeps R4
for tenants (nothing is evicted where that could not help) and the order of I17.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from radix.errors import CapacityError, NeverFitsError, TierFullError
from radix.groups import Group
from radix.namespaces import Namespaces
from radix.residency import MAX_STAMP, Residency
from radix.shares import ONCE, OWN, Claim, Head, Shares
from radix.tenants import Tenants
from radix.tier import Slots, Tier, TierMode
from radix.tree import TreeCore

_ON = TierMode.ON  # members of an Enum are slow to look up


def told_apart(
    tenants: Tenants | None,
    tree: TreeCore,
    groups: Sequence[Group],
    tiers: Sequence[Tier],
) -> Shares | None:
    """The tenants of a tree without pages, whose tiers are ``Shares.fronts`` from then on; None
    where they are not told apart.
    """
    if tenants is None:
        return None
    if not isinstance(tenants, Tenants):
        raise TypeError(f"tenants must be Tenants, not {type(tenants).__name__}")
    return Shares(tree, groups, tiers, tenants)


def install(residency: Residency, spaces: Namespaces, shares: Shares | None) -> None:
    """From now on room is made by tenant, and new namespaces have theirs."""
    if shares is not None:
        residency.shares = spaces.shares = shares
        residency.quotas = TenantQuotas(residency, shares)


class TenantQuotas:
    """Of one residency: ``available``, ``reserve``, ``shortage``, each for the tenant of a root;
    ``check_fits`` for what no waiting can make fit.
    """

    def __init__(self, residency: Residency, shares: Shares) -> None:
        self._residency = residency
        self._shares = shares
        self._groups = residency.groups

    def _column(self, tier: int, group: int) -> int:
        return self._residency.tree.column(group, tier)

    def _within(self, tier: int, group: int, root: int) -> tuple[int, int]:
        """How many free blocks, and how many by eviction, the tenant could get."""
        residency, shares, column = self._residency, self._shares, self._column(tier, group)
        number = shares.number(root)
        stats = residency.tree.column_stats(column)
        free = residency.tiers[tier].free_blocks(group)
        may_go = stats.resident - stats.protected - shares.withheld(number, column)
        headroom = shares.headroom(number, column)
        if headroom is not None:
            own = shares.may_go(number, column, pool=self._one_budget(tier))
            most = max(0, headroom + own)
            free = min(free, most)
            may_go = min(may_go, most - free)
        return free, max(0, may_go)

    def available(self, tier: int, group: int, root: int) -> int:
        """Blocks that ``reserve`` could give now. Cost: the tenants that have floors."""
        return sum(self._within(tier, group, root))

    def check_fits(self, tier: int, needed: Sequence[int], root: int) -> None:
        """``NeverFitsError`` where the tenant's quota is less than what it needs at once, by group;
        of groups that share a budget together.
        """
        shares, store = self._shares, self._residency.tiers[tier]
        shared = sum(
            count * group.block_bytes for count, group in zip(needed, self._groups, strict=True)
        )
        for group, count in enumerate(needed):
            size = self._groups[group].block_bytes
            beside = shared - count * size if self._one_budget(tier) else 0
            quota = shares.quota(shares.number(root), self._column(tier, group))
            if quota is not None and count * size > quota - beside:
                raise NeverFitsError(
                    f"tier {store.name!r}, group {self._groups[group].name!r}, "
                    f"the quota of tenant {shares.name(root)!r}",
                    needed=count,
                    capacity=max(0, quota - beside) // size,
                )

    def shortage(self, tier: int, group: int, count: int, root: int) -> CapacityError:
        """The error that says what is short, and for which tenant; counted."""
        residency, name = self._residency, self._shares.name(root)
        stats = residency.tree.column_stats(self._column(tier, group))
        dirty = min(residency.dirty(tier, group), stats.protected)
        free, may_go = self._within(tier, group, root)
        place = residency.tiers[tier].name
        self._shares.refused(root, count)
        return CapacityError(
            f"tier {place!r}, group {self._groups[group].name!r}, tenant {name!r}",
            needed=count,
            free=free,
            evictable=may_go + dirty,
            leased=stats.protected - dirty,
            dirty=dirty,
            kept=0 if residency.keeper is None else residency.keeper.kept(tier, group),
        )

    def reserve(self, tier: int, group: int, count: int, root: int) -> Slots:
        """``count`` slots for the tenant, evicting what has to go, all or nothing as to slots.

        Raises ``CapacityError`` and ``TierError``; evicts nothing if that could not help. Cost: the
        slots.
        """
        shares, store = self._shares, self._residency.tiers[tier]
        number, column = shares.number(root), self._column(tier, group)
        if store.mode is not _ON or not self._could_fit(tier, group, count, root):
            raise self.shortage(tier, group, count, root)
        shares.take(number, column, count)
        try:
            self._evict_own(tier, group, number)
            if shares.over(number, column):
                raise TierFullError(store.name, "the tenant's quota is used up", retryable=True)
            self._evict_for(tier, group, count, Claim(number, 0))
            slots = store.reserve(group, count)
        except TierFullError as error:
            shares.take(number, column, -count)
            raise self.shortage(tier, group, count, root) from error
        except BaseException:
            shares.take(number, column, -count)
            raise
        shares.hold(tier, group, slots, number)
        return slots

    def make_way(self, rows: Iterable[Slots], root: int) -> None:
        """The engine's own slots are about to hold blocks of the tenant, a row a group: what it has
        beyond its quota in the first tier then goes, as far as no lease pins it. Cost: what goes.
        """
        shares, number = self._shares, self._shares.number(root)
        for group, row in enumerate(rows):
            column, count = self._column(0, group), int(np.count_nonzero(row >= 0))
            shares.take(number, column, count)
            try:
                self._evict_own(0, group, number)
            finally:
                shares.take(number, column, -count)

    def _could_fit(self, tier: int, group: int, count: int, root: int) -> bool:
        shares, column = self._shares, self._column(tier, group)
        number = shares.number(root)
        if count > self._residency.tiers[tier].capacity_blocks(group):
            return False
        if count <= self.available(tier, group, root):
            return True
        headroom = shares.headroom(number, column)
        if headroom is not None and count > headroom + shares.may_go(number, column, pool=True):
            return False
        claim = Claim(number, 0)  # of other groups something may go
        return self._one_budget(tier) and any(
            self._shares.head(self._column(tier, other), claim) is not None
            for other in range(len(self._groups))
            if other != group
        )

    # ------------------------------------------------------------ who goes
    def _evict_own(self, tier: int, group: int, number: int) -> None:
        """What a tenant has beyond its quota goes, what was used longest ago first, in the other
        groups of the pool too.
        """
        shares, column, claim = self._shares, self._column(tier, group), Claim(number, OWN)
        while (over := shares.over(number, column)) > 0:
            victim, upto = group, MAX_STAMP
            if self._one_budget(tier):
                first = self._first(tier, claim)
                if first is None:
                    return
                victim, upto = first[0], self._upto(tier, first, claim)
            blocks = self._blocks(over, group, victim)
            if not len(self._residency.evict(tier, victim, blocks, upto, claim)):
                return

    def _evict_for(self, tier: int, group: int, count: int, claim: Claim) -> None:
        """Makes room for ``count`` blocks of a group, as far as that is possible."""
        residency, store = self._residency, self._residency.tiers[tier]
        if (short := count - store.free_blocks(group)) <= 0:
            return
        if not self._one_budget(tier):
            residency.evict(tier, group, short, claim=claim)
            return
        if store.capability.holds_bytes:  # what lies in its own segments makes room at once
            residency.evict(tier, group, short, claim=claim)
        once = Claim(claim.tenant, claim.how | ONCE)
        while (short := count - store.free_blocks(group)) > 0:
            first = self._first(tier, claim)
            if first is None:
                return
            blocks = self._blocks(short, group, first[0])
            upto = self._upto(tier, first, claim)
            if not len(residency.evict(tier, first[0], blocks, upto, once)):
                return

    def _blocks(self, count: int, of: int, group: int) -> int:
        """Blocks of a group that are as many bytes as ``count`` of another."""
        return -(-count * self._groups[of].block_bytes // self._groups[group].block_bytes)

    def _one_budget(self, tier: int) -> bool:
        """Whether several groups share the bytes of a tier."""
        return len(self._groups) > 1 and self._residency.tiers[tier].capability.shares_bytes

    def _first(self, tier: int, claim: Claim) -> tuple[int, Head] | None:
        """The group of a tier of which a block goes next for a claim, and what that is."""
        best: tuple[int, Head] | None = None
        for group in range(len(self._groups)):
            head = self._shares.head(self._column(tier, group), claim)
            if head is not None and (best is None or head.before(best[1])):
                best = group, head
        return best

    def _upto(self, tier: int, first: tuple[int, Head], claim: Claim) -> int:
        """The stamp up to which its blocks go before those of its tenant's other groups."""
        upto = MAX_STAMP
        for other in range(len(self._groups)):
            head = self._shares.head(self._column(tier, other), claim)
            if other != first[0] and head is not None and head.tenant == first[1].tenant:
                upto = min(upto, max(head.stamp, first[1].stamp))
        return upto
