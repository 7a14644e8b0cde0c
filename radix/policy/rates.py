"""How fast a tier is, from what its loads took: latency and bandwidth by least squares over the
observations, of which old ones fade. Reads no clock: the owner of a transfer tells what it took.
What differs between ranks has to be agreed on before it is told (I33).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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

    ``given``: what to believe before anything was seen; it counts as an observation of nothing, and
    one of twice the usual size, that fade like the others. ``fade``: the weight that an observation
    keeps when another one comes; 0.98 remembers about fifty.
    """

    def __init__(self, given: Rate, fade: float = 0.98) -> None:
        if not 0 < fade <= 1:
            raise ValueError(f"fade must lie in (0, 1], not {fade}")
        self._given, self._fade = given, fade
        self._belief = 1.0  # the weight of what was given
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # weights, bytes, seconds, bytes^2, bytes * seconds
        self.observations = 0

    def observe(self, nbytes: int, seconds: float) -> None:
        """A load of ``nbytes`` took ``seconds``.

        What is no measurement (nothing moved, or a clock that stood still) is not one. Cost: O(1).
        """
        if nbytes > 0 and 0 < seconds < float("inf"):
            self._belief *= self._fade
            self._sums = _added([each * self._fade for each in self._sums], 1, nbytes, seconds)
            self.observations += 1

    @property
    def rate(self) -> Rate:
        """What is believed now: always a latency of at least 0 and a bandwidth above it. Where all
        observations are of one size, or contradict such a line, all time counts as bandwidth.
        """
        if not self.observations:
            return self._given
        usual = self._sums[1] / self._sums[0]
        sums = list(self._sums)
        for nbytes in (0.0, 2 * usual):
            seconds = self._given.latency_s + nbytes / self._given.bytes_per_s
            sums = list(_added(sums, self._belief, nbytes, seconds))
        weight, x, t, xx, xt = sums
        spread = weight * xx - x * x
        if spread > 1e-9 * weight * xx:
            slope = (weight * xt - x * t) / spread
            latency = (t - slope * x) / weight
            if slope > 0 and latency >= 0:
                return Rate(latency, 1 / slope)
        return Rate(0.0, x / t)


def _added(
    sums: Sequence[float], weight: float, nbytes: float, seconds: float
) -> tuple[float, float, float, float, float]:
    """The sums with one more observation."""
    w, x, t, xx, xt = sums
    heavy = weight * nbytes
    return (
        w + weight,
        x + heavy,
        t + weight * seconds,
        xx + heavy * nbytes,
        xt + heavy * seconds,
    )


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
