"""Plans: frozen values that say what the tiers are to do. Deciding makes a plan and changes
nothing; the facade applies each exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radix.tier import View

Pages = npt.NDArray[np.int64]


class Cursor(NamedTuple):
    """Where a match ended: ``pages`` pages from ``root``, in or at the end of ``node``."""

    root: int
    node: int
    pages: int


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks of one group that are to go from one tier to its neighbour.

    ``pages``: ascending positions (pages from the root) on the path to ``at``; ``source`` and
    ``target`` number the tiers of the cache.
    """

    at: Cursor
    group: int
    source: int
    target: int
    pages: Pages

    @property
    def blocks(self) -> int:
        """Blocks to move."""
        return len(self.pages)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the consumer of a hit reads of it, so that nothing else moves to it.

    ``groups``: numbers of the groups (None: all); ``view``: of every block these layers and shards
    alone (None: all that the first tier holds); ``by_layer``: layer after layer, so that
    ``Request.wait_layer`` can tell how far it is.
    """

    groups: tuple[int, ...] | None = None
    view: View | None = None
    by_layer: bool = False

    def wants(self, group: int) -> bool:
        """Whether blocks of the group are read."""
        return self.groups is None or group in self.groups


@dataclass(frozen=True, slots=True)
class Need:
    """What a hit needs of one group and the first tier does not hold: ``pages`` (ascending
    positions, pages from the root, at which the blocks end) lie in ``tier``.
    """

    group: str
    tier: str
    pages: Pages


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prompt hits as far as it does, in tokens; ``reason`` names the first miss.

    ``tiers``: tokens of the hit by the tier that would serve them; ``upto``: the hit if only the
    tiers down to this one are read; ``branch_tokens``: where the tree's knowledge ends though some
    group ends the hit before (0: nowhere); ``needs``: what has to be loaded for the hit;
    ``kept_tokens``: how much of the hit keeps hold.
    """

    prompt_tokens: int
    structural_tokens: int
    device_tokens: int
    hit_tokens: int
    tiers: dict[str, int]
    reason: str
    upto: dict[str, int]
    branch_tokens: int
    needs: tuple[Need, ...]
    kept_tokens: int

    def __str__(self) -> str:
        served = ", ".join(f"{tier} {tokens}" for tier, tokens in self.tiers.items())
        kept = f" ({self.kept_tokens} of them kept)" if self.kept_tokens else ""
        return (
            f"{self.hit_tokens} of {self.prompt_tokens} tokens hit ({served or 'no tier'}){kept}; "
            f"known {self.structural_tokens}; the rest: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """How much of a hit is loaded, with the numbers that decided it.

    ``tokens`` of ``hit_tokens`` are used; ``load_s`` and ``compute_s``: what that is expected to
    take, for a prompt of ``prompt_tokens``; ``recompute_s``: the same where nothing is loaded.
    """

    tokens: int
    hit_tokens: int
    prompt_tokens: int
    load_s: float
    compute_s: float
    recompute_s: float

    @property
    def saved_s(self) -> float:
        """Seconds that the loads are expected to save; 0 where nothing is loaded."""
        return self.recompute_s - self.load_s - self.compute_s


@dataclass(frozen=True, slots=True)
class PersistDecision:
    """Whether state is worth a place in a tier, with the numbers that decided it: reading
    ``nbytes`` back takes ``load_s``, computing them again ``compute_s``.
    """

    tier: str
    nbytes: int
    load_s: float
    compute_s: float

    @property
    def keep(self) -> bool:
        """Whether reading is faster."""
        return self.load_s < self.compute_s
