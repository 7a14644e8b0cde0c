"""A tier that fails as told: it wraps any other and breaks what a plan names, so that a cache can
be tested against every fault that its tiers are allowed to show. Keeps I22 whatever it breaks:
each transfer that was accepted is acknowledged exactly once.

What it may do is what a tier may do, and nothing else (the fault model):

    REFUSE   the call raises ``TierFullError`` (retryable); nothing was started or taken
    FAIL     the transfer is accepted and moves nothing; it is acknowledged with no block good. A
             clone raises ``TierError`` and copies nothing
    LOSE     all bytes move, yet it is acknowledged with no block good (an answer that was lost)
    PART     the first half of the blocks moves and is good, the rest is neither good nor corrupt
    CORRUPT  every block moves; one is acknowledged corrupt and the others good (a store: not good)
    FLIP     a bit of one stored block turns over once the block was committed; only an inner tier
             with checksums can tell, and only an address-mapped one can be flipped
    OFF      the tier switches itself off before the call, which raises ``TierUnavailableError``

Of a load that goes wrong no layer is told to be complete. Beside these, acknowledgements may come
late (some polls later) and in another order. It never
acknowledges twice, never loses a slot, never gives wrong bytes as good (but for FLIP under an inner
tier that does not verify, which is what a test of verification wants to see).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import numpy as np
import numpy.typing as npt

from radix.errors import CorruptBlockError, TierError, TierFullError, TierUnavailableError
from radix.front import FrontTier
from radix.groups import Group
from radix.tier import (
    Records,
    Slots,
    Tier,
    TierMode,
    Transfer,
    TransferDone,
)
from tiers.pools import all_of
from tiers.views import Cuts

Call = Literal["reserve", "store", "load", "clone"]


class Fault(Enum):
    """What goes wrong; the module's docstring says how each shows."""

    REFUSE = "refuse"
    FAIL = "fail"
    LOSE = "lose"
    PART = "part"
    CORRUPT = "corrupt"
    FLIP = "flip"
    OFF = "off"


_ALLOWED: dict[Call, tuple[Fault, ...]] = {
    "reserve": (Fault.REFUSE, Fault.OFF),
    "store": (
        Fault.REFUSE,
        Fault.FAIL,
        Fault.LOSE,
        Fault.PART,
        Fault.CORRUPT,
        Fault.FLIP,
        Fault.OFF,
    ),
    "load": (Fault.REFUSE, Fault.FAIL, Fault.LOSE, Fault.PART, Fault.CORRUPT, Fault.OFF),
    "clone": (Fault.FAIL,),
}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which calls go wrong. ``script``: call -> {k: fault}, the k-th call of its kind, from 1.

    ``rates``: call -> {fault: probability}, drawn from ``seed`` for calls that the script does not
    name. ``delay_polls``: an acknowledgement waits for 0 to that many polls; ``reorder``: those of
    one poll come in any order. The same plan over the same calls does the same.
    """

    script: Mapping[Call, Mapping[int, Fault]] = field(default_factory=dict)
    rates: Mapping[Call, Mapping[Fault, float]] = field(default_factory=dict)
    seed: int = 0
    delay_polls: int = 0
    reorder: bool = False

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a call that is not one, or a fault that it cannot show."""
        tables: list[tuple[Call, Iterable[Fault]]] = [
            *((call, script.values()) for call, script in self.script.items()),
            *((call, rates.keys()) for call, rates in self.rates.items()),
        ]
        for call, faults in tables:
            if call not in _ALLOWED:
                raise ValueError(f"plan: {call!r} is not one of {', '.join(_ALLOWED)}")
            for fault in faults:
                if fault not in _ALLOWED[call]:
                    raise ValueError(f"plan: a {call} cannot {fault.value}")
        if self.delay_polls < 0:
            raise ValueError(f"plan: delay_polls must not be negative, not {self.delay_polls}")


