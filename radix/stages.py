"""Drafts staged beside running requests: slots reserved all or none, an accepted path that takes
the place of the request's own slots without a copy, everything else given back behind a fence (a
part of I7, I8, I9, I11). Until then no draft is a token of the request: nothing can match, share,
store or checkpoint it.

    page table    | the tree's | own ....... | tail page | reserved |
    stage                                      tail page, forks, more pages, states
    accept                                     the path's slots come in, what they replace goes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from radix.admission import reserve_all
from radix.arguments import storable
from radix.drafts import ROOT, Ahead, DraftTree, Ground, Growth, Mask, Pairs
from radix.errors import RequestError
from radix.events import RequestState
from radix.gate import Gate
from radix.keeping import Keeping
from radix.keys import Tokens
from radix.lifecycle import Fence, Held, Work, as_fence, whole_blocks
from radix.tier import Slots
from radix.tree import NO_SLOT


class Stages:
    """The open stages of one cache, by the number of the request. Under the owner's gate.

    ``start``, ``grow``; ``accept``, ``end``, ``close``. Ask: ``slots``. ``append``: adds verified
    tokens to a request, with the pages that they need.
    """

    def __init__(self, keeping: Keeping, append: Callable[[Work, Tokens], None]) -> None:
        self._keeping = keeping
        self._residency = keeping.residency
        self._append = append
        self._open: dict[int, Stage] = {}

    def __contains__(self, work: Work) -> bool:
        return work.number in self._open

    def refuse(self, work: Work, what: str) -> None:
        """``RequestError`` while the request has an open stage."""
        if work in self:
            raise RequestError(
                f"{what}: request {work.number} has an open stage: accept or roll back first"
            )

    def holds(self, stage: Stage) -> bool:
        """Whether a stage is open."""
        return self._open.get(stage.work.number) is stage

    def count(self, drafted: int) -> None:
        """Counts tokens that were staged."""
        self._residency.metrics.add(("draft", "drafted"), drafted)

    def start(self, gate: Gate, work: Work) -> Stage:
        """Opens the stage of a request that runs; changes nothing else."""
        who = f"stage: request {work.number}"
        if work.state is not RequestState.RUNNING:
            raise RequestError(f"{who} is {work.shown.value}, not running")
        if not self._keeping.placed:
            raise RequestError(f"{who} has the engine's slots, so drafts are the engine's too")
        self.refuse(work, "stage")
        grounds = [_ground(held) for held in work.held]
        for group, held in enumerate(work.held):
            if not held.rule.per_position and not _has_tail(held, work):
                name = self._residency.groups[group].name
                raise RequestError(f"{who} has no slot of {name!r} for its last token: prepare it")
        stage = Stage(gate, self, work, DraftTree(work.count, work.told, grounds))
        self._open[work.number] = stage
        return stage

    def grow(self, stage: Stage, growth: Growth) -> None:
        """Reserves what the growth needs, in all groups or none, and copies what branches share."""
        work, tier = stage.work, self._residency.tiers[0]
        spared = [
            0 if held.rule.per_position else min(count, len(held.spare))
            for held, count in zip(work.held, growth.needed, strict=True)
        ]
        counts = [count - own for count, own in zip(growth.needed, spared, strict=True)]
        fresh = reserve_all(self._residency, counts, work.at.root)
        try:
            rows = [
                np.concatenate((row, np.array(held.spare[len(held.spare) - own :], np.int32)))
                for row, held, own in zip(fresh, work.held, spared, strict=True)
            ]
            for group, (sources, targets) in enumerate(growth.fill(rows)):
                if len(sources):
                    tier.clone(group, sources, targets)
        except BaseException:
            for group, row in enumerate(fresh):
                tier.abort(group, row)
            raise
        for group, own in enumerate(spared):
            stage.spared[group] += own
            del work.held[group].spare[len(work.held[group].spare) - own :]

    def accept(self, stage: Stage, path: list[int], tokens: Tokens, fence: Fence) -> None:
        """Puts the path's slots into the page table and ``tokens``, its own and what was sampled
        behind it, behind the request's.
        """
        work = stage.work
        before = [(held.slots, held.own, held.running) for held in work.held]
        pages, page_tokens = work.pages, self._residency.rules[0].page_tokens
        try:
            work.pages = max(pages, -(-(work.count + len(path)) // page_tokens))
            entered = [
                self._enter(stage.tree, group, held, path) for group, held in enumerate(work.held)
            ]
            for held in work.held:
                held.grow(work.pages)
            del self._open[work.number]
            self._append(work, tokens)
        except BaseException:
            self._open[work.number] = stage
            work.pages = pages
            for held, (slots, own, running) in zip(work.held, before, strict=True):
                held.slots, held.own, held.running = slots, own, running
            raise
        try:
            for group, slot in self._checkpoint(stage, path):
                entered[group][0].append(slot)
        finally:
            for group, (replaced, more) in enumerate(entered):
                self._give_back(stage, group, replaced, stage.spared[group] - more, fence)
        metrics = self._residency.metrics
        metrics.add(("draft", "rounds"))
        metrics.add(("draft", "accepted"), len(path))

    def _checkpoint(self, stage: Stage, path: list[int]) -> Iterator[tuple[int, int]]:
        """Keeps the states of accepted drafts where the forward would have had to stop for them:
        their slots become snapshots, and only the last, which is updated on, is copied. Groups and
        slots that were meant for snapshots and are left.
        """
        work, tree, base = stage.work, stage.tree, stage.tree.base
        groups = [group for group, held in enumerate(work.held) if held.rule.per_position]
        if not path or not groups or tree.states(groups[0])[path[-1]] == NO_SLOT:
            return
        for stop in self._keeping.cuts(work, base + len(path) - work.told):
            draft = path[stop - base - 1] if stop > base else ROOT
            if draft == ROOT or tree.states(groups[0])[draft] == NO_SLOT:
                continue
            last = draft == path[-1]
            for group, given in self._keeping.snapshot(work, stop, last).items():
                if not last:
                    page = stop // self._residency.rules[group].page_tokens - 1
                    work.held[group].slots[page] = tree.states(group)[draft]
                    yield group, given

    def end(self, stage: Stage, fence: Fence) -> None:
        """Gives every slot of a stage back."""
        del self._open[stage.work.number]
        for group, spared in enumerate(stage.spared):
            self._give_back(stage, group, [], spared, fence)

    def close(self, work: Work, fence: Fence) -> None:
        """Ends the stage of a request that ends, if it has an open one."""
        if work in self:
            self.end(self._open[work.number], fence)

    def slots(self, group: int) -> list[int]:
        """What the open stages hold of a group."""
        return [slot for stage in self._open.values() for slot in stage.tree.taken(group)]

    @staticmethod
    def _enter(tree: DraftTree, group: int, held: Held, path: list[int]) -> tuple[list[int], int]:
        """Puts a path's slots of one group where they belong: what they replace, and how many
        pages had none. What was there before stays as it was in its old arrays.
        """
        if held.rule.per_position:
            state = tree.states(group)[path[-1]] if path else NO_SLOT
            if state == NO_SLOT:
                return [], 0
            replaced, held.running = [held.running], int(state)
            return replaced, 0
        size, kept = held.rule.block_pages, tree.kept(group, path)
        held.slots, held.own = held.slots.copy(), held.own.copy()
        held.grow((max(kept, default=-1) + 1) * size)
        ends = np.array([(block + 1) * size - 1 for block in kept], np.int64)
        old, new = held.slots[ends], np.array(list(kept.values()), np.int32)
        held.slots[ends], held.own[ends] = new, True
        return old[(old != new) & (old != NO_SLOT)].tolist(), int((old == NO_SLOT).sum())

    def _entered(self, tree: DraftTree, held: Held) -> list[int]:
        """The own slots of the pages that drafts reach, and of the one before, whose snapshot may
        be new. What else is there is none of a stage's.
        """
        page_tokens = held.rule.page_tokens
        end = whole_blocks(held.rule, -(-(tree.base + len(tree)) // page_tokens))
        reach = slice(max(0, tree.base // page_tokens - 1), end)
        found: list[int] = held.slots[reach][held.own[reach]].tolist()
        return found

    def _give_back(
        self, stage: Stage, group: int, replaced: list[int], spare: int, fence: Fence
    ) -> None:
        """What no page has goes behind the fence; up to ``spare`` slots stay with the request,
        whose own they were. Cost: the drafts, and the pages that they reach.
        """
        held = stage.work.held[group]
        kept = {*self._entered(stage.tree, held), *held.spare, held.running}
        mine = dict.fromkeys((*replaced, *stage.tree.taken(group)))
        left = [slot for slot in mine if slot not in kept]
        own = max(0, spare)
        held.spare += left[:own]
        self._keeping.quarantine(group, np.array(left[own:], np.int32), fence)


class Stage:
    """Drafts beside a running request, from ``Request.stage`` to ``accept`` or ``rollback``.

    Grow: ``add``. Look: ``parents``, ``tokens``, ``positions``, ``mask``, ``slots``, ``states``,
    ``copies``, ``writes``. Beside a draft: ``annotate``, ``annotation``. End: ``accept``,
    ``rollback``; leaving a ``with`` block rolls back what is open. Meanwhile the request takes no
    other tokens. A draft is named by its number, from 0 on; ROOT is the request's last token.

    The forward that verifies runs the request's tokens that are not computed yet and all drafts.
    It updates running states in place by the former (where ``cuts`` asks for it, ``snapshot`` as
    always, before ``accept``); the state behind a draft goes into ``states``, and ``accept`` takes
    the snapshots that ``cuts`` would ask for. In a group that looks ahead the entry of a draft
    depends on the tokens behind it: what was written for one branch is wrong for another, so the
    engine writes the entries of accepted drafts again before it tells ``computed``.
    """

    __slots__ = ("_gate", "_stages", "spared", "tree", "work")

    def __init__(self, gate: Gate, stages: Stages, work: Work, tree: DraftTree) -> None:
        self._gate = gate
        self._stages = stages
        self.work = work
        self.tree = tree
        self.spared = [0] * len(work.held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.open and not self._gate.closed:
            self.rollback()

    def __len__(self) -> int:
        return len(self.tree)

    def __bool__(self) -> bool:
        return True  # one without drafts yet is a stage, too

    @property
    def open(self) -> bool:
        """Whether it is neither accepted nor rolled back."""
        return self._stages.holds(self)

    # ------------------------------------------------------------ growing
    def add(
        self,
        parent: int,
        tokens: object,
        annotations: Mapping[str, Sequence[object]] | None = None,
        *,
        states: bool = False,
    ) -> list[int]:
        """Adds a chain of drafts behind a draft or ROOT; their numbers.

        ``annotations``: values by key, one for each token. ``states``: a slot for the state behind
        each of them. Raises ``CapacityError``, all groups or none; ``ValueError``, ``TypeError``;
        ``RequestError`` once closed. A branch that begins inside a block copies what the block
        holds so far. Cost: the drafts and those copies.
        """
        run = storable(tokens)
        if not len(run):
            raise ValueError("tokens: no drafts, expected at least one token")
        notes = {key: list(values) for key, values in (annotations or {}).items()}
        for key, values in notes.items():
            if len(values) != len(run):
                raise ValueError(
                    f"annotations[{key!r}]: {len(values)} values, expected one for each of "
                    f"{len(run)} tokens"
                )
        with self._gate:
            self._live("add")
            where = self.tree.node("parent", parent, root=True)
            growth = self.tree.plan(where, len(run), states=states)
            self._stages.grow(self, growth)
            drafts = self.tree.add(where, run.tolist(), growth)
            self._stages.count(len(run))
            for key, values in notes.items():
                for draft, value in zip(drafts, values, strict=True):
                    self.tree.annotate(draft, key, value)
        return drafts

    # ------------------------------------------------------------ looking
    @property
    def parents(self) -> Slots:
        """The draft that each follows, int32, or ROOT. A copy, as are all of these."""
        return self.tree.parents

    @property
    def tokens(self) -> Tokens:
        """The token of each draft, int32."""
        return self.tree.tokens

    @property
    def positions(self) -> Slots:
        """The position of each draft in the request, int32: its tokens and those followed."""
        return self.tree.positions

    def mask(self) -> Mask:
        """(n, n): whether draft i sees draft j, itself and those that it follows; all of them see
        every token of the request.
        """
        return self.tree.mask()

    def slots(self, group: int = 0) -> Slots:
        """The slot that holds each draft's entry, int32, at its position modulo the tokens of a
        block.
        """
        self._live("slots")
        return self.tree.slots(group)

    def states(self, group: int = 0) -> Slots:
        """The slot for the state behind each draft, int32; -1 where none was asked for."""
        self._live("states")
        return self.tree.states(group)

    def copies(self, group: int = 0) -> Pairs:
        """Blocks that ``add`` copied inside the tier, sources and targets, in this order."""
        self._live("copies")
        return self.tree.copies(group)

    def writes(self, group: int = 0) -> Pairs:
        """Drafts and slots, ascending: every place that an entry which is computed now has.

        Branches that share a block have it once each, so that accepting one copies nothing; a
        draft behind which they part has its entry in each. Numbers below 0 are tokens of the
        request that are not computed, -1 the last: they go there beside their own slots.
        """
        self._live("writes")
        return self.tree.writes(group)

    # ------------------------------------------------------------ beside a draft
    def annotate(self, draft: int, key: str, value: object) -> None:
        """Puts a value beside a draft or ROOT, once: all who look share it."""
        self.tree.annotate(draft, key, value)

    def annotation(self, draft: int, key: str) -> object:
        """The value beside a draft or ROOT, also when the stage is closed. ``ValueError`` where
        there is none.
        """
        return self.tree.annotation(draft, key)

    # ------------------------------------------------------------ the end
    def accept(
        self, path: Sequence[object], bonus: int | None = None, *, fence: Fence = None
    ) -> Tokens:
        """Makes the drafts of a path tokens of the request, and ``bonus`` behind them, which the
        model sampled and nobody computed; the tokens that were added. The stage is closed.

        ``path``: drafts from a child of ROOT downwards, each following the one before; none at
        all is a path. Its slots become the request's; until ``fence`` passes, what they replace
        and what was not accepted is given to nobody. The running states become those of the last
        draft, if it has slots for them; else they stay, for the engine to bring forward. Then tell
        ``computed`` as always: the path is, the bonus is not. Nothing is copied.

        Raises, and changes nothing: ``ValueError`` for what is no path; ``CapacityError`` or
        ``NeverFitsError`` where no page is left for the bonus; ``RequestError`` once closed.
        """
        more = storable([] if bonus is None else [bonus])
        free = as_fence("fence", fence)
        with self._gate:
            self._live("accept")
            drafts = self.tree.check_path(path)
            tokens = np.concatenate((self.tree.tokens[drafts], more)).astype(np.int32)
            self._stages.accept(self, drafts, tokens, free)
        return tokens

    def rollback(self, fence: Fence = None) -> None:
        """Gives every slot back once ``fence`` passes; no token is added. The stage is closed."""
        free = as_fence("fence", fence)
        with self._gate:
            self._live("rollback")
            self._stages.end(self, free)

    def _live(self, what: str) -> None:
        if not self.open:
            raise RequestError(f"{what}: the stage of request {self.work.number} is closed")


def _ground(held: Held) -> Ground:
    """What the request has in one group from the block of its next token on."""
    if held.rule.per_position:
        return Ground(0, {})
    return Ground(held.rule.grid_tokens, Ahead(held.slots, held.own, held.rule.block_pages))


def _has_tail(held: Held, work: Work) -> bool:
    """Whether the last token has its slot, if something is still to be written there."""
    size = held.rule.grid_tokens
    block = (work.count - 1) // size
    done = work.told == work.count and work.count % size == 0
    return done or bool(held.slots[(block + 1) * held.rule.block_pages - 1] != NO_SLOT)
