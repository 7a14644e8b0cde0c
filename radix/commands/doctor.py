"""`radix doctor`: whether this machine can run a cache well, what to do where it cannot, and how
large the tiers should be for a model.

Kept here: each finding says what to do about it; only what does not work makes the status 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from radix.commands.sizing import Plan, plan_sizes
from radix.commands.terminal import EXIT_CHECK_FAILED, EXIT_DONE, Commands, check_target, show
from radix.options import OptionError, size_of, size_text
from radix.replay.model_files import model_of
from radix.replay.models import PRESETS
from radix.replay.options import parse_positive
from radix.replay.report import write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from radix.service.machine import Finding

_HELP = """\
Look at the limits, memory, huge pages, NUMA nodes, file systems and versions of this machine, and
say what to do about each that is in the way. With --model it plans the sizes of the tiers.
"""
_EXAMPLES = """\
examples:
  radix doctor
  radix doctor --data /var/lib/radix --model Llama-3.1-70B --context 32768 --sessions 200
  radix doctor --host-bytes 64GiB --disk-bytes 1TB --data /var/lib/radix --json -

exit status: 0 nothing is in the way, 1 something does not work, 2 bad input
"""
_STYLES = {"good": "green", "note": "cyan", "warning": "yellow", "bad": "red"}
DEFAULT_CONTEXT = "32768"
DEFAULT_SESSIONS = "64"


def add(commands: Commands) -> None:
    """Add `radix doctor` and its options."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine and plan the sizes of tiers",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--data", metavar="DIR", help="where the disk tier is to lie")
    parser.add_argument("--host-bytes", metavar="SIZE", help="memory that the host tier is to take")
    parser.add_argument("--disk-bytes", metavar="SIZE", help="disk that the disk tier is to take")
    parser.add_argument(
        "--model",
        metavar="NAME|FILE.toml",
        help=f"plan for this model: {', '.join(PRESETS)}, or a file as in docs/model-file.md",
    )
    parser.add_argument(
        "--context", metavar="TOKENS", help=f"of a session at its longest ({DEFAULT_CONTEXT})"
    )
    parser.add_argument("--sessions", metavar="N", help=f"to keep at once ({DEFAULT_SESSIONS})")
    parser.add_argument("--json", metavar="FILE", help="write the findings as JSON; - is stdout")


def run(options: argparse.Namespace) -> int:
    """Look, and plan where a model is given; return the exit status."""
    check_target("--json", options.json)
    if options.model is None:
        for name in ("context", "sessions"):
            if getattr(options, name) is not None:
                raise OptionError(f"--{name}", "needs --model")
    from radix.service.machine import BAD, Machine, Wanted, findings, worst

    machine = Machine()
    data = None if options.data is None else Path(options.data)
    wanted = Wanted(
        _size("--host-bytes", options.host_bytes), _size("--disk-bytes", options.disk_bytes), data
    )
    plan = None if options.model is None else _plan(options, data)
    if plan is not None:
        wanted = Wanted(
            plan.host_bytes if wanted.host_bytes is None else wanted.host_bytes,
            plan.disk_bytes or None if wanted.disk_bytes is None else wanted.disk_bytes,
            data,
        )
    found = list(findings(machine, wanted, _engines()))
    shown: list[RenderableType] = [_findings_table(found)]
    if plan is not None:
        shown.append(_plan_table(plan, data))
    show(options.json, *shown)
    if options.json is not None:
        told = {
            "findings": [asdict(each) for each in found],
            "worst": worst(found),
            "plan": None if plan is None else asdict(plan),
        }
        write_json(options.json, told)
    return EXIT_CHECK_FAILED if worst(found) == BAD else EXIT_DONE


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    size = size_of(text)
    if not size or size.denominator != 1:
        raise OptionError(option, f"expected a size such as 8GiB, got {text!r}")
    return size.numerator


def _plan(options: argparse.Namespace, data: Path | None) -> Plan:
    from radix.service.machine import Machine, available_bytes, existing

    free = 0
    if data is not None:
        there = os.statvfs(existing(data))
        free = there.f_bavail * there.f_frsize
    return plan_sizes(
        model_of(options.model),
        parse_positive("--context", options.context or DEFAULT_CONTEXT),
        parse_positive("--sessions", options.sessions or DEFAULT_SESSIONS),
        available_bytes(Machine()),
        free,
    )


def _engines() -> dict[str, str]:
    """Engines that are installed, and what there is to say of their versions."""
    from radix.engines.versions import TESTED, installed

    said: dict[str, str] = {}
    for name, tested in TESTED.items():
        if importlib.util.find_spec(name) is not None:
            known = installed(name) in tested
            said[name] = "" if known else f"the adapter was run with {', '.join(tested)}"
    return said


def _findings_table(found: Sequence[Finding]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="this machine", title_justify="left")
    for column in ("check", "", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for each in found:
        style = _STYLES[each.level]
        level = f"[{style}]{each.level}[/{style}]"
        table.add_row(each.check, level, escape(each.found), escape(each.advice))
    return table


def _plan_table(plan: Plan, data: Path | None) -> RenderableType:
    from rich.table import Table

    title = f"{plan.model}: {plan.sessions:,} sessions of {plan.context_tokens:,} tokens"
    table = Table(title=title, title_justify="left", show_header=False)
    fixed = f"{size_text(plan.token_bytes)} a token, {size_text(plan.fixed_bytes)} whatever it has"
    rows = [
        ("a session", f"{size_text(plan.session_bytes)}: {fixed}"),
        ("all of them", size_text(plan.needed_bytes)),
        ("host", f"{size_text(plan.host_bytes)}: {plan.host_sessions:,} sessions"),
        (
            "disk",
            f"{size_text(plan.disk_bytes)}: {plan.disk_sessions:,} sessions"
            if data is not None
            else "not planned: give --data",
        ),
        ("memory of the index", size_text(plan.index_bytes)),
        ("then", command_of(plan, data)),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def command_of(plan: Plan, data: Path | None) -> str:
    """The command that serves what was planned."""
    text = f"radix serve --host-bytes {plan.host_bytes >> 20}MiB"
    return text if data is None else f"{text} --disk-bytes {plan.disk_bytes >> 20}MiB --data {data}"
