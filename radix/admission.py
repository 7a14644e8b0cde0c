"""Admission: one transaction over all groups of the first tier. Match, pin, reserve; or give
everything back and say which budget is short (R0, R1, R4). ``blocks_needed`` is the formula that
admission and the sizing of pools share, so that a pool of ``pool_sizes`` refuses nothing that it
was made for, and what it refuses no waiting would let in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radix.arguments import at_least_one
from radix.errors import CapacityError, NeverFitsError
from radix.groups import Group, Rule, check_groups, rule_of
from radix.lifecycle import Work
from radix.plan import Pages
from radix.policy.checkpoint import ROLLING, alignment
from radix.residency import Residency
from radix.tier import Slots, Tier
from radix.transfers import Transfers
from radix.tree import EVERY_GROUP, NO_SLOT, TreeCore


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest request that an engine will ever send: ``tokens`` in all, generated ones
    included, computed at most ``chunk_tokens`` a step (None: in one). ``ValueError`` below 1.
    """

    tokens: int
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        at_least_one("tokens", self.tokens)
        if self.chunk_tokens is not None:
            at_least_one("chunk_tokens", self.chunk_tokens)


def blocks_needed(
    rule: Rule,
    tokens: int,
    chunk_tokens: int | None = None,
    behind_tokens: int = 1,
    hit_pages: int = 0,
) -> int:
    """Blocks of one group that a request of ``tokens`` tokens, generated ones included, holds at
    once in the first tier.

    Every block, one a token run of the grid, but for those that lie behind the window of a hit of
    ``hit_pages``; where only the last tokens count and a step computes at most ``chunk_tokens``,
    what a window and a chunk overlap, and the window of the last length that can be hit, at most
    ``behind_tokens`` behind what is computed; of a state the running one and the two that roll.
    """
    if rule.per_position:
        return 1 + ROLLING
    blocks = -(-tokens // rule.grid_tokens)
    if rule.everywhere or not rule.kept:
        return blocks
    if chunk_tokens is None:
        return blocks - min(hit_pages, rule.first_page(hit_pages)) // rule.block_pages
    span = rule.reach_tokens + chunk_tokens + behind_tokens
    return min(blocks, -(-(span - 1) // rule.grid_tokens) + 1)


def behind_tokens(rules: Sequence[Rule], align_tokens: int) -> int:
    """How far the last length that can be hit lies behind what is computed, at most. Of it a
    request keeps the window. ``align_tokens``: hits are multiples of it.
    """
    ahead = max((rule.lookahead_pages for rule in rules if rule.lookup), default=0)
    return alignment(rules, align_tokens) + ahead * rules[0].page_tokens


def pool_sizes(
    groups: Sequence[Group],
    page_tokens: int,
    largest: Largest,
    *,
    requests: int = 1,
    align_tokens: int = 1,
) -> tuple[int, ...]:
    """Blocks of each group that ``requests`` requests as large as ``largest`` hold at once in the
    first tier: with ``requests`` 1 the least pools in which such a request is ever admitted.

    What is to stay cached beside them comes on top: a hit pins what it needs of a window, and one
    snapshot, until its request has gone on. ``align_tokens``: as of the cache. Raises
    ``ValueError`` and ``TypeError``. Cost: the groups.

    >>> pool_sizes([Group.full("kv", 64)], 16, Largest(4000, 512), requests=3)
    (750,)
    """
    many = at_least_one("requests", requests)
    rules = [rule_of(group, page_tokens) for group in check_groups(groups)]
    behind = behind_tokens(rules, math.lcm(page_tokens, at_least_one("align_tokens", align_tokens)))
    tokens, chunk = largest.tokens, largest.chunk_tokens
    return tuple(many * blocks_needed(rule, tokens, chunk, behind) for rule in rules)


def check_fits(residency: Residency, needed: Sequence[int], root: int | None = None) -> None:
    """R0: ``NeverFitsError`` at once for what no waiting can make fit. ``needed``: by group the
    blocks that the request holds at once. ``root``: its namespace, for the quota of its tenant.
    """
    check_capacity(residency.tiers[0], residency.groups, needed)
    if residency.quotas is not None and root is not None:
        residency.quotas.check_fits(0, needed, root)


def check_largest(
    tier: Tier,
    groups: Sequence[Group],
    page_tokens: int,
    largest: Largest | None,
    align_tokens: int,
) -> None:
    """``NeverFitsError`` where the pools of a tier would never admit such a request (C47)."""
    if largest is None:
        return
    if not isinstance(largest, Largest):
        raise TypeError(f"largest must be a Largest, not {type(largest).__name__}")
    sizes = pool_sizes(groups, page_tokens, largest, align_tokens=align_tokens)
    check_capacity(tier, groups, sizes)


def check_capacity(tier: Tier, groups: Sequence[Group], needed: Sequence[int]) -> None:
    """``NeverFitsError`` where a pool holds fewer blocks than are ``needed`` of its group, alone or
    beside those of the other groups, where all share what there is.
    """
    shared = tier.capability.shares_bytes and len(groups) > 1
    for beside, told in ((None, ""), (needed, " beside the others")) if shared else ((None, ""),):
        for group, spec in enumerate(groups):
            capacity = tier.capacity_blocks(group, beside)
            if needed[group] > capacity:
                raise NeverFitsError(
                    f"tier {tier.name!r}, group {spec.name!r}{told}",
                    needed=needed[group],
                    capacity=capacity,
                )


def reserve_all(
    residency: Residency, counts: Sequence[int], root: int | None = None
) -> list[Slots]:
    """``counts[group]`` slots of the first tier in every group, or none at all (R4): where one
    group is short, nothing of another is evicted for it. What is only kept gives way. ``root``: for
    whose tenant.
    """
    while True:
        try:
            return _take_all(residency, counts, root)
        except CapacityError:
            if residency.keeper is None or not residency.keeper.give_way(counts):
                raise


def _take_all(residency: Residency, counts: Sequence[int], root: int | None) -> list[Slots]:
    # of one group the reservation itself evicts nothing in vain
    alone = len(counts) > 1 and not residency.tiers[0].capability.shares_bytes
    for group, count in enumerate(counts):
        if alone and count and count > residency.available(0, group, root):
            raise residency.shortage(0, group, count, root)
    taken: list[Slots] = []
    try:
        for group, count in enumerate(counts):
            taken.append(residency.reserve(0, group, count, root))
    except BaseException:
        for group, slots in enumerate(taken):
            residency.tiers[0].abort(group, slots)
        raise
    return taken


@dataclass(slots=True)
class LeftWindows:
    """What one request let go of behind its windows: by group, ``gone``, the pages at which blocks
    end, and their slots. Until ``settle`` it can be taken back, by ``undo``.
    """

    work: Work
    residency: Residency
    transfers: Transfers
    gone: dict[int, tuple[Pages, Slots]]

    def room(self, group: int) -> int:
        """Slots that ``settle`` frees: of an older epoch, and read by nobody else."""
        _, slots = self.gone.get(group, (None, ()))
        alone = {-self.work.hop}
        return sum(self.transfers.fenced.get((0, group, int(slot))) == alone for slot in slots)

    def settle(self) -> None:
        """It stays so. Idempotent. Cost: the slots in quarantine."""
        for group, (_, slots) in self.gone.items():
            places = {(0, group, slot) for slot in slots.tolist()}
            self.transfers.let_go(-self.work.hop, places)

    def undo(self) -> None:
        """The request holds again what it let go of, as far as it was not evicted meanwhile."""
        tree = self.residency.tree
        for group, (pages, slots) in self.gone.items():
            held, count = self.work.held[group], int(pages[-1]) + 1
            end = tree.lease_end(self.work.at.root, self.work.ahead or self.work.lease)
            there = self.residency.blocks(end, group, 0, 0, count)[pages] == slots
            fenced = [(0, group, slot) in self.transfers.fenced for slot in slots.tolist()]
            kept = pages[there | np.array(fenced, np.bool_)]
            if len(kept):
                first = int(kept[0]) + 1 - held.rule.block_pages + held.rule.lookahead_pages
                _hold_from(self.work, tree, group, first)
                held.slots[kept] = slots[np.isin(pages, kept)]


def leave_windows(
    work: Work, residency: Residency, transfers: Transfers, groups: Sequence[int]
) -> LeftWindows | None:
    """Lets go of what a request holds beyond ``blocks_needed``; None where there is nothing.

    Where nothing more of it enters the tree, its lease ends where it did, and goes on pinning
    windows that the request has left: what lies behind the one that it reads now may go (R1).
    ``groups``: those that do not keep everything. Cost: its pages.
    """
    if not work.stale and (work.cacheable is None or work.computed < work.cacheable):
        return None
    left = LeftWindows(work, residency, transfers, {})
    for group in groups:
        held = work.held[group]
        first = held.rule.first_page(work.computed // held.rule.page_tokens)
        gone = np.flatnonzero((held.slots[:first] != NO_SLOT) & ~held.own[:first])
        if held.rule.per_position or not len(gone):
            continue
        _hold_from(work, residency.tree, group, first + held.rule.lookahead_pages)
        left.gone[group] = gone, held.slots[gone]
        held.slots[gone] = NO_SLOT
    return left if left.gone else None


def equal_blocks(work: Work, residency: Residency) -> dict[int, tuple[Pages, Slots]]:
    """By group the pages behind the hit, where a group looks ahead, of which the request has blocks
    of its own though its second lease pins equal ones, with the slots of those. None while a step
    is under way, which may read them. Cost: those pages.
    """
    found: dict[int, tuple[Pages, Slots]] = {}
    if not work.ahead or work.waiting:
        return found
    end = residency.tree.lease_end(work.at.root, work.ahead)
    for group, held in enumerate(work.held):
        rule, first = held.rule, work.inserted
        last = min(end.pages - rule.lookahead_pages, work.computed // rule.page_tokens)
        if not rule.everywhere or last <= first:
            continue
        have = residency.blocks(end, group, 0, first, last - first)
        twice = first + np.flatnonzero(held.own[first:last] & (have != NO_SLOT))
        if len(twice):
            found[group] = twice, have[twice - first]
    return found


def reserve_more(
    work: Work, residency: Residency, counts: Sequence[int], left: LeftWindows | None
) -> list[Slots]:
    """``reserve_all`` for one that runs. Where room is short it goes on without the blocks that it
    has twice (``equal_blocks``) and with what ``left`` frees, if that is enough. ``CapacityError``
    where it is not: but for what was evicted all is as before.
    """
    try:
        return reserve_all(residency, counts, work.at.root)
    except CapacityError:
        equal = {
            group: blocks
            for group, blocks in equal_blocks(work, residency).items()
            if counts[group]
        }
        for group, count in enumerate(counts):
            freed = len(equal[group][0]) if group in equal else 0
            freed += left.room(group) if left is not None else 0
            alone = not residency.tiers[0].capability.shares_bytes
            if alone and count and count > residency.available(0, group, work.at.root) + freed:
                raise
        if not equal and left is None:
            raise
    if left is not None:
        left.settle()
    for group, (pages, slots) in equal.items():
        held = work.held[group]
        residency.tiers[0].abort(group, held.slots[pages])
        held.slots[pages], held.own[pages] = slots, False
    return reserve_all(residency, counts, work.at.root)


def reserve_leaving(
    work: Work,
    residency: Residency,
    transfers: Transfers,
    counts: Sequence[int],
    groups: Sequence[int],
) -> list[Slots]:
    """``reserve_all`` for one that runs, which leaves its windows where that makes the room.
    ``CapacityError``: but for what was evicted all is as before. ``groups``: as in
    ``leave_windows``.
    """
    if not any(counts):  # as one asks who needs no more, of a tier that is off too
        return [np.empty(0, np.int32) for _ in counts]
    try:
        return reserve_all(residency, counts, work.at.root)
    except CapacityError:
        left = leave_windows(work, residency, transfers, groups)
        if left is None:
            raise
    try:
        slots = reserve_more(work, residency, counts, left)
    except BaseException:
        left.undo()
        raise
    left.settle()
    return slots


def _hold_from(work: Work, tree: TreeCore, group: int, first: int) -> None:
    """Of one group it pins what stands from page ``first`` on, and nothing before."""
    before, end = work.apart.pop(group, 0), tree.lease_end(work.at.root, work.ahead or work.lease)
    if first < end.pages:
        work.apart[group] = tree.lease(end, 1 << group, first)[0]
    for lease in (work.lease, work.ahead):
        if lease:
            tree.narrow(lease, EVERY_GROUP & ~(1 << group))
    if before:
        tree.release(before, stamp=False)
