"""How fast a tier is, from what its loads took: latency and bandwidth by least squares over the
observations, of which old ones fade. Reads no clock: the owner of a transfer tells what it took.
What differs between ranks has to be agreed on before it is told (I33).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_REFERENCE_BYTES = 8 << 20  # of the observation that stands for what was given


@dataclass(frozen=True, slots=True)
class Rate:
    """Reading n bytes takes ``latency_s + n / bytes_per_s`` seconds."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for what is no rate."""
        if not 0 <= self.latency_s < float("inf"):
            raise ValueError(f"latency_s must be finite and at least 0, not {self.latency_s}")
        if not 0 < self.bytes_per_s < float("inf"):
            raise ValueError(f"bytes_per_s must be finite and above 0, not {self.bytes_per_s}")

    def seconds(self, nbytes: int) -> float:
        """How long ``nbytes`` take."""
        return self.latency_s + nbytes / self.bytes_per_s


class Estimate:
    """The rate of one tier. Tell: ``observe``. Ask: ``rate``.

    ``given``: what to believe before anything was seen; it fades like an observation. ``fade``: the
    weight that an observation keeps when another one comes; 0.98 remembers about fifty.
    """

    def __init__(self, given: Rate, fade: float = 0.98) -> None:
        if not 0 < fade <= 1:
            raise ValueError(f"fade must lie in (0, 1], not {fade}")
        self._fade = fade
        self._weight = self._x = self._t = self._xx = self._xt = 0.0
        self.observations = 0
        for nbytes in (0, _REFERENCE_BYTES):
            self._add(float(nbytes), given.seconds(nbytes))

    def observe(self, nbytes: int, seconds: float) -> None:
        """A load of ``nbytes``, what waited before it in the tier included, took ``seconds``.

        What is no measurement (nothing moved, or a clock that stood still) is not one. Cost: O(1).
        """
        if nbytes > 0 and 0 < seconds < float("inf"):
            self._fade_all()
            self._add(float(nbytes), seconds)
            self.observations += 1

    def _fade_all(self) -> None:
        self._weight *= self._fade
        self._x *= self._fade
        self._t *= self._fade
        self._xx *= self._fade
        self._xt *= self._fade

    def _add(self, nbytes: float, seconds: float) -> None:
        self._weight += 1
        self._x += nbytes
        self._t += seconds
        self._xx += nbytes * nbytes
        self._xt += nbytes * seconds

    @property
    def rate(self) -> Rate:
        """What is believed now: always a latency of at least 0 and a bandwidth above it. Where all
        observations are of one size, or contradict such a line, all time counts as bandwidth.
        """
        spread = self._weight * self._xx - self._x * self._x
        if spread > 1e-9 * self._weight * self._xx:
            slope = (self._weight * self._xt - self._x * self._t) / spread
            latency = (self._t - slope * self._x) / self._weight
            if slope > 0 and latency >= 0:
                return Rate(latency, 1 / slope)
        return Rate(0.0, self._xx / self._xt)


class Rates:
    """An estimate for each tier by name. Tell: ``observe``. Ask: ``now``."""

    def __init__(self, given: Mapping[str, Rate], fade: float = 0.98) -> None:
        self._tiers = {name: Estimate(rate, fade) for name, rate in given.items()}

    def observe(self, tier: str, nbytes: int, seconds: float) -> None:
        """A load of a tier took so long; of a tier that has no estimate it says nothing."""
        if (known := self._tiers.get(tier)) is not None:
            known.observe(nbytes, seconds)

    def now(self) -> Mapping[str, Rate]:
        """The rate of each tier as it is believed now. Cost: the tiers."""
        return {name: each.rate for name, each in self._tiers.items()}
