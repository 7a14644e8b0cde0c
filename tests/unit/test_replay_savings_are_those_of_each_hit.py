"""What a replay says that hits save is the sum over the hits, each loaded or computed, whichever is
faster; a model without a cost, and rates without a throughput, are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radix.cli import main
from radix.groups import Retention
from radix.layout import Part
from radix.options import OptionError
from radix.policy.cost import Compute
from radix.policy.rates import Rate
from radix.replay.chains import encode_chains
from radix.replay.checkpoints import parse_checkpoints
from radix.replay.grouped import replay_model
from radix.replay.model_trace import fit
from radix.replay.models import Attention, Layers, Model
from radix.replay.options import BUDGET_LIMIT_BYTES
from radix.replay.progress import Progress
from radix.replay.saving import Saving, Terms, parse_terms
from radix.replay.traces import read_trace

BLOCK = 4
BYTES = (("dim", 10),)
MODEL = Model(
    "m",
    (
        Layers("kv", Retention(), 2, (Part("k", "int8", BYTES),), None, Attention(1, 4, 4)),
        Layers("near", Retention("window", 5), 1, (Part("k", "int8", BYTES),), None),
        Layers("state", Retention("state"), 1, (Part("s", "int8", BYTES),), None),
    ),
    100.0,
)
PROMPTS = ([1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [9], [1, 2, 3, 4, 5, 6], [9, 8])
HITS = (0, 2, 3, 0, 5, 1)  # blocks
LENGTHS = tuple(len(prompt) * BLOCK + 1 for prompt in PROMPTS)


def trace_file(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    lines = [
        json.dumps({"timestamp": n, "hash_ids": list(p), "input_length": length})
        for n, (p, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    path.write_text("\n".join(lines))
    return path


def saving(folder: Path, terms: Terms) -> Saving:
    trace = read_trace(str(trace_file(folder)))
    work = fit(trace, encode_chains(trace), MODEL, BLOCK)
    run = replay_model(work, parse_checkpoints("dense")[0], BUDGET_LIMIT_BYTES, Progress(), terms)
    assert run.hit_tokens == BLOCK * sum(HITS)
    assert run.saving is not None
    return run.saving


def compute() -> Compute:
    assert MODEL.cost is not None
    return Compute(1e3, MODEL.cost)


def hit_bytes(blocks: int) -> int:
    """All of the attention, the blocks of the last four tokens of the window, and one snapshot."""
    return blocks * BLOCK * 20 + BLOCK * 10 + 10


def test_hits_on_the_device_save_all_that_they_would_have_cost(tmp_path: Path) -> None:
    found = saving(tmp_path, Terms(compute(), None))
    expected = sum(compute().seconds(0, blocks * BLOCK) for blocks in HITS)
    assert found.saved_gpu_s == pytest.approx(expected)
    assert (found.loads, found.loaded_bytes, found.load_s, found.skipped) == (0, 0, 0.0, 0)
    assert found.bytes_per_s is found.latency_s is None


@pytest.mark.parametrize("rate", [Rate(0.0, 1e9), Rate(1.0, 150.0), Rate(2.5, 1e3), Rate(9.0, 1.0)])
def test_hits_that_are_read_count_where_that_is_faster(tmp_path: Path, rate: Rate) -> None:
    found = saving(tmp_path, Terms(compute(), rate))
    saved = loading = 0.0
    loads = skipped = nbytes = 0
    for blocks in filter(None, HITS):
        took = rate.seconds(hit_bytes(blocks))
        worth = took <= compute().seconds(0, blocks * BLOCK)
        loads, skipped = loads + worth, skipped + (not worth) * blocks * BLOCK
        if worth:
            saved += compute().seconds(0, blocks * BLOCK)
            loading, nbytes = loading + took, nbytes + hit_bytes(blocks)
    assert (found.loads, found.skipped_tokens, found.loaded_bytes) == (loads, skipped, nbytes)
    assert found.skipped + found.loads == len([hit for hit in HITS if hit])
    assert found.saved_gpu_s == pytest.approx(saved)
    assert found.load_s == pytest.approx(loading)


def test_the_rates_tried_decide_otherwise(tmp_path: Path) -> None:
    found = [saving(tmp_path, Terms(compute(), Rate(2.5, each))).loads for each in (1e9, 1e2, 1.0)]
    assert found[0] > found[1] >= found[2] == 0


def test_options_are_read_or_refused_by_name() -> None:
    terms = parse_terms(MODEL, "4.9e14", "12GB", "0.25")
    assert terms is not None
    assert terms.rate == Rate(0.25, 12e9)
    assert terms.compute.flops_per_s == 4.9e14
    assert parse_terms(MODEL, None, None, None) is None
    for given, what in (
        ((None, "12GB", None), "--rate: needs --flops"),
        (("1e14", None, "1"), "--latency: needs --rate"),
        (("much", None, None), "--flops: expected a number above 0"),
        (("inf", None, None), "--flops: expected a number above 0"),
        (("1e14", "0", None), "--rate: expected bytes a second"),
        (("1e14", "fast", None), "--rate: expected bytes a second"),
        (("1e14", "1GB", "-1"), "--latency: expected seconds"),
    ):
        with pytest.raises(OptionError, match=what):
            parse_terms(MODEL, *given)
    silent = Model("silent", MODEL.sets)
    with pytest.raises(OptionError, match="'silent' says no active_parameters"):
        parse_terms(silent, "1e14", None, None)


def test_the_command_shows_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = trace_file(tmp_path), tmp_path / "out.json"
    options = ["--model", "Llama-3.1-8B", "--budget-bytes", "100%", "--checkpoints", "dense"]
    more = ["--flops", "1e12", "--rate", "100GB", "--page-tokens", "4", "--json", str(out)]
    assert main(["replay", str(path), *options, *more]) == 0
    shown = capsys.readouterr().out
    assert "GPU s saved" in shown
    (run,) = json.loads(out.read_text())["runs"]
    assert run["saving"]["loads"] == 4
    assert run["saving"]["saved_gpu_s"] > 0
    assert main(["replay", str(path), "--flops", "1e12"]) == 2
