"""One prompt and its answer: what of it is restored into the model's cache, and what of that cache
is kept while it grows. Blocks are written into the host tier's own memory, then told computed; a
length is never told whose blocks were not written (I9, I24).

    tokens   0 ...... hit ........ told ........ computed ..... sampled
             | restored | written, shared | in the model's cache |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radix.cache import PrefixCache
from radix.engines.transformers.blocks import Blocks
from radix.engines.transformers.placement import Placement
from radix.errors import CapacityError, InvariantError, NeverFitsError, TierError
from radix.hints import Hints
from radix.request import Request
from radix.tier import Slots

STEP_PAGES = 4  # of groups that give tokens up, so many pages are reserved ahead of a window


class Turn:
    """A request and the model's cache beside it. Ask: ``hit_tokens``, ``cuts``. Do: ``restore``,
    ``record``, ``follow``, ``finish``, ``abort``. ``stopped``: nothing more is kept, for want of
    room; what was kept stays.
    """

    def __init__(
        self, owner: PrefixCache, request: Request, placement: Placement, blocks: Blocks
    ) -> None:
        """``request``: RUNNING, of the cache ``owner``; the turn ends it."""
        self.request = request
        self._owner = owner
        self.hit_tokens = self.told = request.hit_tokens
        self.stopped = False
        self._placement = placement
        self._blocks = blocks
        self._page = placement.page_tokens
        self._first = True

    def cuts(self, upto: int) -> list[int]:
        """Lengths, at most ``upto`` tokens, at which the prefill has to stop. Changes nothing."""
        left = upto - self.told
        if left <= 0 or not any(rule.per_position for rule in self._placement.rules):
            return []
        return self.request.cuts(left)

    def restore(self, cache: Any) -> None:
        """Fills an empty cache with the hit. Cost: its bytes."""
        pages = self.hit_tokens // self._page
        slots: list[Slots] = []
        for group, rule in enumerate(self._placement.rules):
            if rule.per_position:
                slots.append(np.array([self.request.running(group)], np.int32))
                continue
            row = self.request.slots(group)[rule.first_page(pages) : pages]
            if (row < 0).any():
                raise InvariantError("I26", f"a hit of {pages} pages lacks blocks of group {group}")
            slots.append(row)
        if pages:
            self._placement.fill(cache, self._blocks, slots, self.hit_tokens)

    def record(self, cache: Any, ids: torch.Tensor, length: int) -> None:
        """Keeps what the cache holds of ``ids[0, :length]`` beyond what is kept. It holds just
        these tokens; ``ids``: they, and those sampled since. Cost: the new bytes.
        """
        if self.stopped:
            return
        if cache.get_seq_length() != length:  # the model went on in another cache: nobody knows it
            self.stopped = True
            return
        try:
            self._advance(cache, ids, length)
        except CapacityError:
            self._owner.flush()  # stores under way hold blocks that may go then
            try:
                self._advance(cache, ids, length)
            except (CapacityError, NeverFitsError, TierError):
                self.stopped = True
        except (NeverFitsError, TierError):
            self.stopped = True

    def follow(self, cache: Any, ids: torch.Tensor) -> bool:
        """``record`` as tokens are sampled: the last of ``ids`` is not computed yet. Whether there
        was anything to do. Cost: nothing within a page.
        """
        length, first = ids.shape[1] - 1, self._first
        if not first and length // self._page <= self.told // self._page:
            return False
        self.record(cache, ids, length)
        if first:
            self._placement.let_pass(cache)
            self._first = False
        return True

    def _advance(self, cache: Any, ids: torch.Tensor, length: int) -> None:
        new = ids[0, len(self.request) : length + 1]
        if len(new):
            self.request.append(_numbers(new))
        while self.told < length:
            self._step(cache, length)

    def _step(self, cache: Any, length: int) -> None:
        """The next few pages: slots, bytes, and only then the word that they are computed."""
        page = self._page
        first = self.told // page
        end = min(length, (first + STEP_PAGES) * page)
        self.request.prepare(end - self.told)
        placement = self._placement
        cut = end == length and end in self.request.cuts(end - self.told)
        for group, rule in enumerate(placement.rules):
            if not rule.per_position:
                slots = self.request.slots(group)[first : end // page]
                placement.put_pages(cache, self._blocks, group, first, slots)
        if cut and any(rule.per_position for rule in placement.rules):
            named = self.request.snapshot(end, copy=False)
            for group, spec in enumerate(placement.groups):
                if spec.name in named:
                    placement.put_state(cache, self._blocks, group, named[spec.name])
        self.request.computed(end)
        self.told = end

    def finish(self, hints: Hints | None = None) -> None:
        """It is answered: what is kept is shared. ``hints``: what is said of its blocks."""
        self.request.finish(hints=hints)

    def abort(self) -> None:
        """It ends early: what was told computed is kept."""
        self.request.abort()


def _numbers(ids: torch.Tensor) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = ids.detach().cpu().numpy()
    return found
