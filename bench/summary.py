"""The short table of the project's README: ours beside each peer where a target stands, and every
operation in which a peer is faster.

Kept here: it shows what the report holds, nothing is left out because a peer wins it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.measure import LIMIT, OURS

Json = dict[str, Any]
PEERS = ("sglang-rust", "sglang-python", "sglang-radix", "vllm", "dynamo", "lmcache")
SHOWN = ("trees", "vllm", "dynamo", "lmcache")  # those whose targets stand in the first table


class Beside(NamedTuple):
    """One operation: who else does it and what it takes them, and us; ``times``: how many times
    better ours is; ``target``: at least so many, or None; ``possible``: as many as the limit of the
    machine is better than theirs, where that was measured.
    """

    benchmark: str
    operation: str
    peer: str
    theirs: float
    ours: float
    unit: str
    whose: str
    times: float
    target: float | None
    possible: float | None


def compared(report: Json) -> Iterator[Beside]:
    """Each ratio of ours and a peer's in a report."""
    for block in report["benchmarks"]:
        rows = {row["name"]: row for row in block.get("rows", ())}
        targets = {each["name"]: each for each in block.get("targets", ())}
        limits = {
            each["name"]: each["median"]
            for each in block.get("ratios", ())
            if rows.get(each["to"], {}).get("subject") == LIMIT
            and rows.get(each["name"], {}).get("subject") in PEERS
        }
        for each in block.get("ratios", ()):
            one, other = rows.get(each["name"]), rows.get(each["to"])
            if not one or not other:
                continue
            theirs, ours = (other, one) if one["subject"] == OURS else (one, other)
            if ours["subject"] != OURS or theirs["subject"] not in PEERS:
                continue
            operation, _, whose = ours["name"].rpartition(", ")
            target = targets.get(f"{each['name']} / {each['to']}")
            yield Beside(
                benchmark=block["name"],
                operation=operation,
                peer=theirs["subject"],
                theirs=theirs["median"],
                ours=ours["median"],
                unit=ours["unit"],
                whose=whose,
                times=each["median"],
                target=None if target is None else target["value"],
                possible=limits.get(each["name"]),
            )


def summary_of(report: Json) -> str:
    """Both tables, as Markdown."""
    found = list(compared(report))
    lines = [
        "| operation | peer | theirs | ours | times | wanted |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for each in found:
        if each.target is not None and each.benchmark in SHOWN:
            reached = "" if each.times >= each.target else f" (missed{_limited(each)})"
            lines.append(f"{_cells(each)} {each.target:g}{reached} |")
    lost = sorted((each for each in found if each.times < 1), key=lambda each: each.times)
    lines += [
        "",
        f"Where a peer is faster ({len(lost)} of {len(found)} comparisons):",
        "",
        "| operation | peer | theirs | ours | times |",
        "|---|---|---:|---:|---:|",
        *(_cells(each) for each in lost),
    ]
    return "\n".join(lines)


def _limited(each: Beside) -> str:
    """Whether a target lies beyond what the machine's limit allows at the least work."""
    if each.possible is None or each.target is None or each.possible >= each.target:
        return ""
    return f"; the limit: {each.possible:.3g}"


def _cells(each: Beside) -> str:
    """The first five cells of a row."""
    what = each.operation if each.benchmark == "trees" else f"{each.benchmark}: {each.operation}"
    return (
        f"| {what}, {each.whose} | {each.peer} | {each.theirs:.3g} {each.unit} | "
        f"{each.ours:.3g} | {each.times:.3g} |"
    )
