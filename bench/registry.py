"""All benchmarks by name, in the order in which a run goes through them. One that needs an engine
or a peer says so in its tags; a run goes through it only where it is told to.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench import (
    churn,
    contention,
    copies,
    disk,
    endtoend,
    eviction,
    gpu,
    instructions,
    mixed,
    paths,
    prefill,
    reads,
    remote,
    reopen,
    replay,
    running,
    scale,
    service,
    step,
    tenants,
    tree,
    writes,
)
from bench.measure import Benchmark
from bench.peers import disks, engines, trees

PEERS = "peers"
_MODULES = (
    tree,
    scale,
    running,
    step,
    mixed,
    instructions,
    copies,
    replay,
    eviction,
    tenants,
    writes,
    disk,
    reads,
    contention,
    churn,
    paths,
    reopen,
    remote,
    service,
    endtoend,
    prefill,
    gpu,
    trees,
    engines,
    disks,
)


def named(benchmarks: Iterable[Benchmark]) -> dict[str, Benchmark]:
    """Each by its name. ``ValueError`` where one would hide another of the same name."""
    found: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        if found.setdefault(benchmark.name, benchmark) is not benchmark:
            raise ValueError(f"two benchmarks are called {benchmark.name!r}")
    return found


BY_NAME = named(benchmark for module in _MODULES for benchmark in module.BENCHMARKS)
BENCHMARKS: dict[str, Benchmark] = {
    name: benchmark for name, benchmark in BY_NAME.items() if not benchmark.tags
}


def with_peers() -> dict[str, Benchmark]:
    """Those that need nothing, and those against peers."""
    return {name: each for name, each in BY_NAME.items() if set(each.tags) <= {PEERS}}
