"""Blocks that other engines may have stored where several store: asked for once a request, all of a
step together, before they are a miss. An engine that decodes what another one prefills asks again
for a while: its prompts come when their blocks are still on the way. Nobody waits for ever (C83).

    lookup: nowhere --> wanted --> asked for, all of a step at once --> there: it lies below
                        (retry)                                          absent: retry, wait_s long
                                                                         then a miss
"""

from __future__ import annotations

import time

import numpy as np

from radix.engines.vllm.blocks import Blocks, joined
from radix.engines.vllm.lives import Life
from radix.events import KeysDone
from radix.tier import TierMode

AGAIN_S = 0.02  # what is waited for is asked for again so often


class Seeking:
    """Ask: ``ask``, ``busy``. Go on: ``submit``, ``done``. End: ``reset``. ``able``: whether any
    tier can be asked.
    """

    def __init__(self, blocks: Blocks, wait_s: float) -> None:
        self._blocks = blocks
        self._wait_s = wait_s
        self._shared = [tier for tier in blocks.store.tiers if tier.capability.finds]
        self._wanted: dict[int, list[tuple[bytes, bytes, int]]] = {}  # by group
        self._open: dict[int, list[bytes]] = {}  # by the number of the question
        self._asked: set[bytes] = set()  # wanted, or in a question that is open
        self.able = bool(self._shared)

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._wanted or self._open)

    def ask(self, life: Life, key: bytes, name: bytes, group: int, position: int) -> bool:
        """Whether a request is to ask again for a block that is nowhere: if not, it is a miss."""
        if life.finished or not any(tier.mode is TierMode.ON for tier in self._shared):
            return False
        now = time.monotonic()
        if not life.sought:
            life.since = now
        if key in self._asked:  # by another request: this one begins to wait all the same
            life.sought.setdefault(key, 0.0)
            return True
        last = life.sought.get(key)
        if last is not None:
            if now >= life.since + self._wait_s:
                return False
            if now < last + AGAIN_S:
                return True
        life.sought[key] = now
        self._asked.add(key)
        self._wanted.setdefault(group, []).append((key, name, position))
        return True

    def submit(self) -> None:
        """Asks for what is wanted. Never blocks. Cost: that."""
        wanted, self._wanted = self._wanted, {}
        store = self._blocks.store
        for group, items in wanted.items():
            names = joined([name for _, name, _ in items], store.key_bytes)
            positions = np.array([position for _, _, position in items], np.int64)
            number = store.seek(names, group, namespace=self._blocks.space, positions=positions)
            self._open[number] = [key for key, _, _ in items]

    def done(self, event: KeysDone) -> None:
        """A question was answered, perhaps one of ours. Cost: its keys."""
        self._asked.difference_update(self._open.pop(event.number, ()))

    def reset(self) -> None:
        """Nothing of before is waited for any more."""
        self._wanted, self._open, self._asked = {}, {}, set()
