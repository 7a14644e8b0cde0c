"""C24 (TensorRT-LLM#17308): a fast path packed ids in [2^31, 2^32) that the slow path refused. Here
every path that stores raises the same error for the same id: lists, arrays of every width, page
keys, the fast entry, the batch and the calls of a cache, whatever its pages are.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from radix import keys
from radix.cache import PrefixCache
from radix.groups import Group
from radix.keys import TOKEN_LIMIT, as_tokens, page_keys
from radix.tree import Cursor, TreeCore
from tiers.index import IndexTier

WRONG = [-1, 1 << 31, (1 << 31) + 5, (1 << 32) - 1, 1 << 32, 1 << 63, 1 << 64, -(1 << 70)]


def fits(value: int, dtype: type[np.integer]) -> bool:
    """Whether a type can hold the value at all."""
    info = np.iinfo(dtype)
    return int(info.min) <= value <= int(info.max)


@pytest.mark.parametrize("wrong", WRONG)
def test_id_out_of_range_is_a_value_error_in_lists_and_arrays(wrong: int) -> None:
    for given in ([1, wrong, 2], (wrong,), [3, -(1 << 65), wrong]):
        with pytest.raises(ValueError, match=r"expected an id in \[0, 2\^31\)"):
            as_tokens(given)
    for dtype in (np.int64, np.uint64, np.uint32, np.int32, np.int16):
        if fits(wrong, dtype):
            with pytest.raises(ValueError, match=r"\[0, 2\^31\)"):
                page_keys(bytes(16), np.array([7, wrong], dtype), 1)


def test_every_path_that_stores_raises_the_same_class() -> None:
    tree = TreeCore(4, groups=1, tiers=1)
    root = tree.root()
    tokens = np.array([1, -1], np.int32)
    column, slots = np.zeros(1, np.uint32), np.zeros(2, np.int32)
    before = tree.stats()
    with pytest.raises(ValueError, match=r"\[0, 2\^31\)"):
        tree.insert(Cursor(root, root, 0), tokens, column, slots)
    assert tree.stats() == before
    assert tree.match(root, tokens).structural_pages == 0  # a match reads what it compares only
    with pytest.raises(ValueError, match=r"\[0, 2\^31\)"):
        tree.match_many([root], [tokens.tolist()])


@pytest.mark.parametrize("keys", ["tokens", "xxh3", "sha256"])
def test_every_call_of_a_cache_that_stores_raises_the_same_error(keys: str) -> None:
    """C24, whether a page is its tokens or a key of them: nothing is stored, nothing is held."""
    cache = PrefixCache([Group.full("kv", 64)], [IndexTier(64)], page_tokens=2, keys=keys)
    lease = cache.lease(cache.match([1])[1])
    request = cache.admit([5, 6, 7], new_tokens=8)
    before = cache.tree.stats()
    for wrong in WRONG:
        runs: list[object] = [[1, 2, 3, wrong]]
        for dtype in (np.int64, np.uint64, np.uint32, np.int32):
            if fits(wrong, dtype):
                runs.append(np.array([1, 2, 3, wrong], dtype))
        for run in runs:
            for call in (
                cache.admit,
                partial(cache.insert, lease=lease),
                request.append,
                cache.explain,
            ):
                with pytest.raises(ValueError, match=r"tokens.* an id (outside|in) \[0, 2\^31\)"):
                    call(run)
    assert cache.tree.stats() == before and len(request) == 3
    request.abort()
    cache.poll()
    lease.release()
    cache.check()
    assert [usage.used_blocks for usage in cache.usage().values()] == [(0,)]
    cache.close()


def test_ids_at_the_edges_are_taken() -> None:
    tokens = [0, TOKEN_LIMIT - 1]
    for dtype in (np.int32, np.int64, np.uint32, np.uint64):
        assert as_tokens(np.array(tokens, dtype)).tolist() == tokens
    assert as_tokens(tokens).dtype == np.int32
    assert as_tokens([]).tolist() == []
    same = np.array(tokens, np.int32)
    assert as_tokens(same) is same or np.shares_memory(as_tokens(same), same)


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ([1.5, 2], TypeError, "ids must be integers, not float64"),
        (["a"], TypeError, "ids must be integers"),
        (np.zeros(3, np.float32), TypeError, "not float32"),
        (np.zeros(3, np.bool_), TypeError, "not bool"),
        (np.zeros((2, 2), np.int32), ValueError, "ids must have one dimension, not 2"),
        (np.int32(3), ValueError, "one dimension, not 0"),
        ([[1], [2, 3]], ValueError, "ids must be a flat sequence"),
        ([1 << 64, 1.5], TypeError, "ids must be integers, not object"),
    ],
)
def test_what_is_no_run_of_ids_is_refused_by_name(
    given: object, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        as_tokens(given, "ids")


def test_fast_entry_refuses_buffers_of_another_kind() -> None:
    """An int64 array of slots was read as twice as many of half the width."""
    tree = TreeCore(8, groups=1, tiers=1)
    root = tree.root()
    start, column = Cursor(root, root, 0), np.zeros(1, np.uint32)
    good, slots = np.zeros(4, np.int32), np.zeros(2, np.int32)
    for tokens in (good.astype(np.int64), good.astype(np.uint32), good.astype(">i4"), b"12345678"):
        with pytest.raises(TypeError, match="tokens must be int32"):
            tree.match(root, tokens)
    for tokens in (good.reshape(2, 2), good[0]):
        with pytest.raises((ValueError, TypeError), match="tokens must"):
            tree.match(root, tokens)
    with pytest.raises((ValueError, BufferError)):
        tree.match(root, np.zeros(8, np.int32)[::2])
    with pytest.raises(TypeError):
        tree.match(root, [1, 2, 3, 4])
    with pytest.raises(TypeError, match="32 bits"):
        tree.insert(start, good, column, slots.astype(np.int64))
    with pytest.raises(TypeError, match="32 bits"):
        tree.insert(start, good, column.astype(np.int64), slots)
    with pytest.raises(ValueError, match="room"):
        tree.insert(start, good, column, slots[:1])
    with pytest.raises(ValueError, match="room"):
        tree.insert(start, good, column, slots, slots[:1])
    frozen = slots.copy()
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        tree.insert(start, good, column, slots, frozen)
    assert tree.stats().nodes == 1
    tree.check()


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ({"page_bytes": 0}, "page_bytes"),
        ({"page_bytes": 6}, "range"),
        ({"page_bytes": 1 << 21}, "range"),
        ({"groups": 0}, "range"),
        ({"tiers": 0}, "range"),
        ({"tiers": 33}, "range"),
        ({"groups": 13, "tiers": 5}, "range"),
    ],
)
def test_tree_of_an_impossible_shape_is_refused(shape: dict[str, int], match: str) -> None:
    """A group without tiers read columns that do not exist; tier 32 fell out of the mask."""
    given = {"page_bytes": 8, "groups": 1, "tiers": 1, **shape}
    with pytest.raises(ValueError, match=match):
        TreeCore(given["page_bytes"], groups=given["groups"], tiers=given["tiers"])


def test_keys_and_parents_of_a_wrong_size_are_refused() -> None:
    """The native side reads sixteen bytes, whatever it is given."""
    tree = TreeCore(8, groups=1, tiers=1)
    with pytest.raises(ValueError, match="key must be 16 bytes, not 3"):
        tree.root(b"abc")
    with pytest.raises(ValueError, match="parent must be 16 bytes, not 2"):
        page_keys(b"ab", [1, 2], 2)
    with pytest.raises(ValueError, match="page_tokens must be at least 1, not 0"):
        page_keys(bytes(16), [1, 2], 0)
    root = tree.root()
    rows, short, pages = (np.zeros((2, width), np.uint8) for width in (16, 15, 8))
    slots = np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="parents must be uint8 of shape"):
        tree.restore(root, 0, rows, short, pages, slots)
    with pytest.raises(ValueError, match="pages must be uint8 of shape"):
        tree.restore(root, 0, rows, rows, rows, slots)
    with pytest.raises(ValueError, match="keys must be uint8 of shape"):
        tree.restore(root, 0, rows[:1], rows, pages, slots)


def test_tokens_may_lie_at_any_address() -> None:
    """A buffer cut out of a message need not begin at a multiple of four."""
    raw = bytearray(17)
    raw[1:] = np.array([7, 8, 9, 10], np.int32).tobytes()
    tokens = memoryview(raw)[1:].cast("i")
    tree = TreeCore(8, groups=1, tiers=1)
    root = tree.root()
    column, slots = np.zeros(1, np.uint32), np.arange(2, dtype=np.int32)
    assert tree.insert(Cursor(root, root, 0), tokens, column, slots).created == 2
    assert tree.match(root, np.array([7, 8, 9, 10], np.int32), 0).hit_pages == 2
    assert tree.match(root, tokens, 0).hit_pages == 2
    assert tree.match_many([root], [tokens], 0)[0].hit_pages == 2


def test_lists_are_read_alike_by_the_short_way_and_by_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain ids go the short way; whatever else stands among them gives what numpy gave, or raises
    the same.
    """
    plain = [0, 1, 5, 127_999, 2**31 - 1]
    odd = [-1, 2**31, 2**63, 2**70, True, 1.0, 1.5, None, "a", [1], (1,), b"x"]
    odd += [np.int64(3), np.int32(4), np.float32(2), np.bool_(1), float("nan")]
    rng = random.Random(5)
    runs: list[object] = []
    for _ in range(4000):
        items = [rng.choice(odd if rng.random() < 0.2 else plain) for _ in range(rng.randint(0, 6))]
        runs.append(tuple(items) if rng.random() < 0.3 else items)

    def outcome(run: object) -> object:
        try:
            found = keys.as_tokens(run, "prompt")
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        assert found.dtype == np.int32
        assert found.flags.writeable
        return found.tolist()

    short = [outcome(run) for run in runs]
    assert sum(isinstance(each, list) and len(each) > 0 for each in short) > 500
    monkeypatch.setattr(keys, "_packed", lambda tokens: None)
    for run, found in zip(runs, short, strict=True):
        assert outcome(run) == found, run
