"""Ours beside vLLM's block pool and NVIDIA Dynamo's RadixTree, at the same work.

Kept here: all are child processes of one protocol and take turns; every stage is a row, and so is
the total that is compared; hits must be alike where nothing is evicted. What is and is not
comparable stands in the docstrings of the children and in the README.
"""

from __future__ import annotations

from bench.measure import LIMIT, OURS, Benchmark, Outcome, Place, Ratio, Row, Sizes, Target
from bench.peers.lookupwork import APPLY, BOTH, HASH, MATCH, MEMORY, READ
from bench.peers.protocol import Case, Found, Peer, measure_cases, times_faster

PROGRAM = "bench.peers.radix_blocks_child"
CACHE, LISTS, TREE = "PrefixCache", "PrefixCache given lists", "TreeCore"
ALONE = "Python alone"
VLLM, DYNAMO = "vLLM", "Dynamo"
SEED = 11


# ------------------------------------------------------------------ vLLM


def _vllm_cases(sizes: Sizes) -> list[Case]:
    """Each workload at both pages with room for all, and at the first page with less."""
    rooms = {"shared": sizes["shared_percent"], "turns": sizes["turns_percent"]}
    found = []
    for page in (sizes["page_tokens"], sizes["large_page_tokens"]):
        for workload, percent in rooms.items():
            one = {**sizes, "page_tokens": page, "percent": 100}
            found.append(Case(f"{workload}, page {page}: ", workload, one))
            if page == sizes["page_tokens"]:
                name = f"{workload}, page {page}, room for {percent} %: "
                found.append(Case(name, workload, {**one, "percent": percent}))
    return found


def run_vllm(sizes: Sizes, place: Place) -> Outcome:
    """us a request of each stage, and of all of them."""
    peers = [
        Peer(VLLM, "vllm", "bench.peers.vllm_child", env="vllm"),
        Peer(CACHE, OURS, PROGRAM, arguments=("requests", "cache")),
        Peer(LISTS, OURS, PROGRAM, arguments=("requests", "lists")),
        Peer(TREE, OURS, PROGRAM, arguments=("requests", "tree")),
        Peer(ALONE, LIMIT, PROGRAM, arguments=("requests", "alone")),
    ]
    rows: list[Row] = []
    facts: dict[str, int | str] = {}
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    pairs: list[tuple[str, str, float | None]] = []
    cases = _vllm_cases(sizes)
    found = measure_cases(peers, cases, SEED, place)
    for case in cases:
        name, each = case.name, found[case.name]
        each.facts.pop(ALONE, None)  # it does nothing
        rows += [row for row in each.rows(name) if _shown(row.name)]
        pairs += [
            (f"{name}total, {VLLM}", f"{name}total, {CACHE}", 80.0),
            (f"{name}total, {VLLM}", f"{name}total, {TREE}", 80.0),
            (f"{name}total, {VLLM}", f"{name}total, {LISTS}", None),
        ]
        rows += _hit_rows(each, name)
        if case.sizes["percent"] == 100:
            each.check_alike(["requests", "hit_tokens"])
        facts |= {f"{name}{key}": value for key, value in each.facts.get(CACHE, {}).items()}
        missing |= each.failed
        versions |= each.versions
    ratios, targets = times_faster(rows, pairs)
    return Outcome(rows, facts, ratios, targets, missing, versions)


def _shown(name: str) -> bool:
    """Of lists only what differs, of calls that do nothing their sum."""
    stage = name.partition(": ")[2]
    if stage.endswith(ALONE):
        return stage.startswith("total")
    return not stage.endswith(LISTS) or stage.startswith(("convert", "total"))


def _hit_rows(found: Found, name: str) -> list[Row]:
    """Tokens that hit, of each that counts its own; of ours once."""
    shown = {label: facts for label, facts in found.facts.items() if label not in (LISTS, TREE)}
    return [
        Row(f"{name}hits, {label}", found.subjects[label], "tokens", (float(facts["hit_tokens"]),))
        for label, facts in shown.items()
    ]


