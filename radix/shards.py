"""Which rank holds, reads and writes what of a block: pure arithmetic over a group's layout and the
parallelism of a run. Nothing is inferred from a shape, and nothing is asked of a store: who writes
follows from the block's number and the rank alone, so that all ranks agree without a word. A write
is left to another rank only where the layout declares that both hold the same bytes.

    rank = (stage * context + c) * tensor + t        t fastest, stages outermost

    tensor 4, keys of 2 KV heads: factor 2           block i of group g is written, of each shard,
    t        0   1   2   3                           by the replica d = t mod 2 with
    shard    0   0   1   1                           i mod 2 == (d + g) mod 2
    replica  0   1   0   1

Tensor parallelism divides the shard axis, pipeline stages the layers, context parallelism the
blocks: context rank c holds block i, whole, when i mod ``context`` == c, and counts the blocks that
it holds for the writer rule (i // ``context`` stands for i), so that replicas still take turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radix.errors import UnsupportedError
from radix.groups import Group
from radix.layout import RUN, Layout, _positive

Blocks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, init=False)
class Parallelism:
    """How a run divides a model: ranks of each kind, all at least 1.

    Whatever divides no state of the cache (data, experts) is not given; any other kind (tokens of
    one block divided over ranks, say) is refused by name.
    """

    tensor: int
    pipeline: int
    context: int

    def __init__(
        self, tensor: int = 1, pipeline: int = 1, context: int = 1, **others: object
    ) -> None:
        """Raises: ``UnsupportedError`` naming a kind that no layout knows, ``ValueError`` and
        ``TypeError`` for a degree.
        """
        if others:
            raise UnsupportedError(
                f"parallelism {', '.join(sorted(others))}: a layout knows tensor, pipeline, context"
            )
        for name, degree in (("tensor", tensor), ("pipeline", pipeline), ("context", context)):
            object.__setattr__(self, name, _positive(f"{name} parallel degree", degree))

    @property
    def ranks(self) -> int:
        """Ranks of the run."""
        return self.tensor * self.pipeline * self.context

    def place(self, rank: int) -> tuple[int, int, int]:
        """(stage, context rank, tensor rank) of a rank. ``ValueError`` for one out of range."""
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"rank must be an int, not {type(rank).__name__}")
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank must be in [0, {self.ranks}), not {rank}")
        rest, tensor = divmod(rank, self.tensor)
        stage, context = divmod(rest, self.context)
        return stage, context, tensor


@dataclass(frozen=True, slots=True)
class Shards:
    """One group under one parallelism.

    What a rank holds: ``shard``, ``span``, ``layers_of``, ``holds``. What it moves: ``reads``,
    ``writes``, ``written``. Who moves a block: ``writers``. ``number``: the group's number in its
    cache; ``stages``: layers [first, end) of each pipeline stage (empty: equal shares), a stage
    without layers of this group has first == end. ``factor``: ranks that hold one shard: of each
    part the tensor ranks over its distinct shards, of the group the smallest (what divides all,
    where the smallest does not).

    Raises at construction: ``UnsupportedError`` for a layout that does not know the parallelism
    and for shards finer than those that are stored, ``ValueError`` for a degree that does not
    divide an axis and for stages that are not the layers in order.
    """

    group: Group
    parallelism: Parallelism
    number: int = 0
    stages: tuple[tuple[int, int], ...] = ()
    factor: int = field(init=False)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"group number must not be negative, not {self.number}")
        layout, tensor = self.group.layout, self.parallelism.tensor
        if self.parallelism.ranks > 1 and layout == Layout.opaque(layout.block_bytes):
            raise self._refusal(
                "its layout says only how many bytes a block has, not what several ranks hold"
            )
        if self.parallelism.context > 1 and self.group.retention.rule == "state":
            raise self._refusal("context parallelism divides blocks, and a snapshot has no others")
        try:
            cuts = [part.slices(tensor) for part in layout.parts]
        except ValueError as error:
            raise ValueError(f"group {self.group.name!r}: {error}") from None
        object.__setattr__(self, "factor", math.gcd(*(tensor // cut for cut in cuts)))
        distinct = tensor // self.factor
        if layout.store_shards % distinct:
            raise self._refusal(
                f"tensor parallel {tensor} makes {distinct} different shards, which are no whole "
                f"pieces of a block of store_shards {layout.store_shards}"
            )
        object.__setattr__(self, "stages", self._stages(layout.layers))

    def _refusal(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"group {self.group.name!r}: {why}")

    def _stages(self, layers: int) -> tuple[tuple[int, int], ...]:
        count, name = self.parallelism.pipeline, f"group {self.group.name!r}"
        if not self.stages:
            if layers % count:
                raise ValueError(
                    f"{name}: {count} pipeline stages do not divide {layers} layers; give stages="
                )
            share = layers // count
            return tuple((stage * share, (stage + 1) * share) for stage in range(count))
        stages = tuple((first, end) for first, end in self.stages)
        ends = [0, *(end for _, end in stages)]
        firsts = [*(first for first, _ in stages), layers]
        if len(stages) != count or ends != firsts or ends != sorted(ends):
            raise ValueError(
                f"{name}: stages must be {count} ranges that make up the layers [0, {layers}) in "
                f"order, not {self.stages}"
            )
        return stages

    # ------------------------------------------------------------------ what a rank holds
    def shard(self, rank: int) -> int:
        """Which of tensor // ``factor`` different shards the rank holds."""
        return self.parallelism.place(rank)[2] // self.factor

    def span(self, rank: int) -> tuple[int, int]:
        """The store shards [first, end) that the rank holds: several where it is coarser."""
        distinct = self.parallelism.tensor // self.factor
        width = self.group.layout.store_shards // distinct
        shard = self.shard(rank)
        return shard * width, (shard + 1) * width

    def layers_of(self, rank: int) -> tuple[int, int]:
        """The layers [first, end) of the group that the rank's stage holds."""
        return self.stages[self.parallelism.place(rank)[0]]

    def holds(self, rank: int, blocks: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these blocks (absolute numbers) the rank holds its share of. Cost: blocks."""
        return self._holds(rank, block_numbers(blocks))

    def _holds(self, rank: int, blocks: Blocks) -> npt.NDArray[np.bool_]:
        first, end = self.layers_of(rank)
        context = self.parallelism.place(rank)[1]
        held: npt.NDArray[np.bool_] = blocks % self.parallelism.context == context
        return held & (first < end)

    # ------------------------------------------------------------------ what it moves
    def reads(self, rank: int) -> npt.NDArray[np.void]:
        """The runs of a block that the rank needs of the blocks that it holds: those of its layers
        and of its shard, replicated parts among them (dtype ``layout.RUN``). Cost: the runs.
        """
        return self._view(rank, beginning=False)

    def written(self, rank: int) -> npt.NDArray[np.void]:
        """The runs that the rank writes of the blocks that it writes: of those that it reads the
        ones that begin in its shard. What other shards hold too, the rank of the first of them
        writes.
        """
        return self._view(rank, beginning=True)

    def _view(self, rank: int, *, beginning: bool) -> npt.NDArray[np.void]:
        first, end = self.layers_of(rank)
        if first == end:
            return np.empty(0, RUN)
        return self.group.layout.view((first, end), self.span(rank), beginning=beginning)

    def writes(self, rank: int, blocks: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these blocks (absolute numbers) the rank writes its runs of. Of the replicas of
        one shard exactly one writes each block. Cost: blocks.
        """
        rows = block_numbers(blocks)
        replica = self.parallelism.place(rank)[2] % self.factor
        turn = rows // self.parallelism.context % self.factor
        mine: npt.NDArray[np.bool_] = turn == (replica + self.number) % self.factor
        return mine & self._holds(rank, rows) & (len(self.written(rank)) > 0)

    def writers(self, block: int) -> tuple[int, ...]:
        """The ranks that write a block, ascending: all of them make it whole, and it is there once
        all have acknowledged. Cost: the ranks.
        """
        return tuple(r for r in range(self.parallelism.ranks) if self.writes(r, [block])[0])


def shards_of(groups: Sequence[Group], parallelism: Parallelism) -> tuple[Shards, ...]:
    """Every group of a cache under one parallelism, its stages of equal shares. Raises as
    :class:`Shards`.
    """
    return tuple(Shards(group, parallelism, number) for number, group in enumerate(groups))


def block_numbers(blocks: npt.ArrayLike) -> Blocks:
    """A row of absolute block numbers, int64. ``TypeError``, ``ValueError`` for anything else."""
    rows = np.asarray(blocks)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise TypeError(f"blocks must be one row of integers, not {rows.ndim} of {rows.dtype}")
    if rows.size and int(rows.min()) < 0:
        raise ValueError(f"blocks must be numbered from 0 on, not {int(rows.min())}")
    return rows.astype(np.int64)
