"""The default tree of SGLang, as the benchmarks drive it, does the work that ours does: what hits,
what was there and what is evicted is alike, with a window and a state beside the full group too.
"""

from __future__ import annotations

from bench.peers.protocol import Case, Peer, measure_cases

SIZES = {
    "prompts": 20,
    "tokens": 512,
    "shared_tokens": 256,
    "group": 5,
    "probes": 10,
    "evictions": 5,
    "sessions": 4,
    "turns": 3,
    "turn_tokens": 200,
    "page_tokens": 16,
    "rounds": 1,
}
TREES = {
    "pages of one token": {"page_tokens": 1},
    "a window": {"window_tokens": 128},
    "a state": {"states": 1},
    "both": {"window_tokens": 128, "states": 1},
}
CASES = [
    Case(f"{workload}, {name}", workload, {**SIZES, **differs})
    for name, differs in TREES.items()
    for workload in ("shared", "turns")
]
OURS = Peer("ours", "radix", "bench.peers.radix_child", arguments=("tree",))
RUST = Peer("rust", "sglang-rust", "bench.peers.sglang_child", "", ("rust",), deadline_s=120.0)


def test_the_tree_of_sglang_counts_as_ours_does() -> None:
    found = measure_cases([OURS, RUST], CASES, 5)
    for case in CASES:
        each = found[case.name]
        assert each.failed == {}, case.name
        assert each.facts["rust"] == each.facts["ours"], case.name
        assert sum(each.facts["ours"].values()) > 0
