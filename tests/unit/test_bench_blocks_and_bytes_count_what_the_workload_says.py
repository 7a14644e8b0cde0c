"""What ours counts beside vLLM, Dynamo and LMCache follows from the sizes of the workload, so that
a figure of a hit is one of a hit, and a damaged chunk is never given out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.protocol import Case, Peer, measure_cases

PROGRAM = "bench.peers.radix_blocks_child"
SHARED = {"prompts": 12, "tokens": 512, "shared_tokens": 256, "group": 4, "rounds": 1}
TURNS = {"sessions": 3, "turns": 4, "turn_tokens": 200, "rounds": 1}


@pytest.mark.parametrize("kind", ["cache", "lists", "tree"])
def test_requests_hit_what_was_there_before(kind: str) -> None:
    peer = Peer(kind, "radix", PROGRAM, arguments=("requests", kind))
    cases = [
        Case(f"{workload} {page} {percent}", workload, {**sizes, "page_tokens": page, **room})
        for workload, sizes in (("shared", SHARED), ("turns", TURNS))
        for page in (16, 64)
        for percent in (100, 25)
        for room in ({"percent": percent},)
    ]
    found = measure_cases([peer], cases, 3)
    assert {reason for each in found.values() for reason in each.failed.values()} == set()
    hits = {name: each.facts[kind]["hit_tokens"] for name, each in found.items()}
    assert hits["shared 16 100"] == hits["shared 64 100"] == 9 * 256
    # 200, 400 and 600 tokens are 12, 25 and 37 whole pages of 16, and 3, 6 and 9 of 64.
    assert hits["turns 16 100"] == 3 * 16 * (12 + 25 + 37)
    assert hits["turns 64 100"] == 3 * 64 * (3 + 6 + 9)
    assert found["turns 64 100"].facts[kind]["requests"] == 12
    # A session waits for its next turn while two others take the room that is left.
    assert hits["turns 16 25"] < hits["turns 16 100"]
    stages = set(found["shared 16 100"].samples[kind])
    assert stages >= {"match", "lease", "insert", "release", "total"}
    assert ("convert" in stages) == (kind == "lists")


def test_calls_that_do_nothing_hit_nothing() -> None:
    peer = Peer("alone", "limit", PROGRAM, arguments=("requests", "alone"))
    case = Case("a", "shared", {**SHARED, "page_tokens": 16, "percent": 100})
    found = measure_cases([peer], [case], 3)["a"]
    assert found.failed == {}
    assert found.facts["alone"] == {"requests": 12, "hit_tokens": 0}
    assert set(found.samples["alone"]) == {"match", "lease", "insert", "release", "total"}


@pytest.mark.parametrize("kind", ["cache", "tree"])
def test_lookups_find_every_block_that_went_in(kind: str) -> None:
    peer = Peer(kind, "radix", PROGRAM, arguments=("lookups", kind))
    found = measure_cases([peer], [Case("a", "lookups", {**SHARED, "page_tokens": 16})], 3)["a"]
    assert found.failed == {}
    blocks = (12 * 256 + 3 * 256) // 16
    assert found.facts[kind] == {"blocks": blocks, "hit_blocks": 12 * 512 // 16}
    assert "hash" not in found.samples[kind]
    assert found.samples[kind]["memory, as counted"][0] > 64


def test_chunks_come_back_as_they_were_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "bytes"
    peer = Peer("ours", "radix", "bench.peers.radix_bytes_child", arguments=(str(folder),))
    sizes = {"chunk_bytes": 65536, "total_bytes": 16 * 65536, "batch_bytes": 4 * 65536}
    found = measure_cases([peer], [Case("a", "bytes", {**sizes, "rounds": 1})], 3)["a"]
    assert found.failed == {}
    assert found.facts["ours"] == {
        "chunks": 16,
        "good": 6 * 16,
        "hits_after_reopen": 8,
        "flipped_bit": "a miss",
        "half_file": "a miss",
    }
    assert not folder.exists()


@pytest.mark.parametrize("arguments", [(), ("requests", "bush"), ("lookups", "lists")])
def test_an_unknown_kind_is_refused(arguments: tuple[str, ...]) -> None:
    peer = Peer("x", "radix", PROGRAM, arguments=arguments)
    with pytest.raises(RuntimeError, match="x: ValueError: give requests or lookups"):
        measure_cases([peer], [Case("a", "shared", {**SHARED, "page_tokens": 16})], 3)
