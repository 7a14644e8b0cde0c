"""What requests of the engine say of their blocks, brought to a directory below the engine's own
tier: of the keys of every job of a request, whose last may end after the request has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from radix.engines.hinting import Hearing, standing
from radix.engines.vllm.disk_names import Names
from radix.hints import Hints
from radix.store import FlatStore


@dataclass(slots=True, eq=False)
class Saying:
    """A request's hints, the keys that its jobs named with the token at which each ends, and
    whether the request has ended.
    """

    hints: Hints
    ends: dict[bytes, int | None] = field(default_factory=dict)
    over: bool = False


class DiskHints:
    """``begin`` with a request; ``use`` with each job, ``say`` at its end; ``end``."""

    def __init__(self, store: FlatStore, names: Names) -> None:
        self._store = store
        self._names = names
        self._hearing = Hearing(store.metrics)

    def begin(self, context: Any) -> bool:
        """Whether a request says anything. Never raises."""
        hints = self._hearing.of(str(context.req_id), context.kv_transfer_params)
        if hints is not None:
            context.set_state(Saying(hints))
        return hints is not None

    def use(self, keys: Iterable[bytes], context: Any) -> Saying | None:
        """Keys are moved, or offered, for a request: what it says, None where that is nothing."""
        saying: Saying | None = context.get_state(Saying)
        if saying is not None:
            saying.ends.update({key: context.get_offload_key_position(key) for key in keys})
        return saying

    def say(self, saying: Saying, keys: list[bytes]) -> None:
        """What a request says holds of those of the keys that are there. Cost: the keys."""
        hints = saying.hints if saying.over else standing(saying.hints)
        if hints is not None and keys:
            for part in self._names.split(keys, saying.ends.get):
                places = part.positions
                self._store.touch(part.keys, namespace=part.space, positions=places, hints=hints)

    def end(self, context: Any) -> None:
        """A request has ended: what it says holds of all its keys. Cost: them."""
        saying: Saying | None = context.get_state(Saying)
        if saying is not None and not saying.over:
            saying.over = True
            self.say(saying, list(saying.ends))
