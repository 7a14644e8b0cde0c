"""Show what a replay or the demo found as tables on a terminal.

Kept here: every number shown is one that the report holds; nothing is computed here but shares of a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.markup import escape
from rich.table import Table

from radix.options import size_text
from radix.replay.report import Check, IndexReport, ModelReport, TieredReport, TieredRun

# The name of a row and its cell for each pass.
Row: TypeAlias = tuple[str, list[str]]


def index_table(report: IndexReport) -> Table:
    """Return the table of an index-only replay: a row for each policy and capacity."""
    title = (
        f"{Path(report.trace).name}: {report.requests:,} requests, {report.blocks:,} blocks, "
        f"{report.unique_blocks:,} unique"
    )
    table = Table(title=escape(title), title_justify="left")
    table.add_column("policy")
    for heading in ("capacity (blocks)", "hit blocks", "of all", "usable hit blocks", "seconds"):
        table.add_column(heading, justify="right")
    for run in report.runs:
        table.add_row(
            run.policy,
            f"{run.capacity_blocks:,}",
            f"{run.hit_blocks:,}",
            share(run.hit_blocks, run.total_blocks),
            f"{run.usable_hit_blocks:,}",
            f"{run.seconds:.3f}",
        )
    return table


def tenants_table(report: IndexReport) -> Table | None:
    """Return the hits of each tenant, a row for each run; None where they are not told apart."""
    if not any(run.tenants for run in report.runs):
        return None
    table = Table(title="by tenant", title_justify="left")
    for heading in ("policy", "capacity (blocks)", "tenant"):
        table.add_column(heading, justify="right" if heading[0] == "c" else "left")
    for heading in ("requests", "hit blocks", "of its own", "blocks at the end"):
        table.add_column(heading, justify="right")
    for run in report.runs:
        for name, own in run.tenants.items():
            table.add_row(
                run.policy,
                f"{run.capacity_blocks:,}",
                escape(name) or "(none)",
                f"{own.requests:,}",
                f"{own.hit_blocks:,}",
                share(own.hit_blocks, own.total_blocks),
                f"{own.resident_blocks:,}" if own.resident_blocks else "",
            )
    return table


def model_table(report: ModelReport) -> Table:
    """Return the table of a replay of a model: a row for each budget and checkpoint policy."""
    title = (
        f"{Path(report.trace).name}, {report.model}: {report.requests:,} requests, "
        f"{report.prompt_tokens:,} tokens; all that {report.footprint_checkpoints} keeps without a "
        f"limit is {size_text(report.footprint_bytes)} and hits "
        f"{report.footprint_hit_tokens:,} tokens"
    )
    table = Table(title=escape(title), title_justify="left")
    table.add_column("budget", justify="right")
    table.add_column("checkpoints")
    ordered = _orders(report, table)
    for heading in ("hit tokens", "of all", "known, no hit", "states"):
        table.add_column(heading, justify="right")
    for run in report.runs:
        table.add_row(
            size_text(run.budget_bytes),
            escape(run.checkpoints),
            *([run.policy] if ordered else []),
            f"{run.hit_tokens:,}",
            share(run.hit_tokens, report.prompt_tokens),
            f"{run.known_tokens - run.hit_tokens:,}",
            size_text(run.state_bytes),
        )
    if report.odd_lengths:
        table.caption = (
            f"the lengths of {report.odd_lengths:,} requests do not fit blocks of "
            f"{report.page_tokens:,} tokens: all their blocks count as whole"
        )
    return table


def _orders(report: ModelReport, table: Table) -> bool:
    """Whether rows name their order of eviction, which has a column then: not if it is the default
    of all.
    """
    ordered = any(run.policy != "lru" for run in report.runs)
    if ordered:
        table.add_column("policy")
    return ordered


def savings_table(report: ModelReport) -> Table | None:
    """Return what the hits are worth, a row as in `model_table`; None where nobody asked."""
    savings = [run.saving for run in report.runs if run.saving is not None]
    if not savings:
        return None
    terms = savings[0]
    read = "on the device"
    if terms.bytes_per_s is not None and terms.latency_s is not None:
        read = f"read at {size_text(int(terms.bytes_per_s))}/s after {terms.latency_s * 1e3:g} ms"
    table = Table(title=f"hits {read}; a GPU of {terms.flops_per_s:.3g} FLOP/s")
    table.title_justify = "left"
    table.add_column("budget", justify="right")
    table.add_column("checkpoints")
    ordered = _orders(report, table)
    for heading in ("GPU s saved", "s loading", "loaded", "faster computed"):
        table.add_column(heading, justify="right")
    for run, saving in zip(report.runs, savings, strict=True):
        table.add_row(
            size_text(run.budget_bytes),
            escape(run.checkpoints),
            *([run.policy] if ordered else []),
            f"{saving.saved_gpu_s:,.1f}",
            f"{saving.load_s:,.1f}",
            size_text(saving.loaded_bytes),
            f"{saving.skipped:,}",
        )
    return table


def tiered_table(report: TieredReport) -> Table:
    """Return the table of a run with bytes: a column for each pass, a section for each question."""
    table = Table(title=escape(report.source), title_justify="left")
    table.add_column("")
    for run in report.runs:
        table.add_column(run.label, justify="right")
    for rows in _sections(report.runs):
        for name, cells in rows:
            table.add_row(escape(name), *cells)
        table.add_section()
    return table


def stages_table(report: TieredReport) -> Table:
    """Return where the time of a replay went: a row for each stage, a section for each part."""
    table = Table(title="where the time went", title_justify="left")
    table.add_column("stage")
    for heading in ("seconds", "of all", "calls"):
        table.add_column(heading, justify="right")
    for part, whole in report.parts.items():
        table.add_row(part, "", f"[bold]{100 * whole:.1f} %[/]", "")
        for stage in report.stages:
            if stage.part == part:
                of_all = f"{100 * stage.seconds / report.seconds:.1f} %"
                table.add_row(f"  {stage.name}", f"{stage.seconds:.3f}", of_all, f"{stage.calls:,}")
        table.add_section()
    table.add_row(
        "all stages", f"{report.seconds:.3f}", f"{100 * sum(report.parts.values()):.1f} %", ""
    )
    return table


def checks_table(checks: Iterable[Check]) -> Table:
    """Return the list of checks, with what was found for each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column()
    for check in checks:
        verdict = "[green]passed[/]" if check.passed else "[bold red]FAILED[/]"
        table.add_row(verdict, escape(check.name), f"[dim]{escape(check.found)}[/]")
    return table


