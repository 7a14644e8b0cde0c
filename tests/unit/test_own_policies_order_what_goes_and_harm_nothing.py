"""A user's own policy is a class in Python over columns of nodes (I16, I17). Held here: one that
says what a native policy does evicts exactly as that does; whatever one answers, only leaves go
that nothing pins; one that fails is asked no more, with a warning, and `lru` goes on from there;
replicas decide alike; and what a policy is told is so.
"""

from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import FlatStore, Group, PrefixCache
from radix._native import ffi, lib
from radix.gate import Gate
from radix.metrics import Metrics
from radix.policy import given as asking
from radix.policy.eviction import EvictionPolicy, Nodes
from radix.policy.given import ask_policy
from radix.tree import Cursor, TreeCore
from tests.ownpolicies import NONSENSE, OWN, Failing, Keys, Noise, OwnLru
from tests.policypair import COLUMN, STEPS, Pair
from tests.policytraces import TRACES
from tiers.index import IndexTier


def run(pair: Pair, steps: list[tuple[object, ...]]) -> None:
    """Steps of both halves, with all that is checked."""
    for name, *given_ in steps:
        getattr(pair, str(name))(*given_)
        pair.check()
    while pair.open:
        pair.finish(0, True)


def storm(pair: Pair, seed: int, requests: int = 400) -> None:
    """Requests that overlap, and pressure."""
    random = np.random.default_rng(seed)
    for _ in range(requests):
        kind = random.random()
        prompt = tuple(int(n) for n in random.integers(0, 3, random.integers(1, 13)))
        if kind < 0.5:
            pair.serve(prompt)
        elif kind < 0.7:
            pair.begin(prompt)
        elif kind < 0.9:
            pair.finish(int(random.integers(9)), bool(random.random() < 0.8))
        else:
            pair.touch(prompt)
        while len(pair.open) > 3:
            pair.finish(0, True)
    pair.check()


@pytest.mark.parametrize("name", sorted(OWN))
@settings(max_examples=100, deadline=None)
@given(st.integers(8, 32), st.lists(STEPS, max_size=80))
def test_a_policy_in_python_takes_what_the_native_one_takes(
    name: str, room: int, steps: list[tuple[object, ...]]
) -> None:
    pair = Pair(OWN[name](), room, name)
    run(pair, steps)
    pair.evict(room)
    assert pair.used == 0


@pytest.mark.parametrize("name", sorted(OWN))
@pytest.mark.parametrize("seed", range(4))
def test_it_does_over_a_long_run(name: str, seed: int) -> None:
    pair = Pair(OWN[name](), 8 + 6 * seed, name)
    storm(pair, seed)
    assert pair.metrics.get("policy", "failed") == 0


@pytest.mark.parametrize("method", ["came", "used", "went"])
@pytest.mark.parametrize("nonsense", sorted(NONSENSE))
def test_a_policy_that_fails_is_asked_no_more_and_lru_goes_on(method: str, nonsense: str) -> None:
    """It says what `lru` says until then, so that all along the victims must be those of `lru`."""
    pair = Pair(Failing(method, NONSENSE[nonsense], 7), 20, "lru")
    harmless = method == "went" and nonsense not in (
        "raises",
        "writes",
    )  # nobody asks what it gives
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        storm(pair, 11, 200)
    assert [each.category for each in told] == ([] if harmless else [RuntimeWarning])
    assert pair.metrics.get("policy", "failed") == (0 if harmless else 1)


