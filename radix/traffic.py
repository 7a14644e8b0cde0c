"""What a cache's owner sees of the blocks that move: loans, room, and the flush that ends every
move. Keeps no invariant of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial

import numpy as np
import numpy.typing as npt

from radix.agreement import Agreement
from radix.arguments import at_least_one, number_below, prompt_of
from radix.events import Event
from radix.facade import Facade
from radix.finding import Finding
from radix.holding import Keep, Keeps, PathPin, blocks_of, lasting, length_within, most_bytes
from radix.keys import Namespace
from radix.plan import Cursor
from radix.prefetching import Prefetch, Prefetches
from radix.prompts import Prompts
from radix.requests import Requests
from radix.residency import Residency
from radix.tier import Slots, Tier, TierMode
from radix.transfers import Job, Transfers
from radix.writeback import Room, WriteBack

MOST_IN_VAIN = 8  # times that a flush offers what was refused, or failed, each time


def _nothing() -> None:
    """Nothing ends with it."""


class Traffic(Facade, ABC):
    """The part of a cache that is about moves. Ahead: ``prefetch``, ``keep``. Ask: ``borrowed``,
    ``room``. Run: ``flush``.
    """

    page_tokens: int
    transfers: Transfers
    requests: Requests
    _prompts: Prompts
    _back: WriteBack
    _ahead: Prefetches
    _keeps: Keeps
    agreement: Agreement
    residency: Residency
    align_tokens: int
    _finding: Finding

    @abstractmethod
    def poll(self) -> list[Event]:
        """Takes completions; the events since the last call."""

    @abstractmethod
    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until there is something to poll, or the time is over."""

    def _switched(self, tier: Tier, mode: TierMode) -> None:
        self.transfers.breakers.asked(tier, mode)

    def prefetch(
        self,
        tokens: object,
        *,
        namespace: Namespace | None = None,
        leave: int = 1,
        content: object = None,
    ) -> Prefetch:
        """Brings what a prompt hits in lower tiers to the tier below the device, ahead of its
        admission: behind demand loads, within ``Limits.prefetch_blocks``, as far as each block
        comes at once. Nothing is taken where nothing lies lower. Arguments as in ``admit``; never
        raises for want of room: what is not brought is loaded, or computed, later. Cost: the
        prompt.
        """
        prompt = prompt_of(tokens)
        left = at_least_one("leave", leave)
        with self.gate:
            asked = self._prompts.of(prompt, namespace, content)
            match = self._prompts.match(asked, left)
            at = Cursor(asked.root, match.node, match.structural_pages)
            asking = self._finding.ask(asked, match, left) if self._finding.able else None
            item = self._ahead.start(at, match.hit_pages, asking)
            return Prefetch(self.gate, item, self._ahead.release, self.page_tokens)

    def keep(
        self,
        tokens: object,
        seconds: float | None = None,
        max_bytes: int | None = None,
        *,
        steps: int | None = None,
        namespace: Namespace | None = None,
        content: object = None,
        fetch: bool = False,
    ) -> Keep:
        """Holds what is cached of a prefix for a time, in each tier that has it: nothing evicts it
        for ``seconds`` of the cache's clock or ``steps`` told passed, whichever is over first.

        Of the prefix the longest hit is held of which the blocks take at most ``max_bytes``, each
        counted once. All keeps together hold at most ``Limits.keep_share`` of a tier: the oldest
        end for a new one. They also end, the oldest first, for requests that would be refused room
        on their account; nothing else ends them but their time, ``Keep.release`` and a reset.
        ``fetch``: brings what lies lower up, as ``prefetch``. Where nothing is cached, nothing is
        held (``Keep.held``). Raises ``ValueError``, ``TypeError``. Cost: the prefix.
        """
        prompt, patience = prompt_of(tokens), lasting(seconds, steps)
        most = most_bytes(max_bytes)
        with self.gate:
            if patience.ns is not None:
                self.agreement.watch()
            asked = self._prompts.of(prompt, namespace, content)
            match, residency = self._prompts.match(asked, 0), self.residency
            at = Cursor(asked.root, match.node, match.structural_pages)
            step = self.align_tokens // self.page_tokens
            pages = length_within(self._keeps, residency, at, match.hit_pages, step, most)
            if not pages:
                self.residency.metrics.add(("keep", "nothing"))
                return Keep(self.gate, self._keeps, None, 0, 0)
            item = self._ahead.start(at, pages) if fetch else None
            then = partial(self._ahead.release, item) if item is not None else _nothing
            pin = PathPin(residency, at, pages, then)
            blocks = blocks_of(residency, pin.slots)
            hold = self._keeps.enter(asked.root, patience, pin)
            residency.metrics.add(("keep", "tokens"), pages * self.page_tokens)
            return Keep(self.gate, self._keeps, hold, pages * self.page_tokens, blocks)

    def _ended(self, job: Job, arrived: npt.NDArray[np.bool_]) -> None:
        """A transfer ended, while its pin stands."""
        self.requests.ended(job, arrived)
        if job.owner < 0:
            self._ahead.ended(job, arrived)

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
            return self._back.room(number_below("tier", tier, len(self.transfers.tiers)))

    def flush(self) -> list[Event]:
        """Ends every transfer and makes durable what is stored, dirty blocks first (write_back),
        but for those whose copies are refused, or fail, again and again. Blocks; the events
        meanwhile.
        """
        events = self.poll()
        least, in_vain = math.inf, 0
        while True:
            with self.gate:
                dirty = self._back.everything()
            while self.transfers.moving():
                self._flush_tiers()
                self.wait()
                events += self.poll()
            in_vain = 0 if dirty < least else in_vain + 1
            least = min(least, dirty)
            if not dirty or in_vain == MOST_IN_VAIN:
                break  # what still refuses each copy keeps it, as ever
        self._flush_tiers()
        return events

    def _flush_tiers(self) -> None:
        with self.gate:
            for tier in self.transfers.media:
                tier.flush()
