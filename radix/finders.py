"""Which tiers can be asked for what other processes stored in them. Keeps no invariant."""

from __future__ import annotations

from radix.front import FrontTier
from radix.tier import Finder, Tier


def finder_of(tier: Tier) -> Finder | None:
    """What answers for a tier that others write to, behind whatever stands before it; else None."""
    here: object = tier
    while isinstance(here, FrontTier):
        here = here.inner
    return here if tier.capability.finds and isinstance(here, Finder) else None
