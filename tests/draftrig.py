"""An engine in small that drafts: each token's entry, in every group, is a digest of the prefix up
to it, so that an entry of another branch, or of nobody, is seen wherever the page table leads
(I24). It writes what a forward would write, where the stage says, and looks at all of it after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radix.cache import PrefixCache
from radix.drafts import ROOT
from radix.errors import CacheError
from radix.groups import Group, Retention, Rule, rule_of
from radix.layout import Layout
from radix.request import Request
from radix.stages import Stage
from radix.tier import Tier
from tests.ticktier import TickTier, peek
from tiers.device import DeviceTier

ENTRY = 8  # bytes a token
GARBAGE = 0xEE


def attention(name: str, page: int, *, pages: int = 1, lookahead: int = 0) -> Group:
    """A group that keeps every block, each of ``pages`` pages."""
    return Group(
        name,
        Layout.opaque(page * pages * ENTRY),
        grid_tokens=page * pages,
        lookahead=lookahead,
    )


def window(name: str, page: int, tokens: int, extra: int = 0) -> Group:
    """A group that keeps the last tokens."""
    return Group(name, Layout.opaque(page * ENTRY), Retention("window", tokens, extra))


def recurrent(name: str, grid: int) -> Group:
    """A group with one state a sequence."""
    return Group(
        name, Layout.opaque(ENTRY), Retention("state"), grid_tokens=grid, per_sequence=True
    )


def digest(name: str, tokens: Sequence[int]) -> bytes:
    """What a group holds of a prefix."""
    text = f"{name}:{','.join(map(str, tokens))}"
    return hashlib.blake2b(text.encode(), digest_size=ENTRY).digest()


@dataclass
class Run:
    """A request of this engine."""

    request: Request
    told: int = 0
    hit: int = 0
    chunk: int | None = None  # tokens that one forward computes at most


@dataclass
class Drafting:
    """One cache and what was computed over it. ``known``: prefixes that somebody computed."""

    cache: PrefixCache
    device: Tier
    rules: list[Rule] = field(default_factory=list)
    known: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rules = [rule_of(group, self.cache.page_tokens) for group in self.cache.groups]
        self.paged = [n for n, rule in enumerate(self.rules) if not rule.per_position]
        self.states = [n for n, rule in enumerate(self.rules) if rule.per_position]

    # ------------------------------------------------------------ bytes
    def put(self, group: int, slot: int, position: int, prefix: Sequence[int] | None) -> None:
        """Writes one token's entry, or one that means nothing."""
        place = position % self.rules[group].grid_tokens * ENTRY
        name = self.cache.groups[group].name
        entry = bytes([GARBAGE] * ENTRY) if prefix is None else digest(name, prefix)
        peek(self.device, group, int(slot))[place : place + ENTRY] = np.frombuffer(entry, np.uint8)

    def put_state(self, group: int, slot: int, tokens: Sequence[int]) -> None:
        """Writes the state behind some tokens."""
        entry = digest(self.cache.groups[group].name, tokens)
        peek(self.device, group, int(slot))[:] = np.frombuffer(entry, np.uint8)

    def write(self, run: Run, first: int, last: int, *, again: bool = False) -> None:
        """What a forward over tokens [first, last) writes into the request's own slots. Where a
        group looks ahead, the entries of tokens whose next ones are among them; ``again``: in such
        groups alone.
        """
        tokens = run.request.tokens().tolist()
        for group in self.paged:
            ahead = self.cache.groups[group].lookahead
            if again and not ahead:
                continue
            table, size = run.request.slots(group), self.rules[group].grid_tokens
            for position in range(max(run.hit, first - ahead), last - ahead):
                slot = table[position // size]
                if slot >= 0:
                    self.put(group, slot, position, tokens[: position + 1 + ahead])

    def advance(self, run: Run, first: int, last: int) -> None:
        """Brings the running states forward, with snapshots where they are asked for."""
        tokens = run.request.tokens().tolist()
        if self.states:
            for stop in run.request.cuts(last - first):
                for group in self.states:
                    self.put_state(group, run.request.running(group), tokens[:stop])
                run.request.snapshot(stop)
            for group in self.states:
                self.put_state(group, run.request.running(group), tokens[:last])

    def look(self, run: Run, what: str) -> None:
        """Every entry that a later token may read must be the right one. Of a hit all are there, of
        what was computed since, where a group looks ahead, all but the last.
        """
        tokens, told = run.request.tokens().tolist(), run.told
        for group in self.paged:
            rule, spec = self.rules[group], self.cache.groups[group]
            table, first = run.request.slots(group), 0
            if spec.retention.rule == "window":
                first = max(0, told - rule.reach_tokens)
            for position in range(first, max(run.hit, told - spec.lookahead)):
                slot, place = table[position // rule.grid_tokens], position % rule.grid_tokens
                assert slot >= 0, f"{what}: {spec.name} has no slot for token {position}"
                found = peek(self.device, group, int(slot))[place * ENTRY : (place + 1) * ENTRY]
                wanted = digest(spec.name, tokens[: position + 1 + spec.lookahead])
                assert found.tobytes() == wanted, f"{what}: {spec.name} token {position} of {told}"
        for group in self.states if told else ():
            found = peek(self.device, group, run.request.running(group)).tobytes()
            wanted = digest(self.cache.groups[group].name, tokens[:told])
            assert found == wanted, f"{what}: state of {told} tokens"

    # ------------------------------------------------------------ requests
    def admit(self, prompt: Sequence[int], **more: Any) -> Run:
        """Starts a request, waits until it runs, and looks at every byte of its hit."""
        request = self.cache.admit(np.array(prompt, np.int32), **more)
        for _ in range(200):
            if request.ready:
                break
            self.cache.wait(0.02)
            self.cache.poll()
        assert request.ready, "the request never ran"
        chunk = more.get("chunk_tokens")
        run = Run(request, request.hit_tokens, request.hit_tokens, chunk)
        hit = tuple(prompt[: run.told])
        assert not hit or hit in self.known, f"a hit of {run.told} tokens that nobody computed"
        self.look(run, "hit")
        return run

    def compute(self, run: Run, end: int) -> None:
        """Forwards up to ``end`` tokens, in the slots of the page table."""
        while run.told < end:
            upto = end if run.chunk is None else min(end, run.told + run.chunk)
            self.prepare(run, upto)
            self.write(run, run.told, upto)
            self.advance(run, run.told, upto)
            self.tell(run, upto)

    def prepare(self, run: Run, end: int) -> None:
        """Has slots for the tokens up to ``end``, where pages reuse those of others."""
        if run.chunk is not None:
            run.request.prepare(end - run.told)

    def tell(self, run: Run, end: int, fence: int | None = None) -> None:
        """Says that the first ``end`` tokens are computed once the fence passes."""
        tokens = run.request.tokens().tolist()
        for length in range(run.told + 1, end + 1):
            self.known.add(tuple(tokens[:length]))
        run.request.computed(end, fence=fence, reuse=fence)
        run.told = end

    def start(self, prompt: Sequence[int], sampled: int = 1, **more: Any) -> Run:
        """A request whose prompt is computed and whose first token is sampled."""
        run = self.admit(prompt, **more)
        try:
            self.compute(run, len(prompt))
            run.request.append([sampled])
        except CacheError:
            run.request.abort()
            raise
        return run

    # ------------------------------------------------------------ drafts
    def add(
        self, run: Run, stage: Stage, parent: int, tokens: Sequence[int], *, eager: bool = False
    ) -> list[int]:
        """Adds a chain; ``eager``: a draft model writes its entries at once."""
        drafts = stage.add(parent, list(tokens), states=bool(self.states))
        if eager:
            for draft in drafts:
                for group in self.paged:
                    prefix = self.prefix(run, stage, draft)
                    if self.cache.groups[group].lookahead:
                        prefix = []
                    slot = stage.slots(group)[draft]
                    self.put(group, slot, len(prefix or []) - 1, prefix or None)
        return drafts

    def prefix(self, run: Run, stage: Stage, draft: int) -> list[int]:
        """The tokens up to a draft."""
        return [*run.request.tokens().tolist(), *stage.tokens[path_to(stage, draft)].tolist()]

    def verify(self, run: Run, stage: Stage) -> None:
        """One forward over the tokens that are not computed and all drafts."""
        tokens = run.request.tokens().tolist()
        self.write(run, run.told, len(tokens))
        self.advance(run, run.told, len(tokens))
        for group in self.paged:
            for draft, slot in zip(*stage.writes(group), strict=True):
                prefix = tokens[: len(tokens) + 1 + draft] if draft < 0 else None
                position = len(tokens) + draft if draft < 0 else int(stage.positions[draft])
                if draft >= 0 and not self.cache.groups[group].lookahead:
                    prefix = self.prefix(run, stage, draft)
                self.put(group, slot, position, prefix)
        for group in self.states:
            for draft, slot in enumerate(stage.states(group).tolist()):
                self.put_state(group, slot, self.prefix(run, stage, draft))

    def accept(
        self, run: Run, stage: Stage, path: Sequence[int], bonus: int | None, **more: Any
    ) -> None:
        """Accepts a path and looks at every byte of it."""
        before = run.request.tokens().tolist()
        wanted = [*before, *stage.tokens[list(path)].tolist(), *([] if bonus is None else [bonus])]
        stage.accept(path, bonus, **more)
        assert run.request.tokens().tolist() == wanted
        assert not stage.open
        end = len(before) + len(path)
        self.write(run, run.told, end, again=True)
        self.tell(run, end, more.get("fence"))
        self.look(run, "accepted")

    def settle(self) -> None:
        """Polls until nothing is under way, and walks every invariant."""
        for _ in range(300):
            self.cache.poll()
            if not self.cache.requests.works and not self.cache.transfers.jobs:
                break
            self.cache.wait(0.01)
        self.cache.poll()
        self.cache.check()


def path_to(stage: Stage, draft: int) -> list[int]:
    """The path that ends with a draft."""
    path: list[int] = []
    while draft != ROOT:
        path.append(draft)
        draft = int(stage.parents[draft])
    return path[::-1]


def private(rig: Drafting) -> list[int]:
    """Slots of the device by group that are not the tree's."""
    tree, used = rig.cache.tree, rig.cache.usage()["device"].used_blocks
    return [
        count - tree.column_stats(tree.column(group, 0)).resident
        for group, count in enumerate(used)
    ]


def books(rig: Drafting, run: Run) -> list[object]:
    """All that must be as before after a call that raised."""
    request, groups = run.request, range(len(rig.cache.groups))
    return [
        request.tokens().tolist(),
        [request.slots(group).tolist() for group in groups],
        [request.running(group) for group in rig.states],
        private(rig),
        {key: count for key, count in rig.cache.counters().items() if key.startswith("draft")},
    ]


def build(
    groups: Sequence[Group], page: int, blocks: int | Sequence[int] = 32, below: int = 0
) -> Drafting:
    """A rig over a device on the CPU and, if asked for, a tier below it."""
    device = DeviceTier(blocks=blocks, device="cpu")
    lower = [TickTier(below, "host")] if below else []
    return Drafting(PrefixCache(groups, [device, *lower], page_tokens=page), device)
