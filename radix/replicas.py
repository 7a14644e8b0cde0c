"""Whether ranks that are declared to hold the same bytes do: checksums of what they hold, compared
run by run. A write is left to another rank only on a declared replica set (``radix.shards``); a
state that each rank keeps its own part of, declared replicated, would otherwise be found by its
wrong answers alone. Which blocks are sampled follows from their numbers and a seed, so that all
ranks look at the same ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix.errors import LayoutMismatchError
from radix.shards import Blocks, Shards, block_numbers

Sums = npt.NDArray[np.uint64]


def sampled(blocks: npt.ArrayLike, rate: float, seed: int) -> Blocks:
    """The blocks to look at: about ``rate`` of them, the same in every process. Cost: blocks.

    Raises: ``ValueError`` unless 0 < rate <= 1 and 0 <= seed < 2^64.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, not {rate}")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2^64), not {seed}")
    rows = block_numbers(blocks)
    if rate == 1:
        return rows
    # splitmix64 of block and seed: no generator, hence no state that ranks could differ in.
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(
        seed
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return rows[(mixed >> np.uint64(11)) < np.uint64(int(rate * 2**53))]


def verify_replicas(
    shards: Shards,
    blocks: npt.ArrayLike,
    checksums: Callable[[int, Blocks], Sums],
    *,
    rate: float = 1.0,
    seed: int = 0,
) -> int:
    """Compares what the replicas of a group hold of ``blocks`` (absolute numbers); changes nothing.

    ``checksums(rank, blocks)`` gives uint64 (blocks, runs): one for each of these blocks and each
    run of ``shards.reads(rank)``, of the rank's own memory. It is asked once a rank, for those of
    the ``sampled`` blocks that the rank holds; between processes it is the answer of a gather.
    Returns the checksums compared. A factor of 1 does not end it: a mixed group has parts that
    more ranks share than its factor says.
    Raises: ``LayoutMismatchError`` naming group, block, parts and ranks, ``ValueError`` for
    checksums of another shape, and as ``sampled``. Cost: ranks x blocks x runs, and the checksums.
    """
    chosen = sampled(blocks, rate, seed)
    first: dict[tuple[int, int], tuple[Blocks, list[int], list[Sums]]] = {}
    compared = 0
    for rank in range(shards.parallelism.ranks):
        held = chosen[shards.holds(rank, chosen)]
        view = shards.reads(rank)
        if not len(held):
            continue
        sums = np.asarray(checksums(rank, held))
        if sums.shape != (len(held), len(view)) or sums.dtype != np.uint64:
            raise ValueError(
                f"group {shards.group.name!r}: checksums of rank {rank} must be uint64 of shape "
                f"{(len(held), len(view))}, not {sums.dtype} of {sums.shape}"
            )
        context = shards.parallelism.place(rank)[1]
        for column, run in enumerate(view):
            key = (context, int(run["piece"]) * shards.group.layout.layers + int(run["layer"]))
            _, ranks, columns = first.setdefault(key, (held, [], []))
            ranks.append(rank)
            columns.append(sums[:, column])
    for (_, run), (held, ranks, columns) in sorted(first.items()):
        if len(ranks) < 2:
            continue
        table = np.stack(columns)
        compared += table.size
        wrong = np.nonzero((table != table[0]).any(axis=0))[0]
        if len(wrong):
            at = int(wrong[0])
            raise _mismatch(shards, run, int(held[at]), ranks, table[:, at])
    return compared


def _mismatch(
    shards: Shards, run: int, block: int, ranks: list[int], sums: Sums
) -> LayoutMismatchError:
    layout = shards.group.layout
    piece, layer = divmod(run, layout.layers)
    parts = ", ".join(repr(part.name) for part in layout.contents(piece, layer))
    sets: dict[int, list[str]] = {}
    for rank, value in zip(ranks, sums.tolist(), strict=True):
        sets.setdefault(value, []).append(str(rank))
    sides = " and ".join(f"({', '.join(side)})" for side in sets.values())
    return LayoutMismatchError(
        f"group {shards.group.name!r} is declared replicated and is not: ranks {sides} hold "
        f"different bytes of block {block}, part {parts}, layer {layer}"
    )
