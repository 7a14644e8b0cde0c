"""What struck whom: every fault of a simulation is counted with the state of the transfer that it
struck, so that a report can say that none of them was left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from radix.tier import Tier, Transfer, TransferDone
from tiers.faults import Call, Fault, FaultPlan, FaultyTier

STARTING, UNDER_WAY, ENDING, LATE = "starting", "under way", "ending", "acknowledged late"
_MOVING = tuple(f"{way} {state}" for way in ("store", "load") for state in (UNDER_WAY, LATE))
_STARTS = ("store starting", "load starting")
# kind of fault -> the states in which it must have struck
EXPECTED: dict[str, tuple[str, ...]] = {
    "refuse": ("reserve starting", *_STARTS),
    "off": ("reserve starting", *_STARTS),
    "fail": _STARTS,
    "lose": ("store ending", "load ending"),
    "part": ("store ending", "load ending"),
    "corrupt": ("store ending", "load ending"),
    "rot": ("store committed",),
    "delay": ("store ending", "load ending"),
    "cancel": (f"load {UNDER_WAY}", f"load {LATE}"),
    "abort": (*_MOVING, "store put off"),
    "finish": (f"store {UNDER_WAY}", f"store {LATE}", "store put off"),
    "preempt": (*_MOVING, "store put off"),
    "switch": _MOVING,
    "evict": _MOVING,
    "crash": (*_MOVING, "store written", *_STARTS, "store committed"),
    "close": _MOVING,
    "reset": _MOVING,
    "set_revision": _MOVING,
}


class Strikes(Counter[tuple[str, str]]):
    """How often each kind of fault struck in each state."""

    def table(self, without: Collection[str] = ()) -> dict[str, dict[str, int]]:
        """By kind (but for some), by state, in the order of ``EXPECTED``."""
        return {
            kind: {state: self[kind, state] for state in states}
            for kind, states in EXPECTED.items()
            if kind not in without
        }

    def missing(self, without: Collection[str] = ()) -> list[str]:
        """What never struck."""
        return [
            f"{kind}: {state}"
            for kind, states in self.table(without).items()
            for state, count in states.items()
            if not count
        ]


class StruckTier(FaultyTier):
    """A faulty tier that says what struck whom."""

    def __init__(self, inner: Tier, plan: FaultPlan, strikes: Strikes) -> None:
        super().__init__(inner, plan)
        self._strikes = strikes
        self._storing: dict[int, bool] = {}

    def state_of(self, job: int) -> str | None:
        """Where a transfer is; None for one that this tier does not have."""
        if job not in self._storing:
            return None
        way = "store" if self._storing[job] else "load"
        return f"{way} {UNDER_WAY if job in self._under_way else LATE}"

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Counts what is drawn, and remembers it until its acknowledgement."""
        super().store(transfer, upper)
        self._storing[transfer.job] = True

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """As ``store``."""
        super().load(transfer, upper)
        self._storing[transfer.job] = False

    def cancel(self, job: int) -> None:
        """Counts whom it strikes."""
        if (state := self.state_of(job)) is not None:
            self._strikes["cancel", state] += 1
        super().cancel(job)

    def poll(self) -> list[TransferDone]:
        """Forgets what is acknowledged."""
        ready = super().poll()
        for _, done in self._held:
            self._strikes["delay", f"{self._way(done.job)} ending"] += 1
        for done in ready:
            del self._storing[done.job]
        return ready

    def _way(self, job: int) -> str:
        return "store" if self._storing[job] else "load"

    def _draw(self, call: Call) -> Fault | None:
        before = dict(self.shown)
        try:
            return super()._draw(call)
        finally:
            for fault in (Fault.REFUSE, Fault.OFF, Fault.FAIL):
                if self.shown[fault] > before[fault]:
                    self._strikes[fault.value, f"{call} starting"] += 1

    def _amend(self, done: TransferDone) -> TransferDone:
        fault = self._under_way[done.job][1]
        if fault is not None and done.good.any():
            self._strikes[fault.value, f"{self._way(done.job)} ending"] += 1
        return super()._amend(done)
