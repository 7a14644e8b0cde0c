"""The staged tree of draft tokens beside one request, as pure structure: which draft follows which,
and which slot holds its bytes, so that accepting a branch copies nothing (a part of I7, I10). All
links lie on the host; nothing is read back from a device.

    blocks of 4 tokens, a request of 6 (0 to 5), drafts a b c in one chain, d after a, e after d

    block           1              2
    tail page       4 5 a b   ->   c . . .     the first branch goes on in the request's own page
    page of d       4 5 a d   ->   e . . .     4 5 a are copied when d is added

A branch that begins inside a block starts with a copy of the block so far, in a slot of its own:
whichever branch is accepted, its slots hold the whole of their blocks and take the place of the
request's. Where a block is one token nothing is ever copied.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix.keys import Tokens
from radix.tier import Slots
from radix.tree import NO_SLOT

ROOT = -1
Mask = npt.NDArray[np.bool_]
Pairs = tuple[Slots, Slots]


class Own(Protocol):
    """The slots that a request has of its own: a dict by block, or ``Ahead``."""

    def get(self, block: int, default: int, /) -> int:
        """That of a block, ``default`` where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Ahead:
    """``Own`` in a page table of which a block takes ``block_pages``: what is reserved for tokens
    to come may be long, and drafts reach a few blocks of it.
    """

    slots: Slots
    own: Mask
    block_pages: int

    def get(self, block: int, default: int, /) -> int:
        """That of a block. Cost: O(1)."""
        page = (block + 1) * self.block_pages - 1
        return int(self.slots[page]) if page < len(self.slots) and self.own[page] else default


@dataclass(frozen=True, slots=True)
class Ground:
    """What the drafts of one group stand on.

    ``block_tokens``: tokens a block; 0 where the group keeps a block a sequence, so that a draft
    has a slot for the whole state behind it, or none. ``own``: the request's slots by the number
    of the block, from the block of the first draft on; they stay while the drafts do.
    """

    block_tokens: int
    own: Own


@dataclass(slots=True)
class _Page:
    """A slot that holds block number ``block`` of one branch, up to the draft ``tip``.

    ``source``: the slot that it was copied from. ``taken``: reserved for the drafts, not one of
    the request's. ``slot`` is NO_SLOT only while it is planned.
    """

    slot: int
    block: int
    source: int
    taken: bool
    tip: int = ROOT


@dataclass(slots=True)
class Growth:
    """What more drafts would add, by group: ``needed`` slots to reserve, which ``fill`` is told."""

    needed: tuple[int, ...]
    pages: tuple[list[_Page], ...]
    slots: tuple[list[int], ...] = ()

    def fill(self, slots: Sequence[Slots]) -> list[Pairs]:
        """Takes the reserved slots; what is to be copied, by group: sources and targets."""
        self.slots = tuple(row.tolist() for row in slots)
        for added, row in zip(self.pages, self.slots, strict=True):
            # the slots for states belong to no page
            for page, slot in zip((page for page in added if page.taken), row, strict=False):
                page.slot = slot
        return [_pairs(added) for added in self.pages]


