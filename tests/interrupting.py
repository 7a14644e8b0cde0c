"""The machine of random steps whose requests are interrupted, too: preempted, resumed, ended while
preempted; and whose cache is reset, wholly or in part, and given other weights.
"""

from __future__ import annotations

import random

from radix.errors import CapacityError, NeverFitsError
from tests.cachemachine import MOST_LIVE, CacheMachine, DiskMachine, MemoryMachine
from tests.resetting import reset


class Interrupts(CacheMachine):
    """Draws interruptions between the steps of its parent."""

    revisions = 0

    def step(self, rng: random.Random) -> None:
        """One step; about one in six is an interruption."""
        if rng.random() < 0.16:
            self.interrupt(rng)
        else:
            super().step(rng)

    def interrupt(self, rng: random.Random) -> None:
        """Something from outside happens to requests, or to the whole cache."""
        rig = self.rig
        weights = {"preempt": 40, "resume": 30, "end": 8, "reset": 6, "part": 6, "revise": 3}
        match rng.choices(list(weights), list(weights.values()))[0]:
            case "preempt" if rig.live:
                live = rng.choice(rig.live)
                rig.preempt(live, fence=self.fence(rng.randrange(6)))
                if len(rig.parked) > MOST_LIVE:
                    rig.end(rig.parked[0], abort=True)
            case "resume" if rig.parked:
                live = rng.choice(rig.parked)
                before = live.request.tokens().tolist()
                try:
                    again = rig.resume(live)
                except (CapacityError, NeverFitsError):
                    assert live in rig.parked and live.request.state.value == "preempted"
                    return
                assert again.request.id == live.request.id
                assert again.request.tokens().tolist() == before
            case "end" if rig.parked:
                keep = {"cacheable_upto": rng.randint(0, 20)} if rng.random() < 0.5 else {}
                rig.end(rng.choice(rig.parked), abort=not keep, **keep)
            case "reset":
                reset(rig)
            case "part":
                names = [tier.name for tier in rig.cache.opened]
                reset(rig, rng.sample(names, rng.randint(0, len(names))))
            case "revise":
                self.revisions += 1
                rig.poll()  # what it still says of a namespace is heard while the root is there
                rig.cache.set_revision(f"r{self.revisions}")

    def teardown(self) -> None:
        """As its parent; and nothing of older weights is left."""
        super().teardown()
        spaces = self.rig.cache._spaces
        assert not spaces.retired, "a namespace of older weights was never let go"
        assert not self.rig.cache.transfers.fenced, "a slot is fenced for ever (I31)"


class InterruptedMachine(Interrupts, MemoryMachine):
    """Three tiers in memory."""


class InterruptedDiskMachine(Interrupts, DiskMachine):
    """A host tier and a disk, which is closed and opened now and then."""

    def reopen(self) -> None:
        """As its parent; the engine says again what its weights are."""
        super().reopen()
        if self.revisions:
            self.rig.cache.set_revision(f"r{self.revisions}")
            self.rig.poll()
