"""The rig of a simulation: it remembers what it heard, for a digest, and looks at everything often
enough, not always.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from radix.events import Event
from radix.tier import Slots
from tests.cacherig import Rig
from tests.oracle import blocks_for
from tests.ticktier import Bytes


@dataclass
class SimRig(Rig):
    """The rig, with every event in a digest, and looks that do not take all the time."""

    heard: list[Event] = field(default_factory=list)
    polls: int = 0
    look_every: int = 8  # polls
    _known_blocks: dict[tuple[bytes, bytes, int], Bytes] = field(default_factory=dict)

    def blocks(self, name: bytes, tokens: Slots, group: int) -> Bytes:
        """As the rig's, remembered."""
        count = len(tokens) // self.cache.page_tokens * self.cache.page_tokens
        key = name, np.asarray(tokens, np.int32)[:count].tobytes(), group
        if key not in self._known_blocks:
            if len(self._known_blocks) > 4096:
                self._known_blocks.clear()
            nbytes = self.cache.groups[group].block_bytes
            self._known_blocks[key] = blocks_for(
                name, tokens, self.cache.page_tokens, group, nbytes
            )
        return self._known_blocks[key]

    def poll(self) -> list[Event]:
        """As the rig's; what is resident is compared now and then."""
        events = self.cache.poll()
        for event in events:
            self._hear(event)
        self.heard += events
        self._look()
        self.polls += 1
        if self.polls % self.look_every == 0:
            assert self.resident == self.walk(), "the stream is not what is resident (I32)"
        return events


def text_of(event: Event) -> bytes:
    """All of an event that is the same in every process."""
    parts = [type(event).__name__]
    for name in event.__slots__:
        value = getattr(event, name)
        if name == "error":
            value = value is not None  # its text names the folder
        parts.append(value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value))
    return "|".join(parts).encode()
