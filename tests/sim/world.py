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
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from radix.cache import PrefixCache
from radix.errors import CapacityError, NeverFitsError
from radix.events import Event, RequestState
from radix.lifecycle import Work
from radix.ownership import Ownership
from radix.policy.limits import Breaker, Limits, Patience
from radix.tier import Slots, Tier, TierMode
from tests.cachemachine import FAULTS, NAMESPACES, STORIES, CacheMachine
from tests.cacherig import Rig
from tests.engineslots import Live
from tests.mixes import mix
from tests.oracle import blocks_for
from tests.sim.steady import CUTS, SteadyDisk
from tests.sim.strikes import Strikes, StruckTier
from tests.ticktier import Bytes, TickTier, peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan

ALL_FAULTS = {
    "reserve": FAULTS["reserve"],
    "store": {**FAULTS["store"], Fault.CORRUPT: 0.02, Fault.OFF: 0.01},
    "load": {**FAULTS["load"], Fault.OFF: 0.03},
}
PATIENCE = 600  # ticks in which what fits alone ends, once nothing fails any more
SEED_KINDS = ("memory", "slab", "memory", "lmdb")
LOOK_EVERY = 8  # polls
# How often what happens beside the traffic of ``CacheMachine.step``, in thousandths of operations.
# The last two are called once the cache has them.
RATES = {
    "preempt": 40,
    "resume": 50,
    "latency": 20,
    "abort": 20,
    "calm": 4,
    "cut": 5,
    "crash": 3,
    "reopen": 3,
    "reset": 6,
    "set_revision": 4,
}
LATER = ("reset", "set_revision")


def there() -> list[str]:
    """What can happen to the cache as it is."""
    return [name for name in RATES if name not in LATER or hasattr(PrefixCache, name)]


@dataclass
class SimRig(Rig):
    """The rig, with every event in a digest, and looks that do not take all the time."""

    heard: list[Event] = field(default_factory=list)
    polls: int = 0
    _known_blocks: dict[tuple[bytes, bytes, int], Bytes] = field(default_factory=dict)

    def blocks(self, name: bytes, tokens: Slots, group: int) -> Bytes:
        """As the rig's, remembered."""
        count = len(tokens) // self.cache.page_tokens * self.cache.page_tokens
        key = name, np.asarray(tokens, np.int32)[:count].tobytes(), group
        if key not in self._known_blocks:
            if len(self._known_blocks) > 4096:
                self._known_blocks.clear()
            nbytes = self.cache.groups[group].block_bytes
            self._known_blocks[key] = blocks_for(
                name, tokens, self.cache.page_tokens, group, nbytes
            )
        return self._known_blocks[key]

    def poll(self) -> list[Event]:
        """As the rig's; what is resident is compared now and then."""
        events = self.cache.poll()
        for event in events:
            self._hear(event)
        self.heard += events
        self._look()
        self.polls += 1
        if self.polls % LOOK_EVERY == 0:
            assert self.resident == self.walk(), "the stream is not what is resident (I32)"
        return events


