"""Blocks on their way from the tiers below into host memory, because a request asked for them: read
and verified there, so that what is answered as a hit later is good. Each request has each block
brought once at most, and what finds no room is a miss for it: nobody waits for ever (C78, C83).

    lookup: below --> wanted ----> fetched, all of a step at once ----> in the host: hit
                      (pending)    no room, none left of the share       else: miss for whom asked
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.engines.vllm.blocks import HOST, Blocks, joined
from radix.engines.vllm.lives import Life, Lives
from radix.events import KeysDone
from radix.keysets import FetchState
from radix.metrics import Metrics

PIN_STEPS = 256  # how long what was promoted stays pinned for a request that does not ask again
_GROUP_SHARE = 0.5  # of the host tier, what promotions may pin of one group
_WHOLE_SHARE = 0.75  # and of all groups together


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One block that a request waits for."""

    key: bytes
    name: bytes
    position: int


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Blocks of one group that are being brought for one request."""

    life: Life
    keys: list[bytes]
    rows: npt.NDArray[np.int64]  # which of the keys of the fetch these are


class Promotions:
    """Ask: ``ask``, ``busy``. Go on: ``submit``, ``done``, ``settle``. A request has what it needs,
    or has gone: ``release``, ``leave``. ``rising``: keys that are wanted or on their way.
    """

    def __init__(self, blocks: Blocks, lives: Lives, metrics: Metrics) -> None:
        self._blocks = blocks
        self._lives = lives
        self._metrics = metrics
        self._wanted: dict[Life, dict[int, list[_Wanted]]] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._pinned: dict[int, int] = {}  # blocks by group
        self.rising: set[bytes] = set()
        self.waiting: set[Life] = set()  # whose pins stand
        host = blocks.store.tiers[HOST]
        self._bytes = [group.block_bytes for group in blocks.store.groups]
        self._capacity = [host.capacity_blocks(group) for group in range(len(self._bytes))]

    @property
    def busy(self) -> bool:
        """Whether a request waits for what is to come."""
        return bool(self._wanted or self._fetches)

    def ask(self, life: Life, key: bytes, name: bytes, group: int, position: int) -> bool:
        """Whether a block that lies below will be brought for a request: if not, it is a miss."""
        if key in self.rising:
            life.deep.add(key)
            return True
        if key in life.tried or life.finished:
            self._metrics.add(("missed", "no room"))
            return False
        life.tried.add(key)
        life.deep.add(key)
        self.rising.add(key)
        self._wanted.setdefault(life, {}).setdefault(group, []).append(_Wanted(key, name, position))
        return True

    def submit(self, step: int) -> None:
        """Begins to bring what is wanted. Cost: that."""
        wanted, self._wanted = self._wanted, {}
        for life, groups in wanted.items():
            life.due = step + PIN_STEPS
            for group, items in groups.items():
                room = self._room(group)
                self.rising.difference_update(item.key for item in items[room:])
                self._count("no room", len(items[room:]))
                if room:
                    self._fetch(life, group, items[:room])

    def _room(self, group: int) -> int:
        """Blocks of a group that promotions may pin beside those that they pin already."""
        host = self._blocks.store.tiers[HOST].usage().limit_bytes
        taken = sum(self._bytes[g] * count for g, count in self._pinned.items())
        left = int(host * _WHOLE_SHARE) - taken
        own = max(1, int(self._capacity[group] * _GROUP_SHARE)) - self._pinned.get(group, 0)
        if not taken:
            left = max(left, self._bytes[group])
        return max(0, min(own, left // self._bytes[group]))

    def _fetch(self, life: Life, group: int, items: list[_Wanted]) -> None:
        names = joined([item.name for item in items], self._blocks.store.key_bytes)
        positions = np.array([item.position for item in items], np.int64)
        life.pins.append(self._blocks.lease(names, positions))
        life.pinned[group] = life.pinned.get(group, 0) + len(items)
        self._pinned[group] = self._pinned.get(group, 0) + len(items)
        self.waiting.add(life)
        fetch = self._blocks.store.fetch(
            names, group, namespace=self._blocks.space, positions=positions
        )
        rows = np.flatnonzero(fetch.states == FetchState.COMING)
        keys = [items[row].key for row in rows.tolist()]
        self.rising.difference_update(item.key for item in items)
        self.rising.update(keys)
        self._count("no room", int((fetch.states == FetchState.NO_ROOM).sum()))
        if keys:
            self._fetches[fetch.number] = _Fetch(life, keys, rows)
            life.promoting += 1
            self._lives.started(life)

    def done(self, event: KeysDone) -> None:
        """A fetch ended, perhaps one of ours. Cost: its keys."""
        fetch = self._fetches.pop(event.number, None)
        if fetch is not None:
            good = int(event.good[fetch.rows].sum())
            self._count("arrived", good)
            self._count("failed", len(fetch.keys) - good)
            self.rising.difference_update(fetch.keys)
            fetch.life.promoting -= 1
            self._lives.ended(fetch.life)

    def _count(self, outcome: str, blocks: int) -> None:
        if blocks:
            self._metrics.add(("promoted", outcome), blocks)

    def settle(self, asked: set[Life], step: int) -> None:
        """Lets go what requests of ``asked`` had promoted: they were answered in this step. Cost:
        who waits.
        """
        for life in list(self.waiting):
            if not life.promoting and (life in asked or life.due <= step):
                self.release(life)

    def release(self, life: Life) -> None:
        """What was promoted for a request may go again."""
        pins, life.pins = life.pins, []
        for lease in pins:
            lease.release()
        for group, count in life.pinned.items():
            self._pinned[group] -= count
        life.pinned = {}
        self.waiting.discard(life)

    def leave(self, life: Life) -> None:
        """A request ends: nothing more is brought for it."""
        for items in self._wanted.pop(life, {}).values():
            self.rising.difference_update(item.key for item in items)
        self.release(life)

    def reset(self) -> None:
        """Nothing of before is waited for any more."""
        for fetch in self._fetches.values():
            fetch.life.promoting -= 1
            self._lives.ended(fetch.life)
        self._wanted, self._fetches, self.rising = {}, {}, set()
        for life in list(self.waiting):
            self.release(life)
