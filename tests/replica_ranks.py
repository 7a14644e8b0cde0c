"""The ranks of a real run: N processes, forked from one that has loaded torch, each with tensors of
its own, that compare what they hold over torch.distributed (gloo, 127.0.0.1). Run by the test of
replicas: ``replica_ranks.py FOLDER RANKS``; each rank writes what it found to FOLDER/rank<i>.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from radix.errors import LayoutMismatchError
from radix.layout import Part
from radix.replicas import verify_replicas
from radix.shards import Blocks, Parallelism, Shards
from tests.shardrig import (
    Rank,
    buffer_planes,
    checksums,
    every_group,
    flip,
    group,
    rank_of,
    whole_state,
)

BLOCKS = np.arange(6)


def gathered(shards: Shards, mine: Rank) -> Callable[[int, Blocks], np.ndarray]:
    """Each rank computes the checksums of its own memory, and all of them get all of them."""
    view = shards.reads(mine.number)
    sums = np.stack(
        [
            checksums(buffer_planes(shards.group.layout, view[i : i + 1], mine.buffers), BLOCKS)
            for i in range(len(view))
        ],
        axis=1,
    )
    every = [torch.empty(sums.shape, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.from_numpy(sums.view(np.int64)))
    return lambda rank, blocks: every[rank].numpy().view(np.uint64)[blocks]


def found(shards: Shards, mine: Rank) -> str:
    """What comparing says."""
    try:
        compared = verify_replicas(shards, BLOCKS, gathered(shards, mine))
    except LayoutMismatchError as refused:
        return str(refused)
    return f"{shards.group.name}: compared {compared}"


def rank_main(folder: Path, rank: int, ranks: int) -> None:
    """Keys that are replicas, a state that is none, and keys of which one bit differs."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=ranks)
    run = Parallelism(ranks)
    keys = Shards(every_group()["two heads"], run)
    whole = whole_state(keys.group, len(BLOCKS), seed=2)
    mine = rank_of(keys, rank, whole, rank, filled=True)
    answers = [found(keys, mine)]
    part = Part("state", "float32", (("layer", 2), ("head", 2), ("dim", 3)))
    state = Shards(group("gdn", (part,)), run)
    own = rank_of(state, rank, whole_state(state.group, len(BLOCKS), rank), rank, filled=True)
    answers.append(found(state, own))
    if rank == ranks - 1:
        flip(mine.tensors["key"], 3, 2, 0, 0, 0)
    answers.append(found(keys, mine))
    (folder / f"rank{rank}").write_text("\n".join(answers))
    dist.destroy_process_group()


def main() -> int:
    """Forks the ranks and waits for all of them; 0 if each ended well."""
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            rank_main(folder, rank, ranks)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