def test_the_warning_names_the_policy_and_what_it_did() -> None:
    for name, text in (("one too few", "used must answer"), ("nan", "NaN"), ("raises", "lost")):
        pair = Pair(Failing("used", NONSENSE[name], 0), 9, "lru")
        with pytest.warns(RuntimeWarning, match=f"Failing is asked no more.*{text}"):
            storm(pair, 3, 60)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_it_answers_what_is_pinned_stays_and_only_leaves_go(seed: int) -> None:
    random = np.random.default_rng(seed)
    tree = TreeCore(4, groups=1, tiers=1, policy="given")
    ask_policy(tree, Noise(), Metrics(), Gate())
    root, out, slots = tree.root(), np.zeros(64, np.int32), {}
    held: list[tuple[int, Cursor, np.ndarray]] = []
    for number in range(500):
        prompt = random.integers(0, 3, random.integers(1, 13)).astype(np.int32)
        found = tree.match(root, prompt, 0)
        lease, node, pages = tree.lease(Cursor(root, found.node, found.structural_pages))
        held.append((lease, Cursor(root, node, pages), prompt))
        count = int(random.integers(0, 12))
        freed = tree.evict(0, out[:count])
        resident = tree.column_stats(0)
        assert freed == count or resident.resident == resident.protected
        for slot in out[:freed].tolist():  # its whole path was there, and nothing behind it is
            path = slots.pop(slot)
            assert not any(other[: len(path)] == path for other in slots.values())
        for _, cursor, whole in held:
            assert tree.match(root, whole, 0).structural_pages >= cursor.pages
        run_ = prompt[pages:]
        if len(run_) and number % 2:
            new = np.arange(13 * number, 13 * number + len(run_), dtype=np.int32)
            slots.update(
                {int(slot): tuple(prompt[: pages + at + 1]) for at, slot in enumerate(new)}
            )
            at = tree.resolve(Cursor(root, node, pages))
            end = tree.insert(at, run_, COLUMN, new[None, :], None, lease)
            held[-1] = (lease, Cursor(root, end.node, end.pages), prompt)
        tree.check()
        if len(held) > 4:
            tree.release(held.pop(int(random.integers(len(held))))[0])


class Late(OwnLru):
    """`lru` again, of which the keys are below 0 for some time."""

    def came(self, nodes: Nodes) -> Keys:
        return nodes.last.astype(np.float64) / 7 - 60.0

    def used(self, nodes: Nodes) -> Keys:
        return self.came(nodes)


def test_keys_of_either_sign_stand_in_their_order() -> None:
    storm(Pair(Late(), 20, "lru"), 5)


class Listening(OwnLru):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Nodes]] = []

    def came(self, nodes: Nodes) -> Keys:
        self.told.append(("came", nodes))
        return super().came(nodes)

    def used(self, nodes: Nodes) -> Keys:
        self.told.append(("used", nodes))
        return super().used(nodes)

    def went(self, nodes: Nodes) -> None:
        self.told.append(("went", nodes))


def test_it_is_told_what_came_what_was_used_and_what_went() -> None:
    policy = Listening()
    pair = Pair(policy, 16, "lru")
    pair.serve((1, 2, 3, 4))
    pair.serve((1, 2, 9))
    pair.serve((1, 2, 9))
    assert policy.told == []  # nothing had to go
    pair.evict(1)
    ((kind, came),) = policy.told
    assert kind == "came" and len(came) == 3 and came.order == 0 and came.now == 5
    rows = sorted(zip(came.depth, came.blocks, came.uses, came.again, came.last, strict=True))
    assert rows == [(0, 2, 2, 2, 5), (2, 1, 1, 1, 5), (2, 2, 0, 0, 2)]
    assert set(came.key) == {0.0} and came.came.tolist() == came.before.tolist()
    with pytest.raises(ValueError, match="read-only"):
        came.key[0] = 1
    policy.told.clear()
    pair.serve((1, 2, 9))
    pair.evict(2)
    (first, went), (second, used) = policy.told
    assert (first, second) == ("went", "used")
    assert (went.blocks.tolist(), went.depth.tolist(), went.key.tolist()) == ([1], [2], [2.0])
    assert sorted(zip(used.depth, used.again, used.before, used.last, strict=True)) == [
        (0, 1, 5, 6),
        (2, 1, 5, 6),
    ]
    assert used.key.tolist() == [5.0, 5.0]
    policy.told.clear()
    pair.evict(1)
    ((first, went),) = policy.told  # the rest of the one, and the end of the other
    assert went.blocks.tolist() == [1, 1]


def test_an_interrupted_answer_changes_nothing_and_is_asked_for_again() -> None:
    def interrupts(_: Nodes) -> object:
        raise KeyboardInterrupt

    policy = Failing("came", interrupts, 0)
    pair = Pair(policy, 16, "lru")
    pair.serve((1, 2, 3))
    pair.serve((2, 2))
    with pytest.raises(KeyboardInterrupt):
        pair.tree.evict(0, np.zeros(2, np.int32))
    pair.check()
    policy._left = 1000
    pair.evict(4)
    assert pair.metrics.get("policy", "failed") == 0


