"""Index-only replay counts structural and usable hits of the facade that engines use, over blocks
or full pages of tokens, with prompts cut to what fits.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from radix.replay.chains import Chains, encode_chains
from radix.replay.index import replay_index
from radix.replay.progress import Progress
from radix.replay.report import Run
from radix.replay.traces import Trace, read_trace


class Heard(Progress):
    """Remembers what a run told."""

    def __init__(self) -> None:
        self.reached: list[int] = []

    def reach(self, done: int) -> None:
        self.reached.append(done)


def block_trace(folder: Path, prompts: list[list[int]]) -> tuple[Trace, Chains]:
    path = folder / "trace.jsonl"
    lines = [json.dumps({"timestamp": n, "hash_ids": ids}) for n, ids in enumerate(prompts)]
    path.write_text("\n".join(lines))
    trace = read_trace(str(path))
    return trace, encode_chains(trace)


def replay(folder: Path, prompts: list[list[int]], capacity: int) -> Run:
    trace, chains = block_trace(folder, prompts)
    return replay_index(trace, chains, capacity, "lru", Progress())


def test_a_repeated_prompt_hits_whole_but_one_block_is_left_to_compute(tmp_path: Path) -> None:
    run = replay(tmp_path, [[1, 2, 3], [1, 2, 3], [1, 2, 4]], 10)
    assert (run.hit_blocks, run.usable_hit_blocks, run.total_blocks) == (5, 4, 9)


def test_a_prompt_longer_than_the_cache_is_cut_to_what_fits(tmp_path: Path) -> None:
    run = replay(tmp_path, [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], 3)
    assert run.hit_blocks == 3


def test_equal_ids_behind_different_prefixes_do_not_hit(tmp_path: Path) -> None:
    assert replay(tmp_path, [[1, 2], [3, 2], [2]], 10).hit_blocks == 0


def test_only_full_pages_of_tokens_count(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    prompt = list(range(11))
    record = {"t": 0, "ref": -1, "keep": 0, "add": prompt, "out": [1]}
    path.write_text("\n".join(json.dumps(record) for _ in range(2)))
    trace = read_trace(str(path), page_tokens=4)
    run = replay_index(trace, encode_chains(trace), 10, "lru", Progress())
    assert (run.hit_blocks, run.usable_hit_blocks, run.total_blocks) == (2, 2, 4)


def test_progress_ends_at_the_last_request(tmp_path: Path) -> None:
    trace, chains = block_trace(tmp_path, [[n] for n in range(600)])
    heard = Heard()
    replay_index(trace, chains, 10, "lru", heard)
    assert heard.reached == [0, 256, 512, 600]


def test_a_policy_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    trace, chains = block_trace(tmp_path, [[1]])
    with pytest.raises(ValueError, match="mru"):
        replay_index(trace, chains, 10, "mru", Progress())


@pytest.mark.parametrize("seed", range(4))
def test_hits_equal_those_of_a_simulator_of_three_dozen_lines(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, 3, size=random.integers(1, 7)).tolist() for _ in range(200)]
    for capacity in (1, 3, 8, 20):
        assert replay(tmp_path, prompts, capacity).hit_blocks == simulated(prompts, capacity)


def simulated(prompts: list[list[int]], capacity: int) -> int:
    """Childless blocks leave, least recently used first; those of the present prompt stay."""
    kept: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        path = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        hit = 0
        while hit < len(path) and path[hit] in kept:
            hit += 1
        hits += hit
        fresh = path[hit:capacity]
        while len(kept) + len(fresh) > capacity:
            parents = {block[:-1] for block in kept}
            pinned = set(path[:hit])
            del kept[next(b for b in kept if b not in parents and b not in pinned)]
        # Of one path the deepest block is the oldest, so it is touched first.
        for block in reversed(path[: hit + len(fresh)]):
            kept[block] = None
            kept.move_to_end(block)
    return hits
