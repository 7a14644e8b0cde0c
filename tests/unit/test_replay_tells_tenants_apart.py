"""A replay with tenants: nobody hits another's blocks, each one's hits are told by name and add up,
the room is divided by weight, and whose a request is, the trace says or a hash of its session.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.cli import main
from radix.options import OptionError
from radix.policy.eviction import NATIVE_POLICIES
from radix.replay.chains import encode_chains
from radix.replay.index import replay_index
from radix.replay.optimal import next_uses
from radix.replay.progress import Progress
from radix.replay.report import Run, replay_optimal
from radix.replay.sessions import Interleave
from radix.replay.tenants import weights_of, with_tenants
from radix.replay.traces import Trace, TraceError, read_trace
from radix.tenants import Tenants


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def blocks(path: Path, seed: int = 1, count: int = 200) -> Trace:
    """Requests of two tenants over few blocks, most of which both ask for."""
    rng = np.random.default_rng(seed)
    records = [
        {
            "timestamp": number,
            "hash_ids": rng.integers(0, 3, int(rng.integers(1, 9))).tolist(),
            "tenant": ("blue", "red")[int(rng.integers(2))],
        }
        for number in range(count)
    ]
    return read_trace(write(path / "blocks.jsonl", records))


def only(trace: Trace, tenant: str) -> Trace:
    """The requests of one tenant."""
    own = [number for number, name in enumerate(trace.tenants) if name == tenant]
    prompts = list(trace.prompts())
    kept = [prompts[number] for number in own]
    return replace(
        trace,
        timestamps=trace.timestamps[own],
        tokens=np.concatenate(kept),
        offsets=np.cumsum([0, *map(len, kept)]),
        lengths=trace.lengths[own],
        output_offsets=np.zeros(len(own) + 1, np.int64),
        streams=trace.streams[own],
        sessions=trace.sessions[own],
        tenants=(),
    )


def run_of(trace: Trace, capacity: int, policy: str, tenants: Tenants | None = None) -> Run:
    return replay_index(trace, encode_chains(trace), capacity, policy, Progress(), tenants=tenants)


@pytest.mark.parametrize("policy", NATIVE_POLICIES)
def test_who_has_room_hits_what_it_hits_alone(tmp_path: Path, policy: str) -> None:
    trace = blocks(tmp_path)
    run = run_of(trace, 4000, policy, Tenants())
    assert sorted(run.tenants) == ["blue", "red"]
    for name, own in run.tenants.items():
        alone = run_of(only(trace, name), 4000, policy)
        assert (own.hit_blocks, own.total_blocks) == (alone.hit_blocks, alone.total_blocks)
        assert own.resident_blocks == alone.total_blocks - alone.hit_blocks
    assert run.hit_blocks == sum(own.hit_blocks for own in run.tenants.values())
    assert run.total_blocks == sum(own.total_blocks for own in run.tenants.values())
    together = run_of(replace(trace, tenants=()), 4000, policy)
    assert run.hit_blocks < together.hit_blocks and not together.tenants


def test_chains_of_two_tenants_are_never_one(tmp_path: Path) -> None:
    trace = blocks(tmp_path)
    chains, whose = encode_chains(trace), {}
    unique = 0
    for number, (start, end) in enumerate(zip(chains.offsets, chains.offsets[1:], strict=False)):
        for chain in chains.ids[start:end].tolist():
            assert whose.setdefault(chain, trace.tenants[number]) == trace.tenants[number]
    for name in ("blue", "red"):
        unique += encode_chains(only(trace, name)).unique_blocks
    assert chains.unique_blocks == unique == len(whose)
    best = replay_optimal(trace, chains, next_uses(chains), 20)
    assert best.hit_blocks == sum(own.hit_blocks for own in best.tenants.values())


def scanned(path: Path) -> Trace:
    """A conversation of ten blocks in turns, and between any two of them six prompts of a scan."""
    records = []
    for turn in range(30):
        records.append({"timestamp": turn, "hash_ids": list(range(10)), "tenant": "chats"})
        for prompt in range(6):
            first = 100 + (turn * 6 + prompt) * 10
            ids = list(range(first, first + 10))
            records.append({"timestamp": turn, "hash_ids": ids, "tenant": "scan"})
    return read_trace(write(path / "scanned.jsonl", records))


@pytest.mark.parametrize("policy", NATIVE_POLICIES)
def test_a_scan_costs_conversations_nothing_where_the_room_is_divided(
    tmp_path: Path, policy: str
) -> None:
    trace = scanned(tmp_path)
    divided = run_of(trace, 40, policy, Tenants())
    assert divided.tenants["chats"].hit_blocks == 29 * 10
    undivided = run_of(trace, 40, policy)
    assert undivided.tenants["chats"].hit_blocks == (280 if policy == "s3fifo" else 0)
    small = run_of(trace, 40, policy, weights_of(trace, "scan=9, chats=1"))
    assert small.tenants["chats"].resident_blocks == 4
    assert small.tenants["chats"].hit_blocks < 29 * 10


SESSIONS = [
    {
        "block_size": 64,
        "requests": [
            {"t": 0.0, "in": 128, "hash_runs": [0, 2]},
            {"t": 1.0, "requests": [{"t": 0.5, "in": 64, "hash_runs": [7, 1]}]},
            {"t": 4.0, "in": 192, "hash_runs": [0, 3]},
        ],
    }
] * 40


def test_sessions_are_dealt_out_whole_and_alike(tmp_path: Path) -> None:
    file = write(tmp_path / "sessions.jsonl", SESSIONS)
    plain = read_trace(file)
    assert not plain.tenants
    dealt = with_tenants(plain, "5")
    of = dict(zip(dealt.sessions.tolist(), dealt.tenants, strict=True))
    assert [of[number] for number in dealt.sessions.tolist()] == list(dealt.tenants)
    assert set(of.values()) == {f"tenant-{number}" for number in range(5)}
    assert [of[number] for number in range(6)] == [
        f"tenant-{number}" for number in (4, 0, 0, 1, 2, 2)
    ]
    mixed = with_tenants(read_trace(file, interleave=Interleave(8, 5.0, 3)), "5")
    assert dict(zip(mixed.sessions.tolist(), mixed.tenants, strict=True)) == of


def test_each_format_may_say_whose_a_request_is(tmp_path: Path) -> None:
    named = [record | {"tenant": f"t{n % 2}"} for n, record in enumerate(SESSIONS[:4])]
    trace = read_trace(write(tmp_path / "sessions.jsonl", named))
    assert trace.tenants == (*("t0",) * 3, *("t1",) * 3) * 2
    tokens = [
        {"t": 0, "ref": -1, "keep": 0, "add": [5, 6], "out": [7], "tenant": "a"},
        {"t": 1, "ref": 0, "keep": 2, "add": [8], "out": []},
    ]
    trace = read_trace(write(tmp_path / "tokens.jsonl", tokens), page_tokens=1)
    assert trace.tenants == ("a", "")
    assert encode_chains(trace).unique_blocks == 5
    assert [None if space is None else space.salt for space in trace.spaces()] == [b"a", None]


@pytest.mark.parametrize("name", [7, None, "a\n", "\ud800"])
def test_a_tenant_that_is_no_name_is_refused(tmp_path: Path, name: object) -> None:
    for record in ({"timestamp": 0, "hash_ids": [1]}, SESSIONS[0]):
        file = write(tmp_path / "bad.jsonl", [record, record | {"tenant": name}])
        with pytest.raises(TraceError, match=r"bad\.jsonl:2: tenant: expected a name"):
            read_trace(file)


def test_options_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = blocks(tmp_path)
    plain = replace(trace, tenants=())
    for text, told in (("trace", "does not say whose"), ("3", "does not say which session")):
        with pytest.raises(OptionError, match=f"--tenants: .*{told}"):
            with_tenants(plain, text)
    for text in ("0", "-1", "many", "1000000"):
        with pytest.raises(OptionError, match="--tenants"):
            with_tenants(trace, text)
    for text in ("green=2", "blue", "blue=0", "blue=much"):
        with pytest.raises(OptionError, match="--weights"):
            weights_of(trace, text)
    for flags, said in (
        (["--weights", "blue=1"], "--weights: needs --tenants"),
        (["--undivided"], "--undivided: needs --tenants"),
        (["--tenants", "trace", "--undivided", "--weights", "blue=1"], "cannot go with --undiv"),
        (["--tenants", "trace", "--tiers", "device=9"], "--tenants: cannot go with --tiers"),
    ):
        assert main(["replay", trace.name, *flags]) == 2
        assert said in capsys.readouterr().err


def test_the_command_tells_each_tenants_hits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = scanned(tmp_path), tmp_path / "out.json"
    flags = ["--tenants", "trace", "--capacity", "40", "--policy", "lfu,optimal"]
    assert main(["replay", trace.name, *flags, "--json", str(out)]) == 0
    runs = json.loads(out.read_text())["runs"]
    chats = {"requests": 30, "hit_blocks": 290, "total_blocks": 300, "resident_blocks": 10}
    assert runs[0]["tenants"]["chats"] == chats
    assert runs[1]["tenants"]["chats"] == chats | {"resident_blocks": 0}
    assert "96.7 %" in capsys.readouterr().out
    assert main(["replay", trace.name, *flags, "--undivided", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["runs"][0]["tenants"]["chats"]["hit_blocks"] == 0
