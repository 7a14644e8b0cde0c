"""``match_many`` gives what ``match`` gives, for each prompt, on every compare path."""

from __future__ import annotations

import numpy as np
import pytest

from radix._native import lib
from radix.tree import Cursor, StaleError, TreeCore

PATHS = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> int:
    """Each compare path that this machine has, one after the other."""
    before = lib.rdx_dispatch_get()
    lib.rdx_dispatch_set(request.param)
    yield request.param
    lib.rdx_dispatch_set(before)


def world(seed: int) -> tuple[TreeCore, list[int], list[np.ndarray]]:
    """A tree of two namespaces with shared prefixes, holes and half of it evicted; prompts."""
    rng = np.random.default_rng(seed)
    tree = TreeCore(8, groups=2, tiers=2)
    roots = [tree.root(bytes([name]) * 16) for name in (1, 2)]
    trunks = [rng.integers(0, 3, 40, dtype=np.int32) for _ in range(3)]
    prompts = [
        np.concatenate([trunk[: rng.integers(0, 40)], rng.integers(0, 3, 30, dtype=np.int32)])
        for trunk in trunks
        for _ in range(20)
    ]
    columns = np.arange(4, dtype=np.uint32)
    for number, prompt in enumerate(prompts[::2]):
        pages = len(prompt) // 2
        root = roots[number % 2]
        slots = np.arange(4 * pages, dtype=np.int32).reshape(4, pages)
        tree.insert(Cursor(root, root, 0), prompt, columns, slots)
    for column, count in ((0, 150), (3, 60)):
        tree.evict(column, np.empty(count, np.int32))
    tree.check()
    return tree, roots, [*prompts, np.empty(0, np.int32), prompts[0][:1]]


@pytest.mark.parametrize("seed", range(4))
def test_match_many_equals_match_one_by_one(seed: int, path: int) -> None:
    tree, roots, prompts = world(seed)
    for leave, readable in ((0, 3), (1, 3), (5, 2), (0, 1)):
        where = [roots[number % 2] for number in range(len(prompts))]
        found = tree.match_many(where, prompts, leave, readable)
        assert found == [
            tree.match(root, prompt, leave, readable)
            for root, prompt in zip(where, prompts, strict=True)
        ]
        assert len({match.structural_pages for match in found}) > 5


def test_match_many_takes_what_match_takes() -> None:
    tree, roots, prompts = world(9)
    assert tree.match_many([], []) == []
    assert tree.match_many(roots[:1], [prompts[0].tolist()]) == [tree.match(roots[0], prompts[0])]
    with pytest.raises(ValueError, match="one a prompt"):
        tree.match_many(roots, prompts[:1])
    with pytest.raises(ValueError, match=r"prompts\[0\]\[1\] is -1"):
        tree.match_many(roots[:1], [[1, -1]])
    with pytest.raises(TypeError, match=r"prompts\[0\] must be integers"):
        tree.match_many(roots[:1], [np.zeros(4, np.float32)])
    with pytest.raises(StaleError):
        tree.match_many([12345], prompts[:1])


def test_match_many_walks_opaque_keys() -> None:
    tree = TreeCore(16, groups=1, tiers=1, check_ids=False, keep_keys=False)
    root = tree.root()
    rows = np.arange(64, dtype=np.uint8).reshape(4, 16)
    tree.insert(Cursor(root, root, 0), rows, np.zeros(1, np.uint32), np.arange(4, dtype=np.int32))
    found = tree.match_many([root, root], [rows, rows[:2]], 0)
    assert [match.hit_pages for match in found] == [4, 2]
    with pytest.raises(ValueError, match="whole pages"):
        tree.match_many([root], [rows.ravel()[:20]])
