"""What a match reports: whole pages, one token left to compute, and nothing behind a gap (I34)."""

from __future__ import annotations

import numpy as np
import pytest

from radix._native import lib
from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)


def cached(tokens: int, page_tokens: int) -> tuple[TreeCore, int]:
    """A tree that holds a prompt of ascending tokens."""
    tree = TreeCore(4 * page_tokens, groups=1, tiers=1)
    root = tree.root()
    prompt = np.arange(tokens, dtype=np.int32)
    slots = np.arange(tokens // page_tokens, dtype=np.int32)
    tree.insert(Cursor(root, root, 0), prompt, COLUMN, slots)
    return tree, root


@pytest.mark.parametrize(
    ("page_tokens", "held", "asked", "hit_tokens"),
    [
        (4, 8, 8, 4),
        (4, 8, 9, 8),
        (4, 4, 4, 0),
        (4, 4, 5, 4),
        (4, 8, 1, 0),
        (4, 8, 0, 0),
        (4, 8, 12, 8),
        (1, 3, 3, 2),
        (128, 256, 255, 128),
        (128, 256, 256, 128),
        (128, 256, 257, 256),
    ],
)
def test_hit_is_the_whole_pages_of_all_but_the_last_token(
    page_tokens: int, held: int, asked: int, hit_tokens: int
) -> None:
    """C18 (vllm#11186), C19 (vllm#17999), C20 (vllm#3239), C21 (sglang#27206): a prompt that is
    cached whole left nothing to compute, or was counted in blocks by one and in tokens by another.

    hit = floor((n-1)/P)*P, bounded by what is cached; what stands in the tree is told beside it.
    """
    tree, root = cached(held, page_tokens)
    before = tree.stats()
    for _ in range(2):
        found = tree.match(root, np.arange(asked, dtype=np.int32))
        assert found.hit_pages * page_tokens == hit_tokens
        assert found.device_pages == found.hit_pages
        assert found.structural_pages == min(asked, held) // page_tokens
    assert tree.stats() == before


@pytest.mark.parametrize("leave", [0, 1, 2, 5, 8, 99])
def test_more_tokens_may_be_left_to_compute(leave: int) -> None:
    tree, root = cached(16, 4)
    found = tree.match(root, np.arange(16, dtype=np.int32), leave)
    assert found.limit_pages == max(0, 16 - leave) // 4
    assert found.hit_pages == found.limit_pages
    assert found.stop == lib.RDX_STOP_LIMIT


def test_gap_below_the_first_tier_ends_the_hit_until_it_is_filled() -> None:
    """C75 (sglang#27562): inner host pages went, the subtree was orphaned, the gap was a hit."""
    tree = TreeCore(4, groups=1, tiers=2)
    root = tree.root()
    prompt = np.array([1, 2, 3], np.int32)
    host = np.ones(1, np.uint32)
    end = Cursor(root, root, 0)
    for page in range(3):  # three nodes: each end is held by a sibling
        tree.insert(
            Cursor(root, root, 0), prompt[: page + 1], host, np.arange(page + 1, dtype=np.int32)
        )
        tree.insert(end, np.array([8], np.int32), host, np.array([80 + page], np.int32))
        found = tree.match(root, prompt, 0)
        end = Cursor(root, found.node, found.structural_pages)
    assert tree.drop(end, 1, 1) == 1
    tree.check(device=False)
    found = tree.match(root, prompt, 0)
    assert (found.hit_pages, found.structural_pages, found.stop) == (1, 3, lib.RDX_STOP_HOLE)
    assert tree.drop(end, 1, 1) == -1
    tree.attach(end, 1, 1, np.array([71], np.int32))
    assert tree.match(root, prompt, 0).hit_pages == 3
    assert tree.slots(end, 1, 0, 3).tolist() == [0, 71, 2]
    tree.check(device=False)


def test_hit_is_judged_over_the_union_of_readable_tiers() -> None:
    """I20: a mix of tiers serves one hit as long as no page is missing in all of them."""
    tree = TreeCore(4, groups=2, tiers=3)
    root = tree.root()
    prompt = np.arange(6, dtype=np.int32)
    slots = np.arange(6, dtype=np.int32)
    device = np.array([0, 3], np.uint32)
    end = tree.insert(Cursor(root, root, 0), prompt, device, np.array([slots, slots]))
    at = Cursor(root, end.node, end.pages)
    for column, first, count in ((1, 0, 6), (2, 2, 2), (5, 1, 3)):
        tree.attach(at, column, first, slots[:count])
    victims = np.empty(9, np.int32)
    assert tree.evict(0, victims[:3]) == 3  # group 0: device [0,3), host [0,6), disk [2,4)
    assert tree.evict(3, victims[:4]) == 4  # group 1: device [0,2), disk [1,4)
    expected = {0b001: 2, 0b011: 2, 0b111: 4, 0b101: 4, 0b010: 0, 0b100: 0}
    for mask, hit in expected.items():
        found = tree.match(root, prompt, 0, mask)
        assert found.hit_pages == hit, mask
        assert found.device_pages == (2 if mask & 1 else 0)
    tree.check()


def test_tree_without_columns_is_plain_structure() -> None:
    tree = TreeCore(4, groups=0, tiers=0)
    root = tree.root()
    none = np.empty(0, np.uint32)
    for tokens in ([1, 2, 3], [1, 2, 4]):
        tree.insert(Cursor(root, root, 0), np.array(tokens, np.int32), none, np.empty(0, np.int32))
    found = tree.match(root, np.array([1, 2, 4, 5], np.int32), 0)
    assert (found.structural_pages, found.hit_pages) == (3, 3)
    tree.touch(Cursor(root, found.node, 1))
    lease, _, _ = tree.lease(Cursor(root, found.node, 3))
    tree.release(lease)
    tree.check()
    assert tree.stats().pages == 4
