"""An array of numpy is read where it lies, without asking it for a buffer; whatever else holds
numbers is asked. Both ways give the same answers, and refuse the same.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex, cast

import numpy as np
import numpy.typing as npt
import pytest

from radix._native import (
    know_array,
    lib,
    tree_evict,
    tree_insert,
    tree_match,
    tree_match_many,
)
from radix.plan import Cursor
from radix.steps import MATCHES
from radix.tree import TreeCore
from radix.treeparts import READ_IN_PLACE

PATHS = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]
Tokens = npt.NDArray[np.int32]


@pytest.fixture(params=PATHS)
def every_path(request: pytest.FixtureRequest) -> Iterator[None]:
    before = lib.rdx_dispatch_get()
    lib.rdx_dispatch_set(request.param)
    yield
    lib.rdx_dispatch_set(before)


@pytest.fixture
def tree() -> TreeCore:
    return TreeCore(4, groups=1, tiers=1, keep_keys=False)


@pytest.fixture
def root(tree: TreeCore) -> int:
    root = tree.root()
    slots = np.arange(100, 150, dtype=np.int32)
    tree.insert(Cursor(root, root, 0), _tokens(50), np.zeros(1, np.uint32), slots)
    return root


def _tokens(count: int) -> Tokens:
    return np.arange(count, dtype=np.int32)


def test_this_numpy_lays_arrays_out_as_believed() -> None:
    assert READ_IN_PLACE
    assert not know_array(np.zeros((2, 3), np.uint16))  # the places are taken
    assert not know_array(np.zeros((3, 2), np.int32))
    assert not know_array(array.array("i", range(6)))


READERS: Sequence[Callable[[Tokens], object]] = (
    lambda tokens: tokens,
    lambda tokens: tokens[:],
    lambda tokens: memoryview(tokens),
    lambda tokens: array.array("i", tokens.tolist()),
    lambda tokens: np.frombuffer(tokens.tobytes(), np.int32),  # not to be written to
    lambda tokens: tokens.astype("<i4"),
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("count", [0, 1, 49, 50, 51])
def test_all_that_holds_tokens_matches_alike(
    tree: TreeCore, root: int, reader: Callable[[Tokens], object], count: int
) -> None:
    found = tree.match(root, reader(_tokens(count)), 0)
    assert found.hit_pages == found.structural_pages == min(count, 50)
    assert found.limit_pages == count


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (np.arange(100, dtype=np.int32)[::2], ValueError),
        (np.arange(50, dtype=np.int64), TypeError),
        (np.arange(50, dtype=np.uint32), TypeError),
        (np.arange(50, dtype=np.float32), TypeError),
        (np.arange(50, dtype=">i4"), TypeError),
        (np.zeros((5, 10), np.int32), ValueError),
        (np.zeros((), np.int32), ValueError),
        (list(range(50)), TypeError),
    ],
)
def test_what_holds_no_tokens_is_refused(
    tree: TreeCore, root: int, given: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tree.match(root, given, 0)


def test_nothing_is_written_where_it_may_not_be(tree: TreeCore, root: int) -> None:
    shut = np.zeros(50, np.int32)
    shut.flags.writeable = False
    for given in (shut, np.zeros(100, np.int32)[::2], np.zeros(50, np.int64)):
        before = given.copy()
        with pytest.raises((BufferError, TypeError, ValueError)):
            tree.evict(0, given)
        assert (given == before).all()
    assert tree.evict(0, np.zeros((5, 10), np.int32)[:, 0].copy()) == 5


class _Making(Sequence[Tokens]):
    """Prompts that nobody else holds: each is made when it is asked for."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: object) -> Tokens:
        assert isinstance(at, int)
        if at >= 40:
            raise IndexError(at)
        return _tokens(at + 20).copy()


def test_prompts_of_a_batch_live_as_long_as_it_runs(tree: TreeCore, root: int) -> None:
    found = np.zeros(40, MATCHES)
    tree_match_many(tree.capsule, _Making(), np.full(40, root, np.uint64), 0, 1, found)
    assert [each[1] for each in _hits(found)] == [min(at + 20, 50) for at in range(40)]


def _hits(found: npt.NDArray[np.void]) -> list[tuple[int, int]]:
    return [(int(row["device_pages"]), int(row["hit_pages"])) for row in found]


