"""What our trees count in the benchmarks against peers follows from the sizes of the workload, so
that a figure of a match is one of a match.
"""

from __future__ import annotations

import pytest

from bench.peers.protocol import Case, Peer, measure_cases

SIZES = {
    "prompts": 12,
    "tokens": 512,
    "shared_tokens": 256,
    "group": 4,
    "probes": 9,
    "evictions": 3,
    "sessions": 3,
    "turns": 4,
    "turn_tokens": 200,
    "page_tokens": 16,
    "rounds": 1,
}
BESIDE = {
    "full": {},
    "window": {"window_tokens": 128},
    "state": {"states": 1},
    "both": {"window_tokens": 128, "states": 1},
}


@pytest.mark.parametrize("kind", ["tree", "cache"])
def test_counts_follow_from_the_sizes(kind: str) -> None:
    peer = Peer(kind, "radix", "bench.peers.radix_child", arguments=(kind,))
    cases = [
        Case(f"{name} {workload}", workload, {**SIZES, **beside})
        for name, beside in BESIDE.items()
        for workload in ("shared", "turns", "keys")
    ]
    found = measure_cases([peer], cases, 3)
    for name in BESIDE:
        for workload in ("shared", "turns", "keys"):
            assert found[f"{name} {workload}"].failed == {}
        # A hit of half a prompt ends where no window and no state stands.
        partial = 9 * 256 if name == "full" else 0
        assert found[f"{name} shared"].facts[kind] == {
            "matched_before": 9 * 256,
            "inserted_before": 9 * 256,
            "hit_tokens": 9 * 512,
            "read_tokens": 9 * 512,
            "hot_tokens": 9 * 512,
            "partial_tokens": partial,
            "miss_tokens": 0,
            "evicted_tokens": 3 * 256,
        }
        # 200, 400 and 600 tokens are 12, 25 and 37 whole pages.
        assert found[f"{name} turns"].facts[kind] == {"turn_hit_tokens": 3 * 16 * (12 + 25 + 37)}
        assert found[f"{name} keys"].facts[kind] == {"converted_tokens": 9 * 512 * 3}


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_the_limit_has_a_figure_for_each_operation(page_tokens: int) -> None:
    peers = [
        Peer("tree", "radix", "bench.peers.radix_child", arguments=("tree",)),
        Peer("limit", "limit", "bench.peers.limit_child"),
    ]
    sizes = {**SIZES, "page_tokens": page_tokens}
    cases = [Case(workload, workload, sizes) for workload in ("shared", "turns")]
    for found in measure_cases(peers, cases, 3).values():
        assert found.failed == {}  # it fails where what it compares differs
        assert found.samples["limit"].keys() == found.samples["tree"].keys()
        assert found.facts["limit"] == {}


def test_an_unknown_tree_is_refused_by_name() -> None:
    peer = Peer("x", "radix", "bench.peers.radix_child", arguments=("bush",))
    with pytest.raises(RuntimeError, match=r"x: ValueError: .*bush"):
        measure_cases([peer], [Case("a", "shared", SIZES)], 3)
