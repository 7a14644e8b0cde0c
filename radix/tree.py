"""TreeCore: the native prefix tree as Python sees it. Pure structure and residency: it knows pages,
columns and leases, no tier and no policy. Keeps I1-I6, I12-I18, I20, I21 (``check`` walks them).

Everything counts in pages from the root. A :class:`Cursor` may grow stale; then it names a shorter
prefix, never another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import (
    Insert,
    Match,
    ffi,
    lease_release,
    lease_take,
    lib,
    tree_address,
    tree_column,
    tree_evict,
    tree_insert,
    tree_match,
    tree_new,
    tree_peek,
    tree_slots,
    tree_touch,
)
from radix.errors import InvariantError, StaleError
from radix.groups import Rule
from radix.hints import Said
from radix.plan import Cursor
from radix.steps import EVERY_GROUP, Steps
from radix.tier import Keys, Slots
from radix.treeparts import (
    ColumnStats,
    NodeView,
    Price,
    TreeStats,
    raise_status,
    rows_of,
    set_policy,
)

__all__ = [
    "BY_RULE",
    "EVERY_GROUP",
    "NO_SLOT",
    "ColumnStats",
    "Cursor",
    "NodeView",
    "StaleError",
    "TreeCore",
    "TreeStats",
    "raise_status",
]

NO_SLOT = -1
BY_RULE: int = lib.RDX_BY_RULE  # a lease pins the pages that each group's rule names
AT_ANY_AGE = 0xFFFFFFFFFFFFFFFF
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
ALL_FULL = Rule(lib.RDX_RULE_FULL, 1, 0, 0, True, 1)


def _match(m: Any) -> Match:
    structural = m.structural
    return Match(
        m.device_pages, m.hit_pages, structural.pages, m.limit_pages, m.stop, structural.node
    )


def _hint(said: Said) -> object:
    return ffi.new("rdx_hint *", said)


class TreeCore(Steps):
    """A radix tree of pages with one slot column a (group, tier).

    Walk: ``match``, ``joint``, ``slots``, ``entries``, ``keys``, ``pages``. Change:
    ``root``, ``insert``, ``attach``, ``drop``, ``drop_span``, ``evict``, ``touch``, ``restore``.
    Pin: ``lease``, ``release``, ``move``, ``narrow``. Look: ``nodes``, ``children``, ``stats``,
    ``column_stats``, ``check``. For many requests: ``match_many``, ``lease_many``,
    ``insert_many``, ``release_many``.
    """

    def __init__(
        self,
        page_bytes: int,
        *,
        groups: int | Sequence[Rule],
        tiers: int,
        check_ids: bool = True,
        keep_keys: bool = True,
        page_tokens: int | None = None,
        policy: str = "lru",
        seed: int = 0,
    ) -> None:
        """A tree of ``tiers`` columns for each group: so many full ones, or one for each rule.

        ``page_tokens``: tokens a page stands for, in which rules count; a quarter of its bytes
        unless given. ``policy``: what goes first of full groups. ``Raises:`` ``ValueError`` for a
        rule out of its range.
        """
        if page_bytes <= 0:
            raise ValueError(f"page_bytes must be at least 1, not {page_bytes}")
        if page_tokens is not None and page_tokens <= 0:
            raise ValueError(f"page_tokens must be at least 1, not {page_tokens}")
        rules = (ALL_FULL,) * groups if isinstance(groups, int) else tuple(groups)
        self.page_bytes = page_bytes
        self.check_ids = check_ids
        self.tiers = tiers
        self.rules = rules
        self.groups = len(rules)
        self.key_bytes = 16 if keep_keys else 0
        self.capsule = tree_new(
            page_bytes,
            int(check_ids),
            tiers,
            self.key_bytes,
            page_tokens or max(1, page_bytes // 4),
            seed,
            rows_of(rules),
        )
        self.native = ffi.cast("rdx_tree *", tree_address(self.capsule))
        set_policy(self.native, policy)
        self.before_choice: Callable[[int], None] | None = None  # of what goes in a column
        self._cursor = ffi.new("rdx_cursor *")
        self._u32 = ffi.new("uint32_t[2]")
        self._i32 = ffi.new("int32_t *")

    def price(self, prices: Sequence[Price]) -> None:
        """Says what each column's blocks save, for the policy ``cost``, before there are any.
        ``ValueError`` for numbers that are not above 0.
        """
        for column, each in enumerate(prices):
            raise_status(lib.rdx_policy_price(self.native, column, *each))

    def tell_time(self, now_us: int) -> None:
        """What time it is, for the policy ``priority``; never backwards. Cost: what falls due."""
        lib.rdx_policy_time(self.native, now_us)

    def hint(self, cursor: Cursor, said: Said) -> None:
        """Notes what a request says of the path to ``cursor``. Cost: the path's nodes."""
        raise_status(lib.rdx_policy_hint(self.native, self._at(cursor), _hint(said)))

    def column(self, group: int, tier: int) -> int:
        """The number of the column of (group, tier)."""
        return group * self.tiers + tier

    def root(self, key: bytes | None = None) -> int:
        """A new, empty namespace whose first page key chains from ``key`` (16 bytes)."""
        if key is not None and len(key) != 16:
            raise ValueError(f"key must be 16 bytes, not {len(key)}")
        out = ffi.new("rdx_handle *")
        raise_status(lib.rdx_root_new(self.native, key if key is not None else ffi.NULL, out))
        return int(out[0])

    def drop_root(self, root: int) -> bool:
        """Removes an empty namespace; False while it has a child or a lease (I1)."""
        status = lib.rdx_root_free(self.native, root)
        if status == lib.RDX_EPINNED:
            return False
        raise_status(status)
        return True

    def match(self, root: int, tokens: object, leave: int = 1, readable: int = 0xFFFFFFFF) -> Match:
        """How much of ``tokens`` (int32 buffer) is there; changes nothing.

        The last ``leave`` tokens never count as hit; ``readable`` is a bit mask of tiers.
        Cost: the tokens compared.
        """
        return tree_match(self.capsule, root, tokens, leave, readable)

    def match_upto(self, root: int, pages: Keys, limit: int, readable: int = 0xFFFFFFFF) -> Match:
        """``match`` of whole pages as the tree keeps them, (n, page_bytes) uint8, of which at most
        the first ``limit`` count as hit. Cost: the pages compared.
        """
        count, width = pages.shape
        if width != self.page_bytes:
            raise ValueError(f"pages must be {self.page_bytes} bytes wide, not {width}")
        view, out = ffi.from_buffer(pages), ffi.new("rdx_match *")
        limit = min(limit, count)
        raise_status(lib.rdx_tree_match(self.native, root, view, count, limit, readable, out))
        return _match(out)

    def joint(self, cursor: Cursor, limit: int, readable: int = 0xFFFFFFFF) -> tuple[int, int]:
        """The joint hit on the path to ``cursor``, at most ``limit`` pages, and why no more.

        Counts the tiers of the bit mask ``readable``; changes nothing. Cost: the path's nodes.
        """
        out = self._u32
        raise_status(lib.rdx_joint(self.native, self._at(cursor), limit, readable, out, out + 1))
        return int(out[0]), int(out[1])

    def _at(self, cursor: Cursor) -> object:
        at = self._cursor
        at.node = cursor.node
        at.pages = cursor.pages
        at.root = cursor.root
        return at[0]

    def resolve(self, cursor: Cursor) -> Cursor:
        """The cursor as it stands now: shorter where what it named is gone."""
        out = ffi.new("rdx_cursor *")
        lib.rdx_cursor_resolve(self.native, self._at(cursor), out)
        return Cursor(cursor.root, int(out.node), int(out.pages))

    def lease(
        self, cursor: Cursor, mask: int = EVERY_GROUP, first: int = BY_RULE
    ) -> tuple[int, int, int]:
        """Pins the path to ``cursor``; (lease, node and pages where what is pinned ends).

        Full groups are pinned on the whole path; of each other group in ``mask`` (bit g) the pages
        that a hit at the end needs, or those of [first, end). Go on from there: a split may leave
        the node that ``cursor`` names behind the pin. Cost: nodes newly pinned, and those pages.
        """
        return lease_take(self.capsule, cursor, mask, first)

    def narrow(self, lease: int, mask: int) -> None:
        """Gives up the page pins of a lease in the groups that are not in ``mask``."""
        raise_status(lib.rdx_lease_narrow(self.native, lease, mask))

    def release(self, lease: int, *, stamp: bool = True) -> None:
        """Gives a lease back; ``LeaseError`` the second time.

        ``stamp``: its path becomes the most recently used; False leaves the order as it is (the
        pin of a transfer, whose timing must decide nothing).
        """
        lease_release(self.capsule, lease, stamp)

    def move(self, lease: int, cursor: Cursor) -> int:
        """Moves a lease along its path; the new end is pinned first. Returns pages pinned."""
        raise_status(lib.rdx_lease_move(self.native, lease, self._at(cursor), self._u32))
        return int(self._u32[0])

    def lease_end(self, root: int, lease: int) -> Cursor:
        """Where a lease ends now."""
        out = ffi.new("rdx_cursor *")
        raise_status(lib.rdx_lease_end(self.native, lease, out))
        return Cursor(root, int(out.node), int(out.pages))

    def insert(
        self,
        cursor: Cursor,
        tokens: object,
        columns: npt.NDArray[np.uint32],
        slots: Slots,
        canonical: Slots | None = None,
        lease: int = 0,
    ) -> Insert:
        """Adds the whole pages of ``tokens`` behind ``cursor`` and gives them ``slots``.

        ``slots`` and ``canonical``: (columns, pages) int32, -1 for none; ``canonical`` receives
        the slots that count from now on. ``lease`` must end at ``cursor`` and is moved to the new
        end. A stale cursor raises ``StaleError``. Cost: the new pages.
        """
        return tree_insert(self.capsule, cursor, tokens, columns, slots, canonical, lease)

    def attach(
        self, cursor: Cursor, column: int, first: int, slots: Slots, *, touch: bool = False
    ) -> Slots:
        """Gives pages [first, first+len(slots)) of the path slots; returns the canonical ones."""
        slots = np.ascontiguousarray(slots, np.int32)
        canonical = np.empty(len(slots), np.int32)
        raise_status(
            lib.rdx_slots_attach(
                self.native,
                self._at(cursor),
                column,
                first,
                len(slots),
                ffi.from_buffer("int32_t[]", slots),
                ffi.from_buffer("int32_t[]", canonical),
                int(touch),
                self._u32,
            )
        )
        return canonical

    def slots(self, cursor: Cursor, column: int, first: int, count: int) -> Slots:
        """Slots of pages [first, first+count) of the path in one column, -1 where none."""
        out = np.empty(count, np.int32)
        tree_slots(self.capsule, cursor, column, first, count, out)
        return out

    def entries(self, cursor: Cursor, column: int, first: int = 0) -> npt.NDArray[np.uint32]:
        """The pages >= ``first`` of the path that are resident in a column, ascending."""
        count = 16
        while True:
            out = np.empty(count, np.uint32)
            raise_status(
                lib.rdx_entries_get(
                    self.native,
                    self._at(cursor),
                    column,
                    first,
                    ffi.from_buffer("uint32_t[]", out),
                    count,
                    self._u32,
                )
            )
            if self._u32[0] <= count:
                return out[: self._u32[0]]
            count = int(self._u32[0])

    def keys(self, cursor: Cursor, first: int, count: int) -> Keys:
        """Chained keys (count, 16) of pages of the path."""
        out = np.empty((count, 16), np.uint8)
        raise_status(
            lib.rdx_keys_get(
                self.native, self._at(cursor), first, count, ffi.from_buffer("uint8_t[]", out)
            )
        )
        return out

    def pages(self, cursor: Cursor, first: int, count: int) -> Keys:
        """The key bytes (count, page_bytes) of pages of the path."""
        out = np.empty((count, self.page_bytes), np.uint8)
        raise_status(
            lib.rdx_pages_get(
                self.native, self._at(cursor), first, count, ffi.from_buffer("uint8_t[]", out)
            )
        )
        return out

    def drop(self, cursor: Cursor, column: int, page: int) -> int:
        """Takes one page out of a column (a corrupt block); its slot, or -1."""
        raise_status(lib.rdx_slots_drop(self.native, self._at(cursor), column, page, self._i32))
        return int(self._i32[0])

    def drop_span(self, cursor: Cursor, column: int, first: int, count: int) -> Slots:
        """Takes what no lease pins in pages [first, first+count) of the path out of a column.

        Only of a group that is not full (a window slides). The slots by page, -1 where none went.
        Cost: the pages.
        """
        out = np.empty(count, np.int32)
        raise_status(
            lib.rdx_slots_drop_span(
                self.native,
                self._at(cursor),
                column,
                first,
                count,
                ffi.from_buffer("int32_t[]", out),
            )
        )
        return out

    def evict(
        self, column: int, slots: Slots, ids: Keys | None = None, upto: int = AT_ANY_AGE
    ) -> int:
        """Evicts up to len(slots) blocks, least recently used first; how many.

        What no hit can need any more goes before all others; of these only what was stamped at
        most ``upto``. ``slots`` and ``ids`` (len, 16) receive what went, in a full group children
        before parents. Cost: the blocks freed.
        """
        if self.before_choice is not None:
            self.before_choice(column)
        return tree_evict(self.capsule, column, len(slots), upto, slots, ids)

    def forget(
        self, cursor: Cursor, column: int, first: int, slots: Slots, ids: Keys | None
    ) -> int:
        """Gives up what lies behind page ``first`` of the path, as far as nothing stands on it.

        ``slots`` and ``ids``: room for the pages of [first, cursor.pages). Returns how many went.
        """
        raise_status(
            lib.rdx_forget(
                self.native,
                self._at(cursor),
                first,
                column,
                ffi.from_buffer("int32_t[]", slots),
                ffi.NULL if ids is None else ffi.from_buffer("uint8_t[]", ids),
                self._u32,
            )
        )
        return int(self._u32[0])

    def next_victim(self, column: int) -> int | None:
        """The stamp of the block that would go next (0: no hit can need it), or None."""
        if self.before_choice is not None:
            self.before_choice(column)
        stamp = tree_peek(self.capsule, column)
        return None if stamp == AT_ANY_AGE else stamp

    def touch(self, cursor: Cursor) -> None:
        """Makes the path to ``cursor`` the most recently used."""
        tree_touch(self.capsule, cursor)

    def restore(
        self,
        root: int,
        column: int,
        keys: Keys,
        parents: Keys,
        pages: Keys,
        slots: Slots,
        *,
        each_page: bool = False,
    ) -> npt.NDArray[np.bool_]:
        """Links unordered records, oldest first; which were linked. Cost: the records.

        ``keys``, ``parents``: (n, 16) uint8; ``pages``: (n, page_bytes) uint8. ``each_page``: of
        blocks of several pages every page has its record, -1 in all but the last. The one call that
        may stop half-way: after ``MemoryError`` the tree is sound but incomplete; drop it.
        """
        count = len(slots)
        for name, rows, width in (
            ("keys", keys, 16),
            ("parents", parents, 16),
            ("pages", pages, self.page_bytes),
        ):
            if rows.dtype != np.uint8 or rows.shape != (count, width):
                raise ValueError(
                    f"{name} must be uint8 of shape ({count}, {width}), "
                    f"not {rows.dtype} {rows.shape}"
                )
        linked = np.zeros(count, np.uint8)
        raise_status(
            lib.rdx_tree_restore(
                self.native,
                root,
                column,
                count,
                ffi.from_buffer("uint8_t[]", np.ascontiguousarray(keys)),
                ffi.from_buffer("uint8_t[]", np.ascontiguousarray(parents)),
                ffi.from_buffer(np.ascontiguousarray(pages)),
                ffi.from_buffer("int32_t[]", np.ascontiguousarray(slots, np.int32)),
                each_page,
                ffi.from_buffer("uint8_t[]", linked),
                self._u32,
            )
        )
        return linked.astype(np.bool_)

    def nodes(self, root: int) -> list[NodeView]:
        """Every node under ``root``, depth first. Cost: the tree."""
        room = max(1, self.stats().nodes)
        out = ffi.new("rdx_node_view[]", room)
        raise_status(lib.rdx_tree_nodes(self.native, root, out, room, self._u32))
        return [
            NodeView(v.node, v.parent, v.start, v.pages, v.protect, v.children)
            for v in out[0 : self._u32[0]]
        ]

    def children(self, node: int, after: int = 0, most: int = 100) -> list[NodeView]:
        """At most ``most`` children of a node, those behind its child ``after`` (0: the first).

        Of theirs the number is told up to 1000. ``StaleError`` where one of the two is gone. Cost:
        what is returned.
        """
        out = ffi.new("rdx_node_view[]", most)
        raise_status(lib.rdx_node_children(self.native, node, after, out, most, self._u32))
        return [
            NodeView(v.node, v.parent, v.start, v.pages, v.protect, v.children)
            for v in out[0 : self._u32[0]]
        ]

    def interval(self, node: int, column: int) -> tuple[int, int]:
        """[lo, hi) of the pages of a node's edge that are resident in a column."""
        raise_status(lib.rdx_node_interval(self.native, node, column, self._u32, self._u32 + 1))
        return int(self._u32[0]), int(self._u32[1])

    def order(self, column: int) -> list[int]:
        """Nodes in list order, the next victim first. Cost: the list."""
        room = max(1, self.column_stats(column).listed)
        out = ffi.new("rdx_handle[]", room)
        raise_status(lib.rdx_order_nodes(self.native, column, out, room, self._u32))
        return list(out[0 : self._u32[0]])

    def stats(self) -> TreeStats:
        """Counters of the tree. Cost: O(1)."""
        out = ffi.new("rdx_tree_stats *")
        lib.rdx_tree_get_stats(self.native, out)
        return TreeStats(*(int(getattr(out, name)) for name in TreeStats._fields))

    def column_stats(self, column: int) -> ColumnStats:
        """Counters of a column. Cost: O(1)."""
        return _tuple(ColumnStats, tree_column(self.capsule, column))

    def check(self, *, device: bool = True) -> None:
        """Walks every invariant; ``InvariantError`` names the first that is broken.

        ``device``: tier 0 may have no holes (I21). Cost: the whole tree.
        """
        what = ffi.new("char[256]")
        status = lib.rdx_check(self.native, int(device), what, 256)
        if status == lib.RDX_EINVARIANT:
            name, _, text = ffi.string(what).decode().partition(": ")
            raise InvariantError(name, text)
        raise_status(status)
