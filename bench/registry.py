"""All benchmarks by name, in the order in which a run goes through them."""

from __future__ import annotations

from bench import contention, disk, instructions, mixed, reopen, replay, tree
from bench.measure import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (tree, mixed, instructions, replay, disk, contention, reopen)
    for benchmark in module.BENCHMARKS
}