def test_a_policy_that_calls_the_cache_is_one_that_fails() -> None:
    class Calling(OwnLru):
        cache: PrefixCache | None = None

        def came(self, nodes: Nodes) -> Keys:
            cast(PrefixCache, self.cache).flush()
            return super().came(nodes)

    policy = Calling()
    with PrefixCache(
        [Group.full("blocks", 1)], [IndexTier(8)], page_tokens=1, policy=policy
    ) as cache:
        policy.cache = cache
        with pytest.warns(RuntimeWarning, match="BusyError: what a cache asks may not call"):
            fill(cache, [[n, n + 1, n + 2] for n in range(0, 60, 3)])
        assert cache.counters()["policy.failed"] == 1
        cache.check()
        cache.flush()


def fill(cache: PrefixCache, requests: list[list[int]]) -> list[int]:
    """Hit blocks of each request."""
    found = []
    for request in requests:
        match, cursor = cache.match(np.array(request, np.int32), leave=0)
        found.append(match.structural_pages)
        with cache.lease(cursor) as lease:
            cache.insert(np.array(request, np.int32), lease, partial=True)
    return found


@pytest.mark.parametrize("trace", sorted(TRACES))
@pytest.mark.parametrize("name", sorted(OWN))
def test_a_cache_hits_the_same_under_either(trace: str, name: str) -> None:
    hits = []
    for policy in (name, OWN[name](), OWN[name]()):
        with PrefixCache(
            [Group.full("blocks", 1)], [IndexTier(48)], page_tokens=1, policy=policy
        ) as cache:
            hits.append(fill(cache, TRACES[trace](7)[:400]))
            assert "policy.failed" not in cache.counters()
            cache.check()
    assert hits[0] == hits[1] == hits[2]


def test_a_flat_store_hits_the_same_under_either() -> None:
    random = np.random.default_rng(2)
    keys = random.integers(0, 256, (80, 32), dtype=np.uint8)
    rounds = [np.unique(random.geometric(0.03, 12) % 80) for _ in range(200)]
    hits = []
    for policy in ("lru", OwnLru()):
        with FlatStore([Group.full("blocks", 1)], [IndexTier(24)], policy=policy) as store:
            found = []
            for some in rounds:
                found.append(int((store.has(keys[some]) >= 0).sum()))
                store.commit(store.reserve(keys[some]))
            hits.append(found)
            store.check()
    assert hits[0] == hits[1] and sum(hits[0]) > 100


def test_what_is_no_policy_is_refused_by_name() -> None:
    class Half:
        def came(self, nodes: Nodes) -> Keys:
            return nodes.key

    for wrong in (Half(), OwnLru, None, 3):
        with pytest.raises(TypeError, match="came, used and went"):
            PrefixCache(
                [Group.full("blocks", 1)], [IndexTier(8)], policy=cast(EvictionPolicy, wrong)
            )
    with pytest.raises(ValueError, match="unknown"):
        PrefixCache([Group.full("blocks", 1)], [IndexTier(8)], policy="given")


def test_a_call_that_lacks_memory_changes_nothing_that_waits() -> None:
    """I11: every allocation of every call fails once, and the call goes through afterwards."""
    pair = Pair(OwnLru(), 4000, "lru")
    failures = 0
    random = np.random.default_rng(3)
    insert = pair.tree.insert

    def through(*given_: object) -> object:
        nonlocal failures
        for number in range(1, 20):
            lib.rdx_alloc_fail_at(number)
            try:
                return insert(*given_)  # type: ignore[arg-type]  # as they came
            except MemoryError:
                failures += 1
                pair.tree.check()
            finally:
                lib.rdx_alloc_fail_at(0)
        raise AssertionError("memory never sufficed")

    pair.tree.insert = through  # type: ignore[method-assign,assignment]  # in between
    for number in range(300):
        pair.serve(tuple(int(n) for n in random.integers(0, 9, random.integers(1, 13))))
        if number % 50 == 7:
            pair.evict(30)
    pair.check()
    pair.evict(2000)
    assert failures > 100


def test_columns_stand_in_memory_as_the_native_half_writes_them() -> None:
    kind = ffi.typeof("rdx_told")
    assert asking._TOLD.itemsize == ffi.sizeof(kind)
    for name, field in kind.fields:
        assert asking._TOLD.fields is not None
        assert asking._TOLD.fields[name][1] == field.offset
