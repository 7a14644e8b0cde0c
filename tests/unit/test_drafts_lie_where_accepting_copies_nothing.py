"""Whatever path of a tree of drafts is accepted, its slots hold every token of its blocks already,
the request's own tokens included: nothing is left to copy. Here the structure alone, against memory
that is a dictionary.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from radix.drafts import ROOT, DraftTree, Ground
from radix.tree import NO_SLOT


@dataclass
class Memory:
    """What lies where: (slot, place) to the prefix whose entry it is. ``eager``: entries are
    written as drafts are added, else all at once when they are verified.
    """

    block_tokens: int
    base: int
    reserved: int
    eager: bool
    own: list[int] = field(default_factory=list)
    cells: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    slots: int = 100

    def __post_init__(self) -> None:
        self.prompt = tuple(range(1000, 1000 + self.base))
        pages = -(-(self.base + self.reserved) // self.block_tokens)
        self.own = [self.take() for _ in range(pages)]
        self.computed = self.base if self.eager else max(0, self.base - 2)
        first = self.base // self.block_tokens
        ground = Ground(self.block_tokens, dict(enumerate(self.own[first:], first)))
        self.tree = DraftTree(self.base, self.computed, [ground])
        self.prefixes: list[tuple[int, ...]] = []
        for position in range(self.computed):
            self.write(self.own[position // self.block_tokens], self.prompt[: position + 1])

    def take(self) -> int:
        self.slots += 1
        return self.slots

    def write(self, slot: int, prefix: tuple[int, ...]) -> None:
        self.cells[slot, (len(prefix) - 1) % self.block_tokens] = prefix

    def add(self, parent: int, tokens: list[int]) -> list[int]:
        growth = self.tree.plan(parent, len(tokens), states=False)
        taken = [self.take() for _ in range(growth.needed[0])]
        for source, target in zip(*growth.fill([np.array(taken, np.int32)])[0], strict=True):
            for place in range(self.block_tokens):
                if (source, place) in self.cells:
                    self.cells[target, place] = self.cells[source, place]
        drafts = self.tree.add(parent, tokens, growth)
        for draft, token in zip(drafts, tokens, strict=True):
            before = self.prompt if parent == ROOT else self.prefixes[parent]
            self.prefixes.append((*before, token))
            parent = draft
            if self.eager:
                self.write(int(self.tree.slots(0)[draft]), self.prefixes[draft])
        return drafts

    def verify(self) -> None:
        """What a forward writes: the request's own tokens, and every draft wherever it belongs."""
        for position in range(self.computed, self.base):
            self.write(self.own[position // self.block_tokens], self.prompt[: position + 1])
        for draft, slot in zip(*self.tree.writes(0), strict=True):
            if draft < 0:
                self.write(slot, self.prompt[: self.base + draft + 1])
            else:
                self.write(slot, self.prefixes[draft])

    def check(self, path: list[int]) -> None:
        """Every token up to the end of the path stands where the page table would say."""
        table = dict(enumerate(self.own)) | self.tree.kept(0, path)
        whole = self.prefixes[path[-1]] if path else self.prompt
        for position in range(len(whole)):
            slot = table[position // self.block_tokens]
            found = self.cells.get((slot, position % self.block_tokens))
            assert found == whole[: position + 1], f"position {position} of path {path}"


def path_to(tree: DraftTree, draft: int) -> list[int]:
    path = []
    while draft != ROOT:
        path.append(draft)
        draft = int(tree.parents[draft])
    return path[::-1]


def grown(seed: int, eager: bool) -> Memory:
    rng = random.Random(seed)
    memory = Memory(rng.choice((1, 2, 4, 8)), rng.randint(1, 13), rng.randint(0, 9), eager)
    for _ in range(rng.randint(1, 8)):
        parent = rng.randint(ROOT, len(memory.tree) - 1)
        memory.add(parent, [rng.randint(0, 2) for _ in range(rng.randint(1, 6))])
    return memory


@pytest.mark.parametrize("eager", [True, False])
def test_every_path_is_whole_whether_drafts_write_at_once_or_at_verification(eager: bool) -> None:
    for seed in range(400):
        memory = grown(seed, eager)
        if not eager:
            memory.verify()
        for draft in range(ROOT, len(memory.tree)):
            try:
                memory.check(path_to(memory.tree, draft))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from None


def test_verification_after_drafts_wrote_leaves_every_path_whole() -> None:
    for seed in range(200):
        memory = grown(seed, eager=True)
        memory.verify()
        for draft in range(len(memory.tree)):
            memory.check(path_to(memory.tree, draft))


def test_no_slot_holds_two_branches_at_one_place() -> None:
    for seed in range(200):
        tree = (memory := grown(seed, eager=False)).tree
        places = {}
        for draft, slot in zip(*tree.writes(0), strict=True):
            place = (int(slot), (memory.base + draft) % memory.block_tokens)
            if draft >= 0:
                place = (int(slot), int(tree.positions[draft]) % memory.block_tokens)
            assert places.setdefault(place, draft) == draft, f"seed {seed}: {place}"
        taken = tree.taken(0)
        assert len(set(taken)) == len(taken), f"seed {seed}: a slot was taken twice"


def test_first_branch_goes_on_in_the_tail_page_and_in_reserved_pages() -> None:
    memory = Memory(block_tokens=4, base=6, reserved=6, eager=False)
    memory.add(ROOT, [1] * 6)
    assert memory.tree.slots(0).tolist() == [memory.own[1]] * 2 + [memory.own[2]] * 4
    assert memory.tree.taken(0) == []
    assert len(memory.tree.copies(0)[0]) == 0


def test_branch_that_begins_inside_a_block_copies_it_and_one_that_begins_with_it_does_not() -> None:
    memory = Memory(block_tokens=4, base=6, reserved=0, eager=False)
    memory.add(ROOT, [1, 1])  # to the end of the tail page
    inside = memory.add(0, [2])
    begins = memory.add(1, [3])
    again = memory.add(1, [4])
    sources, targets = memory.tree.copies(0)
    assert sources.tolist() == [memory.own[1]]
    slots = memory.tree.slots(0)
    assert targets.tolist() == [slots[inside[0]]]
    assert len({*slots[begins].tolist(), *slots[again].tolist(), *memory.own}) == 4


def test_branch_off_the_last_token_inside_a_block_copies_the_tail_page() -> None:
    memory = Memory(block_tokens=4, base=6, reserved=0, eager=False)
    first, second = memory.add(ROOT, [1]), memory.add(ROOT, [2])
    assert memory.tree.copies(0)[0].tolist() == [memory.own[1]]
    assert memory.tree.slots(0)[first].tolist() == [memory.own[1]]
    drafts, slots = memory.tree.writes(0)
    fork = int(memory.tree.slots(0)[second[0]])
    assert [int(d) for d, s in zip(drafts, slots, strict=True) if s == fork] == [-2, -1, 1]


def test_blocks_of_one_token_are_never_copied() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        memory = Memory(1, rng.randint(1, 5), rng.randint(0, 4), eager=False)
        for _ in range(6):
            memory.add(rng.randint(ROOT, len(memory.tree) - 1), [1] * rng.randint(1, 4))
        assert len(memory.tree.copies(0)[0]) == 0, f"seed {seed}"
        drafts, slots = memory.tree.writes(0)
        assert drafts.tolist() == list(range(len(memory.tree))), f"seed {seed}"
        assert slots.tolist() == memory.tree.slots(0).tolist(), f"seed {seed}"


def test_planning_changes_nothing() -> None:
    for seed in range(100):
        memory = grown(seed, eager=False)
        before = [memory.tree.slots(0).tolist(), memory.tree.taken(0), len(memory.tree)]
        for parent in range(ROOT, len(memory.tree)):
            memory.tree.plan(parent, 5, states=True)
        after = [memory.tree.slots(0).tolist(), memory.tree.taken(0), len(memory.tree)]
        assert before == after, f"seed {seed}"


def test_links_positions_and_mask_name_what_each_draft_follows() -> None:
    for seed in range(100):
        tree = (memory := grown(seed, eager=False)).tree
        mask = tree.mask()
        assert mask.shape == (len(tree), len(tree))
        assert mask.dtype == np.bool_
        for draft in range(len(tree)):
            path = path_to(tree, draft)
            assert np.flatnonzero(mask[draft]).tolist() == sorted(path), f"seed {seed}"
            assert tree.positions[draft] == memory.base + len(path) - 1, f"seed {seed}"
            assert tree.tokens[draft] == memory.prefixes[draft][-1], f"seed {seed}"
        for array in (tree.parents, tree.tokens, tree.positions, tree.slots(0)):
            assert array.dtype == np.int32


def test_states_have_a_slot_a_draft_where_asked_for() -> None:
    tree = DraftTree(5, 4, [Ground(0, {}), Ground(1, {})])
    growth = tree.plan(ROOT, 2, states=True)
    assert growth.needed == (2, 2)
    growth.fill([np.array([7, 8], np.int32), np.array([1, 2], np.int32)])
    tree.add(ROOT, [1, 1], growth)
    growth = tree.plan(0, 1, states=False)
    assert growth.needed == (0, 1)
    growth.fill([np.empty(0, np.int32), np.array([3], np.int32)])
    tree.add(0, [1], growth)
    assert tree.states(0).tolist() == [7, 8, NO_SLOT]
    assert tree.taken(0) == [7, 8]
    for ask, group in ((tree.slots, 0), (tree.copies, 0), (tree.writes, 0), (tree.states, 1)):
        with pytest.raises(ValueError, match=f"group is {group}, which keeps a block a"):
            ask(group)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([1], r"path\[0\] is 1, which does not follow ROOT"),
        ([0, 2], r"path\[1\] is 2, which does not follow draft 0"),
        ([0, 1, 3], r"path\[2\] is 3, which does not follow draft 1"),
        ([0, 0], r"path\[1\] is 0, which does not follow draft 0"),
        ([3, 0], r"path\[1\] is 0, which does not follow draft 3"),
        ([4], r"path\[0\] is 4, expected one of 4 drafts"),
        ([ROOT], r"path\[0\] is -1, expected one of 4 drafts"),
    ],
)
def test_what_is_no_path_is_refused_by_name(path: list[int], words: str) -> None:
    memory = Memory(4, 6, 0, eager=False)
    memory.add(ROOT, [1, 2, 3])
    memory.add(ROOT, [4])
    with pytest.raises(ValueError, match=words):
        memory.tree.check_path(path)


@pytest.mark.parametrize("path", [["a"], [0.0], [True], 3, None, "01"])
def test_path_holds_numbers_of_drafts(path: object) -> None:
    memory = Memory(4, 6, 0, eager=False)
    memory.add(ROOT, [1, 2, 3])
    with pytest.raises(TypeError, match="path"):
        memory.tree.check_path(path)


def test_paths_are_whole_or_empty_and_numbers_of_numpy_will_do() -> None:
    memory = Memory(4, 6, 0, eager=False)
    memory.add(ROOT, [1, 2, 3])
    assert memory.tree.check_path([]) == []
    assert memory.tree.check_path(np.array([0, 1])) == [0, 1]
    assert memory.tree.check_path((0, 1, 2)) == [0, 1, 2]


def test_value_beside_a_draft_is_put_once_and_seen_by_all() -> None:
    tree = (memory := Memory(4, 6, 0, eager=False)).tree
    memory.add(ROOT, [1, 2])
    mask_index = object()
    tree.annotate(1, "grammar", mask_index)
    tree.annotate(ROOT, "grammar", 0)
    assert tree.annotation(1, "grammar") is mask_index
    assert tree.annotation(ROOT, "grammar") == 0
    with pytest.raises(ValueError, match="key is 'grammar', which draft 1 has already"):
        tree.annotate(1, "grammar", 2)
    with pytest.raises(ValueError, match=r"key is 'tool', expected one of \['grammar'\]"):
        tree.annotation(1, "tool")
    with pytest.raises(ValueError, match="draft is 2, expected ROOT or one of 2 drafts"):
        tree.annotate(2, "grammar", 1)
    assert tree.annotation(1, "grammar") is mask_index