class _Moving:
    """A number that cuts an array short when it is asked for."""

    def __init__(self, array: npt.NDArray[np.generic], kept: int) -> None:
        self._array, self._kept = array, kept

    def __index__(self) -> int:
        self._array.resize(self._kept, refcheck=False)
        return 0


def _moving(array: npt.NDArray[np.generic], kept: int) -> int:
    return cast(int, cast(SupportsIndex, _Moving(array, kept)))


def test_what_another_argument_moves_is_read_where_it_lies_then(tree: TreeCore, root: int) -> None:
    tokens = _tokens(50)
    found = tree_match(tree.capsule, root, tokens, _moving(tokens, 7), 1)
    assert (found.hit_pages, found.limit_pages) == (7, 7)
    batch, found_rows = [_tokens(50), _tokens(50)], np.zeros(2, MATCHES)
    spaces = np.full(2, root, np.uint64)
    tree_match_many(tree.capsule, batch, spaces, _moving(batch[0], 9), 1, found_rows)
    assert [each[1] for each in _hits(found_rows)] == [9, 50]
    cut = np.full(2, root, np.uint64)
    with pytest.raises(ValueError, match="room"):
        tree_match_many(tree.capsule, batch, cut, _moving(cut, 1), 1, found_rows)


def test_what_another_argument_moves_is_written_where_it_lies_then(
    tree: TreeCore, root: int
) -> None:
    column, slots, kept = (
        np.zeros(1, np.uint32),
        np.arange(9, dtype=np.int32),
        np.zeros(9, np.int32),
    )
    at, more = (root, root, 0), np.arange(1000, 1009, dtype=np.int32)
    with pytest.raises(ValueError, match="room"):
        tree_insert(tree.capsule, at, more, column, slots, kept, _moving(kept, 3))
    assert tree.match(root, more, 0).hit_pages == 0
    assert tree_evict(tree.capsule, 0, 5, 2**64 - 1, slots, None) == 5
    tree.check()


class _MovingTheFirst(Sequence[Tokens]):
    """Prompts of which the first is cut short when the next one is asked for."""

    def __init__(self) -> None:
        self._prompts = [_tokens(50), _tokens(50)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: object) -> Tokens:
        assert isinstance(at, int)
        if at == 1:
            self._prompts[0].resize(7, refcheck=False)
        return self._prompts[at]


def test_a_prompt_that_the_next_one_moves_is_read_where_it_lies_then(
    tree: TreeCore, root: int
) -> None:
    found = np.zeros(2, MATCHES)
    tree_match_many(tree.capsule, _MovingTheFirst(), np.full(2, root, np.uint64), 0, 1, found)
    assert [each[1] for each in _hits(found)] == [7, 50]


def test_answers_hash_as_the_tuples_that_they_equal(tree: TreeCore, root: int) -> None:
    found = tree.match(root, _tokens(20), 0)
    made = tree.insert(Cursor(root, root, 0), _tokens(3), np.zeros(1, np.uint32), _tokens(3))
    for answer in (found, made):
        assert hash(answer) == hash(tuple(answer))
        assert answer in {tuple(answer)}


@pytest.mark.usefixtures("every_path")
@pytest.mark.parametrize("count", [1, 7, 31, 32, 33, 63, 64, 100, 1000, 2049])
def test_slots_of_victims_come_last_first(count: int) -> None:
    """Whole lines of both halves are turned round at once; each page's slot stands in its place."""
    tree = TreeCore(4, groups=1, tiers=1, keep_keys=False)
    root = tree.root()
    for first in (0, 5000, 10000):
        slots = np.arange(first, first + count, dtype=np.int32)
        tokens = np.arange(first, first + count, dtype=np.int32)
        tree.insert(Cursor(root, root, 0), tokens, np.zeros(1, np.uint32), slots)
    gone = np.full(3 * count + 1, -7, np.int32)
    cut = count // 3
    assert tree.evict(0, gone[:cut]) == cut
    assert tree.evict(0, gone[cut:]) == 3 * count - cut
    expected = [first + at for first in (0, 5000, 10000) for at in reversed(range(count))]
    assert gone.tolist() == [*expected, -7]
    tree.check()
