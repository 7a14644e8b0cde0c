"""``python -m bench run [NAME...] [--peers] [--smoke] [--json FILE|-]``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine_block, versions_block
from bench.measure import Benchmark, Place, Skip
from bench.registry import BENCHMARKS, BY_NAME, with_peers
from bench.report import benchmark_block, lines_of, markdown_of, report_block, skipped_block
from bench.summary import summary_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the named benchmarks, or all that need no engine and no peer. Returns the exit status:
    0, or 2 for bad input.
    """
    options = _parse(arguments)
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    if options.list:
        for benchmark in BY_NAME.values():
            needs = f" [{', '.join(benchmark.tags)}]" if benchmark.tags else ""
            print(f"{benchmark.name:<16} {benchmark.title}{needs}")
        return 0
    unnamed = with_peers() if options.peers else BENCHMARKS
    chosen = [BY_NAME[name] for name in options.names] or list(unnamed.values())
    peers = options.peers or not options.smoke
    shown = sys.stderr if options.json == "-" else sys.stdout
    traces = os.environ.get("RADIX_TRACES")
    blocks: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="radix-bench-", dir=options.data) as folder:
        place = Place(Path(folder), Path(traces) if traces else None, peers)
        machine = machine_block(place.data)
        for benchmark in chosen:
            blocks.append(_run(benchmark, options.smoke, place))
            print("\n".join(lines_of(blocks[-1])), file=shown, flush=True)
    report = report_block(machine, versions_block(), blocks, options.smoke)
    print(f"digest of all results: {report['digest']}", file=shown)
    if options.markdown:
        print(markdown_of(report), summary_of(report), sep="\n\n", file=shown)
    text = json.dumps(report, indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        Path(options.json).write_text(text, encoding="utf-8")
    return 0


def _run(benchmark: Benchmark, smoke: bool, place: Place) -> dict[str, Any]:
    sizes = benchmark.smoke if smoke else benchmark.full
    try:
        outcome = benchmark.run(sizes, place)
    except Skip as reason:
        return skipped_block(benchmark, str(reason))
    return benchmark_block(benchmark, sizes, outcome)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench run", description="Measures, beside the limits."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to run (default: all that need no engine and no peer)",
    )
    parser.add_argument(
        "--peers", action="store_true", help="go through those against peers too; start them"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--json", metavar="FILE", help="write the report; - for standard output")
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of the READMEs too"
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument(
        "--data", metavar="DIR", help="where the disk benchmarks write (default: temporary files)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
