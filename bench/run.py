"""``python -m bench run [NAME...] [--peers] [--smoke] [--json FILE|-]``.

Kept here: what cannot be read, written or run is refused before anything is measured; a report is
there whole or not at all; however a run ends (see ``ending``), its data is gone and its children
are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.ending import FAILURES, Failed, ended, written_to
from bench.machine import machine_block, versions_block
from bench.measure import Benchmark, Place, Skip
from bench.peers.protocol import Disagreement
from bench.registry import BENCHMARKS, BY_NAME, with_peers
from bench.report import benchmark_block, lines_of, markdown_of, report_block, skipped_block
from bench.summary import summary_of
from radix.commands.terminal import Parser, check_target
from radix.options import OptionError
from radix.replay.output import draft_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the named benchmarks, or all that need no engine and no peer. Returns the exit status:
    0 also where one was skipped or a target missed, 1 where one failed, else see ``ending``.
    """
    return ended("bench run", partial(_run, _parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    chosen = _chosen(options)
    if options.list:
        for benchmark in BY_NAME.values():
            needs = f" [{', '.join(benchmark.tags)}]" if benchmark.tags else ""
            print(f"{benchmark.name:<16} {benchmark.title}{needs}")
        return 0
    traces = _traces(options.smoke)
    shown = sys.stderr if options.json == "-" else sys.stdout
    with ExitStack() as stack:
        target = _target(options.json, stack)
        folder = stack.enter_context(_data(options.data))
        place = Place(Path(folder), traces, options.peers or not options.smoke)
        machine = machine_block(place.data)
        blocks: list[dict[str, Any]] = []
        for benchmark in chosen:
            blocks.append(_block(benchmark, options.smoke, place))
            print("\n".join(lines_of(blocks[-1])), file=shown, flush=True)
        report = report_block(machine, versions_block(), blocks, options.smoke)
        text = json.dumps(report, indent=1) + "\n"
        if target is not None:
            with written_to(options.json):
                target.write_text(text, encoding="utf-8")
    print(f"digest of all results: {report['digest']}", file=shown)
    if options.markdown:
        print(markdown_of(report), summary_of(report), sep="\n\n", file=shown)
    if options.json == "-":
        sys.stdout.write(text)
    return 0


def _chosen(options: argparse.Namespace) -> list[Benchmark]:
    """Those that are named, else all that need nothing that was not asked for."""
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        raise OptionError("NAME", f"unknown: {', '.join(unknown)}; known: {', '.join(BY_NAME)}")
    unnamed = with_peers() if options.peers else BENCHMARKS
    return [BY_NAME[name] for name in options.names] or list(unnamed.values())


def _traces(smoke: bool) -> Path | None:
    """The folder that RADIX_TRACES names, if it does; a smoke run reads no trace."""
    named = os.environ.get("RADIX_TRACES")
    if not named or smoke:
        return None
    if not os.path.isdir(named):
        raise OptionError("RADIX_TRACES", f"{named} is no folder")
    return Path(named)


def _target(named: str | None, stack: ExitStack) -> Path | None:
    """Where the report is to be written, which takes its name's place when the stack is left
    without an error; that it can be is found out now.
    """
    check_target("--json", named)
    if named is None or named == "-":
        return None
    draft = stack.enter_context(draft_of(named))
    with written_to(named):
        draft.touch()
    return draft


def _data(named: str | None) -> tempfile.TemporaryDirectory[str]:
    """A folder of this run alone."""
    if named is not None and not os.path.isdir(named):
        raise OptionError("--data", f"{named!r} is no folder")
    return tempfile.TemporaryDirectory(prefix="radix-bench-", dir=named)


def _block(benchmark: Benchmark, smoke: bool, place: Place) -> dict[str, Any]:
    sizes = benchmark.smoke if smoke else benchmark.full
    try:
        outcome = benchmark.run(sizes, place)
    except Skip as reason:
        return skipped_block(benchmark, str(reason))
    except (*FAILURES, Disagreement) as error:
        raise Failed(f"{benchmark.name}: {type(error).__name__}: {error}") from error
    return benchmark_block(benchmark, sizes, outcome)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench run", description="Measures, beside the limits.")
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
