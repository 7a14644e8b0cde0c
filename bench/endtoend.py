"""Where the time of whole replays goes, bytes and all: through device, host and disk, every block
that comes back compared.

Kept here: shares are of the time from the first request until the last block was durable, opening
and closing left out, so that the setting up makes no share smaller; the disk holds every block, so
that what was hit is decided by the trace alone.
"""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import (
    OURS,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Skip,
    Target,
    no_collection,
)
from bench.replay import small_trace
from radix.replay.bytes import replay_bytes
from radix.replay.options import TierSizes
from radix.replay.progress import Progress
from radix.replay.report import TieredReport
from radix.replay.stopwatch import BOOKS, BYTES, REPLAY, TREE
from radix.replay.traces import read_trace

TRACES = {
    "conversation": "mooncake_conversation.jsonl.gz",
    "agents": "claude_code_mix64.jsonl.gz",
}
AROUND = ("parse", "open", "close")


def run_endtoend(sizes: Sizes, place: Place) -> Outcome:
    """The first requests of each trace through three tiers, round by round."""
    cases = [(name, name, sizes["block_bytes"]) for name in TRACES]
    small = sizes["small_block_bytes"]
    cases.append((f"conversation, blocks of {small >> 10} KiB", "conversation", small))
    rounds = Rounds()
    facts: dict[str, int] = {}
    for _ in range(sizes["rounds"]):
        for label, name, block_bytes in cases:
            report = _replayed(name, block_bytes, sizes, place)
            if not report.passed:
                raise RuntimeError(f"{label}: {report.checks}")
            _note(label, report, rounds)
            if label == name:
                _note_stages(label, report, rounds)
            facts |= _counted(label, report)
    return Outcome(
        rows=rounds.rows(),
        facts=facts,
        targets=[Target(f"{label}: {TREE}", "at most", 0.05) for label, _, _ in cases],
    )


def _replayed(name: str, block_bytes: int, sizes: Sizes, place: Place) -> TieredReport:
    """One replay, cold: its disk tier has a folder of its own, which is gone behind it."""
    trace = _trace(name, sizes, place)
    tiers = TierSizes(sizes["device"], sizes["host"], sizes["disk"])
    requests = read_trace(str(trace))
    with TemporaryDirectory(dir=place.data) as folder, no_collection():
        report, _ = replay_bytes(requests, tiers, block_bytes, Path(folder), True, Progress())
    trace.unlink()
    return report


def _note(label: str, report: TieredReport, rounds: Rounds) -> None:
    """Shares by part."""
    served = [stage for stage in report.stages if stage.name not in AROUND]
    whole = sum(stage.seconds for stage in served)
    totals = {
        part: sum(stage.seconds for stage in served if stage.part == part)
        for part in (TREE, BOOKS, BYTES, REPLAY)
    }
    for part, seconds in totals.items():
        rounds.add(f"{label}: {part}", OURS, "of the time", seconds / whole)
    rounds.add(
        f"{label}: {TREE}, less {REPLAY}",
        OURS,
        "of the time",
        totals[TREE] / (whole - totals[REPLAY]),
    )
    (run,) = report.runs
    rounds.add(f"{label}: all of it", OURS, "us/request", 1e6 * whole / run.requests)


def _note_stages(label: str, report: TieredReport, rounds: Rounds) -> None:
    """What each stage of the tree and the policy takes of a request."""
    (run,) = report.runs
    for stage in report.stages:
        if stage.part == TREE:
            each = 1e6 * stage.seconds / run.requests
            rounds.add(f"{label}: {stage.name}", OURS, "us/request", each)


def _counted(label: str, report: TieredReport) -> dict[str, int]:
    name = label.replace(", ", "_").replace(" ", "_")
    (run,) = report.runs
    return {
        f"{name}_requests": run.requests,
        f"{name}_blocks": run.prompt_tokens,
        f"{name}_saved_blocks": run.saved_tokens,
    }


def _trace(name: str, sizes: Sizes, place: Place) -> Path:
    """A file with the first requests of a trace."""
    target = place.data / f"{name}.jsonl"
    if not sizes["real_trace"]:
        lines = small_trace(target).read_text().splitlines(keepends=True)
        target.write_text("".join(lines[: sizes[f"{name}_requests"]]))
        return target
    source = None if place.traces is None else place.traces / TRACES[name]
    if source is None or not source.exists():
        raise Skip(f"RADIX_TRACES names no folder that holds {TRACES[name]}")
    with gzip.open(source, "rt") as stream:
        target.write_text("".join(islice(stream, sizes[f"{name}_requests"])))
    return target


BENCHMARKS = (
    Benchmark(
        "endtoend",
        "Where the time of a replay with bytes goes, device, host and disk, all compared",
        run_endtoend,
        smoke={
            "real_trace": 0,
            "conversation_requests": 80,
            "agents_requests": 60,
            "block_bytes": 4096,
            "small_block_bytes": 1024,
            "device": 128,
            "host": 192,
            "disk": 1024,
            "rounds": 1,
        },
        full={
            "real_trace": 1,
            "conversation_requests": 250,
            "agents_requests": 80,
            "block_bytes": 1 << 20,
            "small_block_bytes": 64 << 10,
            "device": 512,
            "host": 1024,
            "disk": 8000,
            "rounds": 5,
        },
    ),
)
