"""A prefix cache that cannot be wrong: a dictionary from (path, column) to a slot, a set of leased
paths, and one number a page that says when it was last used. Everything is found by scanning.

A path is a tuple: the namespace, then the pages from its root. A page stands in the cache while it
or a page below it is resident somewhere, or while a lease covers it (I20). What goes first is
decided page by page: of the pages that are resident, unleased and without a resident child, the one
that was used longest ago; of equal ones the deeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Page = tuple[int, ...]
Path = tuple[object, ...]

NO_SLOT = -1


def prefixes(path: Path) -> list[Path]:
    """Every page of a path, named by the path that ends with it; the shortest first."""
    return [path[:length] for length in range(2, len(path) + 1)]


class Model:
    """What the native tree must agree with, for columns = groups x tiers."""

    def __init__(self, groups: int, tiers: int) -> None:
        self.groups = groups
        self.tiers = tiers
        self.slots: dict[tuple[Path, int], int] = {}
        self.used: dict[Path, int] = {}
        self.leases: dict[int, Path] = {}
        self.clock = 0

    # ------------------------------------------------------------ looking
    def slot(self, path: Path, column: int) -> int:
        """The slot of the last page of ``path`` in a column, -1 if it is not resident there."""
        return self.slots.get((path, column), NO_SLOT)

    def leased(self, path: Path) -> bool:
        """Whether some lease covers the page."""
        return any(other[: len(path)] == path for other in self.leases.values())

    def stands(self, path: Path) -> bool:
        """Whether the page is in the tree."""
        resident = any(other[: len(path)] == path for other, _ in self.slots)
        return resident or self.leased(path)

    def paths(self) -> set[Path]:
        """Every page that stands in the tree."""
        ends: Iterable[Path] = [path for path, _ in self.slots] + list(self.leases.values())
        return {prefix for end in ends for prefix in prefixes(end)}

    def structural(self, path: Path) -> Path:
        """The longest part of a path that stands in the tree."""
        standing = [prefix for prefix in prefixes(path) if self.stands(prefix)]
        return standing[-1] if standing else path[:1]

    def reach(self, path: Path, tiers: Sequence[int]) -> int:
        """Pages of a path, from the root without a gap, that every group holds in some tier."""
        count = 0
        for page in prefixes(path):
            for group in range(self.groups):
                columns = [group * self.tiers + tier for tier in tiers]
                if all(self.slot(page, column) == NO_SLOT for column in columns):
                    return count
            count += 1
        return count

    def resident(self, column: int) -> list[Path]:
        """The pages of a column."""
        return [path for path, where in self.slots if where == column]

    # ------------------------------------------------------------ changing
    def use(self, path: Path) -> None:
        """Every page of the path was used now."""
        self.clock += 1
        for page in prefixes(path):
            self.used[page] = self.clock

    def place(self, path: Path, column: int, slot: int) -> int:
        """Gives the last page of ``path`` a slot unless it has one; the slot that counts."""
        return self.slots.setdefault((path, column), slot)

    def drop(self, path: Path, column: int) -> int:
        """Takes the last page of ``path`` out of a column; the slot that it had."""
        return self.slots.pop((path, column), NO_SLOT)

    # ------------------------------------------------------------ evicting
    def may_go(self, path: Path, column: int) -> bool:
        """Resident, covered by no lease, and no child resident in the same column (I16)."""
        above = [other[:-1] for other in self.resident(column)]
        return (path, column) in self.slots and not self.leased(path) and path not in above

    def evict(self, column: int, count: int) -> list[tuple[Path, int]]:
        """Takes up to ``count`` pages, the one used longest ago first."""
        gone: list[tuple[Path, int]] = []
        while len(gone) < count:
            free = [path for path in self.resident(column) if self.may_go(path, column)]
            if not free:
                break
            victim = min(free, key=lambda path: (self.used[path], -len(path)))
            gone.append((victim, self.drop(victim, column)))
        return gone
