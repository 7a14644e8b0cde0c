"""A prefix cache that cannot be wrong: a dictionary from (path, column) to a slot, a set of leased
paths, and one number a page that says when it was last used. Everything is found by scanning.

A path is a tuple: the namespace, then the pages from its root. A page stands in the cache while it
or a page below it is resident somewhere, or while a lease covers it (I20). A block is named by the
path whose last page it stands at. Which blocks a length needs is counted out token by token from
the group's rule, and the joint hit is found by trying every length.

What goes first is decided block by block. Of a full group: of the blocks that are resident,
unleased and without a resident block behind them, the one that was used longest ago; of equal ones
the deeper. Of the others any block that no lease names may go. Their order is *not* exact here,
because the tree stamps whole nodes: ``used_since`` and ``used_until`` bound the stamp of a block,
and what is checked is that nothing goes before a block that was surely used earlier. Which blocks
are dead depends on where edges end; the machine reads that off the tree (``tests/tree_views.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radix._native import lib
from radix.groups import Rule

Page = tuple[int, ...]
Path = tuple[object, ...]

NO_SLOT = -1
EVERY_GROUP = 0xFFFFFFFF
STOP_LIMIT, STOP_COLD, STOP_HOLE, STOP_WINDOW, STOP_STATE = range(5)


def prefixes(path: Path) -> list[Path]:
    """Every page of a path, named by the path that ends with it; the shortest first."""
    return [path[:length] for length in range(2, len(path) + 1)]


def related(one: Path, other: Path) -> bool:
    """Whether one of the paths lies on the other."""
    return one[: len(other)] == other[: len(one)]


@dataclass(frozen=True)
class Held:
    """What a lease pins: the path, and of the groups that are not full the pages named."""

    path: Path
    pages: dict[int, range]


class Model:
    """What the native tree must agree with, for columns = groups x tiers."""

    def __init__(self, rules: Sequence[Rule], tiers: int) -> None:
        self.rules = tuple(rules)
        self.groups = len(self.rules)
        self.tiers = tiers
        self.slots: dict[tuple[Path, int], int] = {}
        self.used: dict[Path, int] = {}
        self.used_at: dict[tuple[Path, int], int] = {}
        self.used_by: dict[Path, int] = {}
        self.came: dict[tuple[Path, int], int] = {}
        self.leases: dict[int, Held] = {}
        self.clock = 0

    # ------------------------------------------------------------ rules
    def rule(self, column: int) -> Rule:
        """The rule of the column's group."""
        return self.rules[column // self.tiers]

    def whole(self, column: int) -> bool:
        """Whether a hit needs every block from the root."""
        return self.whole_group(column // self.tiers)

    def whole_group(self, group: int) -> bool:
        """Whether the group is full."""
        return self.rules[group].code == lib.RDX_RULE_FULL

    def has_place(self, column: int, page: int) -> bool:
        """Whether a block of the column can stand at the page, counted from the root."""
        rule = self.rule(column)
        if rule.code == lib.RDX_RULE_SCRATCH:
            return False
        end = page + 1 - rule.lookahead_pages
        return end > 0 and end % rule.block_pages == 0

    def needs(self, group: int, count: int) -> list[int]:
        """Where the blocks stand that a hit of ``count`` pages needs, token by token."""
        rule = self.rules[group]
        length = count * rule.page_tokens
        wanted = range(length)
        if rule.code == lib.RDX_RULE_WINDOW:
            wanted = range(max(0, length - rule.reach_tokens), length)
        elif rule.code == lib.RDX_RULE_CHUNKED:
            wanted = range(length // rule.reach_tokens * rule.reach_tokens, length)
        elif rule.code == lib.RDX_RULE_STATE:
            return [count - 1] if count else []
        elif rule.code == lib.RDX_RULE_SCRATCH:
            return []
        blocks = {token // rule.page_tokens // rule.block_pages for token in wanted}
        return [(block + 1) * rule.block_pages - 1 + rule.lookahead_pages for block in blocks]

    def span(self, group: int, count: int) -> range:
        """The pages that a lease of ``count`` pages names in a group that is not full."""
        needed = self.needs(group, count)
        rule = self.rules[group]
        if not needed or rule.code == lib.RDX_RULE_STATE:
            return range(count - 1, count) if needed else range(0)
        return range(min(needed) + 1 - rule.block_pages, count + rule.lookahead_pages)

    # ------------------------------------------------------------ looking
    def slot(self, path: Path, column: int) -> int:
        """The slot of the last page of ``path`` in a column, -1 if it is not resident there."""
        return self.slots.get((path, column), NO_SLOT)

    def leased(self, path: Path) -> bool:
        """Whether some lease covers the page."""
        return any(held.path[: len(path)] == path for held in self.leases.values())

    def pinned(self, path: Path, column: int) -> bool:
        """Whether a lease keeps the block: of full groups its path, of others the page itself."""
        if self.whole(column):
            return self.leased(path)
        group, page = column // self.tiers, len(path) - 2
        return any(
            held.path[: len(path)] == path and page in held.pages.get(group, ())
            for held in self.leases.values()
        )

    def stands(self, path: Path) -> bool:
        """Whether the page is in the tree."""
        resident = any(other[: len(path)] == path for other, _ in self.slots)
        return resident or self.leased(path)

    def paths(self) -> set[Path]:
        """Every page that stands in the tree."""
        ends: Iterable[Path] = [path for path, _ in self.slots]
        ends = [*ends, *(held.path for held in self.leases.values())]
        return {prefix for end in ends for prefix in prefixes(end)}

    def structural(self, path: Path) -> Path:
        """The longest part of a path that stands in the tree."""
        standing = [prefix for prefix in prefixes(path) if self.stands(prefix)]
        return standing[-1] if standing else path[:1]

    def valid(self, path: Path, group: int, count: int, tiers: Sequence[int]) -> bool:
        """Whether a hit of ``count`` pages finds every block that it needs of a group."""
        if count % self.rules[group].block_pages:
            return count == 0
        columns = [group * self.tiers + tier for tier in tiers]
        return all(
            page < len(path) - 1
            and any(self.slot(path[: page + 2], column) != NO_SLOT for column in columns)
            for page in self.needs(group, count)
        )

    def joint(self, path: Path, limit: int, tiers: Sequence[int]) -> int:
        """The longest hit on the path that is valid for all groups: every length is tried."""
        asked = [group for group, rule in enumerate(self.rules) if rule.lookup]
        lengths = range(min(limit, len(path) - 1) + 1)
        return max(n for n in lengths if all(self.valid(path, g, n, tiers) for g in asked))

    def stops(self, path: Path, limit: int, tiers: Sequence[int]) -> set[int]:
        """The reasons that may be given for the hit on a path that stands as far as it goes."""
        hit = self.joint(path, limit, tiers)
        if hit == limit:
            return {STOP_LIMIT}
        if hit == len(path) - 1:
            return {STOP_COLD}
        names = {
            lib.RDX_RULE_FULL: STOP_HOLE,
            lib.RDX_RULE_WINDOW: STOP_WINDOW,
            lib.RDX_RULE_CHUNKED: STOP_WINDOW,
            lib.RDX_RULE_STATE: STOP_STATE,
        }
        return {
            names[rule.code]
            for group, rule in enumerate(self.rules)
            for count in range(hit + 1, min(limit, len(path) - 1) + 1)
            if rule.lookup and not self.valid(path, group, count, tiers)
        }

    def reach(self, path: Path, tier: int) -> int:
        """Pages of a path whose blocks of full groups are all in a tier, from the root."""
        columns = [c for c in range(self.groups * self.tiers) if c % self.tiers == tier]
        for page, place in enumerate(prefixes(path)):
            for column in columns:
                due = self.whole(column) and self.has_place(column, page)
                if due and self.slot(place, column) == NO_SLOT:
                    return page
        return len(path) - 1

    def resident(self, column: int) -> list[Path]:
        """The blocks of a column."""
        return [path for path, where in self.slots if where == column]

    def useful(self, path: Path, column: int) -> bool:
        """Whether some length needs this block and finds all else: of a full group what every
        group with lookup needs, of another what its own group and the full ones need.
        """
        group, page = column // self.tiers, len(path) - 2
        block = self.rules[group].block_pages
        asked = {g for g, rule in enumerate(self.rules) if rule.lookup}
        if not self.whole(column):
            asked = {g for g in asked if self.whole_group(g)}
        asked.add(group)
        lengths = [n for n in range(block, len(path) + 8, block) if page in self.needs(group, n)]
        ends = [end for end in self.paths() if related(end, path)]
        return any(
            count < len(end) and all(self.valid(end, g, count, range(self.tiers)) for g in asked)
            for count in lengths
            for end in ends
        )

    # ------------------------------------------------------------ changing
    def use(self, path: Path, clock: int, mask: int = EVERY_GROUP) -> None:
        """The path was used now: every page of it, and what its end needs of groups of a mask."""
        self.clock = clock
        for page in prefixes(path):
            self.used[page] = self.clock
        self.used_by[path] = self.clock
        for group in range(self.groups):
            span = self.span(group, len(path) - 1) if mask >> group & 1 else ()
            for page in span:
                if page < len(path) - 1:
                    for tier in range(self.tiers):
                        place = path[: page + 2], group * self.tiers + tier
                        self.used_at[place] = self.clock

    def place(self, path: Path, column: int, slot: int) -> int:
        """Gives the last page of ``path`` a slot unless it has one; the slot that counts."""
        if (path, column) not in self.slots:
            self.came[path, column] = self.clock
            self.used_at.pop((path, column), None)
        return self.slots.setdefault((path, column), slot)

    def drop(self, path: Path, column: int) -> int:
        """Takes the last page of ``path`` out of a column; the slot that it had."""
        return self.slots.pop((path, column), NO_SLOT)

    def held(self, path: Path, mask: int, first: int | None = None) -> Held:
        """What a lease to the end of ``path`` pins for the groups of a mask."""
        count = len(path) - 1
        pages = {}
        for group, rule in enumerate(self.rules):
            if mask >> group & 1 and rule.code != lib.RDX_RULE_FULL:
                pages[group] = self.span(group, count) if first is None else range(first, count)
        return Held(path, pages)

    # ------------------------------------------------------------ evicting
    def may_go(self, path: Path, column: int) -> bool:
        """Resident, kept by no lease, and of a full group no resident block behind it (I16)."""
        if (path, column) not in self.slots or self.pinned(path, column):
            return False
        behind = len(path) + self.rule(column).block_pages
        above = [other[: len(path)] for other in self.resident(column) if len(other) == behind]
        return not self.whole(column) or path not in above

    def evictable(self, column: int) -> int:
        """Blocks that could go if enough were asked for."""
        return sum(not self.pinned(path, column) for path in self.resident(column))

    def used_since(self, path: Path, column: int) -> int:
        """A time at or before the last use of a block."""
        return self.used_at.get((path, column), 0)

    def used_until(self, path: Path, column: int) -> int:
        """A time at or after the last use of a block, wherever edges end."""
        uses = [when for end, when in self.used_by.items() if related(end, path)]
        return max([self.came[path, column], *uses])
