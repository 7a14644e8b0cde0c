"""Where a forward has to stop or record, so that what a later hit needs can be kept: at the branch
point that the tree shows, at boundaries that the engine knows, and on the grid while the end of the
turn is unknown (a state cannot be rolled back). Keeps the positions of I28.

    prompt  0 ... hit ... branch ... boundary ............ last of the grid | decoding
    kept          have    mark       mark                  rolling          | rolling, every grid
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from radix.groups import Rule

ROLLING = 2  # snapshots of which the older gives way: one is final, one is being written


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """How densely snapshots are kept.

    ``spacing_tokens``: at least so far apart on the grid (branch points and boundaries are kept
    anyway). ``per_path``: at most so many on a path of one group; of those that stand, the deepest
    gives way to a new one, so that what most requests share stays.
    """

    spacing_tokens: int = 0
    per_path: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("spacing_tokens", self.spacing_tokens, 0),
            ("per_path", 1 if self.per_path is None else self.per_path, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")


def alignment(rules: Sequence[Rule], align_tokens: int) -> int:
    """Tokens of which every length that can be hit is a multiple."""
    grids = [rule.grid_tokens for rule in rules if rule.lookup]
    return math.lcm(align_tokens, *(grids or [1]))


def grid_cuts(first: int, last: int, prompt: int, grid: int, taken: int, spacing: int) -> list[int]:
    """Lengths in (first, last] at which the end of the turn may come to lie: the last of the grid
    that the same prompt could hit, every one behind it. ``taken``: the last length with a snapshot.
    """
    cuts: list[int] = []
    start = max(first + 1, (prompt - 1) // grid * grid)
    for position in range(-(-start // grid) * grid, last + 1, grid):
        if position and position - taken >= max(1, spacing):
            cuts.append(position)
            taken = position
    return cuts
