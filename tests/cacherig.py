"""A small engine around a PrefixCache: it writes what it computes where the page table says, when
its fences say, and looks at every byte that the cache calls a hit (I24).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from radix.cache import PrefixCache
from radix.errors import CacheError, CapacityError
from radix.events import BlocksRemoved, BlocksStored, Event, RequestEvent, RequestState
from radix.groups import Group
from radix.keys import Namespace
from radix.lifecycle import Held
from radix.ownership import Ownership
from radix.plan import Cursor
from radix.request import Request
from radix.tier import Slots, Tier, TierMode
from tests.engineslots import Live, OwnSlots, Point
from tests.oracle import blocks_for
from tests.ticktier import Bytes, TickTier, peek
from tiers.device import DeviceTier
from tiers.faults import FaultPlan, FaultyTier

BLOCK_BYTES = 64
GROUPS = (Group.full("kv", BLOCK_BYTES), Group.full("latent", 24))
ORDER = (
    RequestState.LOADING,
    RequestState.RUNNING,
    RequestState.GENERATION_DONE,
    RequestState.FINALIZED,
    RequestState.RELEASED,
)


@dataclass
class Rig(OwnSlots):
    """An engine with one cache. ``device`` is where it computes (None: slots without bytes)."""

    cache: PrefixCache
    device: Tier | None
    lower: tuple[Tier, ...] = ()  # whose memory can be looked at, by number from 1
    live: list[Live] = field(default_factory=list)
    parked: list[Live] = field(default_factory=list)  # preempted
    step: int = 0
    states: dict[int, list[RequestState]] = field(default_factory=dict)
    resident: set[tuple[str, str, bytes]] = field(default_factory=set)
    known: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)
    roots: set[bytes] = field(default_factory=set)  # keys of namespaces, also of those that went
    points: list[Point] = field(default_factory=list)
    ticks: list[TickTier] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)  # free slots of the engine's, by group
    lent: list[tuple[Live, list[list[int]]]] = field(default_factory=list)
    _later: list[tuple[object, Callable[[], None]]] = field(default_factory=list)
    _fenced: dict[tuple[int, int], object] = field(default_factory=dict)
    _wrong: set[tuple[int, int]] = field(default_factory=set)

    # ------------------------------------------------------------ bytes
    def expected(self, namespace: Namespace | None, tokens: Slots, group: int) -> Bytes:
        """By full page of these tokens what the block that stands there in the tree must hold."""
        return self.blocks(self.cache.namespace(namespace), tokens, group)

    def blocks(self, name: bytes, tokens: Slots, group: int) -> Bytes:
        """The same by the canonical name of the namespace."""
        nbytes = self.cache.groups[group].block_bytes
        return blocks_for(name, tokens, self.cache.page_tokens, group, nbytes)

    def write(self, live: Live, first: int, last: int) -> None:
        """What a kernel does: fills pages [first, last) of the request."""
        if self.device is None:
            return
        for group, held in enumerate(live.work.held):
            wanted = self.blocks(live.name, live.request.tokens(), group)
            for page in range(first, last):
                block = page - held.rule.lookahead_pages
                if block >= 0 and held.slots[block] >= 0 and not self._rolls(held):
                    peek(self.device, group, held.slots[block])[:] = wanted[page]
            for item in [item for item in live.aside if item[1] == group and item[0] <= last]:
                peek(self.device, group, item[2])[:] = wanted[item[0] - 1]
                live.aside.remove(item)

    def _rolls(self, held: Held) -> bool:
        """Whether its slots by page are snapshots that the cache gives out."""
        return held.rule.per_position and not self._borrows

    def read(self, live: Live, pages: int, what: str) -> None:
        """Every byte that a hit of so many pages needs must be the right one."""
        if self.device is None:
            return
        for group, held in enumerate(live.work.held):
            wanted = self.blocks(live.name, live.request.tokens(), group)
            needed = held.wanted(pages).tolist()
            if self._borrows:
                needed = [page for page in needed if page >= live.work.device_pages]
            for block in needed:
                slot = held.running if self._rolls(held) else held.slots[block]
                found = peek(self.device, group, slot)
                page = block + held.rule.lookahead_pages
                assert np.array_equal(found, wanted[page]), (
                    f"{what}: request {live.request.id} group {group} page {block}"
                )

    # ------------------------------------------------------------ the engine
    def admit(
        self, tokens: Sequence[int], namespace: Namespace | None = None, **more: object
    ) -> Live:
        """Starts a request; its hit is looked at once it runs."""
        prompt = np.array(tokens, np.int32)
        room = int(str(more.get("new_tokens", 0)))

        def start() -> Live:
            request = self.cache.admit(prompt, namespace=namespace, **more)
            return Live(request, namespace, self.cache.namespace(namespace))

        return self._start(start, len(tokens) + room, more)

    def _start(self, start: Callable[[], Live], tokens: int, more: dict[str, object]) -> Live:
        """Admits, with slots of the engine's for so many tokens where they are the engine's."""
        rows: list[list[int]] = []
        if self.own:
            rows = self._take(-(-tokens // self._page))
            if self._borrows:
                rows = [self._sparse(group, row) for group, row in enumerate(rows)]
            more["slots"] = rows
        try:
            live = start()
        except CacheError:
            for free, row in zip(self.own, rows, strict=False):
                free += row
            raise
        if self.own and self._borrows:
            self.lent.append((live, rows))
        self.live.append(live)
        self._look()
        return live

    def _look(self) -> None:
        page = self.cache.page_tokens
        for live in self.live:
            for group, held in enumerate(live.work.held):
                for slot in (*held.slots.tolist(), *held.private().tolist()):
                    assert (group, slot) not in self._fenced, "a fenced slot was given out"
            if live.request.ready and not live.checked:
                live.checked = True
                live.told = live.request.hit_tokens
                pages = live.written = live.told // page
                assert pages <= (live.work.prompt_tokens - 1) // page
                self.read(live, pages, "hit")
                tokens = live.request.tokens()
                if pages:
                    assert (live.name, tuple(tokens[: pages * page].tolist())) in self.known, (
                        "unheard"
                    )

    def compute(self, live: Live, upto: int, fence: object = None) -> None:
        """The first ``upto`` tokens are computed: written now, or just before the fence passes."""
        page = self.cache.page_tokens
        last = upto // page
        self._aside(live, upto)

        def kernel() -> None:
            # a fence that has passed says that all of the first tokens are written
            first, live.written = live.written, max(live.written, last)
            self.write(live, first, last)
            tokens = live.request.tokens().tolist()
            for pages in range(first + 1, 0 if live.work.stale else last + 1):
                self.known.add((live.name, tuple(tokens[: pages * page])))

        if fence is None:
            kernel()
        else:
            self._later.append((fence, kernel))
        live.told = upto
        live.request.computed(upto, fence=fence, reuse=fence)

    def _aside(self, live: Live, upto: int) -> None:
        """Stops where the cache asks for it: snapshots are taken before the kernels have run."""
        request, page = live.request, self.cache.page_tokens
        request.prepare(upto - live.told)
        if not any(rule.per_position for rule in self.cache.residency.rules):
            return
        names = [group.name for group in self.cache.groups]
        for stop in request.cuts(upto - live.told):
            for name, slot in request.snapshot(stop, copy=False).items():
                live.aside = [item for item in live.aside if item[1:] != (names.index(name), slot)]
                live.aside.append((stop // page, names.index(name), slot))

    def end(self, live: Live, *, abort: bool = False, fence: object = None, **more: int) -> None:
        """Ends a request. Up to the fence the engine's kernels may read its pages."""
        call = live.request.abort if abort else live.request.finish
        if live in self.parked:
            self.parked.remove(live)
            call(fence=fence, **more)
            return
        self._leave(live, fence, lambda: call(fence=fence, **more))

    def preempt(self, live: Live, fence: object = None) -> None:
        """Takes its slots away, as ``end`` does."""
        self._leave(live, fence, lambda: live.request.preempt(fence=fence))
        self.parked.append(live)

    def resume(self, live: Live) -> Live:
        """Admits a preempted request again; raises as ``admit``."""
        more: dict[str, object] = {}

        def start() -> Live:
            live.request.resume(**more)
            return Live(live.request, live.namespace, self.cache.namespace(live.namespace))

        work = live.work
        tokens = max(len(live.request), work.prompt_tokens + work.terms.new)
        again = self._start(start, tokens, more)
        self.parked.remove(live)
        return again

    def _leave(self, live: Live, fence: object, call: Callable[[], None]) -> None:
        work = live.work
        last = max(work.shared, live.told // self.cache.page_tokens)
        if not live.checked:
            last = max(last, work.hit_pages)  # no kernel saw them: what is loaded there is shared
        private = [
            held.slots[last:].tolist() if held.rule.everywhere else [held.running]
            for held in work.held
        ]
        if fence is not None and live.checked:
            self._reads_until(live, fence)
        call()
        self.live.remove(live)
        live.fence = fence
        if fence is not None and not self._borrows:
            for group, slots in enumerate(private):
                self._fenced.update(((group, slot), fence) for slot in slots if slot >= 0)

    def _reads_until(self, live: Live, fence: object) -> None:
        work, before = live.work, []
        # what was told is written before the fence passes, and windows move on then
        behind = max(work.shared, live.told // self.cache.page_tokens)
        for group, held in enumerate(work.held):
            wanted = self.blocks(live.name, live.request.tokens(), group)
            first = held.rule.first_page(behind)
            ahead = held.rule.lookahead_pages
            for block in range(first, 0 if self._rolls(held) else work.shared - ahead):
                if held.slots[block] >= 0 and not (held.own[block] or self._borrows):
                    before.append((group, held.slots[block], wanted[block + ahead]))

        def reader() -> None:
            for group, slot, content in before if self.device is not None else ():
                found = peek(self.device, group, slot)
                assert np.array_equal(found, content), "read after reuse"

        self._later.append((fence, reader))

    def serve(self, tokens: Sequence[int], namespace: Namespace | None = None) -> Live:
        """A whole request: admitted, loaded, computed, finished, and everything settled."""
        live = self.admit(tokens, namespace)
        self.until_ready(live)
        self.compute(live, len(tokens))
        self.end(live)
        self.settle()
        return live

    def until_ready(self, live: Live) -> Live:
        """Polls until the request runs."""
        for _ in range(200):
            if live.checked:
                return live
            self.cache.wait(0.02)
            self.poll()
        raise AssertionError("the request never ran")

    def alone(self, prompt: Sequence[int]) -> Request:
        """Admits what must be admitted, at once or as soon as what is dirty has gone down (I29)."""
        for _ in range(200):
            try:
                return self.cache.admit(np.array(prompt, np.int32))
            except CapacityError:
                if self.cache.residency.evictor is None:
                    raise
            self.cache.wait(0.01)
            self.poll()
        raise AssertionError("what fits alone was never admitted (I29)")

    def empty(self, tier: int = 0) -> None:
        """Evicts all that may go from a tier."""
        for group in range(len(self.cache.groups)):
            self.evict(group, 1 << 10, tier)

    def fence(self) -> int:
        """A step that has not passed yet."""
        return self.step + 1

    def point(self) -> Point:
        """A fence that is asked and has not passed."""
        self.points.append(Point())
        return self.points[-1]

    def pass_step(self) -> None:
        """The kernels of one more step end, and then their fence passes."""
        self.step += 1
        due = [act for fence, act in self._later if fence == self.step]
        self._later = [item for item in self._later if item[0] != self.step]
        for act in due:
            act()
        self._fenced = {slot: held for slot, held in self._fenced.items() if held != self.step}
        self.cache.passed(self.step)

    def pass_point(self, point: Point) -> None:
        """The same for a fence that is asked."""
        for fence, act in self._later:
            if fence is point:
                act()
        self._later = [item for item in self._later if item[0] is not point]
        point.over = True
        self._fenced = {slot: held for slot, held in self._fenced.items() if held is not point}
        self.points.remove(point)

    # ------------------------------------------------------------ events
    def poll(self) -> list[Event]:
        """Polls; the stream of events must tell what is resident (I30, I32)."""
        events = self.cache.poll()
        for event in events:
            self._hear(event)
        self._look()
        if self.cache.residency.events is not None:
            assert self.resident == self.walk(), "the stream is not what is resident (I32)"
            assert self.resident == self._listed(), "the list is not what is resident (I32)"
        return events

    def _hear(self, event: Event) -> None:
        if isinstance(event, RequestEvent):
            seen = self.states.setdefault(event.request, [])
            parts = [at for at, old in enumerate(seen) if old is RequestState.PREEMPTED]
            since = seen[parts[-1] + 1 :] if parts else seen
            if event.state is RequestState.PREEMPTED:
                assert since and since[-1] in ORDER[:2], "preempted while it held nothing (I30)"
            else:
                assert event.state not in since, "a state was told twice (I30)"
                assert not since or ORDER.index(since[-1]) < ORDER.index(event.state), "order (I30)"
                assert since or not parts or event.state in (ORDER[0], ORDER[2]), "order (I30)"
            seen.append(event.state)
        elif isinstance(event, BlocksStored):
            above = (event.tier, event.group, event.parent)
            self.roots.update(self.cache._spaces.keys.values())
            rule = self.cache.residency.rules[
                [group.name for group in self.cache.groups].index(event.group)
            ]
            chained = rule.everywhere and rule.block_pages == 1 and not rule.lookahead_pages
            if chained and event.tier == self.cache.residency.tiers[0].name and not self._borrows:
                assert event.parent in self.roots or above in self.resident, "parent first (I32)"
            for key in event.keys:
                item = (event.tier, event.group, key.tobytes())
                assert item not in self.resident, "stored twice (I32)"
                self.resident.add(item)
        elif isinstance(event, BlocksRemoved):
            for key in event.keys:
                self.resident.remove((event.tier, event.group, key.tobytes()))

    def walk(self) -> set[tuple[str, str, bytes]]:
        """What is resident, by looking at the tree; and every byte in memory must be right."""
        tree, found = self.cache.tree, set()
        for root, name in self.cache._spaces.names.items():
            for node in tree.nodes(root):
                at = Cursor(root, node.node, node.start + node.pages)
                for number, tier in enumerate(self.cache.residency.tiers):
                    for group, spec in enumerate(self.cache.groups):
                        lo, hi = tree.interval(node.node, tree.column(group, number))
                        if hi == lo:
                            continue
                        column = tree.column(group, number)
                        slots = tree.slots(at, column, node.start + lo, hi - lo)
                        if tree.key_bytes:  # else nobody asks for keys
                            for key in tree.keys(at, node.start + lo, hi - lo)[slots >= 0]:
                                found.add((tier.name, spec.name, key.tobytes()))
                        self._bytes(name, at, number, group, (node.start + lo, node.start + hi))
        return found

    def _listed(self) -> set[tuple[str, str, bytes]]:
        """What is resident, by the cache's own list, where each event follows its parent's."""
        found: set[tuple[str, str, bytes]] = set()
        for event in self.cache.resident():
            found.update((event.tier, event.group, key.tobytes()) for key in event.keys)
        return found

    def _bytes(
        self, name: bytes, at: Cursor, number: int, group: int, pages: tuple[int, int]
    ) -> None:
        medium = number + self._borrows
        memory = self.device if medium == 0 else None
        if 0 < medium <= len(self.lower):
            memory = self.lower[medium - 1]
        if memory is None:
            return
        first, last = pages
        tree, spec = self.cache.tree, self.cache.groups[group]
        tokens = tree.pages(at, 0, last).view(np.int32).ravel()
        wanted = blocks_for(name, tokens, self.cache.page_tokens, group, spec.block_bytes)
        slots = tree.slots(at, tree.column(group, number), first, last - first)
        for page, slot in zip(range(first, last), slots, strict=True):
            if slot >= 0 and (number, int(slot)) not in self._wrong:
                assert np.array_equal(peek(memory, group, slot), wanted[page]), (
                    f"tier {number} group {group} page {page}: wrong bytes (I24)"
                )

    # ------------------------------------------------------------ the end
    def settle(self, rounds: int = 400) -> None:
        """Polls until nothing is under way."""
        for _ in range(rounds):
            self.cache.wait(0.02)
            self.poll()
            if not self.cache.transfers.jobs and not self.cache.requests.works:
                return
        raise AssertionError(
            f"never idle: jobs {self.cache.transfers.jobs}, works {self.cache.requests.works}"
        )

    def finish_all(self) -> None:
        """Ends everything; then nothing may be held, and the counts must add up (I8, I14, I34)."""
        for tier in self.cache.tiers:
            if tier.mode is not TierMode.ON:
                self.cache.set_mode(tier.name, TierMode.ON)
        for live in [*self.live, *self.parked]:
            self.end(live, abort=True)
        for point in list(self.points):
            self.pass_point(point)
        self.pass_step()
        self.settle()
        cache = self.cache
        cache.check()
        if cache.ownership is Ownership.OWNED and not cache.tree.stats().leases:
            # nothing runs: what fits alone is admitted, whatever is cached (I29)
            room = min(
                cache.tiers[0].capacity_blocks(g) * rule.block_pages
                for g, rule in enumerate(cache.residency.rules)
                if not rule.per_position
            )
            tokens = next(iter(sorted(self.known)), (b"", (1,)))[1]
            prompt = [*tokens, *[1] * (room * self._page)][: room * self._page]
            self.alone(prompt).abort()
            self.settle()
            cache.check()
        self.reclaim()
        for group, free in enumerate(self.own):
            kept = cache.tree.column_stats(cache.tree.column(group, 0)).resident
            kept *= cache.ownership is Ownership.SHARED
            assert len(free) + kept == cache.tiers[0].capacity_blocks(group), "a slot is lost"
        assert len(cache.fences) == 0
        assert not any(cache.requests.fenced)
        for number, tier in enumerate(cache.residency.tiers):
            for group in range(len(cache.groups)):
                stats = cache.tree.column_stats(cache.tree.column(group, number))
                assert stats.protected == 0, "something is pinned (I14)"
                assert tier.usage().used_blocks[group] == stats.resident, "a private slot (I8)"
        for seen in self.states.values():
            assert seen[-3:] == list(ORDER[-3:]), "an end without its three events (I30)"
        metrics = cache.metrics
        queried = metrics.get("match", "queried_tokens")
        hits, misses = metrics.total("match", "hit_tokens"), metrics.total("match", "miss")
        assert hits + misses == queried, f"{hits} + {misses} != {queried} (I34)"


def build(
    *,
    page_tokens: int = 4,
    groups: int | Sequence[Group] = 1,
    device: int | Sequence[int] = 16,
    below: Sequence[int] = (),
    plans: Sequence[FaultPlan | None] = (None, None),
    **options: object,
) -> Rig:
    """A rig over a device on the CPU and tiers in memory of so many blocks, with bytes.

    ``rig.ticks`` are the lower tiers: their ``pace`` says whether copies end.
    """
    ticks = [TickTier(blocks, name) for blocks, name in zip(below, ("host", "deep"), strict=False)]
    lower = [
        tick if plan is None else FaultyTier(tick, plan)
        for tick, plan in zip(ticks, plans, strict=False)
    ]
    top = DeviceTier(blocks=device, device="cpu")
    options.setdefault("events", True)
    kinds = GROUPS[:groups] if isinstance(groups, int) else tuple(groups)
    cache = PrefixCache(kinds, [top, *lower], page_tokens=page_tokens, **options)
    rig = Rig(cache, top, tuple(ticks))
    rig.ticks = ticks
    return rig
