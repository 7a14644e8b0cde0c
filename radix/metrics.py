"""Counters by stage, group and tier, and misses by reason: never one number for all (I34, C108).
A counter is a plain integer under a tuple of names; reading them is a copy, so that nothing that a
reader does can change a count.
"""

from __future__ import annotations

from collections.abc import Mapping

# Why tokens were missed. "evicted" is followed by the tier ("evicted from host") where it is known.
MISS_REASONS = (
    "cold",
    "evicted",
    "not cacheable",
    "below one page",
    "load failed",
    "corrupt",
    "no room",
    "tier out",
    "aborted",
)


class Metrics:
    """Counts, by (stage, what, group or tier, ...).

    Write: ``add``. Read: ``get``, ``total``, ``below``, ``snapshot``, ``misses``.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, key: tuple[str, ...], count: int = 1) -> None:
        """Adds ``count`` under ``key``. Cost: O(1)."""
        counts = self._counts
        counts[key] = counts.get(key, 0) + count

    def get(self, *key: str) -> int:
        """The count under exactly this key, 0 if nothing was counted."""
        return self._counts.get(key, 0)

    def total(self, *prefix: str) -> int:
        """The sum of all counts whose key begins with ``prefix``."""
        size = len(prefix)
        return sum(count for key, count in self._counts.items() if key[:size] == prefix)

    def below(self, *prefix: str) -> dict[str, int]:
        """Counts by the one name that follows ``prefix`` in their keys, sums where more follow."""
        found: dict[str, int] = {}
        size = len(prefix)
        for key, count in self._counts.items():
            if key[:size] == prefix and len(key) > size:
                found[key[size]] = found.get(key[size], 0) + count
        return found

    def misses(self) -> dict[str, int]:
        """Missed tokens by reason."""
        return {
            key[-1]: count for key, count in self._counts.items() if key[:2] == ("match", "miss")
        }

    def snapshot(self) -> Mapping[str, int]:
        """All counts, keys joined by dots, sorted: ready for JSON."""
        return {".".join(key): self._counts[key] for key in sorted(self._counts)}
