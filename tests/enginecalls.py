"""The machine of random steps over whose cache an engine with page tables of its own runs, too: it
matches, leases, inserts and releases, a prompt at a time or a step of them at once, with hints, in
any interleaving with requests, drafts of theirs, interruptions, resets and other weights.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.drafts import ROOT
from radix.errors import CacheError, CapacityError, LeaseError, NeverFitsError, RequestError
from radix.groups import Group
from radix.hints import Hints
from radix.keys import Namespace
from radix.lease import Lease
from radix.ownership import Ownership
from radix.plan import Cursor
from radix.pool import SlotPool
from radix.prefetching import Prefetch
from radix.stages import Stage
from radix.tier import Capability, Tier, TierMode
from tests.cachemachine import STORIES
from tests.engineslots import Live
from tests.interrupting import InterruptedMachine
from tests.strategies import TOKENS
from tests.ticktier import peek
from tiers.device import DeviceTier

MOST_GIVEN = 5
Placed = dict[tuple[int, int], tuple[bytes, tuple[int, ...]]]


class Bare(DeviceTier):
    """A device whose bytes are nobody's concern but the engine's: the cache picks the slots of an
    insert by itself, and the engine writes them when it knows them.
    """

    @property
    def capability(self) -> Capability:
        """As if it held none."""
        return replace(super().capability, holds_bytes=False)

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        pools = super()._open(groups, upper)
        self._addresses = np.array([pool.address for pool in pools], np.uint64)
        return pools

    def pools(self) -> npt.NDArray[np.uint64] | None:
        """As a tier without bytes (``IndexTier``)."""
        return None if self._closed or self._mode is not TierMode.ON else self._addresses


@dataclass
class Given:
    """A prompt that the engine leased, and goes on with."""

    tokens: list[int]
    namespace: Namespace | None
    name: bytes
    lease: Lease


class EngineMachine(InterruptedMachine):
    """Draws an engine's calls between the steps of its parent. ``now``: of the cache's clock, ns;
    ``seen``: what was met, so that a test can tell that its storms show something.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Given] = []
        self.stages: list[tuple[Live, Stage]] = []
        self.ahead: list[Prefetch] = []
        self.now = 0
        self.seen: Counter[str] = Counter()

    @property
    def inserts(self) -> bool:
        """Whether an engine may insert: it has slots of its own, or may fill those it gets."""
        cache = self.rig.cache
        owned = cache.ownership is Ownership.OWNED
        return cache.ownership is Ownership.SHARED or (
            owned and not cache.tiers[0].capability.holds_bytes
        )

    # ------------------------------------------------------------ steps
    def step(self, rng: random.Random) -> None:
        """One step; two in five are the engine's."""
        self.stages = [(live, stage) for live, stage in self.stages if stage.open]
        self.rig.roots.update(self.rig.cache._spaces.keys.values())
        weights = {"begin": 9, "insert": 12, "release": 8, "lease": 3, "draft": 8, "hinted": 3}
        weights |= {"offer": 2, "fetch": 1, "time": 3, "others": 75}
        match rng.choices(list(weights), list(weights.values()))[0]:
            case "begin" if len(self.given) < MOST_GIVEN:
                self.begin_step(rng)
            case "insert" if self.given and self.inserts:
                self.insert_step(rng)
            case "release" if self.given:
                self.release_step(rng)
            case "lease" if self.given:
                self.change_lease(rng)
            case "draft":
                self.draft(rng)
            case "hinted" if self.rig.live:
                live = rng.choice(self.rig.live)
                self.rig.end(live, fence=self.fence(rng.randrange(6)), hints=self.hints(rng))
            case "offer" if self.rig.cache.ownership is Ownership.SHARED:
                for group, free in enumerate(self.rig.own):
                    count = rng.randint(0, min(3, len(free)))
                    self.rig.cache.offer(group, free[:count])
                    del free[:count]
            case "fetch":
                self.fetch(rng)
            case "time":
                self.now += rng.choice((0, 10**6, 10**9, 30 * 10**9))
            case _:
                super().step(rng)

    def append(self, number: int, more: list[int]) -> None:
        """As its parent, but where drafts stand beside the request."""
        live = self.running[number % len(self.running)]
        if all(live is not other for other, _ in self.stages):
            super().append(number, more)

    def hints(self, rng: random.Random) -> Hints:
        """Any."""
        ended = rng.random() < 0.3
        times = [None if rng.random() < 0.5 else rng.randint(0, 30) for _ in range(2)]
        priority = None if rng.random() < 0.5 else rng.randint(-3, 3)
        return Hints(None if ended else times[0], times[1], priority, ended)

    def fetch(self, rng: random.Random) -> None:
        """Begins to bring a prompt ahead; at most two at a time."""
        prompt = self.prompt(rng)
        self.ahead.append(self.rig.cache.prefetch(prompt, namespace=rng.choice(self.spaces)))
        if len(self.ahead) > 2:
            self.ahead.pop(0).release()

    def prompt(self, rng: random.Random) -> list[int]:
        """The beginning of a story, and more."""
        length = rng.randint(1, min(24, 7 * self.rig.cache.page_tokens))
        return [*rng.choice(STORIES)[:length], *rng.choices(TOKENS, k=rng.randint(0, 3))]

    # ------------------------------------------------------------ an engine's step
    def begin_step(self, rng: random.Random) -> None:
        """Prompts are matched and leased, mostly as far as the device has them."""
        cache, count = self.rig.cache, rng.randint(1, 3)
        prompts = [self.prompt(rng) for _ in range(count)]
        if rng.random() < 0.3:
            prompts[-1] = prompts[0]
        spaces = [rng.choice(self.spaces) for _ in prompts]
        if rng.random() < 0.5:
            found = cache.match_many(prompts, namespaces=spaces, leave=rng.randint(0, 2))
            pairs = [(match, found.cursor(at)) for at, match in enumerate(found)]
        else:
            pairs = [cache.match(p, namespace=s) for p, s in zip(prompts, spaces, strict=True)]
        names = [cache.namespace(space) for space in spaces]
        for prompt, name, (match, _) in zip(prompts, names, pairs, strict=True):
            hit = tuple(prompt[: match.hit_pages * cache.page_tokens])
            assert not hit or (name, hit) in self.rig.known, "a hit that nobody computed (I24)"
        usable = rng.random() < 0.8
        ends = [c._replace(pages=m.device_pages) if usable else c for m, c in pairs]
        leases = cache.lease_many(ends) if rng.random() < 0.5 else [cache.lease(c) for c in ends]
        self.given += map(Given, prompts, spaces, names, leases)

    def release_step(self, rng: random.Random) -> None:
        """Some leases are given back, or dropped."""
        some = rng.sample(self.given, rng.randint(1, min(3, len(self.given))))
        self.given = [one for one in self.given if one not in some]
        match rng.randrange(4):
            case 0:
                self.rig.cache.release_many([one.lease for one in some])
            case 1:
                for one in some:
                    one.lease.release()
            case 2:
                for one in some:
                    one.lease.release(hints=self.hints(rng))
            case _:
                self.seen["dropped"] += len(some)

    def change_lease(self, rng: random.Random) -> None:
        """One ends further up, or lets go of some groups."""
        lease, groups = rng.choice(self.given).lease, range(len(self.rig.cache.groups))
        if rng.random() < 0.5:
            lease.move(lease.cursor._replace(pages=rng.randint(0, lease.pages)))
        else:
            lease.narrow(rng.sample(groups, rng.randint(0, len(groups))))

    def insert_step(self, rng: random.Random) -> None:
        """Prompts go on and what is new of them enters, all or nothing."""
        cache, many = self.rig.cache, rng.random() < 0.5
        some = rng.sample(self.given, min(len(self.given), rng.randint(1, 3) if many else 1))
        prompts = [self.longer(rng, one) for one in some]
        leases = [one.lease for one in some]
        marks = [self.marks(rng, one.lease, run) for one, run in zip(some, prompts, strict=True)]
        shared = cache.ownership is Ownership.SHARED
        rows = self.rows(some, prompts) if shared else None
        if shared and rows is None:
            return  # the engine has too few slots
        before = self.placed()
        try:
            if many:
                done = list(cache.insert_many(prompts, leases, slots=rows, boundaries=marks))
            else:
                more: dict[str, Any] = {"slots": rows[0] if rows else None, "boundaries": marks[0]}
                more |= {} if shared else {"partial": rng.random() < 0.3}
                done = [cache.insert(prompts[0], leases[0], **more)]
        except (CapacityError, LeaseError) as error:
            self.seen[type(error).__name__] += 1
            for row in rows or ():
                self.take_back(row)
            return
        self.seen["steps" if many else "inserts"] += 1
        for at, (one, prompt, result) in enumerate(zip(some, prompts, done, strict=True)):
            if rows is not None:
                self.take_back(result.duplicates if result.duplicates else rows[at])
            self.entered(one, prompt, before)

    def longer(self, rng: random.Random, one: Given) -> list[int]:
        """What the lease covers, and more: its own prompt's, or something else."""
        page = self.rig.cache.page_tokens
        if rng.random() < 0.5:
            return [*one.tokens, *rng.choices(TOKENS, k=rng.randint(0, 2 * page))]
        covered = one.tokens[: one.lease.pages * page]
        return [*covered, *rng.choices(TOKENS, k=rng.randint(0, 3 * page))]

    def marks(self, rng: random.Random, lease: Lease, prompt: Sequence[int]) -> list[int]:
        """Lengths of the new pages at which a hit is to be possible."""
        page, step = self.rig.cache.page_tokens, self.rig.cache.align_tokens
        first = -(-(lease.pages * page + 1) // step) * step
        places = range(first, len(prompt) // page * page + 1, step)
        return sorted(rng.sample(places, min(len(places), rng.randrange(3))))

    def rows(
        self, some: Sequence[Given], prompts: Sequence[Sequence[int]]
    ) -> list[list[list[int]]] | None:
        """Slots of the engine's for the new pages of each prompt, written; None for too few."""
        rig, page = self.rig, self.rig.cache.page_tokens
        rig.reclaim()
        counts = [
            max(0, len(run) // page - one.lease.pages)
            for one, run in zip(some, prompts, strict=True)
        ]
        if sum(counts) > min(map(len, rig.own)):
            return None
        found = []
        for one, run, count in zip(some, prompts, counts, strict=True):
            found.append(rig._take(count) if count else [[] for _ in rig.own])
            for group, row in enumerate(found[-1]):
                rig.own[group] += row[count:]
                del row[count:]
                size = rig.cache.residency.rules[group].block_pages
                wanted = rig.blocks(one.name, run, group)
                for at, slot in enumerate(row):
                    if rig.device is not None:
                        peek(rig.device, group, slot)[:] = wanted[one.lease.pages + at]
                    if (one.lease.pages + at + 1) % size:  # no block ends there
                        rig.own[group].append(slot)
                        row[at] = -1
        return found

    def take_back(self, rows: Sequence[Sequence[int]]) -> None:
        """Slots that the cache did not need are the engine's again."""
        for free, row in zip(self.rig.own, rows, strict=True):
            self.rig._give(free, [int(slot) for slot in row if slot >= 0])

    def placed(self) -> Placed:
        """Which block each slot of the device holds, by the tree: the tokens up to its end."""
        rig, tree = self.rig, self.rig.cache.tree
        found: Placed = {}
        for root, name in rig.cache._spaces.names.items() if rig.cache.requests.placed else ():
            for node in tree.nodes(root)[1:]:
                end = Cursor(root, node.node, node.start + node.pages)
                tokens = tree.pages(end, 0, end.pages).view(np.int32).ravel().tolist()
                for group in range(tree.groups):
                    slots = tree.slots(end, tree.column(group, 0), node.start, node.pages)
                    for page, slot in enumerate(slots.tolist(), node.start + 1):
                        if slot >= 0:
                            assert (group, slot) not in found, "one slot for two blocks (I7)"
                            found[group, slot] = name, tuple(tokens[: page * rig._page])
        return found

    def entered(self, one: Given, prompt: list[int], before: Placed) -> None:
        """An insert is in: the engine writes what is new of it, and knows its prefixes."""
        rig, tree, page = self.rig, self.rig.cache.tree, self.rig.cache.page_tokens
        one.tokens = prompt
        for pages in range(1, one.lease.pages + 1):
            rig.known.add((one.name, tuple(prompt[: pages * page])))
        for group in range(tree.groups if rig.device is not None else 0):
            wanted = rig.blocks(one.name, prompt, group)
            slots = tree.slots(one.lease.cursor, tree.column(group, 0), 0, one.lease.pages)
            for at, slot in enumerate(slots.tolist()):
                here = one.name, tuple(prompt[: (at + 1) * page])
                if slot >= 0 and before.get((group, slot)) != here:
                    peek(rig.device, group, slot)[:] = wanted[at]

    # ------------------------------------------------------------ drafts beside requests
    def draft(self, rng: random.Random) -> None:
        """A stage is opened, grows, is accepted or rolled back."""
        free = [live for live in self.running if all(live is not each for each, _ in self.stages)]
        if free and (rng.random() < 0.5 or not self.stages):
            live = rng.choice(free)
            try:
                self.stages.append((live, live.request.stage()))
            except (CacheError, RequestError):
                return
        if not self.stages:
            return
        live, stage = rng.choice(self.stages)
        for _ in range(rng.randint(0, 2)):
            run = rng.choices(TOKENS, k=rng.randint(1, 3))
            try:
                stage.add(rng.choice([ROOT, *range(len(stage))]), run, states=rng.random() < 0.6)
            except (CapacityError, NeverFitsError):
                self.seen["drafts refused"] += 1
        roll = rng.random()
        if roll < 0.35:
            self.accept(rng, live, stage)
        elif roll < 0.5:
            stage.rollback(self.fence(rng.randrange(6)))

    def accept(self, rng: random.Random, live: Live, stage: Stage) -> None:
        """A forward over what is not computed and all drafts; some path of them is right."""
        rig, request, chunk = self.rig, live.request, live.work.chunk
        tokens = request.tokens().tolist()
        if chunk is not None and len(tokens) - live.told > chunk:
            return
        rig.compute(live, len(tokens))
        path: list[int] = []
        while rng.random() < 0.75:
            last = path[-1] if path else ROOT
            after = [draft for draft, parent in enumerate(stage.parents) if parent == last]
            if not after:
                break
            path.append(rng.choice(after))
        run = [*tokens, *stage.tokens[path].tolist()]
        self.write_states(live, stage, path, run)
        bonus = rng.choice((None, *TOKENS))
        try:
            stage.accept(path, bonus, fence=self.fence(rng.randrange(6)))
        except (CapacityError, NeverFitsError):
            return
        self.seen["accepted"] += len(path)
        assert request.tokens().tolist() == [*run, *([] if bonus is None else [bonus])]
        if chunk is None or len(run) - live.told <= chunk:
            rig.compute(live, len(run))

    def write_states(self, live: Live, stage: Stage, path: list[int], run: list[int]) -> None:
        """The forward writes the states behind drafts; those at the end of a page may be kept."""
        rig, page = self.rig, self.rig.cache.page_tokens
        for group, rule in enumerate(rig.cache.residency.rules):
            if rig.device is None or not rule.per_position:
                continue
            states, first = stage.states(group), len(run) - len(path)
            for length, draft in enumerate(path, first + 1):
                if states[draft] >= 0 and length % page == 0:
                    wanted = rig.blocks(live.name, run[:length], group)[-1]
                    peek(rig.device, group, int(states[draft]))[:] = wanted

    # ------------------------------------------------------------ the end
    def teardown(self) -> None:
        """Lets go of what the engine holds; then as its parent."""
        if hasattr(self, "rig"):
            for one in self.given:
                one.lease.release()
            self.given.clear()
            for item in self.ahead:
                item.release()
        super().teardown()
