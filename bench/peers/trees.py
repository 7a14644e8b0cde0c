"""Our tree beside SGLang's three, at the workloads of ``treework``.

Kept here: all are child processes of one protocol and take turns round by round; what they count
(tokens that hit, that were there, that were evicted) must be alike, or no figure is shown; the
targets are ratios to SGLang's default, the Rust core, of TreeCore, the tree alone. PrefixCache, the
facade, stands beside it: it also takes slots, commits them and gives them back. "limit" is what the
machine asks of any tree that verifies tokens (``limit_child``): how many times faster than the peer
that is says which targets can be reached here at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.measure import LIMIT, OURS, Benchmark, Facts, Outcome, Place, Row, Sizes, Target, ratio
from bench.peers.protocol import Case, Found, Peer, measure_cases, times_faster

SEED = 61
CORE, FACADE, RUST = "TreeCore", "PrefixCache", "sglang-rust"
# How many times faster than SGLang's Rust core each operation is to be.
TIMES = {
    "insert": 8.0,
    "insert behind a match": 8.0,
    "match hit": 8.0,
    "match hit in cache": 10.0,
    "match partial": 8.0,
    "match miss": 10.0,
    "lease": 10.0,
    "release": 8.0,
    "evict one leaf": 50.0,
    "turns: match": 20.0,
    "turns: insert": 30.0,
}
OTHERS = ("match hit, prompt just read", "turns: lease", "turns: release")
MIXED_TIMES_ALONE = 2.0
FULL, WINDOW, STATE, MIXED = "full", "window", "state", "window and state"


def _ours(*kinds: str) -> list[Peer]:
    """Ours by what they are called in rows."""
    names = {CORE: "tree", FACADE: "cache"}
    program = "bench.peers.radix_child"
    return [Peer(kind, OURS, program, arguments=(names[kind],)) for kind in kinds]


def _sglang(*kinds: str) -> list[Peer]:
    program = "bench.peers.sglang_child"
    return [Peer(f"sglang-{kind}", f"sglang-{kind}", program, "sglang", (kind,)) for kind in kinds]


def _limit() -> Peer:
    """What any tree that verifies tokens has to pay here."""
    return Peer(LIMIT, LIMIT, "bench.peers.limit_child")


def _versions(found: Mapping[str, Found]) -> dict[str, str]:
    """What SGLang's side ran on; ours stands in the report's own block."""
    given = [each.versions for each in found.values()]
    return {name: version for each in given for name, version in each.items() if name != "radix"}


def _missing(found: Mapping[str, Found]) -> dict[str, str]:
    """Each peer that is missing everywhere by its name, else by the case too."""
    missing: dict[str, str] = {}
    for case, each in found.items():
        for label, reason in each.failed.items():
            everywhere = all(other.failed.get(label) == reason for other in found.values())
            missing[label if everywhere else f"{case}{label}"] = reason
    return missing


def _facts(found: Mapping[str, Found]) -> Facts:
    """What all counted alike, by case. ``Disagreement`` where they did not."""
    facts: dict[str, int | str] = {}
    for case, each in found.items():
        names = {name for mine in each.facts.values() for name in mine}
        facts |= {f"{case}{name}": value for name, value in each.check_alike(sorted(names)).items()}
    return facts


def _outcome(
    found: Mapping[str, Found],
    rows: Sequence[Row],
    pairs: Sequence[tuple[str, str, float | None]],
    within: Sequence[tuple[str, str, float]] = (),
) -> Outcome:
    """``pairs``: theirs, ours, times; ``within``: ours, ours, at most so many times."""
    ratios, targets = times_faster(rows, pairs)
    known = {row.name for row in rows}
    for name, to, most in within:
        if name in known and to in known:
            ratios.append(ratio(rows, name, to))
            targets.append(Target(f"{name} / {to}", "at most", most))
    columns = list(dict.fromkeys(row.name.rpartition(", ")[2] for row in rows))
    return Outcome(
        rows,
        _facts(found),
        ratios,
        targets,
        missing=_missing(found),
        versions=_versions(found),
        columns=columns,
    )


# --------------------------------------------------------------------- page 16


def run_trees(sizes: Sizes, place: Place) -> Outcome:
    """us of each operation, page 16, a full group alone."""
    cases = [Case(f"{workload}: ", workload, sizes) for workload in ("shared", "turns")]
    peers = [*_sglang("rust", "python", "radix"), *_ours(CORE, FACADE), _limit()]
    found = measure_cases(peers, cases, SEED, place)
    rows = [row for each in found.values() for row in each.rows()]
    pairs: list[tuple[str, str, float | None]] = []
    for name in [*TIMES, *OTHERS]:
        pairs.append((f"{name}, {RUST}", f"{name}, {CORE}", TIMES.get(name)))
        pairs.append((f"{name}, {RUST}", f"{name}, {FACADE}", None))
        pairs.append((f"{name}, {RUST}", f"{name}, {LIMIT}", None))
    return _outcome(found, rows, pairs)


# --------------------------------------------------------------- pages 1 and 64


def run_pages(sizes: Sizes, place: Place) -> Outcome:
    """The same at other pages, TreeCore and SGLang's default."""
    cases = [
        Case(f"page {page}: {workload}: ", workload, {**sizes, "page_tokens": page})
        for page in (sizes["small_page_tokens"], sizes["large_page_tokens"])
        for workload in ("shared", "turns")
    ]
    found = measure_cases([*_sglang("rust"), *_ours(CORE), _limit()], cases, SEED, place)
    rows: list[Row] = []
    pairs: list[tuple[str, str, float | None]] = []
    for case in cases:
        prefix = f"page {case.sizes['page_tokens']}: "
        rows += found[case.name].rows(prefix)
    for page in (sizes["small_page_tokens"], sizes["large_page_tokens"]):
        for name, times in TIMES.items():
            begin = f"page {page}: {name}, "
            pairs.append((begin + RUST, begin + CORE, times))
            pairs.append((begin + RUST, begin + LIMIT, None))
    return _outcome(found, rows, pairs)


