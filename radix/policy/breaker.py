"""The circuit breaker of each tier: one that fails several times in a row is taken out, and tried
again later, ever later as long as it goes on failing. It counts what it is told and reads no clock,
so that replicas that are told the same decide alike (I33).

    ON --loads fail--> OFF        --retry--> as the owner wants it --one more failure--> OFF, longer
    ON --stores fail--> READ_ONLY --retry--> ...                   --a success--> forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from radix.errors import TierError
from radix.metrics import Metrics
from radix.policy.limits import Breaker, Moment
from radix.tier import Tier, TierMode

WORSE = (TierMode.ON, TierMode.READ_ONLY, TierMode.OFF)


def worse(mode: TierMode, than: TierMode) -> bool:
    """Whether a tier in ``mode`` does less than one in the other."""
    return WORSE.index(mode) > WORSE.index(than)


@dataclass(slots=True)
class _Health:
    """``failed``: failures in a row, of loads and of stores; ``wanted``: what the owner asked for;
    ``since``: when it was first seen to do less than that; ``times``: retries that did not help.
    """

    wanted: TierMode
    failed: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    since: Moment | None = None
    times: int = 0


class Breakers:
    """One breaker for each of ``tiers``. Tell: ``ended``, ``asked``. ``run`` once a poll."""

    def __init__(self, tiers: Sequence[Tier], settings: Breaker, metrics: Metrics) -> None:
        self._tiers = tuple(tiers)
        self._settings = settings
        self._metrics = metrics
        self._health = [_Health(tier.mode) for tier in self._tiers]

    def asked(self, tier: Tier, mode: TierMode) -> None:
        """The owner switched a tier himself: that holds, and what was counted is forgotten."""
        for number, each in enumerate(self._tiers):
            if each is tier:
                self._health[number] = _Health(mode)

    def ended(self, tier: int, *, storing: bool, good: bool) -> None:
        """A transfer of a tier ended, or could not begin, or is late."""
        health, most = self._health[tier], self._settings.failures
        if good:
            health.failed[storing] = 0
            if not any(health.failed.values()):
                health.times = 0
            return
        health.failed[storing] += 1
        if not most or health.failed[storing] < most:
            return
        mode = TierMode.READ_ONLY if storing else TierMode.OFF
        if worse(mode, self._tiers[tier].mode) and self._switched(self._tiers[tier], mode):
            self._metrics.add(("tier", "taken out", self._tiers[tier].name))

    def run(self, now: Moment) -> None:
        """Tries those again that have been out long enough, whoever took them out but the owner."""
        if not self._settings.failures:
            return
        for tier, health in zip(self._tiers, self._health, strict=True):
            if not worse(tier.mode, health.wanted):
                health.since = None
            elif health.since is None:
                health.since = now
            else:
                times = 1 << min(health.times, self._settings.most_doublings)
                if self._settings.retry.over(health.since, now, times):
                    self._try_again(tier, health)

    def _try_again(self, tier: Tier, health: _Health) -> None:
        """On probation: one more failure of a kind that failed takes it out again."""
        health.since = None
        health.times += 1
        for storing in health.failed:
            health.failed[storing] = min(health.failed[storing], self._settings.failures - 1)
        if self._switched(tier, health.wanted):
            self._metrics.add(("tier", "tried again", tier.name))

    @staticmethod
    def _switched(tier: Tier, mode: TierMode) -> bool:
        """Whether the tier could be switched; one that could not is switched at another time."""
        with suppress(TierError):
            tier.set_mode(mode)
            return True
        return False
