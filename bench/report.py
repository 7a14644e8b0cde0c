"""A run as JSON, as lines for people, and as the table of the README.

Kept here: the digest of a benchmark covers its parameters and what it counted, never a time; the
three forms show the same medians; a file is read as a report only where it has the form of one.
"""

from __future__ import annotations

import json
import reprlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import LIMIT, Benchmark, Outcome, Sizes, Target, digest
from radix.options import OptionError

SCHEMA_VERSION = 1
Json = dict[str, Any]
_MOST = 1e18  # of any figure: what is no number at all is not below it
# What readers of a report go by. [X]: a list of X; float: any number.
_FIGURES = {"name": str, "median": float, "samples": [float]}
_BENCHMARK = {
    "name": str,
    "title": str,
    "rows": [{**_FIGURES, "subject": str, "unit": str}],
    "ratios": [{**_FIGURES, "to": str}],
    "targets": [{"name": str, "bound": str, "value": float, "found": float, "reached": bool}],
}
_SKIPPED = {"name": str, "title": str, "skipped": str}
_REPORT = {"smoke": bool, "machine": {"cpu": str, "cores": int}, "benchmarks": [dict]}


def benchmark_block(benchmark: Benchmark, sizes: Sizes, outcome: Outcome) -> Json:
    """One benchmark's part of the report; "missing", "versions", "commands" if there are any."""
    block: Json = {
        "name": benchmark.name,
        "title": benchmark.title,
        "parameters": dict(sizes),
        "facts": dict(outcome.facts),
        "digest": digest([benchmark.name, dict(sizes), dict(outcome.facts)]),
        "rows": [
            {
                "name": row.name,
                "subject": row.subject,
                "unit": row.unit,
                "median": _short(row.median),
                "samples": [_short(sample) for sample in row.samples],
            }
            for row in outcome.rows
        ],
        "ratios": [
            {
                "name": each.name,
                "to": each.to,
                "median": _short(each.median),
                "samples": [_short(sample) for sample in each.samples],
            }
            for each in outcome.ratios
        ],
        "targets": [_target(target, outcome) for target in outcome.targets],
    }
    if outcome.missing:
        block["missing"] = dict(outcome.missing)
    if outcome.versions:
        block["versions"] = dict(outcome.versions)
    if outcome.columns:
        block["columns"] = list(outcome.columns)
    if outcome.commands:
        block["commands"] = dict(outcome.commands)
    return block


def skipped_block(benchmark: Benchmark, reason: str) -> Json:
    """The part of a benchmark that could not run."""
    return {"name": benchmark.name, "title": benchmark.title, "skipped": reason}


def report_block(
    machine: Mapping[str, Any], versions: Mapping[str, str], blocks: Sequence[Json], smoke: bool
) -> Json:
    """The whole report."""
    return {
        "schema_version": SCHEMA_VERSION,
        "smoke": smoke,
        "machine": dict(machine),
        "versions": dict(versions),
        "digest": digest([block["digest"] for block in blocks if "digest" in block]),
        "benchmarks": list(blocks),
    }