class FaultyTier(FrontTier):
    """``inner`` seen through a plan of faults; all else is passed on as it is.

    Beside the protocol: ``inner``, ``plan``, ``shown`` (how often each fault was shown).
    """

    def __init__(self, inner: Tier, plan: FaultPlan) -> None:
        super().__init__(inner)
        self.plan = plan
        self.shown: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self._random = random.Random(plan.seed)
        self._calls: dict[Call, int] = dict.fromkeys(_ALLOWED, 0)
        self._under_way: dict[int, tuple[Transfer, Fault | None, bool]] = {}
        self._held: list[tuple[int, TransferDone]] = []
        self._polls = 0
        self._to_flip: set[tuple[int, int]] = set()
        self._spans: dict[int, tuple[int, int]] = {}  # of loads that were not acknowledged

    # ------------------------------------------------------------------ passed on
    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Attaches the inner tier."""
        self.inner.attach(groups, page_bytes, upper)
        self._cuts = Cuts(groups)

    def commit(self, group: int, slots: Slots) -> None:
        """Commits in the inner tier; a bit planned to turn over does so now."""
        self.inner.commit(group, slots)
        for slot in slots.tolist():
            if (group, slot) in self._to_flip:
                self._to_flip.remove((group, slot))
                self._flip(group, slot)

    # ------------------------------------------------------------------ broken as told
    def reserve(self, group: int, count: int) -> Slots:
        """Slots of the inner tier, or what the plan says of this call."""
        self._draw("reserve")
        return self.inner.reserve(group, count)

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Stores in the inner tier, or shows what the plan says of this call."""
        self._transfer(transfer, upper, "store")

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Loads from the inner tier, or shows what the plan says of this call."""
        self._transfer(transfer, upper, "load")

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies blocks in the inner tier, or raises as the plan says of this call."""
        if self._draw("clone") is not None:
            raise self._error()
        self.inner.clone(group, sources, targets)

    def layers(self, job: int) -> int:
        """The inner tier's; 0 of a load that goes wrong, all of one whose end is held back."""
        first, end = self._span(job)
        if job in self._under_way:
            return 0 if self._under_way[job][1] is not None else self.inner.layers(job)
        good = [done.good.all() for _, done in self._held if done.job == job]
        return end - first if good == [True] else 0

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """Of the inner tier; does not wait for a load that goes wrong or whose end is held back."""
        first, end = self._span(job)
        if not first <= layer < end:
            raise ValueError(f"layer {layer}: job {job} moves layers {(first, end)}")
        if job in self._under_way and self._under_way[job][1] is None:
            return self.inner.wait_layer(job, layer, timeout_s)
        return self.layers(job) > layer - first

    def _span(self, job: int) -> tuple[int, int]:
        if job not in self._spans:
            raise TierError(self.name, f"job {job} is no load that is under way")
        return self._spans[job]

    def poll(self) -> list[TransferDone]:
        """Acknowledgements whose delay is over, each once."""
        self._polls += 1
        for done in self.inner.poll():
            self._hold(self._amend(done))
        ready = [done for due, done in self._held if due <= self._polls]
        self._held = [item for item in self._held if item[0] > self._polls]
        if self.plan.reorder:
            self._random.shuffle(ready)
        for done in ready:
            self._spans.pop(done.job, None)
        return ready

    def wait(self, timeout_s: float) -> None:
        """As the inner tier; at once where an acknowledgement is held back, for polls count."""
        self.inner.wait(0.0 if self._held else timeout_s)

    def pending(self) -> int:
        """Transfers accepted whose acknowledgement was not polled yet."""
        return self.inner.pending() + len(self._held)

    def close(self) -> None:
        """Closes the inner tier; acknowledgements held back are lost. Idempotent."""
        self._held.clear()
        self._under_way.clear()
        self.inner.close()

    # ------------------------------------------------------------------ inside
    def _draw(self, call: Call) -> Fault | None:
        """The fault of this call; those that stop it are shown here."""
        self._calls[call] += 1
        fault = self.plan.script.get(call, {}).get(self._calls[call])
        for candidate, rate in self.plan.rates.get(call, {}).items():
            drawn = self._random.random() < rate  # always drawn, so that scripts shift nothing
            fault = candidate if fault is None and drawn else fault
        if fault is None:
            return None
        self.shown[fault] += 1
        if fault is Fault.REFUSE:
            raise TierFullError(self.name, f"{call} is refused as planned", retryable=True)
        if fault is Fault.OFF:
            self.inner.set_mode(TierMode.OFF)
            raise TierUnavailableError(self.name, "goes off as planned")
        return fault

    def _transfer(self, transfer: Transfer, upper: Tier, call: Call) -> None:
        fault = self._draw(call)
        count = len(transfer.upper_slots)
        span = self._cuts.find(
            transfer.group,
            transfer.part,
            upper.view(transfer.group),
            self.inner.view(transfer.group),
            f"job {transfer.job}:",
        ).view.layers
        if fault is Fault.FAIL or (fault is Fault.PART and count < 2):
            if call == "load":
                self._spans[transfer.job] = span
            self._hold(all_of(transfer, good=False, nbytes=0, error=self._error()))
            return
        asked = (
            part_of(transfer, np.arange(count) < count // 2) if fault is Fault.PART else transfer
        )
        if call == "store":
            self.inner.store(asked, upper)
        else:
            self.inner.load(asked, upper)
            self._spans[transfer.job] = span
        self._under_way[transfer.job] = (transfer, fault, call == "store")

    def _amend(self, done: TransferDone) -> TransferDone:
        transfer, fault, storing = self._under_way.pop(done.job)
        count = len(transfer.upper_slots)
        if fault is None or not done.good.any():
            return _padded(done, count)
        if fault is Fault.LOSE:
            return all_of(transfer, good=False, nbytes=done.nbytes, error=self._error())
        if fault is Fault.PART:
            return replace(_padded(done, count), error=self._error())
        victim = self._random.choice(np.flatnonzero(done.good).tolist())
        if fault is Fault.FLIP:
            self._to_flip.add((transfer.group, int(transfer.lower_slots[victim])))
            return done
        good, corrupt = done.good.copy(), done.corrupt.copy()
        good[victim], corrupt[victim] = False, not storing
        error = CorruptBlockError(self.name, f"block {victim} is corrupt as planned")
        verified = min(done.verified_blocks, int(np.count_nonzero(good)))
        return replace(done, good=good, corrupt=corrupt, verified_blocks=verified, error=error)

    def _flip(self, group: int, slot: int) -> None:
        plane = self.inner.planes(group)[0]
        offset = self._random.randrange(int(plane["bytes"]))
        address = int(plane["base"]) + slot * int(plane["stride"]) + offset
        ctypes.c_uint8.from_address(address).value ^= 1 << self._random.randrange(8)

    def _hold(self, done: TransferDone) -> None:
        delay = self._random.randint(0, self.plan.delay_polls) if self.plan.delay_polls else 0
        # Something held between polls is due at the next one at the earliest.
        self._held.append((self._polls + delay, done))

    def _error(self) -> TierError:
        return TierError(self.name, "fails as planned", retryable=True)


def part_of(transfer: Transfer, part: npt.NDArray[np.bool_]) -> Transfer:
    """The blocks of a transfer that ``part`` names, under the same job number. Cost: the blocks."""
    records = transfer.records
    if records is not None:
        records = Records(
            namespace=records.namespace,
            keys=records.keys[part],
            parents=records.parents[part],
            pages=None if records.pages is None else records.pages[part],
            positions=records.positions[part],
        )
    return replace(
        transfer,
        upper_slots=transfer.upper_slots[part],
        lower_slots=transfer.lower_slots[part],
        records=records,
    )


def _padded(done: TransferDone, count: int) -> TransferDone:
    """The acknowledgement of a part as one of the whole: what did not move is not good."""
    more = count - len(done.good)
    if not more:
        return done
    return replace(done, good=np.pad(done.good, (0, more)), corrupt=np.pad(done.corrupt, (0, more)))
