"""The calls of a tree for many requests give what the loop of the single calls gives, node by node;
one that is refused names its request and changes nothing (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from radix._native import ffi
from radix.errors import LeaseError, StaleError
from radix.groups import Rule
from radix.steps import CURSORS, INSERTS, MATCHES
from radix.tree import NO_SLOT, Cursor, TreeCore
from tests.treerig import chunked, full, state, window

MIXES: dict[str, tuple[Rule, ...]] = {
    "full": (full(),),
    "two": (full(), full()),
    "window": (full(), window(3)),
    "mixed": (full(), window(4), chunked(3), state(2)),
}
POOL = 32


class Side:
    """A tree whose slots are of a pool of 32: what is short is evicted, the oldest first."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self.rules = rules
        self.tree = TreeCore(8, groups=rules, tiers=1, page_tokens=1, seed=seed)
        self.root = self.tree.root(b"r" * 16)
        self.columns = np.arange(len(rules), dtype=np.uint32)
        self.free = [list(range(POOL)) for _ in rules]
        self.evicted: list[tuple[int, list[int]]] = []

    def take(self, column: int, count: int) -> list[int] | None:
        """Slots of a column, or None where too many blocks are pinned."""
        short = count - len(self.free[column])
        if short > 0:
            gone = np.empty(short, np.int32)
            freed = self.tree.evict(column, gone)
            self.evicted.append((column, gone[:freed].tolist()))
            self.free[column] += gone[:freed].tolist()
        if count > len(self.free[column]):
            return None
        taken, self.free[column] = self.free[column][:count], self.free[column][count:]
        return taken

    def rows(self, counts: Sequence[int]) -> list[np.ndarray] | None:
        """Slots for so many pages of each prompt, or None. Where not every page needs one, some
        have none.
        """
        found = []
        for count in counts:
            rows = np.full((len(self.rules), count), NO_SLOT, np.int32)
            for column, rule in enumerate(self.rules):
                pages = range(count) if rule.everywhere else range(max(0, count - 3), count)
                slots = self.take(column, len(pages))
                if slots is None:
                    found.append(rows)
                    self.give_back(found, [np.full_like(row, NO_SLOT) for row in found])
                    return None
                rows[column, list(pages)] = slots
            found.append(rows)
        return found

    def give_back(self, given: Sequence[np.ndarray], kept: Sequence[np.ndarray]) -> None:
        """Slots that the tree did not take."""
        for offered, canonical in zip(given, kept, strict=True):
            for column in range(len(self.rules)):
                spare = (offered[column] != canonical[column]) & (offered[column] != NO_SLOT)
                self.free[column] += offered[column][spare].tolist()

    def picture(self) -> tuple[object, ...]:
        """Everything that can be asked, but for bytes."""
        stats = self.tree.stats()._replace(bytes=0)
        columns = range(len(self.rules))
        nodes = self.tree.nodes(self.root)
        return (
            stats,
            nodes,
            [self.tree.column_stats(column) for column in columns],
            [self.tree.order(column) for column in columns],
            [
                self.tree.slots(
                    Cursor(self.root, node.node, node.start + node.pages), column, 0, node.start
                ).tolist()
                for node in nodes
                for column in columns
            ],
        )


def prompts_of(rng: np.random.Generator) -> list[np.ndarray]:
    """Prompts of up to nine pages that share beginnings, some of them twice in a step."""
    count = int(rng.integers(1, 8))
    prompts = [rng.integers(0, 2, 2 * rng.integers(0, 10), dtype=np.int32) for _ in range(count)]
    prompts += [prompts[0]] if rng.random() < 0.3 else []
    return [np.repeat(prompt[::2], 2).astype(np.int32) for prompt in prompts]


