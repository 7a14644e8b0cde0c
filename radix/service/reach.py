"""How far a prompt is there when its pages are keys: the longest length at which every group has
the blocks that its rule asks for (I15, I26, I28), over one row of "is there" a group. Pure
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.groups import Rule
from radix.keysets import Mask


def first_gap(there: Mask) -> int:
    """Pages from the first on without a gap."""
    gap = int(there.argmin()) if len(there) else 0
    return len(there) if len(there) and bool(there[gap]) else gap


def joint_pages(there: Sequence[Mask], rules: Sequence[Rule], most: int) -> int:
    """The greatest n <= ``most`` at which a hit of n pages has all that every group needs.

    ``there[g][p]``: the block of group g that ends with page p is in a readable tier. Cost: pages x
    groups.
    """
    most = min([most, *(len(row) for row in there)])
    limiting = [(row, rule) for row, rule in zip(there, rules, strict=True) if rule.lookup]
    if all(rule.everywhere for _, rule in limiting):
        return min([most, *(first_gap(row) for row, _ in limiting)])
    valid = np.ones(most + 1, np.bool_)
    for row, rule in limiting:
        valid &= _valid(row[:most], rule)
    return int(valid.nonzero()[0][-1])  # 0 always is


def needed_pages(rule: Rule, pages: int) -> tuple[int, int]:
    """The pages [first, end) whose blocks a hit of ``pages`` pages reads of a group."""
    return rule.first_page(pages), pages


def _valid(row: Mask, rule: Rule) -> Mask:
    """Whether a hit of n pages is complete in one group, for n of [0, len(row)]."""
    lengths = np.arange(len(row) + 1, dtype=np.int64)
    if rule.everywhere:
        full: Mask = lengths <= first_gap(row)
        return full
    if rule.per_position:
        state = np.concatenate(([True], row))
        state &= lengths % rule.block_pages == 0
        return state
    tokens = lengths * rule.page_tokens
    missing = np.concatenate(([0], np.cumsum(~row)))
    whole: Mask = missing[lengths] == missing[_first_pages(tokens, rule)]
    return whole


def _first_pages(tokens: npt.NDArray[np.int64], rule: Rule) -> npt.NDArray[np.int64]:
    """``Rule.first_page`` of many lengths at once."""
    if rule.code == lib.RDX_RULE_WINDOW:
        first = np.maximum(0, tokens - rule.reach_tokens)
    else:
        first = tokens // rule.reach_tokens * rule.reach_tokens
    pages: npt.NDArray[np.int64] = np.minimum(first, tokens) // rule.page_tokens
    return pages