class SimWorld(CacheMachine):
    """``begin`` opens it; ``step`` lets one thing happen; ``end_world`` ends it in calm."""

    rig_type = SimRig
    rig: SimRig

    def __init__(self, seed: int, strikes: Strikes | None = None) -> None:
        super().__init__()
        self.strikes = Strikes() if strikes is None else strikes
        self.ran: Counter[str] = Counter()
        self.ticks = 0
        self.opened = 0
        self.now = "begin"
        self.digest = hashlib.blake2b(digest_size=16)
        self._seed = seed
        self._rng = rng = random.Random(f"world {seed}")
        self.kind = SEED_KINDS[seed % len(SEED_KINDS)]
        self.folder: TemporaryDirectory[str] | None = None
        self._disk: SteadyDisk | None = None
        self._left = 0  # blocks that must be there after a power cut
        self.page_tokens = rng.choice((1, 2, 4))
        self.kinds = mix(rng, self.page_tokens)
        self.ownership = Ownership.OWNED
        if rng.random() < 0.35:
            self.ownership = rng.choice([Ownership.SHARED, Ownership.BORROWED])
        self._blocks = [rng.randint(8, 32) for _ in range(3)]
        self._faults = rng.choice((0.0, 1.0, 1.0, 2.0))
        self._delay = rng.randint(0, 4)
        self._pace = rng.choice((0.2, 0.6, 1.0))
        self.options["clock"] = lambda: self.ticks * 1_000_000
        self.options["write"] = rng.choice(("write_through", "write_through", "write_back"))
        self.options["limits"] = Limits(
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
            TickTier(self._blocks[1], "host", pace=self._pace, seed=rng.randrange(1 << 30))
        ]
        if self.kind == "memory":
            tiers.append(
                TickTier(self._blocks[2], "deep", pace=self._pace, seed=rng.randrange(1 << 30))
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
            self._disk = SteadyDisk(disk, folder, seed, self.strikes, 0.05 * self._faults)
            self._disk.copy = self._copy
            tiers.append(self._disk)
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
        self.faulty = [tier for tier in below if isinstance(tier, StruckTier)]

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
        able = there()
        shares = [RATES[name] for name in able]
        name = rng.choices([*able, "traffic"], [*shares, max(0, 1000 - sum(shares))])[0]
        self.now = name
        try:
            if name == "traffic":
                self.step(rng)
            else:
                getattr(self, f"_{name}")(rng)
        except BaseException:
            # whatever its handlers made of a power cut, nobody is there to see it
            if self._disk is None or not self._disk.gone:
                raise
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
        for tier in self.faulty:
            if isinstance(tier.inner, TickTier):
                tier.inner.pace = rng.choice((0.1, 0.3, 0.6, 1.0))

    # ------------------------------------------------------------ processes end
    def _cut(self, rng: random.Random) -> None:
        """The power goes when the disk next reaches some state."""
        if self._disk is not None:
            self._disk.cut = rng.choice(CUTS)

    def _crash(self, rng: random.Random) -> None:
        """The process is killed between two calls."""
        self._struck("crash")
        if self._disk is not None:
            self._copy(None)
        self._restart("crash")

    def _reopen(self, rng: random.Random) -> None:
        """It is closed with whatever is under way, and opened again."""
        self._struck("close")
        self._let_go()
        if self._disk is not None:
            self._left = self._on_disk()
            self._close()
            assert self.folder is not None
            source = Path(self.folder.name, f"disk-{self.opened}")
            source.rename(source.with_name(f"disk-{self.opened + 1}"))
        else:
            self._close()
        self._restart("close")

    def _let_go(self) -> None:
        for lease in self.leases:
            lease.release()
        self.leases.clear()

    def _close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # requests are left open on purpose
            self.rig.cache.close()

    def _restart(self, why: str) -> None:
        """Another process takes over. What was told durable is there (or cannot be linked)."""
        known, heard, old = self.rig.known, self.rig.heard, self.opened
        if why != "close":
            if self._disk is not None:
                self._disk.cut = None
            self._let_go()
            self._close()
        self.start()
        self.rig.known, self.rig.heard = known, heard
        if self._disk is not None:
            assert self.folder is not None
            shutil.rmtree(Path(self.folder.name, f"disk-{old}"), ignore_errors=True)
            metrics = self.rig.cache.metrics
            found = metrics.get("restore", "blocks", "disk")
            found += metrics.get("restore", "unlinked", "disk")
            assert found >= self._left, f"{why}: {self._left} durable blocks, {found} found (I25)"
        self.rig.poll()
        assert self.rig.resident == self.rig.walk(), "the stream is not what is resident (I32)"

    # ------------------------------------------------------------ calm
    def _calm(self, rng: random.Random) -> None:
        """Faults stop: all that runs ends within a bound, and so does what comes then."""
        plans = [tier.plan for tier in self.faulty]
        if self._disk is not None:
            self._disk.cut = None
        for tier in self.faulty:
            tier.plan = replace(tier.plan, rates={}, delay_polls=0)
        for tier in self.rig.cache.tiers:
            self.rig.cache.set_mode(tier.name, TierMode.ON)
        self._latency_of(1.0)
        self._let_go()
        for live in list(self.rig.parked):
            self.rig.end(live, abort=True)
        for _ in range(PATIENCE):
            if not (self.rig.live or self.rig.cache.requests.works):
                break
            self._tick()
        assert not self.rig.live and not self.rig.cache.requests.works, (
            f"not over after {PATIENCE} ticks: {[live.request.id for live in self.rig.live]}, "
            f"{self.rig.cache.requests.works}"
        )
        self._alone(rng)
        self._latency_of(self._pace)
        for tier, plan in zip(self.faulty, plans, strict=True):
            tier.plan = plan

    def _latency_of(self, pace: float) -> None:
        for tier in self.faulty:
            if isinstance(tier.inner, TickTier):
                tier.inner.pace = pace

    def _tick(self) -> None:
        self.ticks += 1
        self.rig.pass_step()
        for point in list(self.rig.points):
            self.rig.pass_point(point)
        self.rig.poll()
        for live in list(self.rig.live):
            if live.checked:
                self._run_to_its_end(live)

    def _run_to_its_end(self, live: Live) -> None:
        chunk = live.work.chunk
        upto = len(live.request)
        if chunk is not None:
            upto = min(upto, live.told + chunk)
        try:
            self.rig.compute(live, upto)
        except CapacityError:
            self.rig.end(live, abort=True)  # what it lacks others hold: this one makes room
            return
        if upto == len(live.request):
            self.rig.end(live)

    def _alone(self, rng: random.Random) -> None:
        """A request that fits alone is served within the bound (I29)."""
        room = min(
            self.rig.cache.tiers[0].capacity_blocks(group) * rule.block_pages
            for group, rule in enumerate(self.rig.cache.residency.rules)
            if not rule.per_position
        )
        length = min(max(1, room * self.page_tokens // 2), 24)
        prompt = [*rng.choice(STORIES)[:length]]
        for _ in range(PATIENCE):
            try:
                self.rig.admit(prompt, rng.choice(NAMESPACES))
                break
            except CapacityError:
                if self.ownership is Ownership.SHARED:
                    self.rig.empty()  # what is cached is on the engine's own slots
                self._tick()
        else:
            raise AssertionError(f"never admitted in {PATIENCE} ticks: {prompt} (I29)")
        for _ in range(PATIENCE):
            if not (self.rig.live or self.rig.cache.requests.works):
                return
            self._tick()
        raise AssertionError(f"never over in {PATIENCE} ticks: {prompt} (I29)")

    # ------------------------------------------------------------ what it did
    def note(self, name: str) -> None:
        """Puts what happened into the digest: events, counters, the operation."""
        add = self.digest.update
        add(name.encode())
        for event in self.rig.heard:
            add(_text(event))
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


def _text(event: Event) -> bytes:
    parts = [type(event).__name__]
    for name in event.__slots__:
        value = getattr(event, name)
        if name == "error":
            value = value is not None  # its text names the folder
        parts.append(value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value))
    return "|".join(parts).encode()
