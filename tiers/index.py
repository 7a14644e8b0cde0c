"""A tier of slots without bytes, for replays that count hits and move nothing. It keeps the same
books as every other tier (I7, I8, I11, I22), and I25 over a budget that is counted alone; only what
it would copy is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.groups import Group
from radix.pool import FREE, SlotPool
from radix.tier import Capability, Slots, Tier, TierMode, TierUsage, Transfer
from tiers.pools import PooledTier, all_of, blocks_of_groups, checked_count

_ON = TierMode.ON  # members of an Enum are slow to look up
FIRST_SLOTS = 1024  # of a group under a budget; its pool doubles as blocks come


class IndexTier(PooledTier):
    """Slots and no memory behind them: a fixed number a group, or what one budget of bytes holds.

    As a lower tier it acknowledges each transfer at the next ``poll``: all blocks good, no byte
    moved, none verified.
    """

    def __init__(
        self,
        blocks: int | Sequence[int] | None = None,
        name: str = "device",
        *,
        limit_bytes: int | None = None,
    ) -> None:
        """Exactly one of the two. ``blocks``: slots for each group, or one number for all;
        ``limit_bytes``: bytes that the blocks of all groups may take together.

        Raises: ``ValueError`` below 1, ``TypeError`` for what is not an int (at ``attach`` where
        a sequence names another number of groups than the cache has, or the budget holds no
        block of some group).
        """
        if (blocks is None) == (limit_bytes is None):
            raise ValueError(f"tier {name!r}: give either blocks or limit_bytes")
        super().__init__(
            name,
            Capability(
                persistent=False,
                shared=False,
                layer_wise=False,
                address_mapped=False,
                shares_bytes=limit_bytes is not None,
                holds_bytes=False,
                finds=False,
            ),
        )
        self.limit_bytes = 0
        if blocks is not None:
            blocks_of_groups(blocks, None, f"tier {name!r}: blocks")
        else:
            self.limit_bytes = checked_count(limit_bytes, f"tier {name!r}: limit_bytes")
        self._blocks = blocks if blocks is None or isinstance(blocks, int) else tuple(blocks)
        self._left_bytes = self.limit_bytes
        self._addresses = np.empty(0, np.uint64)

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        if self._blocks is not None:
            counts = blocks_of_groups(self._blocks, len(groups), f"tier {self.name!r}: blocks")
            pools = [SlotPool(count) for count in counts]
            self._addresses = np.array([pool.address for pool in pools], np.uint64)
            return pools
        for group in groups:
            if group.block_bytes > self.limit_bytes:
                raise ValueError(
                    f"tier {self.name!r}: limit_bytes {self.limit_bytes} holds no block of group "
                    f"{group.name!r}, {group.block_bytes} bytes"
                )
        sizes = [group.block_bytes for group in groups]
        return [SlotPool(min(FIRST_SLOTS, self.limit_bytes // size)) for size in sizes]

    # ------------------------------------------------------------------ slots
    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """Slots of the group; under a budget those that others leave it. Cost: the groups."""
        if not self.limit_bytes:
            return super().capacity_blocks(group)
        taken = sum(
            count * self._groups[other].block_bytes
            for other, count in enumerate(beside or ())
            if other != group
        )
        return max(0, self.limit_bytes - taken) // self._groups[group].block_bytes

    def free_blocks(self, group: int) -> int:
        """Blocks that ``reserve`` would give; under a budget of what is left of it. Cost: O(1)."""
        if self._mode is not _ON:
            return 0
        if not self.limit_bytes:
            return self._pools[group].count(FREE)
        return self._left_bytes // self._groups[group].block_bytes

    def pools(self) -> npt.NDArray[np.uint64] | None:
        """Addresses of its pools by group, for one step over several (``radix.pooled``); None under
        a budget, and unless it is on. Cost: O(1).
        """
        if self.limit_bytes or self._closed or self._mode is not _ON:
            return None
        return self._addresses

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing. Cost: count. Raises as every tier."""
        if not self.limit_bytes:
            return super().reserve(group, count)
        self._may_reserve()
        if not 0 <= count <= self.free_blocks(group):
            raise self._shortage(group, count)
        pool = self._pools[group]
        short = count - pool.count(FREE)
        if short > 0:
            pool.grow(max(short, min(pool.capacity, self.capacity_blocks(group) - pool.capacity)))
        slots = super().reserve(group, count)
        self._left_bytes -= count * self._groups[group].block_bytes
        return slots

    def _move(self, group: int, slots: Slots, source: int, target: int) -> None:
        super()._move(group, slots, source, target)
        if target == FREE and self.limit_bytes:
            self._left_bytes += len(slots) * self._groups[group].block_bytes

    # ------------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Done at once; acknowledged by the next ``poll``. Cost: the blocks."""
        cut = self._accept(transfer, upper, storing=True)
        self._wrote(transfer, cut, np.ones(len(transfer.lower_slots), np.bool_))
        self._done.append(all_of(transfer, good=True, nbytes=0, error=None))

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Done at once; acknowledged by the next ``poll``. Cost: the blocks."""
        self._accept(transfer, upper, storing=False)
        self._done.append(all_of(transfer, good=True, nbytes=0, error=None))

    # ------------------------------------------------------------------ books
    def usage(self) -> TierUsage:
        """Bytes that the blocks in use stand for; a fenced slot still counts. Cost: the groups."""
        usage = super().usage()
        if not self.limit_bytes:
            return usage
        return TierUsage(usage.used_bytes, self.limit_bytes, usage.used_blocks)

    def check(self) -> None:
        """Raises ``InvariantError`` where the books disagree (I7, I8, I25). Cost: all slots."""
        super().check()
        taken = self.usage().used_bytes
        if self.limit_bytes and (
            self._left_bytes < 0 or taken + self._left_bytes != self.limit_bytes
        ):
            raise InvariantError(
                "I25",
                f"tier {self.name!r}: blocks of {taken} bytes and {self._left_bytes} left, the "
                f"limit is {self.limit_bytes}",
            )
