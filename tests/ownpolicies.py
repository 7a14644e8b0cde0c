"""Policies as a user would write them, in Python: three that are native, too, and some that do
everything wrong that can be done. All are public: a test of another kind may want them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix.policy.eviction import EvictionPolicy, Nodes

Keys = npt.NDArray[np.float64]


class OwnLru:
    """What was used longest ago."""

    def came(self, nodes: Nodes) -> Keys:
        return nodes.last.astype(np.float64)

    def used(self, nodes: Nodes) -> Keys:
        return nodes.last.astype(np.float64)

    def went(self, nodes: Nodes) -> None:
        pass


class OwnFifo(OwnLru):
    """What came first."""

    def came(self, nodes: Nodes) -> Keys:
        return nodes.came.astype(np.float64)

    def used(self, nodes: Nodes) -> Keys:
        return nodes.key


class OwnLfu(OwnLru):
    """The fewest uses on top of the key of the tenant's last victim at that time."""

    def __init__(self) -> None:
        self._ages: dict[tuple[int, int], float] = {}

    def _age(self, nodes: Nodes) -> Keys:
        return np.array([self._ages.get((nodes.order, int(who)), 0.0) for who in nodes.tenant])

    def came(self, nodes: Nodes) -> Keys:
        return self._age(nodes) + 1 + nodes.uses

    def used(self, nodes: Nodes) -> Keys:
        return np.where(nodes.again > 0, self._age(nodes) + 1 + nodes.uses, nodes.key)

    def went(self, nodes: Nodes) -> None:
        for who in np.unique(nodes.tenant).tolist():
            key = float(nodes.key[nodes.tenant == who].max())
            self._ages[nodes.order, who] = max(self._ages.get((nodes.order, who), 0.0), key)


OWN: dict[str, Callable[[], EvictionPolicy]] = {"lru": OwnLru, "fifo": OwnFifo, "lfu": OwnLfu}


class Noise(OwnLru):
    """Keys without sense, the greatest and the least among them; always the same ones."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(5)

    def came(self, nodes: Nodes) -> Keys:
        keys = self._random.normal(size=len(nodes)) * 10.0 ** self._random.integers(-300, 300)
        keys[::3] = np.inf
        keys[1::7] = -np.inf
        keys[2::5] = -0.0
        return keys

    def used(self, nodes: Nodes) -> Keys:
        return self.came(nodes)


class Failing(OwnLru):
    """As ``lru`` for some calls, then what ``answer`` gives, or raises, in one of the methods."""

    def __init__(self, method: str, answer: Callable[[Nodes], object], calls: int) -> None:
        self._method, self._answer, self._left = method, answer, calls

    def _say(self, method: str, nodes: Nodes, sound: Keys) -> Keys:
        if method == self._method:
            self._left -= 1
            if self._left < 0:
                return self._answer(nodes)  # type: ignore[return-value]  # nonsense
        return sound

    def came(self, nodes: Nodes) -> Keys:
        return self._say("came", nodes, super().came(nodes))

    def used(self, nodes: Nodes) -> Keys:
        return self._say("used", nodes, super().used(nodes))

    def went(self, nodes: Nodes) -> None:
        self._say("went", nodes, nodes.key)


class _HostileArray:
    def __array__(self, *_: object, **__: object) -> object:
        raise ZeroDivisionError("no array")


def _raises(_: Nodes) -> object:
    raise LookupError("lost")


def _writes(nodes: Nodes) -> object:
    nodes.last[:] = 0
    return nodes.last


NONSENSE: dict[str, Callable[[Nodes], object]] = {
    "raises": _raises,
    "none": lambda nodes: None,
    "a number": lambda nodes: 3.0,
    "one too few": lambda nodes: np.zeros(len(nodes) - 1),
    "one too many": lambda nodes: np.zeros(len(nodes) + 1),
    "a column": lambda nodes: np.zeros((len(nodes), 1)),
    "text": lambda nodes: np.array(["first"] * len(nodes)),
    "objects": lambda nodes: np.array([None] * len(nodes)),
    "complex": lambda nodes: np.zeros(len(nodes), np.complex128),
    "truths": lambda nodes: np.ones(len(nodes), bool),
    "times": lambda nodes: np.zeros(len(nodes), "datetime64[s]"),
    "nan": lambda nodes: np.full(len(nodes), np.nan),
    "one nan": lambda nodes: np.where(np.arange(len(nodes)) == len(nodes) - 1, np.nan, 0.0),
    "ragged": lambda nodes: [[1.0], [2.0, 3.0]],
    "no array": lambda nodes: _HostileArray(),
    "writes": _writes,
}
