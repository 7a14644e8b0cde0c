"""What tiers that wear were given to write, and a budget of it: a bucket of bytes that fills by the
owner's clock and empties by what was really written, the index and its rewritten pages included.
Reads no clock of its own; of replicas the bytes of the one that wrote most count for all (I33).

    filled     |-- a day's share an hour, at most burst_bytes --|
    emptied    what the tiers say was written (``Tier.written``), and what is on its way
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from radix.groups import Group
from radix.metrics import Metrics
from radix.policy.limits import Limits
from radix.tier import Tier, Written

DAY_NS = 86_400_000_000_000
PAGE_BYTES = 4096
BURSTS_A_DAY = 24


class Bucket:
    """Bytes that may be written: never more at once than ``burst_bytes``, and ``bytes_per_day`` in
    the long run. Ask: ``room``. Tell: ``fill``, ``spend``, ``empty``. It is full at first.

    >>> bucket = Bucket(86_400, 1000, now_ns=0)
    >>> bucket.spend(1500); bucket.room
    -500
    >>> bucket.fill(600 * 10**9); bucket.room
    100
    """

    def __init__(self, bytes_per_day: int, burst_bytes: int, now_ns: int) -> None:
        self._rate, self._most = bytes_per_day, burst_bytes * DAY_NS
        self._level = self._most  # in byte-days of 1 / DAY_NS, so that nothing is rounded
        self._now_ns = now_ns

    def fill(self, now_ns: int) -> None:
        """So late it is; a clock that goes back fills nothing."""
        gone_ns = max(0, now_ns - self._now_ns)
        self._now_ns = max(self._now_ns, now_ns)
        self._level = min(self._most, self._level + gone_ns * self._rate)

    def spend(self, nbytes: int) -> None:
        """So much was written, be there room for it or not."""
        self._level -= nbytes * DAY_NS

    def empty(self) -> None:
        """Nobody knows what was written before."""
        self._level = min(self._level, 0)

    @property
    def room(self) -> int:
        """Bytes that may be written now; below 0 what was written beyond."""
        return self._level // DAY_NS


class Wear:
    """The tiers that wear, and their budgets. Tell: ``resume`` at the start, ``run`` once a poll.
    Ask: ``within``.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        groups: Sequence[Group],
        limits: Limits,
        metrics: Metrics,
        coming: Callable[[int, int], int],
        now_ns: int,
    ) -> None:
        """``coming(tier, group)``: blocks that are on their way into a tier now."""
        self._tiers, self._groups, self._metrics = tuple(tiers), tuple(groups), metrics
        self._coming = coming
        self._padded = [-(-group.block_bytes // PAGE_BYTES) * PAGE_BYTES for group in groups]
        self._seen = [Written(0, 0, 0, 0) for _ in tiers]
        self._buckets: dict[int, Bucket] = {}
        if (most := limits.write_budget_bytes_per_day) is not None:
            burst = limits.write_burst_bytes or most // BURSTS_A_DAY
            burst = max(burst, *self._padded)  # or nothing would ever be written
            for number, tier in enumerate(tiers):
                if tier.capability.persistent:
                    self._buckets[number] = Bucket(most, burst, now_ns)

    def resume(self, tiers: Collection[int]) -> None:
        """These hold what an earlier process wrote: they begin without a burst. With one a process
        that starts again and again would write one each time, whatever the day had left.
        """
        for number in self._buckets.keys() & set(tiers):
            self._buckets[number].empty()

    def within(self, tier: int, group: int, blocks: int, now_ns: int) -> int:
        """How many of ``blocks`` the budget of a tier allows to be written now: all where it has
        none. Counts what it does not allow, by reason. Cost: what is on its way, with a budget.
        """
        bucket = self._buckets.get(tier)
        if bucket is None or not blocks:
            return blocks
        allowed = max(0, min(blocks, self.room(tier, now_ns) // self._padded[group]))
        if allowed < blocks:
            names = self._tiers[tier].name, self._groups[group].name
            self._metrics.add(("store", "over_budget", *names), blocks - allowed)
        return allowed

    def room(self, tier: int, now_ns: int) -> int:
        """Bytes that the budget of a tier with one has left beside what is on its way."""
        bucket = self._buckets[tier]
        bucket.fill(now_ns)
        coming = (self._coming(tier, group) * size for group, size in enumerate(self._padded))
        return bucket.room - sum(coming)

    def left(self, now_ns: int) -> dict[str, int]:
        """By the name of each tier with a budget, the bytes that it has left."""
        return {self._tiers[number].name: self.room(number, now_ns) for number in self._buckets}

    def spent(self, tier: int, group: int, now_ns: int) -> bool:
        """Whether not one block of a group may be written to a tier now."""
        return tier in self._buckets and self.room(tier, now_ns) < self._padded[group]

    def run(self, now_ns: int) -> None:
        """Counts what was written since the last call. Cost: the tiers."""
        for number, tier in enumerate(self._tiers):
            if (now := tier.written()) is None:
                continue
            before, self._seen[number] = self._seen[number], now
            if now == before:
                continue
            for what in ("payload_bytes", "index_bytes", "ahead_bytes"):
                if more := getattr(now, what) - getattr(before, what):
                    self._metrics.add(("write", what, tier.name), more)
            if number in self._buckets:
                self._buckets[number].fill(now_ns)
                self._buckets[number].spend(now.total_bytes - before.total_bytes)
