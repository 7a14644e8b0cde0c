"""Policies on real traces: hits at several sizes, kept, drawn and written into the page about them.

    python -m bench.curves replay TRACES   counts, into bench/results/policies/PART.json
    python -m bench.curves draw            docs/policies.png and the tables of docs/policies.md

Kept here: the parts of the traces that numbers were chosen on (design) and the others (test) are
cut as it says here and nowhere else; what is drawn and written is what was kept. A share of the gap
between LRU and the optimum is told only where there is one of half a point.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.ending import ended
from radix.options import OptionError
from radix.policy.eviction import NATIVE_POLICIES
from radix.replay.chains import encode_chains
from radix.replay.index import replay_index
from radix.replay.optimal import next_uses
from radix.replay.options import OPTIMAL, parse_policies
from radix.replay.plots import draw_hit_ratio_by_capacity
from radix.replay.progress import Progress
from radix.replay.report import IndexReport, Run, index_report, replay_optimal
from radix.replay.sessions import Interleave, Sessions
from radix.replay.traces import Trace, read_trace

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "bench" / "results" / "policies"
PAGE = ROOT / "docs" / "policies.md"
FIGURE = ROOT / "docs" / "policies.png"
COUNTED = (*NATIVE_POLICIES, OPTIMAL)
SIZES = (1, 5, 10, 20, 50)  # % of a trace's different blocks
CHAT, AGENTS = "mooncake_conversation.jsonl.gz", "claude_code_mix64.jsonl.gz"
SESSIONS, MOST_SESSIONS = "claude_code_sessions.jsonl.xz", 200
GAP = 0.5  # points


def whole(file: str) -> Callable[[Path], Trace]:
    """All of a trace."""
    return lambda traces: read_trace(str(traces / file))


def second_half(file: str) -> Callable[[Path], Trace]:
    """The requests from the middle on, as a trace of their own."""
    return lambda traces: _half(read_trace(str(traces / file)))


def _half(trace: Trace) -> Trace:
    at = len(trace) // 2
    first, output = trace.offsets[at], trace.output_offsets[at]
    return replace(
        trace,
        timestamps=trace.timestamps[at:],
        tokens=trace.tokens[first:].copy(),
        offsets=trace.offsets[at:] - first,
        lengths=trace.lengths[at:],
        outputs=trace.outputs[output:].copy(),
        output_offsets=trace.output_offsets[at:] - output,
        streams=trace.streams[at:],
        sessions=trace.sessions[at:],
        tenants=trace.tenants[at:],
    )


def sessions(interleave: Interleave | None) -> Callable[[Path], Trace]:
    """The first sessions that are not in the trace of agents."""
    return lambda traces: _sessions(traces, interleave)


def _sessions(traces: Path, interleave: Interleave | None) -> Trace:
    base = read_trace(str(traces / AGENTS))
    known = set(re.findall(rb'"session_id": *"([^"]+)"', _plain(traces / AGENTS)))
    kept, lines = Sessions(_refuse), iter(_plain(traces / SESSIONS).splitlines())
    count = 0
    while count < MOST_SESSIONS:
        record = json.loads(next(lines))
        if record["id"].encode() not in known:
            kept.add(record)
            count += 1
    times, ids, offsets, lengths, order = kept.arrange(interleave)
    return replace(
        base,
        name=SESSIONS,
        block_tokens=kept.block_tokens,
        timestamps=times,
        tokens=ids,
        offsets=offsets,
        lengths=lengths,
        outputs=np.empty(0, np.int32),
        output_offsets=np.zeros(len(times) + 1, np.int64),
        streams=kept.streams[order],
        sessions=kept.sessions[order],
        tenants=(),
    )


def _plain(file: Path) -> bytes:
    if file.suffix == ".xz":
        return lzma.decompress(file.read_bytes())
    return gzip.decompress(file.read_bytes())


def _refuse(field: str, what: str) -> NoReturn:
    raise ValueError(f"{SESSIONS}: {field}: {what}")


@dataclass(frozen=True)
class Part:
    """A trace, or a part of one. ``test``: no number of a policy was chosen on it."""

    name: str
    title: str
    load: Callable[[Path], Trace]
    drawn: bool
    test: bool


PARTS = (
    Part("chat", "chat (Mooncake)", whole(CHAT), True, False),
    Part("agents", "agents (64 at a time)", whole(AGENTS), True, False),
    Part("branching", "branching chats (OpenAssistant)", whole("oasst_en100_tok.jsonl.gz"),
         True, False),
    Part("tools", "tool calls (tau-bench)", whole("tau_airline_tok.jsonl.gz"), True, True),
    Part("sessions", "agent sessions, 64 at a time", sessions(Interleave(64, 10.0, 0)), True, True),
    Part("sessions-in-turn", "agent sessions, one after another", sessions(None), True, True),
    Part("retrieval", "retrieval (RAGPulse)", whole("ragpulse.jsonl.gz"), True, True),
    Part("swe", "SWE-bench agents", whole("miniswe_tok.jsonl.gz"), True, True),
    Part("chat-second-half", "chat, second half", second_half(CHAT), False, True),
    Part("agents-second-half", "agents, second half", second_half(AGENTS), False, True),
)  # fmt: skip


class _Silent(Progress):
    def phase(self, label: str, total: int) -> None:
        """Says nothing."""

    def reach(self, done: int) -> None:
        """Says nothing."""


def replay(part: Part, traces: Path, policies: Sequence[str]) -> IndexReport:
    """Policies, the optimum among them or not, at every size. Cost: a replay each."""
    trace = part.load(traces)
    chains = encode_chains(trace)
    following = next_uses(chains) if OPTIMAL in policies else None
    runs = []
    for size in SIZES:
        capacity = max(1, chains.unique_blocks * size // 100)
        for policy in policies:
            if policy == OPTIMAL and following is not None:
                runs.append(replay_optimal(trace, chains, following, capacity))
            else:
                runs.append(replay_index(trace, chains, capacity, policy, _Silent()))
            print(f"{part.name}, {size} %, {policy}: {share(runs[-1]):.1f} %", flush=True)
    report = index_report(trace, chains, tuple(runs))
    return replace(report, trace=Path(report.trace).name)


def share(run: Run) -> float:
    """Blocks hit, in % of all."""
    return 100 * run.hit_blocks / run.total_blocks


def keep(part: Part, report: IndexReport) -> None:
    """Writes a report where it is kept, in place of what was kept of the same policies; what
    depends on the machine is left out.
    """
    new = {run.policy for run in report.runs}
    if (KEPT / f"{part.name}.json").exists():
        old = tuple(run for run in kept(part).runs if run.policy not in new)
        every = sorted(old + report.runs, key=lambda run: COUNTED.index(run.policy))
        report = replace(report, runs=tuple(sorted(every, key=lambda run: run.capacity_blocks)))
    counted = {**report.as_json(), "runs": [_counted(run) for run in report.as_json()["runs"]]}
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{part.name}.json").write_text(json.dumps(counted, indent=1) + "\n")


def _counted(run: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in run.items() if name not in ("seconds", "tenants")}


def kept(part: Part) -> IndexReport:
    """What was kept of a part."""
    found = json.loads((KEPT / f"{part.name}.json").read_text())
    runs = tuple(Run(**run, seconds=0.0, tenants={}) for run in found["runs"])
    return IndexReport(
        found["trace"], found["requests"], found["blocks"], found["unique_blocks"], runs
    )


# ---------------------------------------------------------------- the page
def rows(report: IndexReport) -> Iterator[tuple[str, list[float]]]:
    """Each policy with its hits in % at all sizes."""
    for policy in dict.fromkeys(run.policy for run in report.runs):
        yield policy, [share(run) for run in report.runs if run.policy == policy]


def table_of_hits(parts: Sequence[Part]) -> str:
    """A row for each trace and policy."""
    lines = [f"| trace | policy |{''.join(f' {size} % |' for size in SIZES)}", "|---" * 7 + "|"]
    for part in parts:
        for number, (policy, hits) in enumerate(rows(kept(part))):
            cells = "".join(f" {hit:.1f} |" for hit in hits)
            lines.append(f"|{f' {part.title}' if number == 0 else ''} | {policy} |{cells}")
    return "\n".join(lines)


def closed(report: IndexReport, policy: str) -> list[tuple[float, float, float, float | None]]:
    """At each size the hits of LRU, of a policy and of the optimum, and the share of the gap that
    the policy closes, where there is one.
    """
    hits = dict(rows(report))
    found: list[tuple[float, float, float, float | None]] = []
    for lru, own, best in zip(hits["lru"], hits[policy], hits[OPTIMAL], strict=True):
        found.append((lru, own, best, (own - lru) / (best - lru) if best - lru >= GAP else None))
    return found


def table_of_gaps(parts: Sequence[Part], policy: str) -> str:
    """A row for each part: LRU, the policy, the optimum, and the share of the gap."""
    lines = [f"| part |{''.join(f' {size} % |' for size in SIZES)}", "|---" * 6 + "|"]
    for part in parts:
        cells = [
            f" {lru:.1f} / {own:.1f} / {best:.1f}" + ("" if gap is None else f" ({gap:.0%})")
            for lru, own, best, gap in closed(kept(part), policy)
        ]
        lines.append(f"| {part.title} |{''.join(f'{cell} |' for cell in cells)}")
    return "\n".join(lines)


def table_of_means(parts: Sequence[Part]) -> str:
    """For each policy the mean share of the gap over all fields that have one, the best, and the
    most points that it lost against LRU in any field, with or without a gap.
    """
    lines = ["| policy | of the gap, mean | best | most lost, points |", "|---" * 4 + "|"]
    for policy in COUNTED[1:-1]:
        fields = [field for part in parts for field in closed(kept(part), policy)]
        gaps = [gap for *_, gap in fields if gap is not None]
        lost = max(0.0, max(lru - own for lru, own, *_ in fields))
        lines.append(f"| {policy} | {np.mean(gaps):.0%} | {max(gaps):.0%} | {lost:.2f} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with its tables made anew from what was kept."""
    drawn = [part for part in PARTS if part.drawn]
    test = [part for part in PARTS if part.test]
    tables = {
        "hits": table_of_hits(drawn),
        "gaps": table_of_gaps(drawn, "hit_density"),
        "test": table_of_gaps(test, "hit_density"),
        "means": table_of_means(test),
    }
    for name, table in tables.items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            "\\1" + table + "\n\\2",
            page,
            flags=re.S,
        )
    return page