# ------------------------------------------------------------------ Dynamo


_UNITS = {APPLY: ("us/block", "taking in a block"), MEMORY: ("bytes/block", "memory of a block")}
_NAMES = {
    MATCH: "a full hit",
    READ: "a full hit, prompt just read",
    HASH: "hashing the prompt",
    BOTH: "hashing the prompt and a full hit",
}


def run_dynamo(sizes: Sizes, place: Place) -> Outcome:
    """us a full hit; of what goes in us and bytes a block."""
    peers = [
        Peer(DYNAMO, "dynamo", "bench.peers.dynamo_child", env="dynamo"),
        Peer(CACHE, OURS, PROGRAM, arguments=("lookups", "cache")),
        Peer(TREE, OURS, PROGRAM, arguments=("lookups", "tree")),
    ]
    cases = [
        Case(f"page {page}: ", "lookups", {**sizes, "page_tokens": page})
        for page in (sizes["page_tokens"], sizes["large_page_tokens"])
    ]
    rows: list[Row] = []
    facts: dict[str, int | str] = {}
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    ratios: list[Ratio] = []
    targets: list[Target] = []
    for case in cases:
        name = case.name
        each = measure_cases(peers, [case], SEED, place)[name]  # in new processes, for their memory
        mine = [_index_row(row, name) for row in each.rows()]
        ways = [
            (_NAMES[MATCH], 10.0),
            (_NAMES[READ], 10.0),
            (_UNITS[APPLY][1], None),
            (_UNITS[MEMORY][1], None),
        ]
        pairs = [
            (f"{name}{way}, {DYNAMO}", f"{name}{way}, {label}", times)
            for way, times in ways
            for label in (CACHE, TREE)
        ]
        hashed = f"{name}{_NAMES[BOTH]}, {DYNAMO}"
        pairs.append((hashed, f"{name}{_NAMES[MATCH]}, {CACHE}", None))
        more, wanted = times_faster(mine, pairs)
        rows += mine
        ratios += more
        targets += wanted
        each.check_alike(["blocks", "hit_blocks"])
        facts |= {f"{name}{key}": value for key, value in each.facts.get(CACHE, {}).items()}
        missing |= each.failed
        versions |= each.versions
    return Outcome(rows, facts, ratios, targets, missing, versions)


def _index_row(row: Row, name: str) -> Row:
    """The row "OPERATION, LABEL" with the unit of its operation and under its own name."""
    operation, _, label = row.name.partition(", ")
    if label.startswith("as counted"):
        label = f"as it counts itself, {label.partition(', ')[2]}"
    unit, said = _UNITS.get(operation, ("us", _NAMES.get(operation, operation)))
    return Row(f"{name}{said}, {label}", row.subject, unit, row.samples)


_SHARED = {"tokens": 4096, "group": 20, "shared_tokens": 2048}
_SMALL = {"prompts": 20, "tokens": 256, "group": 10, "shared_tokens": 128, "rounds": 1}
_PAGES = {"page_tokens": 16, "large_page_tokens": 64}
_ROOMS = {"shared_percent": 25, "turns_percent": 50}

BENCHMARKS = (
    Benchmark(
        "vllm",
        "vLLM's hash, match, allocate and free of a request, beside ours",
        run_vllm,
        smoke={**_SMALL, **_PAGES, **_ROOMS, "sessions": 4, "turns": 3, "turn_tokens": 100},
        full={
            **_SHARED,
            **_PAGES,
            **_ROOMS,
            "prompts": 2000,
            "sessions": 100,
            "turns": 20,
            "turn_tokens": 200,
            "rounds": 5,
        },
        tags=("peers",),
    ),
    Benchmark(
        "dynamo",
        "Dynamo's find_matches and stored events, beside ours",
        run_dynamo,
        smoke={**_SMALL, **_PAGES},
        full={**_SHARED, **_PAGES, "prompts": 2000, "rounds": 5},
        tags=("peers",),
    ),
)
