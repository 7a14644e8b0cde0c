"""All benchmarks by name, in the order in which a run goes through them; and those that a run goes
through only where it is told their names, because they need an engine.
"""

from __future__ import annotations

from bench import contention, disk, instructions, mixed, prefill, reopen, replay, tree
from bench.measure import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (tree, mixed, instructions, replay, disk, contention, reopen)
    for benchmark in module.BENCHMARKS
}
BY_NAME: dict[str, Benchmark] = {
    **BENCHMARKS,
    **{benchmark.name: benchmark for benchmark in prefill.BENCHMARKS},
}
