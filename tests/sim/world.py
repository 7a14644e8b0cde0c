"""One simulated world: a cache over fake tiers or over a real disk, its engine, and everything that
may happen to them, all drawn from one seed. Time is counted in ticks that are passed in; nothing
here reads a clock or waits for a thread.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from radix.errors import CapacityError, NeverFitsError
from radix.events import RequestState
from radix.lifecycle import Work
from radix.ownership import Ownership
from radix.policy.checkpoint import Checkpoints
from radix.policy.limits import Breaker, Limits, Patience
from radix.tier import Tier, TierMode
from tests.cachemachine import FAULTS, NAMESPACES, STORIES
from tests.mixes import mix
from tests.resetting import reset
from tests.sim.calm import Calming
from tests.sim.simrig import SimRig, text_of
from tests.sim.steady import CUTS, PowerCut, SteadyDisk
from tests.sim.strikes import Strikes, StruckTier
from tests.ticktier import TickTier, peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan

ALL_FAULTS = {
    "reserve": FAULTS["reserve"],
    "store": {**FAULTS["store"], Fault.CORRUPT: 0.02, Fault.OFF: 0.01},
    "load": {**FAULTS["load"], Fault.OFF: 0.03},
}
SEED_KINDS = ("memory", "slab", "memory", "lmdb")
POISON = 0xEE  # what the device's memory holds before anything is written
# How often what happens beside the traffic of ``CacheMachine.step``, in thousandths of operations.
RATES = {
    "preempt": 40,
    "resume": 50,
    "latency": 20,
    "reload": 60,
    "prefetch": 30,
    "abort": 20,
    "calm": 4,
    "cut": 5,
    "crash": 3,
    "reopen": 3,
    "reset": 5,
    "set_revision": 3,
}


class SimWorld(Calming):
    """``begin`` opens it; ``step`` lets one thing happen; ``end_world`` ends it in calm."""

    rig_type: type[SimRig] = SimRig
    rates = RATES

    def __init__(self, seed: int, strikes: Strikes | None = None) -> None:
        super().__init__()
        self.strikes = Strikes() if strikes is None else strikes
        self.ran: Counter[str] = Counter()
        self.opened = 0
        self.revisions = 0
        self.now = "begin"
        self.digest = hashlib.blake2b(digest_size=16)
        self._seed = seed
        self._rng = rng = random.Random(f"world {seed}")
        self.kind = SEED_KINDS[seed % len(SEED_KINDS)]
        self.folder: TemporaryDirectory[str] | None = None
        self.disk = None
        self._left = 0  # blocks that must be there after a power cut
        self.page_tokens = rng.choice((1, 2, 4))
        self.kinds = mix(rng, self.page_tokens)
        self.ownership = Ownership.OWNED
        if rng.random() < 0.35:
            self.ownership = rng.choice([Ownership.SHARED, Ownership.BORROWED])
        self._blocks = [rng.randint(8, 32) for _ in range(3)]
        self._faults = rng.choice((0.0, 1.0, 1.0, 2.0))
        self._delay = rng.randint(0, 4)
        self.pace = rng.choice((0.2, 0.6, 1.0))
        self.options["clock"] = lambda: self.ticks * 1_000_000
        self.options["write"] = rng.choice(("write_through", "write_through", "write_back"))
        self.options["checkpoints"] = Checkpoints(rng.choice((0, 0, 8)), rng.choice((None, 2)))
        self.options["limits"] = Limits(
            prefetch_deadline=Patience(polls=rng.choice((20, 4096))),
            demote_after=Patience(polls=rng.choice((None, 10, 100))),
            load_deadline=Patience(polls=rng.choice((None, None, 30))),
            stores=rng.choice((None, None, 2)),
            loads=rng.choice((None, None, 2)),
            breaker=Breaker(rng.choice((0, 4, 8)), Patience(polls=rng.choice((10, 50)))),
        )

    # ------------------------------------------------------------ the world
    def begin(self) -> None:
        """Opens it."""
        if self.kind != "memory":
            shm = Path("/dev/shm")
            self.folder = TemporaryDirectory(dir=shm if shm.is_dir() else None)
        self.start()

    def _plan(self, number: int) -> FaultPlan:
        rates = {
            call: {fault: rate * self._faults for fault, rate in faults.items()}
            for call, faults in ALL_FAULTS.items()
        }
        return FaultPlan(
            rates=rates,
            seed=self._rng.randrange(1 << 30) + number,
            delay_polls=self._delay,
            reorder=True,
        )

    def start(self) -> None:
        """A process begins: new memory, the disk as it lies there."""
        self.opened += 1
        rng = self._rng
        tiers: list[Tier] = [
            TickTier(self._blocks[1], "host", pace=self.pace, seed=rng.randrange(1 << 30))
        ]
        if self.kind == "memory":
            tiers.append(
                TickTier(self._blocks[2], "deep", pace=self.pace, seed=rng.randrange(1 << 30))
            )
        else:
            assert self.folder is not None
            folder = Path(self.folder.name, f"disk-{self.opened}")
            disk = DiskTier(
                folder,
                limit_bytes=len(self.kinds) * (2 << 20),
                payload=self.kind,
                segment_bytes=1 << 16,
                threads=1,
            )
            seed = rng.randrange(1 << 30)
            self.disk = SteadyDisk(disk, folder, seed, self.strikes, 0.05 * self._faults)
            self.disk.copy = self._copy
            tiers.append(self.disk)
        below: list[Tier] = [
            StruckTier(tier, self._plan(number), self.strikes) for number, tier in enumerate(tiers)
        ]
        self.open(
            self.page_tokens,
            self.kinds,
            DeviceTier(blocks=self._blocks[0], device="cpu"),
            below,
            self.ownership,
        )
        assert self.rig.device is not None
        for group, tier in ((g, self.rig.device) for g in range(len(self.kinds))):
            for slot in range(tier.capacity_blocks(group)):
                peek(tier, group, slot)[:] = POISON
        self.faulty = [tier for tier in below if isinstance(tier, StruckTier)]
        if self.revisions:
            self.rig.cache.set_revision(f"weights {self.revisions}")

    def _copy(self, index: Path | None) -> None:
        """What a power cut leaves: the files as they are, records perhaps as they were before."""
        assert self.folder is not None
        source = Path(self.folder.name, f"disk-{self.opened}")
        target = Path(self.folder.name, f"disk-{self.opened + 1}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        if index is not None:
            shutil.copy(index / "data.mdb", target / "data.mdb")
        self._left = self._on_disk()

    def _on_disk(self) -> int:
        """Blocks that the cache was told are durable."""
        tree, number = self.rig.cache.tree, len(self.rig.cache.residency.tiers) - 1
        return sum(
            tree.column_stats(tree.column(group, number)).resident
            for group in range(len(self.kinds))
        )

    # ------------------------------------------------------------ one thing happens
    def happen(self, rng: random.Random) -> str:
        """Lets one thing happen; its name."""
        self.ticks += 1
        shares = {**self.rates, "traffic": 1000 - sum(self.rates.values())}
        name = rng.choices(list(shares), list(shares.values()))[0]
        self.now = name
        try:
            if name == "traffic":
                self.step(rng)
            else:
                getattr(self, f"_{name}")(rng)
        except PowerCut:
            self._restart("power cut")
        self.ran[name] += 1
        return name

    def release(self, number: int, drop: bool) -> None:
        """Leases are given back; what the collector does is not the seed's."""
        super().release(number, False)

    def end(self, number: int, fence: int, abort: bool, keep: int | None) -> None:
        """Counts what an end struck."""
        self._struck("abort" if abort else "finish", self.pick(number).work)
        super().end(number, fence, abort, keep)

    def compute(self, number: int, part: int, fence: int) -> None:
        """An engine that shares its slots may have taken back what a step of reused pages needs,
        and one that is steps ahead of its fences has to wait for what they give back.
        """
        ahead = any(live.work.waiting for live in self.running)
        try:
            super().compute(number, part, fence)
        except CapacityError:
            fits = "a step of an admitted request fits (R1)"
            assert ahead or self.ownership is Ownership.SHARED, fits

    def switch(self, tier: int, mode: TierMode) -> None:
        """Counts what a switch struck."""
        self._struck("switch")
        super().switch(tier, mode)

    def evict(self, tier: int, group: int, count: int) -> None:
        """Counts what an eviction struck."""
        if self.options["write"] == "write_back":
            number = tier % len(self.rig.cache.residency.tiers)
            self.rig.evict(group % len(self.kinds), count, number)  # dirty ones may stay
        else:
            super().evict(tier, group, count)
        self._struck("evict")

    def _struck(self, kind: str, work: Work | None = None) -> None:
        """Counts the transfers under way (of one request) as struck."""
        for number, job in self.rig.cache.transfers.jobs.items():
            if work is None or job.owner == work.hop:
                for tier in self.faulty:
                    if (state := tier.state_of(number)) is not None:
                        self.strikes[kind, state] += 1
        if work is not None and work.refused:
            self.strikes[kind, "store put off"] += 1

    def _preempt(self, rng: random.Random) -> None:
        if self.rig.live and len(self.rig.parked) < 2:
            live = self.pick(rng.randrange(1 << 16))
            self._struck("preempt", live.work)
            self.rig.preempt(live, self.fence(rng.randrange(6)))

    def _resume(self, rng: random.Random) -> None:
        if not self.rig.parked:
            return
        live = rng.choice(self.rig.parked)
        if rng.random() < 0.2:
            self.rig.end(live, abort=rng.random() < 0.5)
            return
        if len(self.rig.live) < 4:
            try:
                self.rig.resume(live)
            except (CapacityError, NeverFitsError):
                assert live.request.state is RequestState.PREEMPTED

    def _abort(self, rng: random.Random) -> None:
        """While it loads, if any does."""
        loading = [live for live in self.rig.live if not live.checked]
        if loading:
            live = rng.choice(loading)
            self._struck("abort", live.work)
            self.rig.end(live, abort=True, fence=self.fence(rng.randrange(6)))

    def _latency(self, rng: random.Random) -> None:
        self.latency_of(rng.choice((0.1, 0.3, 0.6, 1.0)))

    def _reload(self, rng: random.Random) -> None:
        """What was cached on the device comes from below."""
        for tier in range(rng.randint(1, len(self.rig.cache.residency.tiers) - 1)):
            for group in range(len(self.kinds)):
                self.rig.evict(group, 32, tier)
        story = rng.choice(STORIES)
        tokens = [*story[: rng.randint(1, min(24, 7 * self.page_tokens))], rng.choice(story)]
        self.admit(tokens, rng.choice(NAMESPACES), rng.randint(0, 4), None)

    def _prefetch(self, rng: random.Random) -> None:
        """Begins one, or ends one that runs."""
        if len(self.prefetches) >= 2 or (self.prefetches and rng.random() < 0.3):
            self.prefetches.pop(0).release()
            return
        story = rng.choice(STORIES)
        tokens = story[: rng.randint(1, min(24, 7 * self.page_tokens))]
        ahead = self.rig.cache.prefetch(tokens, namespace=rng.choice(NAMESPACES))
        assert ahead.tokens <= max(0, len(tokens) - 1)
        self.prefetches.append(ahead)

    # ------------------------------------------------------------ other epochs, other weights
    def _reset(self, rng: random.Random) -> None:
        """Of all tiers, or of some."""
        names = [tier.name for tier in self.rig.cache.opened]
        some = None if rng.random() < 0.5 else rng.sample(names, rng.randint(1, len(names)))
        self._struck("reset")
        reset(self.rig, some)

    def _set_revision(self, rng: random.Random) -> None:
        """Weights that were never there before."""
        self.revisions += 1
        self._struck("set_revision")
        self.rig.roots.update(self.rig.cache._spaces.keys.values())
        self.rig.cache.set_revision(f"weights {self.revisions}")

    # ------------------------------------------------------------ processes end
    def _cut(self, rng: random.Random) -> None:
        """The power goes when the disk next reaches some state."""
        if self.disk is not None:
            self.disk.cut = rng.choice(CUTS)

    def _crash(self, rng: random.Random) -> None:
        """The process is killed between two calls."""
        self._struck("crash")
        if self.disk is not None:
            self._copy(None)
        self._restart("crash")

    def _reopen(self, rng: random.Random) -> None:
        """It is closed with whatever is under way, and opened again."""
        self._struck("close")
        self.let_go()
        if self.disk is not None:
            self._left = self._on_disk()
            self._close()
            assert self.folder is not None
            source = Path(self.folder.name, f"disk-{self.opened}")
            source.rename(source.with_name(f"disk-{self.opened + 1}"))
        else:
            self._close()
        self._restart("close")

    def _close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # requests are left open on purpose
            self.rig.cache.close()

    def _restart(self, why: str) -> None:
        """Another process takes over. What was told durable is there (or cannot be linked)."""
        known, heard, old = self.rig.known, self.rig.heard, self.opened
        if why != "close":
            if self.disk is not None:
                self.disk.cut = None
            self.let_go()
            self._close()
        self.start()
        self.rig.known, self.rig.heard = known, heard
        if self.disk is not None:
            assert self.folder is not None
            shutil.rmtree(Path(self.folder.name, f"disk-{old}"), ignore_errors=True)
            metrics = self.rig.cache.metrics
            found = metrics.get("restore", "blocks", "disk")
            found += metrics.get("restore", "unlinked", "disk")
            assert found >= self._left, f"{why}: {self._left} durable blocks, {found} found (I25)"
        self.rig.poll()
        assert self.rig.resident == self.rig.walk(), "the stream is not what is resident (I32)"

    # ------------------------------------------------------------ what it did
    def note(self, name: str) -> None:
        """Puts what happened into the digest: events, counters, the operation."""
        add = self.digest.update
        add(name.encode())
        for event in self.rig.heard:
            add(text_of(event))
        self.rig.heard.clear()
        add(repr(sorted(self.rig.cache.counters().items())).encode())

    def note_bytes(self) -> None:
        """Puts the memory of every tier into the digest."""
        for tier in (self.rig.device, *self.rig.lower):
            assert tier is not None
            for group in range(len(self.kinds)):
                for slot in range(tier.capacity_blocks(group)):
                    self.digest.update(peek(tier, group, slot).tobytes())

    def close(self) -> None:
        """Ends it: in calm, and then everything must be given back."""
        self._calm(self._rng)
        self.note("end")
        self.note_bytes()
        self.teardown()

    def remove(self) -> None:
        """Takes the folder away."""
        if self.folder is not None:
            self.folder.cleanup()
