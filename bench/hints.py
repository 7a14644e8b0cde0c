"""What hints are worth on real traces of agents: hits of the policies that go by them, with true
hints and with wrong ones, kept and written into the page of policies.

    python -m bench.hints replay TRACES    counts, into bench/results/policies/hints/PART.json
    python -m bench.hints draw             the tables of docs/policies.md

Kept here: the parts are those of ``bench.curves`` whose requests name sessions and which have a gap
between LRU and the optimum; what is written is what was kept. No number of these policies was
chosen on any trace.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.curves import KEPT, PAGE, PARTS, SIZES, Part, kept, rows
from bench.ending import ended
from radix.replay.chains import encode_chains
from radix.replay.hints import hints_of
from radix.replay.index import replay_index
from radix.replay.options import OPTIMAL
from radix.replay.progress import Progress

FOLDER = KEPT / "hints"
NAMES = ("agents", "agents-second-half", "sessions")
POLICIES = ("priority", "lru", "hit_density")
ERRORS = (0, 10, 30, 50, 100)  # % of the hints that are wrong, and about how far off all times are
Counts = dict[str, dict[str, list[int]]]  # policy -> error in % -> blocks hit at each size


class _Silent(Progress):
    def phase(self, label: str, total: int) -> None:
        """Says nothing."""

    def reach(self, done: int) -> None:
        """Says nothing."""


def parts() -> list[Part]:
    """The parts whose hints are counted."""
    return [part for part in PARTS if part.name in NAMES]


def replay(part: Part, traces: Path) -> Counts:
    """Blocks hit by every policy at every size with hints of every error. Cost: a replay each."""
    trace = part.load(traces)
    chains, found = encode_chains(trace), Counts()
    for error in ERRORS:
        hints = hints_of(trace, error / 100)
        for policy in POLICIES:
            hits = []
            for size in SIZES:
                room = max(1, chains.unique_blocks * size // 100)
                run = replay_index(trace, chains, room, policy, _Silent(), hints)
                hits.append(run.hit_blocks)
            found.setdefault(policy, {})[str(error)] = hits
            print(f"{part.name}, {error} % wrong, {policy}: {hits}", flush=True)
    return found


def table(part: Part) -> str:
    """What is hit without hints, with true ones and with wrong ones."""
    report = kept(part)
    plain, found = dict(rows(report)), json.loads((FOLDER / f"{part.name}.json").read_text())
    lines = [f"| {part.title} | hints |{''.join(f' {size} % |' for size in SIZES)}"]
    lines.append("|---" * 7 + "|")

    def add(policy: str, hints: str, hits: Sequence[float]) -> None:
        lines.append(f"| {policy} | {hints} |{''.join(f' {hit:.1f} |' for hit in hits)}")

    add("lru", "none", plain["lru"])
    for policy in ("lru", "hit_density"):
        if policy != "lru":
            add(policy, "none", plain[policy])
        for error in (0, 30):
            add(policy, label(error), percent(found[policy][str(error)], report.blocks))
    for error in ERRORS:
        add("priority", label(error), percent(found["priority"][str(error)], report.blocks))
    add(OPTIMAL, "", plain[OPTIMAL])
    return "\n".join(lines)


def label(error: int) -> str:
    """An error in words."""
    return "true" if not error else f"{error} % wrong"


def percent(hits: Sequence[int], blocks: int) -> list[float]:
    """Of all blocks asked."""
    return [100 * hit / blocks for hit in hits]


def written(page: str) -> str:
    """The page with its tables of hints made anew from what was kept."""
    tables = "\n\n".join(table(part) for part in parts())
    return re.sub(r"(<!-- hints -->\n).*?(<!-- end -->)", f"\\1{tables}\n\\2", page, flags=re.S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Counts, or writes what was counted. Returns the exit status (see ``ending``)."""
    parser = argparse.ArgumentParser(prog="python -m bench.hints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("replay", help="count what hints are worth")
    counting.add_argument("traces", type=Path, help="the folder of the traces")
    commands.add_parser("draw", help="write the tables of the page")
    return ended("bench.hints", partial(_run, parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.command == "draw":
        PAGE.write_text(written(PAGE.read_text()))
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for part in parts():
        counts = replay(part, options.traces)
        (FOLDER / f"{part.name}.json").write_text(json.dumps(counts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
