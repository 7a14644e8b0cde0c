"""The order of waiting requests in which those that share a prefix follow each other, the prefix
that most of them share first. It is found from the pages of their paths alone: two paths share as
many pages as they begin with in common, for a page of the tree has one number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radix.tier import Slots


def by_weight(paths: Sequence[Slots]) -> list[int]:
    """Indices of ``paths`` depth first: of the branches behind a shared prefix the one of most
    paths goes first, then that of the earliest path; what goes on goes before what ends there.

    Cost: the paths' pages, and their number at every branch.
    """
    # Big-endian bytes sort as the numbers do, and a path sorts before those that go on from it.
    names = [path.astype(">i4").tobytes() for path in paths]
    ranks = sorted(range(len(paths)), key=lambda index: (names[index], index))
    out: list[int] = []
    work: list[list[int]] = [ranks]
    ended: list[list[int]] = [[]]  # beside each: what ends where its branch begins
    while work:
        group, after = work.pop(), ended.pop()
        if not group:
            out.extend(after)
            continue
        depth = _shared(paths[group[0]], paths[group[-1]])
        here = [index for index in group if len(paths[index]) == depth]
        work.append([])
        ended.append(here)
        branches = _branches(paths, group[len(here) :], depth)
        branches.sort(key=lambda branch: (-len(branch), min(branch)))
        for branch in reversed(branches):
            work.append(branch)
            ended.append([])
    return out


def _shared(first: Slots, last: Slots) -> int:
    """Pages with which two paths begin alike."""
    count = min(len(first), len(last))
    unlike = np.flatnonzero(first[:count] != last[:count])
    return int(unlike[0]) if len(unlike) else count


def _branches(paths: Sequence[Slots], group: Sequence[int], depth: int) -> list[list[int]]:
    """A sorted group parted by the page at ``depth``."""
    parts: dict[int, list[int]] = {}
    for index in group:
        parts.setdefault(int(paths[index][depth]), []).append(index)
    return list(parts.values())
