"""The machines that drive a cache with random steps and look at every byte that it calls a hit:
over memory tiers whose copies end when they are polled, and over a real host and disk that is
reopened.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radix.cache import PrefixCache
from radix.errors import CapacityError, NeverFitsError
from radix.groups import Cost, Group
from radix.keys import Namespace
from radix.lease import Lease
from radix.ownership import Ownership
from radix.tier import Tier, TierMode
from tests.cacherig import GROUPS, Live, Rig
from tests.mixes import mix
from tests.strategies import TOKENS
from tests.ticktier import TickTier
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier
from tiers.index import IndexTier

NAMESPACES = (None, Namespace(salt=b"another tenant"))
MOST_LIVE = 4
# counts of what was evicted for nobody, and of leases whose owner had let them go before
IN_VAIN = ("evict.", "demote.", "store.declined.", "lease.dropped", "keep.")
# Four stories over three tokens that share beginnings of several lengths, and go on as they like.
_A = [0, 1, 2, 0, 0, 1, 1, 2, 2, 0, 1, 2, 1, 0, 2, 2, 1, 1, 0, 0, 2, 1, 0, 2]
_B = [*_A[:9], 1, 1, 1, 0, 2, 0, 1, 2, 0, 0, 0, 1, 2, 2, 1]
STORIES = (_A, _B, [*_B[:16], 0, 0, 2, 2, 2, 1, 1, 0], [2, *_A])
prompts = st.builds(
    lambda story, length, more: [*STORIES[story][:length], *more],
    st.integers(0, 3),
    st.integers(1, 24),
    st.lists(st.sampled_from(TOKENS), max_size=3),
)
which = st.integers(0, 1 << 16)
FAULTS = {
    "reserve": {Fault.REFUSE: 0.03, Fault.OFF: 0.01},
    "store": {Fault.REFUSE: 0.05, Fault.FAIL: 0.04, Fault.LOSE: 0.03, Fault.PART: 0.05},
    "load": {
        Fault.REFUSE: 0.04,
        Fault.FAIL: 0.04,
        Fault.LOSE: 0.03,
        Fault.PART: 0.05,
        Fault.CORRUPT: 0.05,
    },
}


def plan(seed: int, faults: bool) -> FaultPlan:
    """Acknowledgements late and in any order, and faults where they are asked for."""
    return FaultPlan(rates=FAULTS if faults else {}, seed=seed, delay_polls=2, reorder=True)


class CacheMachine(RuleBasedStateMachine):
    """What all worlds have in common; a subclass opens the tiers."""

    rig: Rig
    rig_type = Rig
    spaces: tuple[Namespace | None, ...] = NAMESPACES  # of a storm

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Lease] = []
        self.options: dict[str, object] = {}  # of the cache, beside those that ``open`` names

    def open(
        self,
        page_tokens: int,
        groups: int | Sequence[Group],
        device: Tier,
        below: list[Tier],
        ownership: Ownership = Ownership.OWNED,
    ) -> None:
        """The cache over these tiers; those in memory are looked at."""
        kinds = GROUPS[:groups] if isinstance(groups, int) else tuple(groups)
        if "economy" in self.options:
            kinds = tuple(replace(kind, cost=Cost(100.0, 1.0)) for kind in kinds)
        cache = PrefixCache(
            kinds,
            [device, *below],
            page_tokens=page_tokens,
            ownership=ownership,
            **{"events": True, **self.options},
        )
        looked_at = tuple(
            inner
            for tier in below
            if isinstance(inner := getattr(tier, "inner", tier), TickTier | HostTier)
        )
        memory = None if isinstance(device, IndexTier) else device
        self.rig = self.rig_type(cache, memory, looked_at if memory else ())
        if ownership is not Ownership.OWNED:
            self.rig.own = [list(range(device.capacity_blocks(g))) for g in range(len(kinds))]

    def pick(self, number: int) -> Live:
        return self.rig.live[number % len(self.rig.live)]

    @property
    def running(self) -> list[Live]:
        return [live for live in self.rig.live if live.checked]

    def fence(self, number: int) -> object:
        """Mostly none; a step not yet passed; a point that is asked."""
        if number % 3 == 0:
            return None
        if number % 3 == 1:
            return self.rig.fence()
        return self.rig.point()

    # ------------------------------------------------------------ requests
    @rule(
        tokens=prompts,
        space=st.sampled_from(NAMESPACES),
        room=st.integers(0, 6),
        keep=st.none() | st.integers(0, 20),
        chunk=st.none() | st.integers(1, 8),
        ends=st.lists(st.integers(1, 20), max_size=2),
    )
    def admit(
        self,
        tokens: list[int],
        space: Namespace | None,
        room: int,
        keep: int | None,
        chunk: int | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        more = {"chunk_tokens": chunk, "boundaries": [end for end in ends if end <= len(tokens)]}
        if len(self.rig.live) >= MOST_LIVE:
            self.rig.end(self.pick(len(tokens)))
        cache = self.rig.cache

        def books() -> tuple[dict[str, int], int, int]:
            own = len(cache.transfers.jobs) + len(cache._dropped)  # each job has one
            own += cache._keeps.leases  # which may give way in vain where what is dirty must go
            held = cache.tree.stats().leases - own
            return dict(cache.counters()), len(cache.requests.works), held

        before = books()
        try:
            self.rig.admit(tokens, space, new_tokens=room, cacheable_upto=keep, **more)
        except (CapacityError, NeverFitsError):
            after = books()
            for counts in (before[0], after[0]):
                for key in [key for key in counts if key.startswith(IN_VAIN)]:
                    del counts[key]  # what was evicted in vain is the one trace that may stay
            assert after == before

    @rule(tokens=prompts, space=st.sampled_from(NAMESPACES), polls=st.integers(0, 4))
    def serve(self, tokens: list[int], space: Namespace | None, polls: int) -> None:
        """A whole request in one go, if its hit comes up in time."""
        try:
            live = self.rig.admit(tokens, space)
        except (CapacityError, NeverFitsError):
            return
        for _ in range(polls):
            self.rig.poll()
        if live.checked:
            self.rig.compute(live, len(tokens))
            self.rig.end(live)

    @precondition(lambda self: self.running)
    @rule(number=which, more=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5))
    def append(self, number: int, more: list[int]) -> None:
        live = self.running[number % len(self.running)]
        length, table = len(live.request), [row.tolist() for row in live.request._work.table]
        try:
            self.rig.append(live, more)
        except (CapacityError, NeverFitsError):
            assert len(live.request) == length
            assert [row.tolist() for row in live.request._work.table] == table

    @precondition(lambda self: self.running)
    @rule(number=which, part=st.integers(1, 4), fence=st.integers(0, 5))
    def compute(self, number: int, part: int, fence: int) -> None:
        live = self.running[number % len(self.running)]
        left = (len(live.request) - live.told) * part // 4
        chunk = live.request._work.chunk
        left = left if chunk is None else min(left, chunk)
        self.rig.compute(live, live.told + left, self.fence(fence))

    @precondition(lambda self: self.rig.live)
    @rule(
        number=which,
        fence=st.integers(0, 5),
        abort=st.booleans(),
        keep=st.none() | st.integers(0, 20),
    )
    def end(self, number: int, fence: int, abort: bool, keep: int | None) -> None:
        live = self.pick(number)
        more = {} if abort or keep is None else {"cacheable_upto": keep}
        self.rig.end(live, abort=abort, fence=self.fence(fence), **more)

    # ------------------------------------------------------------ time
    @rule(rounds=st.integers(1, 3))
    def poll(self, rounds: int) -> None:
        for _ in range(rounds):
            self.rig.poll()

    @rule()
    def wait(self) -> None:
        self.rig.cache.wait(0.002)

    @rule()
    def pass_step(self) -> None:
        self.rig.pass_step()

    @precondition(lambda self: self.rig.points)
    @rule(number=which)
    def pass_point(self, number: int) -> None:
        self.rig.pass_point(self.rig.points[number % len(self.rig.points)])

    # ------------------------------------------------------------ the owner's hand
    @rule(tier=which, group=which, count=st.integers(0, 6))
    def evict(self, tier: int, group: int, count: int) -> None:
        cache = self.rig.cache
        number, kind = tier % len(cache.residency.tiers), group % len(cache.groups)
        stats = cache.tree.column_stats(cache.tree.column(kind, number))
        gone = self.rig.evict(kind, count, number)
        most = min(count, stats.resident - stats.protected)
        # where it writes back, what is dirty starts to go down instead
        assert gone == most or (gone < most and cache.residency.evictor is not None)

    @rule(tokens=prompts, space=st.sampled_from(NAMESPACES))
    def lease(self, tokens: list[int], space: Namespace | None) -> None:
        if len(self.leases) < 3:
            found, cursor = self.rig.cache.match(tokens, namespace=space)
            lease = self.rig.cache.lease(cursor)
            assert lease.pages == found.structural_pages
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(number=which, drop=st.booleans())
    def release(self, number: int, drop: bool) -> None:
        lease = self.leases.pop(number % len(self.leases))
        if drop:
            del lease
            gc.collect()
        else:
            lease.release()

    @rule(tokens=prompts, space=st.sampled_from(NAMESPACES))
    def explain(self, tokens: list[int], space: Namespace | None) -> None:
        cache = self.rig.cache
        before = cache.counters()
        told = cache.explain(tokens, namespace=space)
        found, _ = cache.match(tokens, namespace=space)
        assert told.hit_tokens == found.hit_pages * cache.page_tokens
        assert sum(told.tiers.values()) == told.hit_tokens
        assert told.hit_tokens <= max(0, len(tokens) - 1)
        assert cache.counters() == before

    @rule(tier=which, mode=st.sampled_from((TierMode.ON, TierMode.READ_ONLY, TierMode.OFF)))
    def switch(self, tier: int, mode: TierMode) -> None:
        lower = self.rig.cache.tiers[1:]
        if lower:
            self.rig.cache.set_mode(lower[tier % len(lower)].name, mode)

    # ------------------------------------------------------------ many at once
    @rule(seed=which, length=st.integers(1, 40))
    def storm(self, seed: int, length: int) -> None:
        """Many steps of one seed: pressure that single rules seldom build up."""
        rng = random.Random(seed)
        for _ in range(length):
            self.step(rng)
            self.holds()

    def step(self, rng: random.Random) -> None:
        """One step, drawn with the weights of real traffic."""
        number, space = rng.randrange(1 << 16), rng.choice(self.spaces)
        more = rng.choices(TOKENS, k=rng.randint(0, 3))
        length = rng.randint(1, min(24, 7 * self.rig.cache.page_tokens))
        tokens = [*rng.choice(STORIES)[:length], *more]
        keep = rng.randint(0, 20) if rng.random() < 0.2 else None
        fence = 0 if rng.random() < 0.5 else number
        weights = {
            "serve": 15,
            "admit": 15,
            "compute": 20,
            "append": 10,
            "end": 12,
            "poll": 20,
            "pass": 6,
            "evict": 6,
            "empty": 6,
            "lease": 4,
            "switch": 1,
            "on": 4,
        }
        match rng.choices(list(weights), list(weights.values()))[0]:
            case "serve":
                self.serve(tokens, space, rng.randint(0, 4))
            case "admit":
                chunk = rng.randint(1, 8) if rng.random() < 0.3 else None
                self.admit(tokens, space, rng.randint(0, 6), keep, chunk, [rng.randint(1, 20)])
            case "compute" if self.running:
                self.compute(number, rng.randint(1, 4), fence)
            case "append" if self.running:
                self.append(number, [*more, 1])
            case "end" if self.rig.live:
                self.end(number, fence, rng.random() < 0.3, keep)
            case "poll":
                self.poll(rng.randint(1, 3))
            case "pass":
                self.pass_step()
                if self.rig.points:
                    self.pass_point(number)
            case "evict":
                self.evict(number, number // 7, rng.randint(0, 6))
            case "empty":  # what comes back comes from below
                for group in range(len(self.rig.cache.groups)):
                    self.evict(0, group, 32)
            case "lease":
                if self.leases:
                    self.release(number, rng.random() < 0.5)
                else:
                    self.lease(tokens, space)
            case "switch":
                self.switch(number, rng.choice(list(TierMode)))
            case "on":
                for tier in self.rig.cache.tiers:
                    self.rig.cache.set_mode(tier.name, TierMode.ON)

    # ------------------------------------------------------------ always
    @invariant()
    def holds(self) -> None:
        if hasattr(self, "rig"):
            self.rig.cache.check()
            self.rig.walk()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for lease in self.leases:
            lease.release()
        try:
            self.rig.finish_all()
        finally:
            self.rig.cache.close()


class MemoryMachine(CacheMachine):
    """Three tiers in memory whose copies happen late: the same seed does the same."""

    device_type: type[DeviceTier] = DeviceTier

    @initialize(
        page_tokens=st.sampled_from((1, 2, 4)),
        groups=st.integers(1, 2) | st.randoms(use_true_random=False),
        blocks=st.tuples(st.integers(8, 32), st.integers(4, 40), st.integers(4, 64)),
        tiers=st.integers(1, 3),
        seed=st.integers(0, 1 << 16),
        faults=st.booleans(),
        bytes_=st.booleans(),
        ownership=st.sampled_from(list(Ownership)),
    )
    def begin(
        self,
        page_tokens: int,
        groups: int | random.Random,
        blocks: tuple[int, int, int],
        tiers: int,
        seed: int,
        faults: bool,
        bytes_: bool,
        ownership: Ownership = Ownership.OWNED,
    ) -> None:
        if bytes_:
            device: Tier = self.device_type(blocks=blocks[0], device="cpu")
            below = [
                TickTier(count, name, pace=0.6, seed=seed)
                for count, name in zip(blocks[1:], ("host", "deep"), strict=True)
            ]
        else:
            device = IndexTier(blocks[0])
            below = [IndexTier(blocks[1], "host"), IndexTier(blocks[2], "deep")]
        broken = [FaultyTier(tier, plan(seed + n, faults)) for n, tier in enumerate(below)]
        if ownership is Ownership.BORROWED:
            tiers = max(2, tiers)
        if isinstance(groups, random.Random):
            groups = mix(groups, page_tokens)
        self.open(page_tokens, groups, device, broken[: tiers - 1], ownership)


class DiskMachine(CacheMachine):
    """The device, a real host tier and a real disk, which is closed and opened now and then."""

    @initialize(
        page_tokens=st.sampled_from((1, 4)),
        blocks=st.tuples(st.integers(8, 24), st.integers(4, 24)),
        seed=st.integers(0, 1 << 16),
        faults=st.booleans(),
        payload=st.sampled_from(("slab", "lmdb")),
        groups=st.just(1) | st.randoms(use_true_random=False),
    )
    def begin(
        self,
        page_tokens: int,
        blocks: tuple[int, int],
        seed: int,
        faults: bool,
        payload: str,
        groups: int | random.Random = 1,
    ) -> None:
        self.folder = TemporaryDirectory()
        kinds = GROUPS[:1] if isinstance(groups, int) else mix(groups, page_tokens)
        self.world = page_tokens, blocks, seed, faults, payload, kinds
        self.start()

    def start(self) -> None:
        page_tokens, (on_device, on_host), seed, faults, payload, kinds = self.world
        host = HostTier(on_host * 4096 * len(kinds), segment_bytes=4096, verify=True)
        disk = DiskTier(
            Path(self.folder.name, "disk"),
            limit_bytes=len(kinds) * (2 << 20),
            payload=payload,
            segment_bytes=1 << 16,
        )
        below: list[Tier] = [
            FaultyTier(host, plan(seed, faults)),
            FaultyTier(disk, plan(seed + 1, faults)),
        ]
        self.open(page_tokens, kinds, DeviceTier(blocks=on_device, device="cpu"), below)

    def reopen(self) -> None:
        """What was durable at the close is there again, and right."""
        for lease in self.leases:
            lease.release()
        self.leases.clear()
        known = self.rig.known
        self.rig.finish_all()
        self.rig.cache.flush()
        disk = self.rig.cache.residency.tiers[2]
        durable = sum(disk.usage().used_blocks)
        self.rig.cache.close()
        self.start()
        self.rig.known = known
        self.rig.poll()
        restored = self.rig.cache.metrics.get("restore", "blocks", "disk")
        unlinked = self.rig.cache.metrics.get("restore", "unlinked", "disk")
        assert restored + unlinked == durable

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()