# ---------------------------------------------------------- a window and a state


def run_groups(sizes: Sizes, place: Place) -> Outcome:
    """The same with a window and a state beside the full group."""
    kinds = {
        FULL: {"window_tokens": 0, "states": 0},
        WINDOW: {"states": 0},
        STATE: {"window_tokens": 0},
        MIXED: {},
    }
    cases = [
        Case(f"{kind}: {workload}: ", workload, {**sizes, **without})
        for kind, without in kinds.items()
        for workload in ("shared", "turns")
    ]
    found = measure_cases([*_sglang("rust"), *_ours(CORE, FACADE)], cases, SEED, place)
    rows: list[Row] = []
    for case in cases:
        prefix = f"{case.name.partition(':')[0]}: "
        rows += [row for row in found[case.name].rows(prefix) if _compared(row.name)]
    pairs: list[tuple[str, str, float | None]] = [
        (f"{kind}: {name}, {RUST}", f"{kind}: {name}, {CORE}", times)
        for kind in (WINDOW, STATE, MIXED)
        for name, times in TIMES.items()
    ]
    within = [
        (f"{MIXED}: {name}, {ours}", f"{FULL}: {name}, {ours}", MIXED_TIMES_ALONE)
        for name in TIMES
        for ours in (CORE, FACADE)
    ]
    return _outcome(found, rows, pairs, within)


def _compared(name: str) -> bool:
    """Whether a row is of an operation that has a target."""
    return name.partition(": ")[2].rpartition(", ")[0] in TIMES


# ----------------------------------------------------------------------- keys


def run_keys(sizes: Sizes, place: Place) -> Outcome:
    """us of making a prompt into what a tree takes; no tree takes part."""
    found = measure_cases(
        [*_sglang("rust"), *_ours(CORE, FACADE)], [Case("", "keys", sizes)], SEED, place
    )
    return _outcome(found, found[""].rows(), [])


_SHARED = {"prompts": 2000, "tokens": 4096, "shared_tokens": 2048, "group": 20}
_SHARED |= {"probes": 1000, "evictions": 300}
_TURNS = {"sessions": 100, "turns": 20, "turn_tokens": 200}
_SMALL = {"prompts": 20, "tokens": 512, "shared_tokens": 256, "group": 5}
_SMALL |= {"probes": 10, "evictions": 5, "sessions": 4, "turns": 3, "turn_tokens": 200}
_PAGES = {"small_page_tokens": 1, "large_page_tokens": 64}

BENCHMARKS = (
    Benchmark(
        "trees",
        "Our tree and SGLang's, page 16: 4,096-token prompts that share, and sessions of 20 turns",
        run_trees,
        smoke={**_SMALL, "page_tokens": 16, "rounds": 1},
        full={**_SHARED, **_TURNS, "page_tokens": 16, "rounds": 5},
        tags=("peers",),
    ),
    Benchmark(
        "tree-pages",
        "The same at pages of 1 and 64 tokens",
        run_pages,
        smoke={**_SMALL, **_PAGES, "rounds": 1},
        full={**_SHARED, **_TURNS, **_PAGES, "rounds": 5},
        tags=("peers",),
    ),
    Benchmark(
        "tree-groups",
        "The same with a window of 1,024 tokens and a state beside the full group",
        run_groups,
        smoke={**_SMALL, "page_tokens": 16, "window_tokens": 128, "states": 1, "rounds": 1},
        full={
            **_SHARED,
            **_TURNS,
            "page_tokens": 16,
            "window_tokens": 1024,
            "states": 1,
            "rounds": 5,
        },
        tags=("peers",),
    ),
    Benchmark(
        "tree-keys",
        "A prompt of 4,096 tokens as a list, int64 and int32, made into what each tree takes",
        run_keys,
        smoke={"probes": 5, "tokens": 512, "page_tokens": 16, "rounds": 1},
        full={"probes": 200, "tokens": 4096, "page_tokens": 16, "rounds": 5},
        tags=("peers",),
    ),
)
