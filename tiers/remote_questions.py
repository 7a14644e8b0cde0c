"""Questions about what other caches stored: each goes to a reading thread, is asked in batches, and
is answered once, by the thread or without it when a call does not come back. Keeps the asking half
of I22: an answer belongs to one question, and none comes twice.

    asked --thread--> answered                     with what was found
          --late, or the backend is dead--> answered    with what had been found until then
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from radix.errors import TierFullError
from radix.tier import Found, Seek, Urgency
from tiers.remote_lanes import Lane, Staging

SEEK_BLOCKS = 64  # asked for at once; where keys are chained, no more after the first absent one
MOST_SEEKS = 64
_PATIENCE = 4  # deadlines of a call that a whole question may take, its wait for a thread included


@dataclass(slots=True)
class Question:
    """One that is open. ``there``: what was found until now; ``due``: when the call that runs is
    late; ``over``: it was answered, nobody waits for the thread any more.
    """

    seek: Seek
    there: npt.NDArray[np.bool_]
    since: float
    due: float | None = None
    over: bool = False


Exist = Callable[[Question, int, int], npt.NDArray[np.bool_] | None]


class Questions:
    """Start: ``ask``. Go on: ``late``. Take: ``found``. Ask: ``open``, ``answered``."""

    def __init__(
        self, name: str, lane: Lane, wake: threading.Event, deadline_s: float, exist: Exist
    ) -> None:
        """``exist``: which blocks [lo, hi) of a question are there, in a thread; None where the
        backend does not answer. ``wake`` is set with every answer.
        """
        self._name, self._lane, self._wake = name, lane, wake
        self._deadline_s, self._exist = deadline_s, exist
        self._open: dict[int, Question] = {}
        self._answers: deque[Found] = deque()

    @property
    def open(self) -> int:
        """Questions whose answers were not taken."""
        return len(self._open)

    @property
    def answered(self) -> bool:
        """Whether ``found`` has something to give."""
        return bool(self._answers)

    def ask(self, seek: Seek) -> None:
        """Asks for blocks. ``TierFullError`` (retryable) where too many questions are open."""
        if len(self._open) >= MOST_SEEKS:
            raise TierFullError(self._name, "too many questions are open", retryable=True)
        there = np.zeros(len(seek.records.keys), np.bool_)
        question = Question(seek, there, time.monotonic())
        if not self._lane.put(int(Urgency.PREFETCH), partial(self._look, question)):
            raise TierFullError(self._name, "the queue is full", retryable=True)
        self._open[seek.number] = question

    def _look(self, question: Question, memory: Staging) -> None:
        seek, count = question.seek, len(question.there)
        try:
            for lo in range(0, count, SEEK_BLOCKS):
                hi = min(lo + SEEK_BLOCKS, count)
                found = None if question.over else self._exist(question, lo, hi)
                if found is None:
                    break
                question.there[lo:hi] = found
                if seek.chained and not found.all():
                    break
        finally:
            if not question.over:
                self._answer(question)

    def _answer(self, question: Question) -> None:
        self._answers.append(Found(question.seek.number, question.there.copy()))
        self._wake.set()

    def late(self, alive: bool) -> int:
        """Ends the questions whose call is late, that took too long altogether, or that a dead
        backend keeps; how many calls were late. Cost: what is open.
        """
        count, now = 0, time.monotonic()
        for question in self._open.values():
            due = question.due
            late = due is not None and now > due + 0.05
            if question.over or not (
                late or not alive or now > question.since + _PATIENCE * self._deadline_s
            ):
                continue
            question.over = True
            count += late
            self._answer(question)
        return count

    def found(self) -> list[Found]:
        """Answers, each once."""
        result: list[Found] = []
        while self._answers:
            answer = self._answers.popleft()
            if self._open.pop(answer.number, None) is not None:
                result.append(answer)
        return result