def read_report(path: str | Path) -> Json:
    """A report that ``bench run`` wrote. Raises ``OptionError`` for what is none, with the place of
    the first fault, or one of another schema; ``OSError``. Cost: its size.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(str(path), f"no JSON: {error}") from None
    if not isinstance(report, dict) or not {"schema_version", "benchmarks"} <= report.keys():
        raise OptionError(str(path), "no report of `python -m bench run`")
    if (found := report["schema_version"]) != SCHEMA_VERSION:
        known = f"this program reads {SCHEMA_VERSION}"
        raise OptionError(str(path), f"schema_version is {reprlib.repr(found)}, {known}")
    try:
        _check(report, _REPORT, "report")
        for number, block in enumerate(report["benchmarks"]):
            where = f"benchmarks[{number}]"
            _check(block, _SKIPPED if "skipped" in block else _BENCHMARK, where)
            for row in block.get("rows", ()):
                if not min(row["samples"]) <= row["median"] <= max(row["samples"]):
                    raise ValueError(f"{where}: {row['name']!r}: the median is no sample's")
    except ValueError as error:
        raise OptionError(str(path), str(error)) from None
    return dict(report)


def _check(value: Any, form: Any, where: str) -> None:
    """``ValueError`` with the place where a value has another form."""
    if isinstance(form, dict):
        _check(value, dict, where)
        for name, inner in form.items():
            if name not in value:
                raise ValueError(f"{where} has no {name!r}")
            _check(value[name], inner, f"{where}.{name}")
    elif isinstance(form, list):
        _check(value, list, where)
        for number, each in enumerate(value):
            _check(each, form[0], f"{where}[{number}]")
        if not value and where.endswith(".samples"):
            raise ValueError(f"{where} is empty")
    elif form is float:
        if not isinstance(value, int | float) or not -_MOST < value < _MOST:
            raise ValueError(f"{where} is {reprlib.repr(value)}, no number")
    elif not isinstance(value, form):
        raise ValueError(f"{where} is {reprlib.repr(value)}, no {form.__name__}")


def _target(target: Target, outcome: Outcome) -> Json:
    found = {row.name: row.median for row in outcome.rows}
    found |= {f"{each.name} / {each.to}": each.median for each in outcome.ratios}
    value = found[target.name]
    return {
        "name": target.name,
        "bound": target.bound,
        "value": target.value,
        "found": _short(value),
        "reached": target.holds(value),
    }


def _short(value: float) -> float:
    """Five digits: more say nothing and make the kept results change for nothing."""
    return float(f"{value:.5g}")


def lines_of(block: Json) -> list[str]:
    """One benchmark for people."""
    if "skipped" in block:
        return [f"{block['name']}: skipped: {block['skipped']}"]
    lines = [f"{block['name']}: {block['title']}  [digest {block['digest']}]"]
    for row in block["rows"]:
        samples = row["samples"]
        spread = f"  ({min(samples):.5g} to {max(samples):.5g})" if len(samples) > 1 else ""
        lines.append(
            f"  {row['name']:<48} {row['median']:>10.5g} {row['unit']:<12}"
            f" {row['subject']:<13}{spread}"
        )
    lines += [
        f"  {each['name']} / {each['to']}: {statistics.median(each['samples']):.3g}"
        for each in block["ratios"]
    ]
    lines += [
        f"  {'reached' if each['reached'] else 'MISSED '} {each['name']}: {each['found']:.5g}, "
        f"{each['bound']} {each['value']:g}"
        for each in block["targets"]
    ]
    lines += [f"  missing {name}: {reason}" for name, reason in block.get("missing", {}).items()]
    lines += [f"  {name}: {command}" for name, command in block.get("commands", {}).items()]
    return lines


def markdown_of(report: Json) -> str:
    """The tables of the README: our rows with their target and what stands beside them, and one
    table for each benchmark against peers.
    """
    lines = [
        "| benchmark | figure | median | unit | whose | target | reached |",
        "|---|---|---:|---|---|---|---|",
    ]
    beside: list[str] = []
    for block in report["benchmarks"]:
        if "skipped" in block:
            lines.append(f"| {block['name']} | skipped: {block['skipped']} | | | | | |")
        elif "columns" in block:
            beside += ["", f"**{block['name']}**. {block['title']}.", "", *_side_by_side(block)]
        else:
            lines += _one_by_one(block)
    return "\n".join(lines + beside)


def _one_by_one(block: Json) -> list[str]:
    """A line for each row and ratio of a benchmark."""
    targets = {each["name"]: each for each in block["targets"]}
    figures = [(row["name"], row["median"], row["unit"], row["subject"]) for row in block["rows"]]
    figures += [
        (f"{each['name']} / {each['to']}", each["median"], "ratio", "") for each in block["ratios"]
    ]
    lines: list[str] = []
    for name, median, unit, subject in figures:
        target = targets.get(name)
        wanted = f"{target['bound']} {target['value']:g}" if target else ""
        reached = ("yes" if target["reached"] else "**no**") if target else ""
        whose = subject if subject != LIMIT else "the limit"
        lines.append(
            f"| {block['name']} | {name} | {median:.4g} | {unit} | {whose} | {wanted} | {reached} |"
        )
    missing = block.get("missing", {}).items()
    return lines + [f"| {block['name']} | {who} | missing: {why} | | | | |" for who, why in missing]


def _side_by_side(block: Json) -> list[str]:
    """A line for each operation, a column for each who was measured, and how many times."""
    columns: list[str] = block["columns"]
    cells: dict[str, dict[str, str]] = {}
    for row in block["rows"]:
        operation, _, who = row["name"].rpartition(", ")
        of = cells.setdefault(f"{operation}, {row['unit']}", {})
        of[who] = f"{row['median']:.4g}"
    targets = {each["name"]: each for each in block["targets"]}
    ratios: dict[str, list[str]] = {}
    for each in block["ratios"]:
        operation, _, who = each["name"].rpartition(", ")
        other, _, to = each["to"].rpartition(", ")
        against = to if other == operation else each["to"]
        said = f"{who} / {against}: {each['median']:.3g}"
        if target := targets.get(f"{each['name']} / {each['to']}"):
            reached = "yes" if target["reached"] else "**no**"
            said += f" ({target['bound']} {target['value']:g}: {reached})"
        ratios.setdefault(operation, []).append(said)
    lines = [
        f"| operation | {' | '.join(columns)} | times |",
        f"|---|{'---:|' * len(columns)}---|",
    ]
    for name, of in cells.items():
        told = "; ".join(ratios.get(name.rpartition(", ")[0], []))
        lines.append(f"| {name} | {' | '.join(of.get(who, '') for who in columns)} | {told} |")
    missing = block.get("missing", {}).items()
    return lines + [f"| missing | {who}: {why} |{' |' * len(columns)}" for who, why in missing]
