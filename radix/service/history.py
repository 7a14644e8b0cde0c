"""What the admin page draws over time: a status every few seconds, boiled down to few numbers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from radix.service.status import Status

SAMPLE_S = 2.0
MOST_SAMPLES = 900


def sample_of(status: Status) -> dict[str, Any]:
    """The few numbers of a status that are drawn, sums over all stores: ``tiers``: bytes used and
    their limit, ``asked``: by unit what was asked for and of it found.
    """
    tiers: dict[str, list[int]] = {}
    asked: dict[str, list[int]] = {}
    transfers = 0
    for store in status.stores:
        for tier in store.tiers:
            total = tiers.setdefault(tier.name, [0, 0])
            total[0] += tier.used_bytes
            total[1] += tier.limit_bytes
        found = asked.setdefault(store.asked.unit, [0, 0])
        found[0] += store.asked.asked
        found[1] += sum(store.asked.hits.values())
        transfers += store.transfers_under_way
    return {
        "t": status.started_unix_s + status.uptime_s,
        "tiers": tiers,
        "asked": asked,
        "transfers": transfers,
        "connections": status.connections,
    }


class History:
    """Samples a status in a thread of its own. ``samples`` from any thread; ``close`` ends it."""

    def __init__(self, status: Callable[[], Status], every_s: float = SAMPLE_S) -> None:
        self._status = status
        self._every_s = every_s
        self._samples: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="radix-history", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._samples.append(sample_of(self._status()))
            except Exception:  # outermost: a service that is ending has no status any more
                if self._over.wait(self._every_s):
                    return
                continue
            self._over.wait(self._every_s)

    def samples(self) -> list[dict[str, Any]]:
        """What was sampled, the oldest first."""
        return list(self._samples)

    def close(self) -> None:
        """Ends the sampling. Idempotent."""
        self._over.set()
        self._thread.join()
