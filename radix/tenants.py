"""Tenants as data: who they are, what weight each has where room is short, what it may hold at most
and what it keeps. Decides nothing; ``radix.shares`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from radix.keys import Namespace

LEAST_WEIGHT = 0.001
MOST_WEIGHT = 1_000_000.0
Amounts = Mapping[str, int | float]


def salt_of(namespace: Namespace) -> str:
    """The tenant of a namespace unless ``Tenants.of`` says otherwise: its salt, as text.

    >>> salt_of(Namespace("m", salt=b"blue"))
    'blue'
    """
    return namespace.salt.decode("utf-8", "backslashreplace")


def _check_amounts(name: str, amounts: object) -> None:
    if not isinstance(amounts, Mapping):
        raise TypeError(f"{name} must be a mapping from tier names, not {type(amounts).__name__}")
    for tier, amount in amounts.items():
        if not isinstance(tier, str) or type(amount) not in (int, float):
            raise TypeError(f"{name} must map names of tiers to bytes (int) or shares (float)")
        share = type(amount) is float
        if (share and not 0.0 <= amount <= 1.0) or amount < 0:
            raise ValueError(
                f"{name}[{tier!r}] is {amount!r}, expected bytes as an int from 0 on "
                "or a share as a float from 0.0 to 1.0"
            )


@dataclass(frozen=True, slots=True)
class Tenant:
    """Terms of one tenant.

    ``weight``: where room is short, blocks go of who has most for his weight; unused room is
    anybody's. ``quota``: by the name of a tier, the most that it may hold there, in bytes (int) or
    as a share of the tier (float): a hard bound. ``floor``: the same for what others never take
    from it. What is not named has no quota, or no floor. Raises ``TypeError`` and ``ValueError``.
    """

    weight: float = 1.0
    quota: Amounts = field(default_factory=dict)
    floor: Amounts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.weight) not in (int, float):
            raise TypeError(f"weight must be a number, not {type(self.weight).__name__}")
        if not (math.isfinite(self.weight) and LEAST_WEIGHT <= self.weight <= MOST_WEIGHT):
            raise ValueError(
                f"weight is {self.weight!r}, expected {LEAST_WEIGHT} to {MOST_WEIGHT:.0f}"
            )
        _check_amounts("quota", self.quota)
        _check_amounts("floor", self.floor)


@dataclass(frozen=True, slots=True)
class Tenants:
    """Who the tenants of a cache are.

    ``known``: terms by name; ``default``: those of anybody else, each a tenant of its own, without
    a floor. ``of``: the name of a namespace's tenant, its salt unless given; it must say the same
    of a namespace each time, after a restart too. Raises ``TypeError`` and ``ValueError``.
    """

    known: Mapping[str, Tenant] = field(default_factory=dict)
    default: Tenant = field(default_factory=Tenant)
    of: Callable[[Namespace], str] = salt_of

    def __post_init__(self) -> None:
        if not isinstance(self.known, Mapping):
            raise TypeError(f"known must be a mapping, not {type(self.known).__name__}")
        for name, terms in self.known.items():
            if not isinstance(name, str) or not isinstance(terms, Tenant):
                raise TypeError("known must map names to Tenant")
        if not isinstance(self.default, Tenant):
            raise TypeError(f"default must be a Tenant, not {type(self.default).__name__}")
        if self.default.floor:
            raise ValueError("default has a floor: anybody could take all room by new names")
        if not callable(self.of):
            raise TypeError("of must be callable with a Namespace")

    def terms(self, name: str) -> Tenant:
        """The terms of a tenant."""
        return self.known.get(name, self.default)


@dataclass(frozen=True, slots=True)
class TierShare:
    """What a tenant has in one tier: ``blocks`` that can be hit, ``private`` slots beside them (of
    requests, reservations and copies under way), the bytes of both, its ``quota_bytes`` (None:
    none) and ``floor_bytes``; blocks ``evicted`` so far, in whose favour ever.
    """

    blocks: int
    private: int
    used_bytes: int
    quota_bytes: int | None
    floor_bytes: int
    evicted: int


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What a tenant asked for and has. ``asked`` and ``hit``: tokens of prompts, or keys of a flat
    store; ``refused``: blocks for which it got no room; ``tiers``: by name.
    """

    weight: float
    asked: int
    hit: int
    refused: int
    tiers: Mapping[str, TierShare]
