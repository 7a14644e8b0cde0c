"""A tier of slots without bytes, for replays that count hits and move nothing. It keeps the same
books as every other tier (I7, I8, I11, I22); only what it would copy is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from radix.groups import Group
from radix.pool import SlotPool
from radix.tier import Capability, Tier, Transfer
from tiers.pools import PooledTier, all_of, blocks_of_groups

_NOTHING = Capability(
    persistent=False,
    shared=False,
    layer_wise=False,
    address_mapped=False,
    shares_bytes=False,
    holds_bytes=False,
)


class IndexTier(PooledTier):
    """``blocks`` slots a group and no memory behind them.

    As a lower tier it acknowledges each transfer at the next ``poll``: all blocks good, no byte
    moved, none verified.
    """

    def __init__(self, blocks: int | Sequence[int], name: str = "device") -> None:
        """``blocks``: slots for each group, or one number for all.

        Raises: ``ValueError`` below 1, ``TypeError`` for what is not an int (at ``attach`` where
        a sequence names another number of groups than the cache has).
        """
        super().__init__(name, _NOTHING)
        blocks_of_groups(blocks, None, f"tier {name!r}: blocks")
        self._blocks = blocks if isinstance(blocks, int) else tuple(blocks)

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        counts = blocks_of_groups(self._blocks, len(groups), f"tier {self.name!r}: blocks")
        return [SlotPool(count) for count in counts]

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Done at once; acknowledged by the next ``poll``. Cost: the blocks."""
        self._accept(transfer, storing=True)
        self._done.append(all_of(transfer, good=True, nbytes=0, error=None))

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Done at once; acknowledged by the next ``poll``. Cost: the blocks."""
        self._accept(transfer, storing=False)
        self._done.append(all_of(transfer, good=True, nbytes=0, error=None))
