"""A request's life, with its three events of an end (I9, I10, I30), and the fences that keep a slot
from being read too early or reused too soon.

    admit -> LOADING -> RUNNING -> GENERATION_DONE -> FINALIZED -> RELEASED
                                   no more tokens     no more      all transfers
                                                      stores       are done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix.events import RequestState
from radix.keys import Tokens
from radix.plan import Cursor, Move
from radix.tier import Slots


@runtime_checkable
class FenceLike(Protocol):
    """Something that knows whether a point in a stream has passed: a CUDA event, say."""

    def query(self) -> bool:
        """Whether it has passed. Never blocks."""
        ...


Fence = int | FenceLike | None


class Fences:
    """What waits for a fence: step numbers in order, or objects with ``query``.

    A step fence passes when ``passed(step)`` was told that step or a later one; None has passed.
    """

    def __init__(self) -> None:
        self.step = -1
        self._waiting: list[tuple[Fence, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, fence: Fence) -> bool:
        """Whether the fence has not passed yet."""
        if fence is None:
            return False
        if isinstance(fence, int):
            return fence > self.step
        return not fence.query()

    def after(self, fence: Fence, action: Callable[[], None]) -> None:
        """Runs ``action`` now if the fence has passed, else at the first ``run`` after it."""
        if self.holds(fence):
            self._waiting.append((fence, action))
        else:
            action()

    def run(self) -> None:
        """Runs what no longer waits, in the order it came. Cost: what waits."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for fence, action in waiting:
            if self.holds(fence):
                self._waiting.append((fence, action))
            else:
                action()


@dataclass(slots=True)
class Work:
    """What the cache knows of one request. ``table[g][i]``: the slot of page i in the first tier,
    canonical (the tree's) for i < ``frontier`` and i < ``inserted``, private from there on.

        pages   0 ....... hit ....... inserted ....... pages
                | shared  | computed,  | private: being computed, or reserved |
                          | now shared |
    """

    number: int
    tokens: Tokens
    count: int
    prompt_tokens: int
    lease: int
    at: Cursor
    table: list[Slots]
    pages: int
    hit_pages: int
    frontier: int  # pages of the hit that are in the first tier, from the root on
    inserted: int
    ready: list[npt.NDArray[np.bool_]]  # pages of the hit whose bytes arrived in private slots
    coming: list[npt.NDArray[np.bool_]]  # pages on their way into private slots
    sources: dict[str, int]
    state: RequestState = RequestState.LOADING
    admitted_pages: int = 0  # the hit at admission, before any load failed
    computed: int = 0
    told: int = 0
    cacheable: int | None = None
    waiting: int = 0  # computed() calls whose fence has not passed
    refused: list[tuple[Move, Slots]] = field(default_factory=list)
    end_fence: Fence = None
    aborted: bool = False
    ran: bool = False

    def append(self, tokens: Tokens) -> None:
        """Adds tokens behind the others; grows by doubling."""
        need = self.count + len(tokens)
        if need > len(self.tokens):
            grown = np.empty(max(need, 2 * len(self.tokens)), np.int32)
            grown[: self.count] = self.tokens[: self.count]
            self.tokens = grown
        self.tokens[self.count : need] = tokens
        self.count = need
