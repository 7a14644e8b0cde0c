"""What goes first among windows and snapshots is decided by use and by what a hit could still need,
not by the moment at which a pin of a transfer ends. Each case was reduced from a run of the machine
over mixed groups (I16, I18, I20, I33).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.groups import Group
from radix.tree import Cursor, TreeCore
from tests.model import NO_SLOT
from tests.strategies import World, group_of, plain

FULL = 0
HOST_STATE = 3


class Cache:
    """A tree; slots count up, and a block is told by the name that it was given."""

    def __init__(self, page_tokens: int, *groups: Group, tiers: int = 1) -> None:
        self.page_tokens = page_tokens
        world = World(page_tokens, groups, tiers, capacity=8, keep_keys=False)
        self.tree = TreeCore(
            4 * page_tokens,
            groups=world.rules,
            page_tokens=page_tokens,
            tiers=tiers,
            keep_keys=False,
        )
        self.root = self.tree.root()
        self.names: list[str] = []

    def row(self, names: str) -> np.ndarray:
        """A slot for each letter, none for a dot."""
        slots = []
        for name in names:
            slots.append(NO_SLOT if name == "." else len(self.names))
            self.names += [] if name == "." else [name]
        return np.array(slots, np.int32)

    def tokens(self, pages: list[int]) -> np.ndarray:
        """The tokens of pages by number."""
        return np.repeat(np.array(pages, np.int32), self.page_tokens)

    def put(self, pages: list[int], *rows: str) -> Cursor:
        """Inserts from the root, a row of names for each column; the cursor of the end."""
        columns = np.arange(len(rows), dtype=np.uint32)
        slots = np.stack([self.row(row) for row in rows])
        found = self.tree.match(self.root, self.tokens(pages), 0)
        assert found.structural_pages == 0
        at = Cursor(self.root, self.root, 0)
        end = self.tree.insert(at, self.tokens(pages), columns, slots)
        self.tree.check()
        return Cursor(self.root, end.node, end.pages)

    def find(self, pages: list[int]) -> Cursor:
        """Where a run of pages ends that stands in the tree."""
        found = self.tree.match(self.root, self.tokens(pages), 0)
        assert found.structural_pages == len(pages)
        return Cursor(self.root, found.node, found.structural_pages)

    def evict(self, column: int, count: int = 99) -> str:
        """The names of what goes, in order."""
        slots = np.empty(count, np.int32)
        gone = slots[: self.tree.evict(column, slots)].tolist()
        self.tree.check()
        return "".join(self.names[slot] for slot in gone)


def snapshots() -> Cache:
    """A full group and one of snapshots, a page a token."""
    return Cache(1, *plain(1), group_of("state", 1))


@pytest.mark.parametrize("pinned", [False, True])
def test_a_snapshot_that_comes_under_a_pin_is_as_old_as_one_that_does_not(pinned: bool) -> None:
    """The fault: what came while its page was pinned had no stamp, and got the clock of the moment
    at which the pin was released without a stamp, so that the timing of a transfer decided.

    Source: the machine over mixed groups, seed 5058.
    """
    cache = snapshots()
    path = cache.put([1, 2], "xx", "..")
    cache.put([3], "x", "B")
    lease, node, pages = cache.tree.lease(path._replace(pages=1))
    at = Cursor(cache.root, node, pages)
    if not pinned:
        cache.tree.release(lease, stamp=False)
    cache.tree.attach(at, 1, 0, cache.row("A"))
    cache.put([4], "x", "C")
    if pinned:
        cache.tree.release(lease, stamp=False)
    assert cache.evict(1) == "BAC"


def test_a_snapshot_inside_an_inserted_run_is_not_older_than_what_came_before() -> None:
    """The fault: a boundary's checkpoint, inserted above the end, had no stamp: it seemed dead.

    Source: the machine over mixed groups, seed 5.
    """
    cache = snapshots()
    cache.put([1], "x", "A")
    cache.put([2, 3], "xx", "BC")
    assert cache.tree.next_victim(1)
    assert cache.evict(1) == "ABC"


def test_a_window_that_begins_at_the_root_may_be_shorter_than_its_reach() -> None:
    """The fault: with lookahead, the block at the second page was called dead where full blocks
    ended behind the first, though a hit of one page needs it.

    Source: the machine over mixed groups, seed 278.
    """
    cache = Cache(2, *plain(1), group_of("window", 2, tokens=6, lookahead=1))
    end = cache.put([1, 2, 3], "x..", ".A.")
    assert cache.tree.joint(end, 3)[0] == 1
    assert cache.tree.next_victim(1) != 0


def test_a_window_over_nothing_asks_for_no_page_further_down() -> None:
    """The fault: a window of one token with lookahead cut every hit by its lookahead.

    Source: the brute force over random residencies, seed 16.
    """
    cache = Cache(1, *plain(1), group_of("window", 1, tokens=1, lookahead=1))
    end = cache.put([1, 2], "xx", "..")
    assert cache.tree.joint(end, 2)[0] == 2


def test_a_window_goes_from_its_first_page() -> None:
    cache = Cache(1, *plain(1), group_of("window", 1, tokens=4))
    end = cache.put([1, 2, 3, 4], "xxxx", ".ABC")
    cache.put([5, 6], "xx", "DE")
    cache.tree.touch(end)
    assert cache.evict(1, 1) == "D"
    assert cache.evict(1, 9) == "EABC"


def test_a_window_without_full_blocks_below_goes_first() -> None:
    cache = Cache(1, *plain(1), group_of("window", 1, tokens=2))
    cache.put([1, 2], "xx", "AB")
    cache.put([3, 4], "..", "CD")
    assert cache.tree.next_victim(1) == 0
    assert cache.evict(1) == "CDAB"


def test_a_full_leaf_without_a_snapshot_goes_first() -> None:
    cache = snapshots()
    cache.put([1, 2], "ab", ".S")
    cache.put([3, 4], "cd", "..")
    assert cache.tree.next_victim(FULL) == 0
    assert cache.evict(FULL) == "dcba"


def test_a_full_leaf_whose_children_lie_in_another_tier_is_alive() -> None:
    """The fault: only the leaf's own tier was asked for blocks below it, so the device's copy of a
    prefix went before everything else once what follows it had moved to the host.

    Source: the machine over mixed groups, seed 3.
    """
    cache = Cache(1, *plain(1), group_of("state", 1), tiers=2)
    cache.put([1, 2], "ab", "ab", "..", "..")
    cache.put([3], "c", ".", "S", ".")
    end = cache.find([1, 2])
    cache.tree.attach(end, HOST_STATE, 1, cache.row("T"))
    cache.tree.touch(end._replace(pages=1))
    assert cache.evict(FULL, 1) == "b"
    assert cache.tree.joint(cache.find([1, 2]), 2)[0] == 2
    assert cache.tree.next_victim(FULL) != 0


def test_a_block_that_looks_ahead_is_alive_for_the_length_above_it() -> None:
    """The fault: a full group's block with lookahead stands a page further down than the length
    that needs it; on an edge without a snapshot it was called dead, and the checkpoint at the end
    of the edge above was lost with it.

    Source: the machine over mixed groups, seed 25.
    """
    cache = Cache(1, group_of("full", 1, lookahead=1), group_of("state", 1))
    end = cache.put([1, 2], ".a", "S.")
    assert cache.tree.joint(end, 2)[0] == 1
    assert cache.tree.next_victim(FULL) != 0