def share(part: int, whole: int) -> str:
    """Print a part as a percentage of a whole.

    >>> share(1, 3)
    '33.3 %'
    """
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _sections(runs: Sequence[TieredRun]) -> Iterable[list[Row]]:
    unit = f"{runs[0].unit}s" if runs else "tokens"
    yield [
        ("requests", [f"{run.requests:,}" for run in runs]),
        (f"prompt {unit}", [f"{run.prompt_tokens:,}" for run in runs]),
    ]
    yield [
        *(
            (f"hit {unit} from {tier}", [_of_prompt(run, run.hit_tokens, tier) for run in runs])
            for tier in _keys(run.hit_tokens for run in runs)
        ),
        (
            f"{unit} saved",
            [
                f"{run.saved_tokens:,} ({share(run.saved_tokens, run.prompt_tokens)})"
                for run in runs
            ],
        ),
    ]
    yield [
        (f"missed {unit}: {reason}", [_of_prompt(run, run.missed_tokens, reason) for run in runs])
        for reason in _keys(run.missed_tokens for run in runs)
    ]
    yield [
        (f"moved {direction}", [size_text(run.moved_bytes.get(direction, 0)) for run in runs])
        for direction in _keys(run.moved_bytes for run in runs)
    ]
    yield [
        *_if_any("blocks found on disk at opening", [run.restored_blocks for run in runs]),
        ("blocks loaded to device", [f"{run.loaded_blocks:,}" for run in runs]),
        ("blocks verified", [f"{run.verified_blocks:,}" for run in runs]),
        *_by_tier("blocks corrupt on", [run.corrupt_blocks for run in runs]),
    ]
    yield [
        *_by_tier("blocks evicted from", [run.evicted_blocks for run in runs]),
        *_by_tier("blocks without room in", [run.declined_blocks for run in runs]),
    ]
    yield [
        row for tier in _keys(run.written_bytes for run in runs) for row in _written_to(tier, runs)
    ]
    yield [("seconds", [f"{run.seconds:.2f}" for run in runs])]


def _by_tier(what: str, counts: Sequence[Mapping[str, int]]) -> Iterable[Row]:
    for tier in _keys(counts):
        yield (f"{what} {tier}", [f"{count.get(tier, 0):,}" for count in counts])


def _written_to(tier: str, runs: Sequence[TieredRun]) -> Iterable[Row]:
    for kind in _keys(run.written_bytes.get(tier, {}) for run in runs):
        sizes = [run.written_bytes.get(tier, {}).get(kind, 0) for run in runs]
        yield (f"written to {tier}: {kind}", [size_text(size) for size in sizes])
    times = [run.write_amplification.get(tier) for run in runs]
    shown = ["-" if each is None else f"{each:.2f} times" for each in times]
    yield (f"written to {tier} for each byte stored", shown)
    days = [run.written_bytes_a_day.get(tier) for run in runs]
    yield (
        f"written to {tier} a day",
        ["-" if each is None else size_text(int(each)) for each in days],
    )
    if any(run.over_budget_blocks for run in runs):
        over = [run.over_budget_blocks.get(tier, 0) for run in runs]
        yield (f"blocks beyond the budget of {tier}", [f"{count:,}" for count in over])


def _if_any(name: str, counts: Sequence[int]) -> Iterable[Row]:
    if any(counts):
        yield (name, [f"{count:,}" for count in counts])


def _of_prompt(run: TieredRun, counts: Mapping[str, int], key: str) -> str:
    count = counts.get(key, 0)
    return f"{count:,} ({share(count, run.prompt_tokens)})"


def _keys(tables: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the keys of all tables, each once, in the order of their first appearance."""
    return list(dict.fromkeys(key for table in tables for key in table))
