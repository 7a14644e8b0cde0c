"""The joint hit over groups of every kind is the greatest length that is valid for all of them at
once, over the union of readable tiers: the tree's answer against an enumeration of all lengths, on
residencies that no engine would ever make (I26, I28, C36, C41, C42).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.tree import NO_SLOT, Cursor, TreeCore
from tests.model import Model, Path, prefixes
from tests.strategies import World, pages, random_world, tokens

ROOT = b"r" * 16


class Residency:
    """One tree with random blocks on a few paths that share prefixes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world: World = random_world(rng, mixed=True)
        self.model = Model(self.world.rules, self.world.tiers)
        self.tree = TreeCore(
            self.world.page_tokens * 4,
            groups=self.world.rules,
            page_tokens=self.world.page_tokens,
            tiers=self.world.tiers,
        )
        self.root = self.tree.root(ROOT)
        self.paths: list[Path] = []
        self.given = 0
        for _ in range(rng.randrange(1, 4)):
            self.grow()

    def offered(self, column: int, first: int, count: int, density: float) -> np.ndarray:
        """Random slots where blocks of the column can stand."""
        slots = np.full(count, NO_SLOT, np.int32)
        for k in range(count):
            if self.model.has_place(column, first + k) and self.rng.random() < density:
                self.given += 1
                slots[k] = self.given
        return slots

    def grow(self) -> None:
        """A path is held by a lease, then every column gets blocks with another density."""
        rng = self.rng
        numbers = [rng.randrange(3) for _ in range(rng.randrange(1, 13))]
        if self.paths and rng.random() < 0.6:
            old = rng.choice(self.paths)
            path = (*old[: rng.randrange(1, len(old) + 1)], *pages(numbers, self.size))
        else:
            path = ("r", *pages(numbers, self.size))
        lease, _, _ = self.tree.lease(Cursor(self.root, self.root, 0))
        start = self.tree.lease_end(self.root, lease)
        columns = np.zeros(0, np.uint32)
        nothing = np.zeros((0, len(path) - 1), np.int32)
        end = self.tree.insert(start, tokens(path[1:]), columns, nothing, None, lease)
        cursor = Cursor(self.root, end.node, end.pages)
        for column in range(self.model.groups * self.world.tiers):
            self.fill(cursor, path, column)
        self.paths.append(path)

    @property
    def size(self) -> int:
        """Tokens a page."""
        return self.world.page_tokens

    def fill(self, cursor: Cursor, path: Path, column: int) -> None:
        """Blocks in runs, so that long hits are there to be found."""
        density = self.rng.choice((0.0, 0.6, 0.9, 1.0))
        first = self.rng.choice((0, 0, 0, self.rng.randrange(len(path))))
        first = min(first, len(path) - 1)
        slots = self.offered(column, first, len(path) - 1 - first, density)
        got = self.tree.attach(cursor, column, first, slots)
        for k, slot in enumerate(got.tolist()):
            if slot != NO_SLOT:
                self.model.place(path[: first + k + 2], column, slot)

    def compare(self) -> int:
        """Every path, cut anywhere, under some limit and set of tiers; the sum of hits."""
        total = 0
        for path in self.paths:
            end = self.tree.match(self.root, tokens(path[1:]), 0)
            assert end.structural_pages == len(path) - 1
            every = range(1 << self.world.tiers)
            for mask in self.rng.sample(every, min(3, len(every))):
                tiers = [tier for tier in range(self.world.tiers) if mask >> tier & 1]
                cut = self.rng.randrange(len(path))
                limit = self.rng.randrange(len(path) + 1)
                total += self.one(Cursor(self.root, end.node, cut), path[: cut + 1], limit, tiers)
                whole = Cursor(self.root, end.node, len(path) - 1)
                total += self.one(whole, path, len(path) - 1, tiers)
        return total

    def one(self, cursor: Cursor, path: Path, limit: int, tiers: list[int]) -> int:
        """One question, asked both ways."""
        mask = sum(1 << tier for tier in tiers)
        expected = self.model.joint(path, limit, tiers)
        pages, stop = self.tree.joint(cursor, limit, mask)
        assert pages == expected, (path, limit, tiers, self.residents(path))
        assert stop in self.model.stops(path, limit, tiers)
        leave = max(0, len(path) - 1 - limit) * self.size
        found = self.tree.match(self.root, tokens(path[1:]), leave, mask)
        standing = min(limit, len(path) - 1)
        assert found.hit_pages == self.model.joint(path, standing, tiers)
        return expected

    def residents(self, path: Path) -> dict[int, list[int]]:
        """What stands where on a path, for the message of a failure."""
        return {
            column: [
                page
                for page, place in enumerate(prefixes(path))
                if self.model.slot(place, column) != NO_SLOT
            ]
            for column in range(self.model.groups * self.world.tiers)
        }


def compare_some(seeds: range) -> None:
    """Each seed is one residency; the message of a failure names it."""
    hits = 0
    for seed in seeds:
        residency = Residency(random.Random(seed))
        try:
            hits += residency.compare()
            residency.tree.check(device=False)
        except Exception as error:
            names = [group.name for group in residency.world.groups]
            error.add_note(f"seed {seed}, {names}, page {residency.size}")
            raise
    assert hits > len(seeds), "the residencies have next to no hits: they show nothing"


@pytest.mark.parametrize("part", range(3))
def test_the_joint_hit_is_the_greatest_length_valid_for_all_groups(part: int) -> None:
    compare_some(range(1000 * part, 1000 * part + 1000))


@pytest.mark.long
@pytest.mark.parametrize("part", range(3, 100))
def test_the_joint_hit_is_the_greatest_length_valid_for_all_groups_for_long(part: int) -> None:
    compare_some(range(1000 * part, 1000 * part + 1000))
