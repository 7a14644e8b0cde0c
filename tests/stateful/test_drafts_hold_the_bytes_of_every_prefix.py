"""Random rounds of drafts beside random requests, over pools of 8 to 32 blocks: whatever tree is
staged and whatever path accepted, every position of the page table holds the entry of exactly the
prefix that leads to it, in every group; what is refused leaves everything as it was; and a later
request hits nothing that was not verified.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from radix.drafts import ROOT
from radix.errors import CapacityError, NeverFitsError, RequestError
from radix.groups import Group
from radix.stages import Stage
from tests.draftrig import Drafting, Run, attention, books, build, path_to, recurrent, window

ALPHABET = 3


def groups_of(rng: random.Random, page: int) -> list[Group]:
    """One full group, and a mix of others."""
    others = [
        attention("wide", page, pages=2),
        attention("ahead", page, lookahead=1),
        window("near", page, rng.choice((1, page, page + 1))),
        window("far", page, 3 * page, extra=rng.choice((0, 4))),
        recurrent("state", rng.choice((page, 3 if page != 4 else 5, 2 * page))),
    ]
    return [attention("full", page), *rng.sample(others, rng.randint(0, 3))]


@dataclass
class Machine:
    """One seed's engine, requests and choices."""

    rng: random.Random
    rig: Drafting
    runs: list[Run] = field(default_factory=list)
    stages: dict[int, Stage] = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    step: int = 0

    def fence(self) -> int | None:
        return self.rng.choice((None, self.step + self.rng.randint(0, 2)))

    def tokens(self, low: int, high: int) -> list[int]:
        return [self.rng.randrange(ALPHABET) for _ in range(self.rng.randint(low, high))]

    # ------------------------------------------------------------ one action
    def act(self) -> None:
        rng = self.rng
        if not self.runs or (len(self.runs) < 3 and rng.random() < 0.2):
            self.admit()
            return
        run = rng.choice(self.runs)
        action = rng.choices(
            (self.draft, self.sample, self.end, self.wrong, self.evict), (60, 10, 12, 8, 10)
        )[0]
        action(run)

    def admit(self) -> None:
        past = self.rng.choice(self.texts) if self.texts else []
        prompt = [*past[: self.rng.randint(0, len(past))], *self.tokens(1, 6)]
        try:
            run = self.rig.start(
                prompt,
                self.rng.randrange(ALPHABET),
                new_tokens=self.rng.randint(0, 4),
                chunk_tokens=self.rng.choice((None, 4, 6)),
            )
        except (CapacityError, NeverFitsError):
            self.refused += 1
            return
        self.runs.append(run)

    def sample(self, run: Run) -> None:
        if run.request.id in self.stages:
            with pytest.raises(RequestError, match="has an open stage"):
                run.request.append([0])
            return
        before = books(self.rig, run)
        try:
            run.request.append(self.tokens(1, 2))
        except (CapacityError, NeverFitsError):
            assert books(self.rig, run) == before
            self.refused += 1
            return
        with suppress(CapacityError):
            self.rig.compute(run, len(run.request) - self.rng.randint(0, 1))
        self.rig.look(run, "sampled")

    def draft(self, run: Run) -> None:
        stage = self.stages.get(run.request.id)
        if stage is None:
            try:
                self.rig.prepare(run, len(run.request))
            except CapacityError:
                self.refused += 1
                return
            stage = run.request.stage()
        self.stages[run.request.id] = stage
        eager = self.rng.random() < 0.5
        for _ in range(self.rng.randint(0, 5)):
            parent = self.rng.randint(ROOT, len(stage) - 1)
            before = books(self.rig, run)
            try:
                self.rig.add(run, stage, parent, self.tokens(1, 5), eager=eager)
            except CapacityError:
                assert books(self.rig, run) == before
                self.refused += 1
        if self.rng.random() < 0.2:
            return  # it stays open while others go on
        self.close(run, stage)

    def close(self, run: Run, stage: Stage) -> None:
        rng = self.rng
        self.rig.verify(run, stage)
        if rng.random() < 0.15:
            stage.rollback(self.fence())
            del self.stages[run.request.id]
            self.rig.tell(run, len(run.request), self.fence())
        else:
            path = path_to(stage, rng.randint(ROOT, len(stage) - 1))
            path = path[: rng.randint(0, len(path))] if rng.random() < 0.3 else path
            before = books(self.rig, run)
            bonus = rng.choice((None, rng.randrange(ALPHABET)))
            try:
                self.rig.accept(run, stage, path, bonus, fence=self.fence())
            except (CapacityError, NeverFitsError):
                assert books(self.rig, run) == before, "a refused bonus left something"
                assert stage.open
                self.refused += 1
                self.rig.accept(run, stage, path, None, fence=self.fence())
            self.accepted += len(path)
            del self.stages[run.request.id]
        if run.told == len(run.request):
            with suppress(CapacityError, NeverFitsError):
                run.request.append([rng.randrange(ALPHABET)])
        self.rig.look(run, "after the round")

    def end(self, run: Run) -> None:
        self.texts.append(run.request.tokens().tolist())
        fence = self.fence()
        if self.rng.random() < 0.3:
            run.request.abort(fence=fence)
        else:
            run.request.finish(fence=fence)
        self.runs.remove(run)
        stage = self.stages.pop(run.request.id, None)
        assert stage is None or not stage.open

    def wrong(self, run: Run) -> None:
        stage = self.stages.get(run.request.id)
        if stage is None:
            return
        before, size = books(self.rig, run), len(stage)
        paths = [[size], [-1], [0, 0], list(range(size, size + 2))]
        if size > 1 and stage.parents[size - 1] != ROOT:
            paths.append([size - 1])
        for path in paths:
            with pytest.raises(ValueError, match="path"):
                stage.accept(path, 1)
        with pytest.raises(ValueError, match="parent"):
            stage.add(size, [1])
        with pytest.raises(ValueError, match="tokens"):
            stage.add(ROOT, [])
        with pytest.raises(ValueError, match="annotations"):
            stage.add(ROOT, [1], {"mask": [1, 2]})
        assert books(self.rig, run) == before
        assert len(stage) == size

    def evict(self, run: Run) -> None:
        cache = self.rig.cache
        cache.evict(self.rng.randrange(len(cache.groups)), self.rng.randint(1, 8))
        self.step += 1
        cache.passed(self.step)
        cache.poll()

    def finish_all(self) -> None:
        for run in list(self.runs):
            self.end(run)
        self.rig.cache.passed(self.step + 9)
        self.rig.settle()
        cache = self.rig.cache
        for group, used in enumerate(cache.usage()["device"].used_blocks):
            kept = cache.tree.column_stats(cache.tree.column(group, 0)).resident
            assert used == kept, "a slot of some draft was never given back"
        counters = cache.counters()
        assert counters.get("draft.accepted", 0) == self.accepted
        assert counters.get("draft.accepted", 0) <= counters.get("draft.drafted", 0)


def play(seed: int, actions: int = 60) -> Machine:
    """Everything that one seed decides."""
    rng = random.Random(seed)
    page = rng.choice((1, 2, 4))
    groups = groups_of(rng, page)
    blocks = [rng.randint(8, 32) for _ in groups]
    machine = Machine(rng, build(groups, page, blocks, below=rng.choice((0, 0, 64))))
    try:
        for _ in range(actions):
            machine.act()
            machine.rig.cache.check()
        machine.finish_all()
    except BaseException as error:
        names = [group.name for group in groups]
        error.add_note(f"seed {seed}: page {page}, groups {names}, blocks {blocks}")
        raise
    finally:
        machine.rig.cache.close()
    return machine


@pytest.mark.parametrize("start", range(4))
def test_accepted_paths_hold_the_bytes_of_their_prefixes(start: int) -> None:
    accepted = refused = 0
    for seed in range(start * 15, start * 15 + 15):
        machine = play(seed)
        accepted += machine.accepted
        refused += machine.refused
    assert accepted > 100
    assert refused > 10, "pools so large that nothing was short"


@pytest.mark.long
def test_accepted_paths_hold_the_bytes_of_their_prefixes_for_many_seeds() -> None:
    for seed in range(1000, 2000):
        play(seed)
