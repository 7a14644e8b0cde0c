"""A replay of a model counts what an independent simulator in dictionaries counts: joint hits over
all groups, found by trying every length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radix.groups import Retention
from radix.layout import Part
from radix.options import OptionError
from radix.policy.eviction import NATIVE_POLICIES
from radix.replay.chains import encode_chains
from radix.replay.checkpoints import parse_checkpoints
from radix.replay.grouped import model_report, replay_model
from radix.replay.index import replay_index
from radix.replay.model_trace import fit
from radix.replay.models import Layers, Model
from radix.replay.options import BUDGET_LIMIT_BYTES, parse_budgets, parse_orders
from radix.replay.progress import Progress
from radix.replay.report import ModelReport, ModelRun
from radix.replay.traces import Trace, read_trace
from tests.unit.replaysim import (
    Kept,
    Limited,
    Simulated,
    branch_and_turn,
    dense,
    every,
    replayed,
)

POLICIES = {"branch+turn": branch_and_turn, "dense": dense, "every=8": every(2)}


def layers(name: str, rule: str, tokens: int, dim: int) -> Layers:
    part = Part("bytes", "int8", (("dim", dim),))
    return Layers(name, Retention(rule, tokens), 1, (part,), None)


ATTENTION = layers("attention", "full", 0, 1)
STATE = layers("delta", "state", 0, 24)
MODELS = {
    "full": Model("full", (ATTENTION,)),
    "window": Model("window", (ATTENTION, layers("sliding", "window", 6, 2))),
    "state": Model("state", (ATTENTION, STATE)),
    "two states": Model("two", (ATTENTION, STATE, layers("conv", "state", 0, 5))),
    "all": Model(
        "all",
        (
            ATTENTION,
            layers("near", "window", 2, 3),
            layers("far", "window", 14, 2),
            STATE,
        ),
    ),
}
# The same in blocks of four tokens: a window of W tokens reaches over ceil((W - 1) / 4) of them.
KEPT = {
    "full": [Kept("full", 4)],
    "window": [Kept("full", 4), Kept("window", 8, 2)],
    "state": [Kept("full", 4), Kept("state", 24)],
    "two states": [Kept("full", 4), Kept("state", 24), Kept("state", 5)],
    "all": [Kept("full", 4), Kept("window", 12, 1), Kept("window", 8, 4), Kept("state", 24)],
}


def block_trace(folder: Path, prompts: Sequence[Sequence[int]]) -> Trace:
    path = folder / "trace.jsonl"
    lines = [json.dumps({"timestamp": n, "hash_ids": list(p)}) for n, p in enumerate(prompts)]
    path.write_text("\n".join(lines))
    return read_trace(str(path))


def run(trace: Trace, model: Model, policy: str, budget_bytes: int, order: str = "lru") -> ModelRun:
    work = fit(trace, encode_chains(trace), model, 4)
    places = parse_checkpoints(policy)[0]
    return replay_model(work, places, budget_bytes, Progress(), None, order)


def conversations(seed: int, count: int = 120) -> list[list[int]]:
    """Prompts that go on from earlier ones, leave them half-way, or begin anew."""
    random = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    for _ in range(count):
        base = prompts[int(random.integers(len(prompts)))] if prompts else []
        keep = len(base) if random.random() < 0.5 else int(random.integers(len(base) + 1))
        prompts.append(base[:keep] + random.integers(0, 3, int(random.integers(1, 5))).tolist())
    return prompts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_hits_without_a_limit_equal_the_simulated_ones(
    tmp_path: Path, name: str, policy: str, seed: int
) -> None:
    prompts = conversations(seed)
    cache = Simulated(KEPT[name])
    expected = replayed(cache, prompts, POLICIES[policy])
    found = run(block_trace(tmp_path, prompts), MODELS[name], policy, BUDGET_LIMIT_BYTES)
    assert found.hit_tokens == 4 * sum(expected), f"seed {seed}"
    assert found.usable_hit_blocks == sum(expected)
    assert sum(found.resident_bytes.values()) == cache.bytes()


@pytest.mark.parametrize("order", [name for name in NATIVE_POLICIES if name != "cost"])
@pytest.mark.parametrize("seed", range(3))
def test_hits_of_attention_alone_equal_those_of_its_policy_at_every_budget(
    tmp_path: Path, seed: int, order: str
) -> None:
    prompts = conversations(seed)
    trace = block_trace(tmp_path, prompts)
    chains = encode_chains(trace)
    for blocks in (1, 5, 12, 40, 100):
        counted = replay_index(trace, chains, blocks, order, Progress())
        found = run(trace, MODELS["full"], "branch+turn", 4 * blocks + 3, order)
        assert (found.policy, found.capacity_blocks) == (order, blocks)
        assert (found.hit_blocks, found.usable_hit_blocks, found.total_blocks) == (
            counted.hit_blocks,
            counted.usable_hit_blocks,
            counted.total_blocks,
        ), f"seed {seed}, {blocks} blocks"


@pytest.mark.parametrize("policy", ["branch+turn", "dense"])
@pytest.mark.parametrize("name", ["window", "state", "all"])
@pytest.mark.parametrize("percent", [15, 40])
def test_hits_under_a_budget_are_near_the_simulated_ones(
    tmp_path: Path, percent: int, name: str, policy: str
) -> None:
    """The order within one edge, and of groups of one age, is the tree's own: blocks go by edges
    there and one by one here. Over some hundred requests both come to nearly the same.
    """
    found = expected = 0
    for seed in range(4):
        prompts = conversations(seed, 60)
        free = Simulated(KEPT[name])
        replayed(free, prompts, POLICIES[policy])
        budget = free.bytes() * percent // 100
        cache = Limited(KEPT[name], budget_bytes=budget)
        expected += 4 * sum(replayed(cache, prompts, POLICIES[policy]))
        assert cache.bytes() <= budget
        found += run(block_trace(tmp_path, prompts), MODELS[name], policy, budget).hit_tokens
    assert abs(found - expected) <= 0.06 * expected, f"seeds 0 to 3: {found}, {expected} simulated"


def test_a_partial_block_is_left_out_and_so_is_the_token_behind_whole_ones(tmp_path: Path) -> None:
    """A prompt of 11 tokens has two whole blocks of four, and its last tokens lie behind them: all
    of both may hit. One of 8 tokens leaves its last block to compute.
    """
    path = tmp_path / "trace.jsonl"
    lines = [(11, [1, 2, 3]), (11, [1, 2, 3]), (8, [1, 2]), (11, [1, 2]), (5, [1, 2, 9])]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": 0, "input_length": length, "hash_ids": ids})
            for length, ids in lines
        )
    )
    trace = read_trace(str(path))
    work = fit(trace, encode_chains(trace), MODELS["full"], 4)
    assert work.whole.tolist() == [2, 2, 2, 2, 3]
    assert work.left.tolist() == [0, 0, 1, 0, 1]
    assert work.odd_lengths == 1
    found = run(trace, MODELS["full"], "dense", BUDGET_LIMIT_BYTES)
    assert found.usable_hit_blocks == 0 + 2 + 1 + 2 + 2
    assert found.resident_bytes == {"attention": 3 * 4}


def test_a_turn_of_tokens_ends_behind_its_output(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    first = {"t": 0, "ref": -1, "keep": 0, "add": list(range(10)), "out": list(range(50, 57))}
    second = {"t": 1, "ref": 0, "keep": 17, "add": [1, 2], "out": []}
    path.write_text("\n".join(map(json.dumps, (first, second))))
    trace = read_trace(str(path), page_tokens=4)
    found = run(trace, MODELS["state"], "turn", BUDGET_LIMIT_BYTES)
    # Of 17 tokens the last was sampled: the state of 16 is there, four pages.
    assert found.hit_tokens == 16


def report(trace: Trace, model: str, budgets: str, policies: str) -> ModelReport:
    parsed = parse_budgets(budgets), parse_checkpoints(policies)
    return model_report(trace, MODELS[model], 4, *parsed, Progress())


def test_a_percentage_is_of_what_the_first_policy_holds_without_a_limit(tmp_path: Path) -> None:
    trace = block_trace(tmp_path, conversations(0))
    found = report(trace, "state", "50%,1KiB", "turn,dense")
    free = run(trace, MODELS["state"], "turn", BUDGET_LIMIT_BYTES)
    assert found.footprint_bytes == sum(free.resident_bytes.values())
    assert (found.footprint_checkpoints, found.footprint_hit_tokens) == ("turn", free.hit_tokens)
    half = found.footprint_bytes // 2
    assert [(run.budget_bytes, run.checkpoints) for run in found.runs] == [
        (half, "turn"),
        (half, "dense"),
        (1024, "turn"),
        (1024, "dense"),
    ]


@pytest.mark.parametrize("name", MODELS)
def test_no_budget_is_exceeded_and_none_serves_more_than_all(tmp_path: Path, name: str) -> None:
    trace = block_trace(tmp_path, conversations(1))
    found = report(trace, name, "3%,10%,40%,100%", "branch+turn,dense,every=8")
    for one in found.runs:
        assert sum(one.resident_bytes.values()) <= one.budget_bytes
        assert one.state_bytes <= one.state_bytes_peak <= one.budget_bytes
        assert one.hit_tokens <= one.known_tokens
        if one.checkpoints == "branch+turn":
            assert one.hit_tokens <= found.footprint_hit_tokens
            if one.budget_bytes == found.footprint_bytes:
                assert one.hit_tokens == found.footprint_hit_tokens


def test_a_budget_below_one_block_is_refused_by_the_name_of_its_group(tmp_path: Path) -> None:
    trace = block_trace(tmp_path, [[1, 2]])
    with pytest.raises(OptionError, match="23 bytes hold no block of group 'delta', 24 bytes"):
        report(trace, "state", "23", "dense")


def test_the_json_of_a_run_has_its_fields(tmp_path: Path) -> None:
    values = report(block_trace(tmp_path, [[1, 2], [1, 2, 3]]), "state", "1KiB", "turn").as_json()
    assert {"trace", "requests", "blocks", "unique_blocks", "model", "footprint_bytes"} <= set(
        values
    )
    (one,) = values["runs"]
    assert {"policy", "capacity_blocks", "hit_blocks", "usable_hit_blocks", "total_blocks"} < set(
        one
    )
    picked = {key: one[key] for key in ("model", "budget_bytes", "checkpoints", "hit_tokens")}
    assert picked == {
        "model": "state",
        "budget_bytes": 1024,
        "checkpoints": "turn",
        "hit_tokens": 8,
    }
    assert (one["state_bytes"], one["state_bytes_peak"]) == (48, 48)
    assert json.loads(json.dumps(values)) == values


def test_each_policy_runs_under_each_budget_and_needs_what_it_goes_by(tmp_path: Path) -> None:
    trace = block_trace(tmp_path, conversations(2))
    budgets, places = parse_budgets("5%,20%"), parse_checkpoints("turn,dense")
    paid = replace(MODELS["state"], active_parameters=100.0)
    found = model_report(trace, paid, 4, budgets, places, Progress(), None, ("lru", "cost"))
    names = [(run.budget_bytes, run.checkpoints, run.policy) for run in found.runs]
    sizes = [budget.bytes(found.footprint_bytes) for budget in budgets]
    assert names == [
        (size, policy, order)
        for size in sizes
        for policy in ("turn", "dense")
        for order in ("lru", "cost")
    ]
    assert found.runs[2].hit_tokens != found.runs[3].hit_tokens
    with pytest.raises(OptionError, match="--policy: model 'state' says no active_parameters"):
        model_report(trace, MODELS["state"], 4, budgets, places, Progress(), None, ("cost",))
    with pytest.raises(OptionError, match="--policy: no optimal is known for the groups"):
        parse_orders("lru,optimal")
    assert parse_orders("all") == tuple(name for name in NATIVE_POLICIES if name != "priority")