def by_loop(side: Side, prompts: list[np.ndarray], stamp: bool, touch: bool) -> list[object]:
    """One step, call by call."""
    tree, root = side.tree, side.root
    found = [tree.match(root, prompt, 0) for prompt in prompts]
    leases = [tree.lease(Cursor(root, match.node, match.structural_pages)) for match in found]
    ends = [Cursor(root, node, pages) for _, node, pages in leases]
    counts = [len(p) // 2 - e.pages for p, e in zip(prompts, ends, strict=True)]
    given, done, kept = side.rows(counts), [], []
    if given is not None:
        for prompt, end, rows, lease in zip(prompts, ends, given, leases, strict=True):
            canonical = np.empty_like(rows)
            if touch and end.pages:
                tree.touch(end)
            run = prompt[2 * end.pages :]
            done.append(tuple(tree.insert(end, run, side.columns, rows, canonical, lease[0])))
            kept.append(canonical)
        side.give_back(given, kept)
    for lease in leases:
        tree.release(lease[0], stamp=stamp)
    return [[tuple(match) for match in found], leases, done, [rows.tolist() for rows in kept]]


def by_step(side: Side, prompts: list[np.ndarray], stamp: bool, touch: bool) -> list[object]:
    """The same in four crossings."""
    tree, root = side.tree, side.root
    found = tree.match_many([root] * len(prompts), prompts, 0)
    leases, ends = tree.lease_many(found)
    counts = [len(p) // 2 - int(e["pages"]) for p, e in zip(prompts, ends, strict=True)]
    given, done, kept = side.rows(counts), [], []
    if given is not None:
        flat = np.concatenate([rows.reshape(-1) for rows in given])
        canonical = np.empty_like(flat)
        rows = tree.insert_many(ends, prompts, side.columns, flat, canonical, leases, touch=touch)
        done = [row.item()[:6] for row in rows]
        cuts = np.cumsum([rows.size for rows in given])[:-1]
        kept = [
            part.reshape(rows.shape)
            for part, rows in zip(np.split(canonical, cuts), given, strict=True)
        ]
        side.give_back(given, kept)
    tree.release_many(leases, stamp=stamp)
    pins = [
        (int(lease), int(end["node"]), int(end["pages"]))
        for lease, end in zip(leases, ends, strict=True)
    ]
    return [[tuple(match) for match in found], pins, done, [rows.tolist() for rows in kept]]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(12))
def test_a_step_equals_the_loop_of_single_calls(mix: str, seed: int) -> None:
    """Under a pool of 32 blocks a group: matches, pins, inserts, victims, nodes and lists."""
    rng = np.random.default_rng([seed, *mix.encode()])
    loop, step = Side(MIXES[mix], seed), Side(MIXES[mix], seed)
    inserted = 0
    for _ in range(40):
        prompts = prompts_of(rng)
        stamp, touch = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
        one = by_loop(loop, prompts, stamp, touch)
        assert by_step(step, prompts, stamp, touch) == one
        assert step.picture() == loop.picture()
        assert step.evicted == loop.evicted
        step.tree.check(device=False)
        inserted += len(one[2])
    assert inserted > 20
    assert loop.evicted


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_what_is_refused_names_its_request_and_changes_nothing(mix: str, at: int) -> None:
    """I11: the seventh of seven is as good as the first."""
    side = Side(MIXES[mix], 0)
    tree, root, rng = side.tree, side.root, np.random.default_rng(at)
    for _ in range(6):
        by_step(side, prompts_of(rng), stamp=True, touch=False)
    prompts = [np.repeat(np.arange(9) + 7 * row, 2).astype(np.int32) for row in range(7)]
    short = [prompt[:4] for prompt in prompts]
    found = tree.match_many([root] * 7, short, 0)
    leases, ends = tree.lease_many(found)
    slots = np.full(7 * 9 * len(side.rules), NO_SLOT, np.int32)
    gone = TreeCore(8, groups=side.rules, tiers=1).root()  # a root that this tree never had

    def put(
        cursors: Any = ends,
        runs: Any = prompts,
        pins: Any = leases,
        columns: Any = side.columns,
        rows: Any = slots,
    ) -> None:
        tree.insert_many(cursors, runs, columns, rows, None, pins)

    def changed(values: Any, value: object) -> Any:
        other = values.copy()
        other[at] = value
        return other

    wrong_end = changed(ends, (root, root, 0))
    wrong_end["pages"][at] = 1
    bad_id = list(prompts)
    bad_id[at] = np.full(18, -5, np.int32)
    floats = list(prompts)
    floats[at] = np.zeros(18, np.float64)
    named = f"request {at} "
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (StaleError, named, lambda: tree.lease_many(changed(ends, (gone + 99, 0, 0)))),
        (StaleError, named, lambda: put(cursors=wrong_end)),
        (ValueError, named, lambda: put(runs=bad_id)),
        (LeaseError, named, lambda: put(pins=changed(leases, 12345))),
        (LeaseError, named, lambda: tree.release_many(changed(leases, 12345))),
        (LeaseError, named, lambda: tree.release_many(changed(leases, 0))),
        (LeaseError, "request 6 ", lambda: tree.release_many(changed(leases, leases[6])))
        if at < 6
        else (LeaseError, named, lambda: tree.release_many(changed(leases, leases[0]))),
        (ValueError, named, lambda: put(rows=slots[: at * 9 * len(side.rules)])),
        (ValueError, "request 0 ", lambda: put(columns=np.array([77], np.uint32))),
        (TypeError, "int32", lambda: put(runs=floats)),
        (ValueError, "one a prompt", lambda: put(runs=prompts[:-1])),
        (ValueError, "one a prompt", lambda: put(pins=leases[:-1])),
        (TypeError, "cursor", lambda: tree.lease_many([(1, 2)] * 7)),
        (TypeError, "CURSORS", lambda: tree.lease_many(np.zeros(7, np.int64))),
        (StaleError, "roots", lambda: tree.match_many(changed([root] * 7, gone + 99), prompts)),
    ]
    before = side.picture()
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
        assert side.picture() == before, text
    put()
    tree.release_many(leases)
    tree.check(device=False)