def draw(path: Path) -> None:
    """A panel for each trace."""
    parts = [part for part in PARTS if part.drawn]
    figure = Figure(figsize=(13.0, 3.3 * ((len(parts) + 1) // 2)), dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    for number, part in enumerate(parts, 1):
        axes = figure.add_subplot((len(parts) + 1) // 2, 2, number)
        axes.set_title(part.title, loc="left", fontweight="bold")
        axes.grid(True, color="#e3e3e3", linewidth=0.8)
        draw_hit_ratio_by_capacity(axes, kept(part))
        if number <= len(parts) - 2:
            axes.set_xlabel("")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, format="png", pil_kwargs={"optimize": True})


def main(arguments: Sequence[str] | None = None) -> int:
    """Counts, or draws what was counted. Returns the exit status (see ``ending``)."""
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("replay", help="count the hits of all policies")
    counting.add_argument("traces", type=Path, help="the folder of the traces")
    counting.add_argument("names", nargs="*", help="of parts; all of them without one")
    counting.add_argument(
        "--policy", default=",".join(COUNTED), help="only these, the others as they are kept"
    )
    commands.add_parser("draw", help="draw what was kept, and write the tables of the page")
    return ended("bench.curves", partial(_run, parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.command == "replay":
        known = {part.name: part for part in PARTS}
        if unknown := [name for name in options.names if name not in known]:
            raise OptionError("NAME", f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        policies = parse_policies(options.policy)
        for name in options.names or known:
            keep(known[name], replay(known[name], options.traces, policies))
        return 0
    draw(FIGURE)
    PAGE.write_text(written(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
