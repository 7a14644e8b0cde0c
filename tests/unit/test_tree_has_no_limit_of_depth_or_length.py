"""Deep chains, long prompts, many leaves: no recursion, one entry a page, no scan (C111-C113)."""

from __future__ import annotations

import numpy as np

from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)
DEPTH = 20_000


def test_chain_of_twenty_thousand_nodes_can_be_used_and_taken_down() -> None:
    """C111 (sglang#3029): recursion in match, collect, size and print overflowed on deep trees."""
    tree = TreeCore(4, groups=1, tiers=1)
    root = tree.root()
    prompt = np.arange(DEPTH, dtype=np.int32)
    leases, end = [], Cursor(root, root, 0)
    for depth in range(DEPTH):
        lease, node, pages = tree.lease(end)
        leases.append(lease)
        at = tree.insert(
            Cursor(root, node, pages), prompt[depth : depth + 1], COLUMN, prompt[depth : depth + 1]
        )
        end = Cursor(root, at.node, at.pages)
    assert tree.stats().nodes == DEPTH + 1
    tree.check()
    found = tree.match(root, prompt, 0)
    assert found.hit_pages == DEPTH
    assert tree.match_many([root] * 3, [prompt] * 3, 0) == [found] * 3
    assert len(tree.nodes(root)) == DEPTH + 1
    assert tree.slots(end, 0, 0, DEPTH).tolist() == prompt.tolist()
    assert repr(tree)
    victims = np.empty(DEPTH, np.int32)
    assert tree.evict(0, victims) == 1
    for lease in leases[::2] + leases[1::2]:
        tree.release(lease)
    tree.check()
    assert tree.evict(0, victims) == DEPTH - 1
    assert victims[: DEPTH - 1].tolist() == prompt[DEPTH - 2 :: -1].tolist()
    assert tree.stats().nodes == 1
    del tree


def test_prompt_of_a_million_tokens_takes_an_entry_a_page() -> None:
    """C113 (dynamo#12108): a slot was kept for each token. Here at most 6 bytes a token in all."""
    tree = TreeCore(64, groups=1, tiers=1)
    root = tree.root(bytes(16))
    tokens = (np.arange(1 << 20) * 48271 % 50_000).astype(np.int32)
    slots = np.arange(1 << 16, dtype=np.int32)
    result = tree.insert(Cursor(root, root, 0), tokens, COLUMN, slots)
    assert (result.pages, result.created) == (1 << 16, 1 << 16)
    stats = tree.stats()
    assert (stats.nodes, stats.pages) == (2, 1 << 16)
    assert stats.bytes <= 6 * len(tokens)
    assert tree.match(root, tokens).hit_pages == (1 << 16) - 1
    changed = tokens.copy()
    changed[777_777] += 1
    found = tree.match(root, changed)
    assert found.hit_pages == 777_777 // 16
    lease, _, _ = tree.lease(Cursor(root, found.node, found.hit_pages))
    victims = np.empty(1 << 16, np.int32)
    gone = tree.evict(0, victims)
    assert gone == (1 << 16) - 777_777 // 16
    tree.release(lease)
    tree.check()


def test_prompt_that_grows_page_by_page_stays_within_twice_its_size() -> None:
    tree = TreeCore(64, groups=1, tiers=1, keep_keys=False)
    root = tree.root()
    lease, node, pages = tree.lease(Cursor(root, root, 0))
    chunk = np.zeros(16, np.int32)
    for number in range(4096):
        chunk[0] = number
        slot = np.array([number], np.int32)
        end = tree.insert(Cursor(root, node, pages), chunk, COLUMN, slot, None, lease)
        node, pages = end.node, end.pages
    stats = tree.stats()
    assert (stats.nodes, stats.pages) == (2, 4096)
    assert stats.bytes <= 2 * 4096 * (64 + 4) + 8192
    tree.release(lease)
    tree.check()


def test_ten_thousand_leaves_go_one_by_one_in_their_order() -> None:
    """C112 (sglang#14339): every eviction walked the whole tree for its leaves."""
    tree = TreeCore(4, groups=1, tiers=1)
    root = tree.root()
    for token in range(10_000):
        number = np.array([token % 100, token], np.int32)
        tree.insert(Cursor(root, root, 0), number, COLUMN, number)
    tree.check()
    victim = np.empty(1, np.int32)
    for token in range(1000):
        assert tree.evict(0, victim) == 1
        assert victim[0] == token
    tree.check()


def test_parent_goes_after_its_last_child_in_the_same_call() -> None:
    """C77 (sglang#5499): a parent never became a candidate once its child had gone."""
    tree = TreeCore(4, groups=1, tiers=1)
    root = tree.root()
    for tokens in ([1], [1, 2], [1, 2, 3]):
        run = np.array(tokens, np.int32)
        lease, _, _ = tree.lease(Cursor(root, tree.match(root, run, 0).node, len(run) - 1))
        tree.insert(Cursor(root, root, 0), run, COLUMN, run)
        tree.release(lease)
    assert tree.stats().nodes == 4
    victims = np.empty(2, np.int32)
    assert tree.evict(0, victims) == 2
    assert victims.tolist() == [3, 2]
    assert tree.evict(0, victims) == 1
    tree.check()
