"""What a cache's owner sees of the blocks that move: loans, room, and the flush that ends every
move. Keeps no invariant of its own.
"""

from __future__ import annotations

from radix.arguments import count_of
from radix.events import Event
from radix.facade import Facade
from radix.tier import Slots
from radix.transfers import Transfers
from radix.writeback import Room, WriteBack


class Traffic(Facade):
    """The part of a cache that is about moves. Ask: ``borrowed``, ``room``. Run: ``flush``."""

    transfers: Transfers
    _back: WriteBack

    def poll(self) -> list[Event]:
        """Takes completions; the events since the last call."""
        raise NotImplementedError

    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until there is something to poll, or the time is over."""
        raise NotImplementedError

    def borrowed(self) -> dict[int, Slots]:
        """The ledger of loans: job to the engine's slots that it reads or writes now (borrowed)."""
        with self.gate:
            return {
                number: job.upper_slots
                for number, job in self.transfers.jobs.items()
                if -1 in (job.move.source, job.move.target)
            }

    def room(self, tier: int = 0) -> tuple[Room, ...]:
        """By group what a tier has: free slots, and resident blocks, clean ones (a lower tier that
        is written to has them too, or none is) and dirty ones apart. Raises ``ValueError`` for a
        tier that is none. Cost: the tree.
        """
        with self.gate:
            most = len(self.transfers.tiers)
            if count_of("tier", tier) >= most:
                raise ValueError(f"tier is {tier}, expected 0 to {most - 1}")
            return self._back.room(tier)

    def flush(self) -> list[Event]:
        """Ends every transfer and makes durable what is stored, dirty blocks first (write_back).
        Blocks; the events meanwhile.
        """
        events = self.poll()
        refused = self._all_down()
        while self.transfers.jobs or refused:
            under_way = len(self.transfers.jobs)
            self._flush_tiers()
            self.wait()
            events += self.poll()
            again = self._all_down()
            if refused and again and not under_way and not self.transfers.jobs:
                break  # nothing moves, so nothing makes room either
            refused = again
        self._flush_tiers()
        return events

    def _all_down(self) -> bool:
        with self.gate:
            return self._back.everything()

    def _flush_tiers(self) -> None:
        with self.gate:
            for tier in self.transfers.media:
                tier.flush()