def test_a_lease_stands_once_in_an_insert() -> None:
    side = Side(MIXES["full"], 0)
    leases, ends = side.tree.lease_many([Cursor(side.root, side.root, 0)] * 2)
    runs, rows = [np.zeros(4, np.int32)] * 2, np.arange(4, dtype=np.int32)
    twice = [leases[0], leases[0]]
    with pytest.raises(LeaseError, match="request 1 "):
        side.tree.insert_many(ends, runs, side.columns, rows, None, twice)
    side.tree.insert_many(ends, runs, side.columns, rows, None, [leases[0], 0])
    assert side.tree.match(side.root, runs[0], 0).hit_pages == 2
    side.tree.release_many(leases)


def test_empty_steps_and_rows_of_an_array_are_taken() -> None:
    side = Side(MIXES["full"], 0)
    tree, nothing = side.tree, np.empty(0, np.int32)
    found = tree.match_many([], [])
    leases, ends = tree.lease_many(found)
    assert len(tree.insert_many(ends, [], side.columns, nothing)) == len(leases) == 0
    tree.release_many(leases)
    table = np.arange(24, dtype=np.int32).reshape(3, 8)
    start = [Cursor(side.root, side.root, 0)] * 3
    done = tree.insert_many(start, table, side.columns, np.arange(12, dtype=np.int32))
    assert done["created"].tolist() == [4, 4, 4]
    again = tree.match_many(np.full(3, side.root, np.uint64), table, 0)
    assert again.hit_pages.tolist() == [4, 4, 4]
    assert again[1] == tree.match(side.root, table[1], 0)
    assert again[1:] == list(again)[1:]
    assert again.cursor(2) == Cursor(side.root, again[2].node, 4)
    assert done["node"].tolist() == again.rows["node"].tolist()
    for given in (again, again.cursors, done, [again.cursor(at) for at in range(3)]):
        leases, ends = tree.lease_many(given)
        assert ends["pages"].tolist() == [4, 4, 4]
        tree.release_many(leases)


@pytest.mark.parametrize(
    ("name", "rows"), [("rdx_cursor", CURSORS), ("rdx_match", MATCHES), ("rdx_insert", INSERTS)]
)
def test_rows_are_laid_out_as_the_header_says(name: str, rows: np.dtype[np.void]) -> None:
    """A field under another name here is one of the cursor with which the struct begins."""
    kind = ffi.typeof(name)
    assert rows.itemsize == ffi.sizeof(kind)
    own = {"existing": "existing", "created": "created", "stop": "stop"}
    own |= {"attached": "attached", "duplicates": "duplicates"}
    own |= {field: field for field in ("device_pages", "hit_pages", "limit_pages")}
    inner = {"node": "node", "root": "root", "pages": "pages", "structural_pages": "pages"}
    cursor = {"rdx_match": "structural", "rdx_insert": "end"}.get(name)
    for field, (kept, offset, *_) in (rows.fields or {}).items():
        path = [own[field]] if field in own else [cursor, inner[field]] if cursor else [field]
        assert offset == ffi.offsetof(kind, *path)
        assert kept.itemsize == (8 if field in ("node", "root") else 4)
