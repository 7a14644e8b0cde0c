"""The token slots of the pages that the tree keeps, on the device. Their numbers are only known
there, and reading them back would make the scheduler wait for the device at every insert; so the
tree counts pages by numbers of our own, and a table on the device says at which token slot each of
them begins. Every number is free or stands for one page that is in the tree (I7).

    tree (host)      page numbers     17   4   9
    table (device)   first slots     320  48 512      page_tokens token slots from there
"""

from __future__ import annotations

import numpy as np
import torch

from radix.errors import InvariantError
from radix.tier import Slots


class PageTable:
    """Numbers for pages, and where on the device each page lies: 8 bytes a page.

    Numbers: ``take``, ``give``. The device's: ``put``, ``token_slots``. ``used``: numbers taken.
    """

    def __init__(self, pages: int, page_tokens: int, device: torch.device) -> None:
        """``pages``: how many are likely at once; the table grows where there are more."""
        self.device = device
        self._within = torch.arange(page_tokens, dtype=torch.int64, device=device)
        self._starts = torch.zeros(max(1, pages), dtype=torch.int64, device=device)
        self._free = np.empty(0, np.int32)
        self._left = 0
        self.clear()

    @property
    def used(self) -> int:
        """Numbers that are taken."""
        return len(self._free) - self._left

    def take(self, count: int) -> Slots:
        """Free numbers, the last given first. Cost: the numbers."""
        if count > self._left:
            self._grow(count - self._left)
        self._left -= count
        taken: Slots = self._free[self._left : self._left + count].copy()
        return taken

    def give(self, numbers: Slots) -> None:
        """Numbers that were taken are free again. Cost: the numbers."""
        self._free[self._left : self._left + len(numbers)] = numbers
        self._left += len(numbers)

    def put(self, numbers: Slots, starts: torch.Tensor) -> None:
        """Says at which token slot each page begins. Nothing waits for the device."""
        index = torch.from_numpy(numbers.astype(np.int64)).to(self.device, non_blocking=True)
        self._starts.scatter_(0, index, starts.to(torch.int64))

    def token_slots(self, numbers: Slots) -> torch.Tensor:
        """The token slots of pages, int64 on the device. Nothing waits for it. Cost: the slots."""
        index = torch.from_numpy(numbers).to(self.device, non_blocking=True)
        starts = self._starts.index_select(0, index)
        if len(self._within) == 1:
            return starts
        return torch.add(starts.unsqueeze(1), self._within).view(-1)

    def clear(self) -> None:
        """Every number is free again."""
        self._free = np.arange(len(self._starts) - 1, -1, -1, dtype=np.int32)
        self._left = len(self._free)

    def check(self, resident: int) -> None:
        """``InvariantError`` unless as many numbers are taken as pages are resident, none twice."""
        free = np.unique(self._free[: self._left])
        if self.used != resident or len(free) != self._left:
            raise InvariantError(
                "I7", f"{self.used} page numbers are taken for {resident} pages in the tree"
            )

    def _grow(self, least: int) -> None:
        known = len(self._starts)
        more = max(least, known)
        self._starts = torch.cat((self._starts, self._starts.new_zeros(more)))
        room = np.empty(known + more, np.int32)
        room[:more] = np.arange(known + more - 1, known - 1, -1, dtype=np.int32)
        room[more : more + self._left] = self._free[: self._left]
        self._free, self._left = room, self._left + more
