"""Samples of a run's counters over time, which the plots of the demo are drawn from.

Kept here: all curves of a history have one sample for each time in `seconds`, and counters only
grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of a cache at one moment; all but `used_bytes` count from the run's start.
    `written_bytes`: what tiers that wear were given to write, by tier.
    """

    seconds: float
    prompt_tokens: int
    hit_tokens: Mapping[str, int]
    used_bytes: Mapping[str, int]
    moved_bytes: Mapping[str, int]
    written_bytes: Mapping[str, int]


@dataclass(slots=True)
class History:
    """Samples in order of time, with the capacity of each tier and marks such as a restart."""

    capacity_bytes: Mapping[str, int]
    samples: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Append a sample. Cost: O(1).

        Raises:
            ValueError: it lies before the last one.
        """
        if self.samples and sample.seconds < self.samples[-1].seconds:
            raise ValueError(f"a sample at {sample.seconds} s came after a later one")
        self.samples.append(sample)

    def mark(self, seconds: float, label: str) -> None:
        """Note a moment that the plots show by a line. Cost: O(1)."""
        self.marks.append((seconds, label))
