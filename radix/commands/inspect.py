"""`radix inspect`: what a directory of the disk tier holds, beside its owner or without one.

Kept here: the directory is never changed; works without torch; what is damaged ends with 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from radix.commands.terminal import (
    EXIT_CHECK_FAILED,
    EXIT_DONE,
    Commands,
    check_target,
    complain,
    show,
    tiers_of,
)
from radix.options import size_text
from radix.replay.progress import shown_progress
from radix.replay.report import write_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tiers.disk_report import DiskReport

_HELP = """\
Say what a directory of the disk tier holds: namespaces, tenants, groups, entries, sizes, how old
they are against each other, and room. Given a folder that holds several (of a service, of ranks),
it says it of each. Nothing is changed, and an owner at work goes on undisturbed.
"""
_EXAMPLES = """\
examples:
  radix inspect /var/lib/radix
  radix inspect /var/lib/radix --verify --json -
  radix inspect /drive0/radix /drive1/radix --verify

exit status: 0 done, 1 damaged entries were found or a directory cannot be read, 2 bad input
"""


def add(commands: Commands) -> None:
    """Add `radix inspect` and its options."""
    parser = commands.add_parser(
        "inspect",
        help="say what a directory of the disk tier holds",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="DIR",
        help="the directory; of a tier over several drives the first path, then the others",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read every block and compare its checksums"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")


def run(options: argparse.Namespace) -> int:
    """Inspect as the options say; return the exit status."""
    check_target("--json", options.json)
    paths = [Path(text) for text in options.paths]
    reports = [_inspect(each, options.verify) for each in tiers_of("DIR", paths)]
    for report in reports:
        show(options.json, *_tables(report))
    if options.json is not None:
        write_json(options.json, {"directories": [asdict(report) for report in reports]})
    return _status(reports)


def _inspect(paths: list[Path], verify: bool) -> DiskReport:
    from tiers.disk_report import inspect_disk
    from tiers.inspection import DiskReader, in_order

    with shown_progress() as progress:
        if not verify:
            return inspect_disk(paths)
        with DiskReader(in_order(paths)[0]) as reader:
            progress.phase(f"verify {reader.directory}", reader.entries())
        return inspect_disk(paths, verify, progress.reach)


def _status(reports: list[DiskReport]) -> int:
    status = EXIT_DONE
    for report in reports:
        wrong = report.damaged
        if report.verified is not None:
            wrong += report.verified.corrupt + report.verified.short
        if wrong:
            status = complain(
                f"{report.directory}: {wrong} damaged entries; each is a miss when it is read",
                EXIT_CHECK_FAILED,
            )
    return status


def _tables(report: DiskReport) -> Iterator[RenderableType]:
    yield _summary(report)
    if report.namespaces:
        yield _namespaces(report)
    if report.verified is not None and report.verified.faults:
        yield _faults(report)


def _table(title: str, *columns: str, right: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= right else "left", overflow="fold")
    return table


def _summary(report: DiskReport) -> RenderableType:
    table = _table(report.directory, "", "", right=9)
    table.show_header = False
    limit = "not said" if report.limit_bytes is None else size_text(report.limit_bytes)
    rows = [
        ("format", f"version {report.format_version}, payload {report.payload}"),
        ("held by", report.owner or "nobody"),
        ("entries", f"{report.entries:,} ({size_text(report.payload_bytes)} of blocks)"),
        ("not found again", _left_out(report)),
        ("limit", limit),
        ("slab files", f"{size_text(report.slab_bytes)} on {len(report.paths)} of its paths"),
        (
            "index",
            f"{size_text(report.index_bytes)}, {size_text(report.index_used_bytes)} of it in use",
        ),
        ("free on the file system", size_text(report.free_bytes)),
        ("epoch", str(report.epoch)),
        ("ids", f"{report.oldest_id:,} to {report.newest_id:,}"),
        ("entries by age, oldest first", " ".join(f"{count:,}" for count in report.ages)),
    ]
    if report.verified is not None:
        found = report.verified
        rows.append(
            (
                "verified",
                f"{found.blocks:,} blocks, {size_text(found.nbytes)}: {found.good:,} good, "
                f"{found.corrupt:,} corrupt, {found.short:,} cut short, {found.gone:,} removed "
                "meanwhile",
            )
        )
    for name, text in rows:
        table.add_row(name, text)
    return table


def _left_out(report: DiskReport) -> str:
    counts = {
        "of older epochs": report.stale,
        "that mean nothing": report.unusable,
        "damaged": report.damaged,
        "of another layout": report.foreign,
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "none"


def _namespaces(report: DiskReport) -> RenderableType:
    from rich.markup import escape

    columns = ("model", "revision", "adapter", "tenant", "group", "entries", "bytes", "ids")
    table = _table("namespaces, the last used for storing first", *columns, right=5)
    for space in report.namespaces:
        named = [escape(text) for text in (space.model, space.revision, space.adapter)]
        for group in space.groups:
            table.add_row(
                *named,
                escape(space.tenant),
                escape(group.group),
                f"{group.entries:,}",
                size_text(group.payload_bytes),
                f"{space.oldest_id:,}-{space.newest_id:,}",
            )
    return table


def _faults(report: DiskReport) -> RenderableType:
    from rich.markup import escape

    assert report.verified is not None
    table = _table("the first faults", "what", "group", "record", "position", "namespace", right=2)
    for fault in report.verified.faults:
        table.add_row(
            fault.what,
            escape(fault.group),
            f"{fault.record:,}",
            f"{fault.position:,}",
            str(fault.namespace),
        )
    return table
