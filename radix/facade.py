"""What both facades do with the tiers that they opened: switch, measure and close them, by one
thread at a time. Keeps no invariant of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol, Self

from radix.gate import Gate
from radix.metrics import Metrics
from radix.tier import Tier, TierMode, TierUsage


class Spaces(Protocol):
    """The namespaces of a tree: their canonical bytes by root."""

    names: dict[int, bytes]


class Facade:
    """Owner of the tiers in ``opened``, the fastest first."""

    gate: Gate
    metrics: Metrics
    opened: tuple[Tier, ...]
    _spaces: Spaces

    def set_mode(self, tier: str, mode: TierMode) -> None:
        """Switches a tier on, read-only or off while work goes on. ``ValueError`` for a name that
        no tier has.
        """
        with self.gate:
            for each in self.opened:
                if each.name == tier:
                    each.set_mode(mode)
                    self._switched(each, mode)
                    return
            raise ValueError(f"tier {tier!r} is not one of {[t.name for t in self.opened]}")

    def _switched(self, tier: Tier, mode: TierMode) -> None:
        """The owner asked for a mode: nobody may undo it later."""

    def counters(self) -> Mapping[str, int]:
        """Every counter by its dotted name, sorted."""
        return self.metrics.snapshot()

    def namespaces(self) -> dict[int, bytes]:
        """Canonical bytes of each namespace by its root in the tree. Cost: the namespaces."""
        with self.gate:
            return dict(self._spaces.names)

    def usage(self) -> dict[str, TierUsage]:
        """Bytes and blocks in use by tier."""
        with self.gate:
            return {tier.name: tier.usage() for tier in self.opened}

    def close(self) -> None:
        """Ends what is under way, keeps what is durable, closes every tier, whatever one of them
        raises. Idempotent. A ``ResourceWarning`` names what its owner left open.
        """
        if self.gate.closed:
            return
        with self.gate, ExitStack() as closing:
            left = self._left_open()
            self.gate.close()
            for tier in self.opened:  # the lowest first: it may still read those above
                closing.callback(tier.close)
        if left:
            text = f"the cache was closed with {', '.join(left)} left open"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def _left_open(self) -> list[str]:
        """What its owner should have given back before."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
