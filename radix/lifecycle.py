"""A request's life, with its three events of an end (I9, I10, I30), and the fences that keep a slot
from being read too early or reused too soon.

    admit -> LOADING -> RUNNING -> GENERATION_DONE -> FINALIZED -> RELEASED
                                   no more tokens     no more      all transfers
                                                      stores       are done
"""

from __future__ import annotations

import operator
from collections import deque
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


def as_fence(name: str, fence: object) -> Fence:
    """A fence as it was given, if it is one. ``TypeError`` names the argument."""
    if fence is None or type(fence) is int or isinstance(fence, FenceLike):
        return fence
    if isinstance(fence, bool) or not hasattr(fence, "__index__"):
        raise TypeError(
            f"{name} must be a step number, an object with query() or None, "
            f"not {type(fence).__name__}"
        )
    return operator.index(fence)


class Fences:
    """What waits for a fence: step numbers in order, or objects with ``query``.

    A step fence passes when ``passed(step)`` was told that step or a later one; None has passed.
    """

    def __init__(self) -> None:
        self.step = -1
        self._waiting: deque[tuple[Fence, Callable[[], None]]] = deque()

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
        """Runs what no longer waits, in the order it came. Cost: what waits.

        An action or a query that raises costs the others nothing: they stay.
        """
        for _ in range(len(self._waiting)):
            fence, action = self._waiting[0]
            held = self.holds(fence)
            self._waiting.popleft()
            if held:
                self._waiting.append((fence, action))
            else:
                action()


@dataclass(slots=True)
class Work:
    """What the cache knows of one request. ``table[g][i]``: the slot of page i in the first tier,
    canonical (the tree's) for i < ``shared``, private from there on.

        LOADING   0 ....... frontier ....... hit ....... pages
                  | shared  | private: on the way, arrived, or reserved
        RUNNING   0 ....... inserted ................... pages
                  | shared  | private: being computed, or reserved

    ``ready`` and ``coming``, by group: pages of the hit whose bytes arrived in private slots, and
    those on their way there; empty where nothing has to be loaded.
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
    admitted_pages: int  # the hit at admission, before any load failed
    origin: npt.NDArray[np.int8]  # by page of that hit: the tier that serves it
    ready: list[npt.NDArray[np.bool_]]
    coming: list[npt.NDArray[np.bool_]]
    cacheable: int | None
    state: RequestState = RequestState.LOADING
    computed: int = 0
    told: int = 0
    waiting: int = 0  # computed() calls whose fence has not passed
    refused: list[tuple[Move, Slots]] = field(default_factory=list)
    end_fence: Fence = None
    kept: int | None = None  # pages that may stay, where less than all
    ran: bool = False

    @property
    def shared(self) -> int:
        """Pages whose slots are the tree's."""
        return self.inserted if self.ran else self.frontier

    def append(self, tokens: Tokens) -> None:
        """Adds tokens behind the others; grows by doubling."""
        need = self.count + len(tokens)
        if need > len(self.tokens):
            grown = np.empty(max(need, 2 * len(self.tokens)), np.int32)
            grown[: self.count] = self.tokens[: self.count]
            self.tokens = grown
        self.tokens[self.count : need] = tokens
        self.count = need
