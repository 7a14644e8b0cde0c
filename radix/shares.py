"""Whose blocks are whose: tenants by number, what each holds, and how far it may go. The order
among them is native (``native/src/tenants.c``: I17 with tenants); here stand their names, quotas (a
tenant beyond its own evicts its own first), floors, and the slots that are taken for somebody and
hold no block of the tree yet (I12).

A *pool* is what blocks compete in: the bytes of a tier whose groups share them, else the blocks of
one group in a tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.errors import CapacityError, InvariantError
from radix.flat import Handles
from radix.front import FrontTier
from radix.groups import Group
from radix.keys import Namespace
from radix.tenants import LEAST_WEIGHT, Amounts, Tenants, TenantUse, TierShare
from radix.tier import Keys, Slots, Tier
from radix.tree import TreeCore, raise_status

ANYBODY: int = lib.RDX_ANYBODY
OWN: int = lib.RDX_OWN
ONCE: int = lib.RDX_ONCE
NOBODY = 0  # the number of what is of no tenant
_UNSET = -1


class Claim(NamedTuple):
    """For whom room is made: a tenant by number; of its own blocks alone with ``how`` ``OWN``."""

    tenant: int
    how: int


FOR_ANYBODY = Claim(ANYBODY, 0)


class Head(NamedTuple):
    """What goes next of a column: its node and root, stamp (0: it is dead), and where its tenant
    stands in the pool.
    """

    node: int
    root: int
    stamp: int
    pool_bytes: int
    weight: int
    tenant: int
    above: bool

    def before(self, other: Head) -> bool:
        """Whether it goes before what is next in another column of the pool."""
        if (self.stamp == 0) != (other.stamp == 0):
            return self.stamp == 0
        if self.tenant == other.tenant or self.stamp == 0:
            return self.stamp < other.stamp
        if self.above != other.above:
            return self.above
        mine, his = self.pool_bytes * other.weight, other.pool_bytes * self.weight
        return mine > his if mine != his else self.tenant < other.tenant


class Evictor(Protocol):
    """Who decides which of the oldest blocks may go at once."""

    def evict(self, tier: int, group: int, count: int, upto: int, claim: Claim) -> Slots:
        """Evicts up to ``count`` blocks that may go; their slots."""
        ...

    def leaving(self, tier: int, group: int) -> int:
        """Blocks that go once a copy of them, which is under way, is acknowledged."""
        ...


class Quotas(Protocol):
    """What a tenant may have; each takes one of its roots."""

    def available(self, tier: int, group: int, root: int) -> int:
        """Blocks that ``reserve`` could give now."""
        ...

    def reserve(self, tier: int, group: int, count: int, root: int) -> Slots:
        """``count`` slots for the tenant, all or nothing."""
        ...

    def shortage(self, tier: int, group: int, count: int, root: int) -> CapacityError:
        """The error that says what is short."""
        ...

    def make_way(self, rows: Iterable[Slots], root: int) -> None:
        """What stands above its quota goes for the engine's own slots, a row a group."""
        ...

    def check_fits(self, tier: int, needed: Sequence[int], root: int) -> None:
        """``NeverFitsError`` where its quota is less than what it needs at once, by group."""
        ...


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Of one tenant, by column: the most bytes of its pool (None: no quota), and the floor."""

    quota: list[int | None]
    floor: list[int]


@dataclass(slots=True)
class _Told:
    """Of one tenant, since it is known."""

    asked: int = 0
    hit: int = 0
    refused: int = 0


class Shares:
    """Tenants of one tree. Roots: ``assign``, ``release``. Terms: ``set``. Room: ``over``,
    ``headroom``, ``withheld``, ``may_go``; ``take`` and ``hold`` for slots on their way. Order:
    ``head``, ``evict``. Look: ``number``, ``use``, ``check``.
    """

    def __init__(
        self, tree: TreeCore, groups: Sequence[Group], tiers: Sequence[Tier], tenants: Tenants
    ) -> None:
        """``tiers``: those that the tree places blocks in, not attached yet."""
        self.tree = tree
        self.tenants = tenants
        self._groups = tuple(groups)
        self._names = [tier.name for tier in tiers]
        self._sizes = [group.block_bytes for group in self._groups for _ in tiers]
        shared = [tier.capability.shares_bytes for tier in tiers]
        self._pools = [
            number if shared[number] else group * len(tiers) + number
            for group in range(len(self._groups))
            for number in range(len(tiers))
        ]
        count = len(self._pools)
        raise_status(lib.rdx_tenants_enable(tree.native, self._sizes, self._pools))
        self._capacity = [0] * count  # bytes of each column's pool, once the tiers are attached
        self._numbers: dict[str, int] = {}
        self._known: dict[int, str] = {}
        self._roots: dict[int, int] = {}
        self._count: dict[int, int] = {}
        self._free: list[int] = []
        self._bounds: dict[int, _Bounds] = {}
        self._evicted: dict[int, list[int]] = {}  # by column, when the number was given
        self._told: dict[int, _Told] = {}
        self._floors: set[int] = set()  # tenants that have one
        self._stats = ffi.new("rdx_tenant_stats *")
        self._head = ffi.new("rdx_tenant_head *")
        self._freed = ffi.new("uint32_t *")
        self._withheld = ffi.new("uint64_t *")
        self.fronts = tuple(CountedSlots(tier, number, self) for number, tier in enumerate(tiers))

    # ------------------------------------------------------------ terms
    def opened(self) -> None:
        """The tiers are attached. ``ValueError`` for terms that they cannot keep."""
        for column, pool in enumerate(self._pools):
            group, tier = divmod(column, len(self._names))
            nbytes = self.fronts[tier].inner.capacity_blocks(group) * self._sizes[column]
            if pool == column:
                self._capacity[column] = nbytes
            else:
                self._capacity[pool] = max(self._capacity[pool], nbytes)
        self._capacity = [self._capacity[pool] for pool in self._pools]
        self.set(self.tenants)

    def set(self, tenants: Tenants) -> None:
        """Other terms from now on; what stands above a new quota goes when room is needed next.

        ``ValueError``: a tier is not there, floors are more than there is, or tenants are told
        apart in another way; all is as before.
        """
        if tenants.of is not self.tenants.of:
            raise ValueError("tenants.of must stay as it is: blocks have their tenants already")
        for name, terms in (*tenants.known.items(), ("default", tenants.default)):
            for what, amounts in (("quota", terms.quota), ("floor", terms.floor)):
                if unknown := sorted(set(amounts) - set(self._names)):
                    raise ValueError(
                        f"{what} of {name!r}: tier {unknown[0]!r} is not one of {self._names}"
                    )
        for column, room in enumerate(self._capacity):
            floors = sum(self._of(column, terms.floor) or 0 for terms in tenants.known.values())
            if floors > room:
                tier = self._names[column % len(self._names)]
                raise ValueError(f"floors in tier {tier!r} are {floors} of {room} bytes")
        self.tenants = tenants
        self._bounds.clear()
        for name, number in self._numbers.items():
            self._tell(number, name)

    def _of(self, column: int, amounts: Amounts) -> int | None:
        """Bytes of the pool of a column; a tier's bytes are divided as its pools are large."""
        amount = amounts.get(self._names[column % len(self._names)])
        if amount is None:
            return None
        room = self._capacity[column]
        if isinstance(amount, float):
            return int(amount * room)
        of_tier = range(column % len(self._names), len(self._pools), len(self._names))
        whole = sum({self._pools[c]: self._capacity[c] for c in of_tier}.values())
        return amount if whole == room else amount * room // max(1, whole)

    def _tell(self, number: int, name: str) -> None:
        terms = self.tenants.terms(name)
        columns = range(len(self._pools))
        quota = [self._of(column, terms.quota) for column in columns]
        floor = [self._of(column, terms.floor) or 0 for column in columns]
        weight = round(terms.weight / LEAST_WEIGHT)
        raise_status(lib.rdx_tenant_set(self.tree.native, number, weight, floor))
        self._bounds[number] = _Bounds(quota, floor)
        self._floors.discard(number)
        if any(floor):
            self._floors.add(number)

    # ------------------------------------------------------------ roots
    def assign(self, root: int, canonical: bytes) -> None:
        """A new root is of the tenant of its namespace; what encodes none is of nobody."""
        try:
            namespace = Namespace.parse(canonical)
        except ValueError:
            return
        name = self.tenants.of(namespace)
        if not isinstance(name, str):
            raise TypeError(f"tenants.of must return str, not {type(name).__name__}")
        number = self._numbers.get(name)
        if number is None:
            number = self._free[-1] if self._free else len(self._known) + 1
            self._tell(number, name)
            if self._free:
                raise_status(lib.rdx_tenant_renew(self.tree.native, number))
                self._free.pop()
            self._numbers[name], self._known[number] = number, name
            self._told[number] = _Told()
            self._evicted[number] = [
                self._of_column(number, column).evicted for column in range(len(self._pools))
            ]
        raise_status(lib.rdx_root_assign(self.tree.native, root, number))
        self._roots[root] = number
        self._count[number] = self._count.get(number, 0) + 1

    def release(self, root: int) -> None:
        """A root is gone; so is a tenant of which nothing is left and nothing was said."""
        if (number := self._roots.pop(root, NOBODY)) == NOBODY:
            return
        self._count[number] -= 1
        name = self._known[number]
        if self._count[number] or name in self.tenants.known:
            return
        if all(not self._of_column(number, column).reserved for column in range(len(self._pools))):
            del self._numbers[name], self._count[number], self._bounds[number]
            del self._evicted[number], self._told[number]
            self._floors.discard(number)
            self._known[number] = ""
            self._free.append(number)

    def number(self, root: int | None) -> int:
        """The tenant of a root; ``ANYBODY`` for None."""
        return ANYBODY if root is None else self._roots.get(root, NOBODY)

    def name(self, root: int) -> str:
        """The name of a root's tenant."""
        return self._known.get(self._roots.get(root, NOBODY), "")

    # ------------------------------------------------------------ room
    def _of_column(self, number: int, column: int) -> Any:
        raise_status(lib.rdx_tenant_get_stats(self.tree.native, number, column, self._stats))
        return self._stats

    def quota(self, number: int, column: int) -> int | None:
        """Bytes that a tenant may have of the pool of a column; None: no quota."""
        bounds = self._bounds.get(number)
        return None if bounds is None else bounds.quota[column]

    def over(self, number: int, column: int) -> int:
        """Blocks of a column by which a tenant stands above its quota."""
        quota = self.quota(number, column)
        if quota is None:
            return 0
        beyond = int(self._of_column(number, column).pool_bytes) - quota
        return -(-max(0, beyond) // self._sizes[column])

    def headroom(self, number: int, column: int) -> int | None:
        """Blocks of a column that a quota leaves, below 0 where it is exceeded; None: no quota."""
        quota = self.quota(number, column)
        if quota is None:
            return None
        return (quota - int(self._of_column(number, column).pool_bytes)) // self._sizes[column]

    def may_go(self, number: int, column: int, *, pool: bool) -> int:
        """Blocks of a column that a tenant's own eviction could give; ``pool``: counting, byte for
        byte, those of the other groups of its pool.
        """
        if not pool:
            own = self._of_column(number, column)
            return int(own.resident) - int(own.protected_blocks)
        columns = [c for c in range(len(self._pools)) if self._pools[c] == self._pools[column]]
        nbytes = sum(self.may_go(number, c, pool=False) * self._sizes[c] for c in columns)
        return nbytes // self._sizes[column]

    def withheld(self, number: int, column: int) -> int:
        """Blocks of a column that floors keep from a tenant. Cost: the tenants, in C."""
        if number == ANYBODY or not self._floors:
            return 0
        found = self._withheld
        raise_status(lib.rdx_tenant_withheld(self.tree.native, number, column, found))
        return int(found[0])

    def take(self, number: int, column: int, count: int) -> None:
        """So many slots are wanted for a tenant, or not any more: they count as its own."""
        if count and number not in (ANYBODY, NOBODY):
            raise_status(lib.rdx_tenant_reserve(self.tree.native, number, column, count))

    def hold(self, tier: int, group: int, slots: Slots, number: int) -> None:
        """Slots that were taken for a tenant are these."""
        if number not in (ANYBODY, NOBODY):
            self.fronts[tier].mark(group, slots, number)

    def take_back(self, tier: int, group: int, slots: Slots, root: int) -> None:
        """Slots that were free are a tenant's."""
        number = self.number(root)
        self.take(number, self.tree.column(group, tier), len(slots))
        self.hold(tier, group, slots, number)

    # ------------------------------------------------------------ order
    def head(self, column: int, claim: Claim) -> Head | None:
        """What goes next of a column for a claim; None: nothing."""
        head = self._head
        if self.tree.before_choice is not None:
            self.tree.before_choice(column)
        raise_status(
            lib.rdx_tenant_peek(self.tree.native, column, claim.tenant, claim.how & OWN, head)
        )
        if not head.node:
            return None
        return Head(
            int(head.node),
            int(head.root),
            int(head.stamp),
            int(head.pool_bytes),
            int(head.weight),
            int(head.tenant),
            bool(head.above),
        )

    def evict(
        self,
        column: int,
        claim: Claim,
        upto: int,
        slots: Slots,
        ids: Keys | None,
        roots: Handles | None = None,
    ) -> int:
        """``TreeCore.evict`` for a claim; ``roots`` (of opaque keys) receives whose they were."""
        if self.tree.before_choice is not None:
            self.tree.before_choice(column)
        raise_status(
            lib.rdx_tenant_evict(
                self.tree.native,
                column,
                claim.tenant,
                claim.how,
                len(slots),
                upto,
                ffi.from_buffer("int32_t[]", slots),
                ffi.NULL if ids is None else ffi.from_buffer("uint8_t[]", ids),
                ffi.NULL if roots is None else ffi.from_buffer("uint64_t[]", roots),
                self._freed,
            )
        )
        return int(self._freed[0])

    # ------------------------------------------------------------ look
    def count(self, root: int, *, asked: int = 0, hit: int = 0) -> None:
        """The tenant of a root asked for so many tokens, or keys; so many were there."""
        told = self._told.get(self.number(root))
        if told is not None:
            told.asked += asked
            told.hit += hit

    def refused(self, root: int, blocks: int) -> None:
        """The tenant of a root got no room for so many blocks."""
        told = self._told.get(self.number(root))
        if told is not None:
            told.refused += blocks

    def use(self) -> dict[str, TenantUse]:
        """What each tenant asked for and has, by name. Cost: tenants x columns."""
        found: dict[str, TenantUse] = {}
        for name, number in sorted(self._numbers.items()):
            told, weight = self._told[number], float(self.tenants.terms(name).weight)
            tiers = {tier: self._use(number, at) for at, tier in enumerate(self._names)}
            found[name] = TenantUse(weight, told.asked, told.hit, told.refused, tiers)
        return found

    def _use(self, number: int, tier: int) -> TierShare:
        blocks = private = used = evicted = 0
        quota: dict[int, int | None] = {}
        floor: dict[int, int] = {}
        for column in range(tier, len(self._pools), len(self._names)):
            own = self._of_column(number, column)
            blocks += int(own.resident)
            private += int(own.reserved)
            used += (int(own.resident) + int(own.reserved)) * self._sizes[column]
            evicted += int(own.evicted) - self._evicted[number][column]
            quota[self._pools[column]] = self._bounds[number].quota[column]
            floor[self._pools[column]] = self._bounds[number].floor[column]
        bounds = [each for each in quota.values() if each is not None]
        most = sum(bounds) if bounds else None
        return TierShare(blocks, private, used, most, sum(floor.values()), evicted)

    def check(self) -> None:
        """I12: what is reserved for each tenant are the slots that were marked for it."""
        for front in self.fronts:
            for group, owners in enumerate(front.owners):
                column = self.tree.column(group, front.number)
                for number in self._known:
                    reserved = int(self._of_column(number, column).reserved)
                    marked = int(np.count_nonzero(owners == number))
                    if reserved != marked:
                        raise InvariantError(
                            "I12",
                            f"tier {front.name!r}: tenant {self._known[number]!r} counts "
                            f"{reserved} private blocks of group {group} and has {marked}",
                        )


class CountedSlots(FrontTier):
    """A tier of which the slots that hold no block of the tree yet are known by tenant: from
    ``mark``, when they were reserved, until they are committed or given back.
    """

    def __init__(self, inner: Tier, number: int, shares: Shares) -> None:
        super().__init__(inner)
        self.number = number
        self._shares = shares
        self.owners: list[npt.NDArray[np.int32]] = [
            np.empty(0, np.int32) for _ in shares.tree.rules
        ]

    def mark(self, group: int, slots: Slots, tenant: int) -> None:
        """Reserved slots are taken for a tenant. Cost: them."""
        owners = self.owners[group]
        most = int(slots.max()) + 1 if len(slots) else 0
        if most > len(owners):
            owners = np.full(max(most, 2 * len(owners)), _UNSET, np.int32)
            owners[: len(self.owners[group])] = self.owners[group]
            self.owners[group] = owners
        owners[slots] = tenant

    def _left(self, group: int, slots: Slots) -> None:
        """Slots are the tree's, or the tier's, or rest: nobody's reserved ones any more."""
        owners = self.owners[group]
        known = slots[slots < len(owners)]
        whose = owners[known]
        if not len(whose) or int(whose.max()) == _UNSET:
            return
        owners[known] = _UNSET
        column = self._shares.tree.column(group, self.number)
        counts = np.bincount(whose[whose != _UNSET])
        for tenant in np.flatnonzero(counts).tolist():  # of those that there are a few
            count = int(counts[tenant])
            self._shares.take(tenant, column, -count)

    def commit(self, group: int, slots: Slots) -> None:
        """Of the inner tier; from now on the tree counts them."""
        self.inner.commit(group, slots)
        self._left(group, slots)

    def abort(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.abort(group, slots)
        self._left(group, slots)

    def fence(self, group: int, slots: Slots) -> None:
        """Of the inner tier: what rests is nobody's."""
        self.inner.fence(group, slots)
        self._left(group, slots)

    def free(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.free(group, slots)
        self._left(group, slots)
