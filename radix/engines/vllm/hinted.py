"""What requests of the engine say of their blocks, brought to the store: its order of eviction goes
by it, and nothing else does. A request's blocks are those that it loaded or that were offered for
it; they come and go while it runs, and after its end too.

    a request    came |-- keep_for and priority hold: of each block when it is there --| end: all of
                                                                                         it is said
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radix.engines.hinting import Hearing, standing
from radix.engines.vllm.blocks import Blocks, joined
from radix.engines.vllm.lives import Life
from radix.hints import Hints
from radix.keysets import Mask, Reservation, names_of
from radix.metrics import Metrics
from radix.plan import Pages
from radix.tier import Keys


class Hinted:
    """``begin`` with a request; then ``use``, ``stored``, and ``end`` once."""

    def __init__(self, blocks: Blocks, metrics: Metrics) -> None:
        self._blocks = blocks
        self._hearing = Hearing(metrics)

    def begin(self, life: Life, context: Any) -> bool:
        """Takes what the engine carries for a request; whether it says anything. Never raises."""
        life.hints = self._hearing.of(life.name, context.kv_transfer_params)
        return life.hints is not None

    def use(self, life: Life, names: Keys, positions: Pages) -> None:
        """Blocks are loaded, or offered, for a request. Cost: none where it says nothing."""
        if life.hints is not None:
            life.used.update(zip(names_of(names), positions.tolist(), strict=True))
            self._say(standing(life.hints), names, positions)

    def stored(self, life: Life, part: Reservation, good: Mask) -> None:
        """What was offered for a request is there now, perhaps after its end."""
        if life.hints is not None and good.any():
            hints = life.hints if life.finished else standing(life.hints)
            self._say(hints, part.keys[good], part.positions[good])

    def end(self, life: Life) -> None:
        """A request has ended: what it says holds of all blocks that it used. Cost: them."""
        if life.hints is not None and life.used:
            names = joined(list(life.used), self._blocks.store.key_bytes)
            self._say(life.hints, names, np.array(list(life.used.values()), np.int64))
            life.used.clear()

    def _say(self, hints: Hints | None, names: Keys, positions: Pages) -> None:
        store, space = self._blocks.store, self._blocks.space
        if hints is not None and not store.gate.closed:
            store.touch(names, namespace=space, positions=positions, hints=hints)