class _Branches:
    """Where the drafts of one group lie. ``plan``, ``grow``; ``writes``, ``kept``."""

    def __init__(self, ground: Ground, base: int) -> None:
        self.size = ground.block_tokens
        self._own = ground.own
        self._used: set[int] = set()  # blocks of the request's own that drafts lie in
        self.pages: list[_Page] = []
        self.page_of: list[_Page] = []  # by draft
        if base % self.size:
            block = base // self.size
            slot = self._own.get(block, NO_SLOT)
            self.pages.append(_Page(slot, block, NO_SLOT, taken=False))
            self._used.add(block)

    def plan(self, parent: int, position: int, count: int) -> list[_Page]:
        """The pages that ``count`` drafts from ``position`` on, behind ``parent``, add."""
        added: list[_Page] = []
        block = position // self.size
        if position % self.size:
            here = self._page(parent)
            if here.tip != parent:
                added.append(_Page(NO_SLOT, block, here.slot, taken=True))
            block += 1
        for number in range(block, (position + count - 1) // self.size + 1):
            slot = NO_SLOT if number in self._used else self._own.get(number, NO_SLOT)
            added.append(_Page(slot, number, NO_SLOT, taken=slot == NO_SLOT))
        return added

    def grow(self, parent: int, position: int, drafts: range, added: list[_Page]) -> None:
        """Adds planned pages, whose slots are known now, and the drafts in them."""
        coming = iter(added)
        begins = position % self.size == 0 or self._page(parent).tip != parent
        page = next(coming) if begins else self._page(parent)
        for draft in drafts:
            if draft > drafts[0] and position % self.size == 0:
                page = next(coming)
            page.tip = draft
            self.page_of.append(page)
            position += 1
        self.pages += added
        for page in added:
            if not page.taken:
                self._used.add(page.block)

    def _page(self, draft: int) -> _Page:
        return self.pages[0] if draft == ROOT else self.page_of[draft]

    def writes(
        self, parents: Sequence[int], positions: Sequence[int], base: int, computed: int
    ) -> list[tuple[int, int]]:
        """(draft, slot) of each place that is to be written; see ``DraftTree.writes``."""
        rows: list[tuple[int, int]] = []
        for page in self.pages:
            draft, start = page.tip, page.block * self.size
            while draft != ROOT and positions[draft] >= start:
                rows.append((draft, page.slot))
                draft = parents[draft]
            if draft == ROOT and page.taken:
                rows += [(at - base, page.slot) for at in range(max(start, computed), base)]
        return sorted(rows)

    def kept(self, path: Sequence[int]) -> dict[int, int]:
        """The slot of each block of a path: the last page in a block holds all of the block."""
        return {self.page_of[draft].block: self.page_of[draft].slot for draft in path}


class DraftTree:
    """Drafts behind the ``base`` tokens of a request, of which ``computed`` are computed.

    Grow: ``plan``, then ``add`` with the slots. Look: ``parents``, ``tokens``, ``positions``,
    ``mask``, ``slots``, ``states``, ``copies``, ``writes``. Beside a draft: ``annotate``,
    ``annotation``. End: ``check_path``, ``kept``, ``taken``.

    >>> import numpy as np
    >>> tree = DraftTree(6, 5, [Ground(4, {1: 30})])
    >>> for parent, run, slots in ((ROOT, [7, 8, 9], [31]), (0, [5, 6], [32, 33])):
    ...     growth = tree.plan(parent, len(run), states=False)
    ...     copies = growth.fill([np.array(slots, np.int32)])
    ...     drafts = tree.add(parent, run, growth)
    >>> tree.slots(0).tolist()
    [30, 30, 31, 32, 33]
    >>> tree.kept(0, [0, 3])
    {1: 32}
    """

    def __init__(self, base: int, computed: int, grounds: Sequence[Ground]) -> None:
        self.base = base
        self.computed = computed
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._notes: dict[int, dict[str, object]] = {}
        self._branches = tuple(
            _Branches(ground, base) if ground.block_tokens else None for ground in grounds
        )
        self._states: tuple[list[int], ...] = tuple([] for _ in grounds)

    def __len__(self) -> int:
        return len(self._parents)

    # ------------------------------------------------------------ growing
    def plan(self, parent: int, count: int, *, states: bool) -> Growth:
        """What a chain of ``count`` drafts behind ``parent`` needs; changes nothing.

        Raises ``ValueError`` for a parent that is not in the tree.
        """
        where = self.node("parent", parent, root=True)
        position = self._behind(where)
        pages = tuple(
            [] if branches is None else branches.plan(where, position, count)
            for branches in self._branches
        )
        needed = tuple(
            count * states if branches is None else sum(page.taken for page in added)
            for branches, added in zip(self._branches, pages, strict=True)
        )
        return Growth(needed, pages)

    def add(self, parent: int, tokens: Sequence[int], growth: Growth) -> list[int]:
        """Adds the planned chain, whose slots ``Growth.fill`` was told; the drafts' numbers."""
        drafts = range(len(self), len(self) + len(tokens))
        position = self._behind(parent)
        for branches, states, added, slots in zip(
            self._branches, self._states, growth.pages, growth.slots, strict=True
        ):
            if branches is not None:
                branches.grow(parent, position, drafts, added)
            else:
                states += slots or [NO_SLOT] * len(drafts)
        self._parents += [parent, *drafts[:-1]]
        self._tokens += tokens
        self._positions += range(position, position + len(drafts))
        return list(drafts)

    def _behind(self, draft: int) -> int:
        return self.base if draft == ROOT else self._positions[draft] + 1

    # ------------------------------------------------------------ looking
    @property
    def parents(self) -> Slots:
        """The draft that each follows, int32; ROOT: the last token of the request."""
        return np.array(self._parents, np.int32)

    @property
    def tokens(self) -> Tokens:
        """The token of each draft, int32."""
        return np.array(self._tokens, np.int32)

    @property
    def positions(self) -> Slots:
        """Tokens before each draft, from the start of the request, int32."""
        return np.array(self._positions, np.int32)

    def mask(self) -> Mask:
        """(n, n): whether draft i sees draft j, itself and those that it follows. All of them see
        every token of the request. Cost: n * n bytes.
        """
        seen = np.eye(len(self), dtype=np.bool_)
        for draft, parent in enumerate(self._parents):
            if parent != ROOT:
                seen[draft] |= seen[parent]
        return seen

    def slots(self, group: int) -> Slots:
        """The slot with the bytes of each draft, int32; its place in it is position % tokens a
        block. ``ValueError`` for a group that keeps a block a sequence.
        """
        return np.array([page.slot for page in self._paged(group).page_of], np.int32)

    def states(self, group: int) -> Slots:
        """The slot for the state behind each draft, int32, NO_SLOT where none was asked for.
        ``ValueError`` for a group that keeps a block a page.
        """
        if self._branches[group] is not None:
            raise ValueError(f"group is {group}, which keeps a block a page: ask slots")
        return np.array(self._states[group], np.int32)

    def copies(self, group: int) -> Pairs:
        """The blocks that were copied, sources and targets, in the order of the copies."""
        return _pairs(self._paged(group).pages)

    def writes(self, group: int) -> Pairs:
        """Drafts and slots: all the places that their bytes have, ascending by draft.

        A copy is made when a branch is added. What is computed later belongs into each slot of
        its block: those of a draft, and (numbers below 0, -1 the last) the tokens of the request
        that are not computed yet, which have their place in the request's own slot as well.
        """
        rows = self._paged(group).writes(self._parents, self._positions, self.base, self.computed)
        pairs = np.array(rows, np.int32).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    def _paged(self, group: int) -> _Branches:
        branches = self._branches[group]
        if branches is None:
            raise ValueError(f"group is {group}, which keeps a block a sequence: ask states")
        return branches

    # ------------------------------------------------------------ beside a draft
    def annotate(self, draft: int, key: str, value: object) -> None:
        """Puts a value beside a draft or ROOT, once. ``ValueError`` where it has one already."""
        where = self.node("draft", draft, root=True)
        if key in self._notes.get(where, ()):
            raise ValueError(f"key is {key!r}, which draft {where} has already")
        self._notes.setdefault(where, {})[key] = value

    def annotation(self, draft: int, key: str) -> object:
        """The value beside a draft or ROOT. ``ValueError`` where it has none of this key."""
        notes = self._notes.get(self.node("draft", draft, root=True), {})
        if key not in notes:
            raise ValueError(f"key is {key!r}, expected one of {sorted(notes)} of draft {draft}")
        return notes[key]

    def node(self, name: str, draft: object, *, root: bool) -> int:
        """A draft of this tree; ROOT only where ``root``. ``ValueError``, ``TypeError``."""
        if isinstance(draft, bool | float | str) or not hasattr(draft, "__index__"):
            raise TypeError(f"{name} must be a draft's number, not {type(draft).__name__}")
        number = operator.index(draft)
        if not (0 <= number < len(self) or (root and number == ROOT)):
            also = "ROOT or " if root else ""
            raise ValueError(f"{name} is {number}, expected {also}one of {len(self)} drafts")
        return number

    # ------------------------------------------------------------ the end
    def check_path(self, path: Iterable[object]) -> list[int]:
        """The path, if each draft of it follows the one before and the first ROOT, else
        ``ValueError``.
        """
        if not isinstance(path, Iterable) or isinstance(path, str | bytes):
            raise TypeError(f"path must hold the numbers of drafts, not {type(path).__name__}")
        before, result = ROOT, []
        for step, draft in enumerate(path):
            number = self.node(f"path[{step}]", draft, root=False)
            if self._parents[number] != before:
                place = "ROOT" if before == ROOT else f"draft {before}"
                raise ValueError(f"path[{step}] is {number}, which does not follow {place}")
            result.append(number)
            before = number
        return result

    def kept(self, group: int, path: Sequence[int]) -> dict[int, int]:
        """By number of the block, the slots that a path would leave in the page table."""
        return self._paged(group).kept(path)

    def taken(self, group: int) -> list[int]:
        """Every slot that was reserved for drafts."""
        branches = self._branches[group]
        if branches is None:
            return [slot for slot in self._states[group] if slot != NO_SLOT]
        return [page.slot for page in branches.pages if page.taken]


def _pairs(pages: Sequence[_Page]) -> Pairs:
    copied = [(page.source, page.slot) for page in pages if page.source != NO_SLOT]
    rows = np.array(copied, np.int32).reshape(-1, 2)
    return rows[:, 0].copy(), rows[:, 1].copy()
