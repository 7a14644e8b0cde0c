"""`radix demo`: made-up traffic through device, host and disk, and a warm start."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from radix.commands.replay import finish
from radix.commands.terminal import Commands, check_target
from radix.replay.options import parse_seed
from radix.replay.progress import shown_progress

DEFAULT_REPORT = "demo-report"

_DEMO_HELP = """\
Run a made-up mix of chats, agents and a batch scan through device, host and disk with real bytes,
check every block that is loaded, then close, reopen the disk and run again to show a warm start.
"""


def add(commands: Commands) -> None:
    """Add `radix demo` and its options."""
    demo = commands.add_parser(
        "demo",
        help="show device, host, disk and a warm start at work",
        description=_DEMO_HELP,
    )
    demo.set_defaults(run=run)
    demo.add_argument("--seed", default="0", metavar="N", help="what all traffic is made from (0)")
    demo.add_argument(
        "--report",
        default=DEFAULT_REPORT,
        metavar="DIR",
        help=f"where plots, timeline and summary are written ({DEFAULT_REPORT})",
    )
    demo.add_argument("--json", metavar="FILE", help="write the summary here too; - is stdout")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; return the exit status."""
    seed = parse_seed(options.seed)
    check_target("--json", options.json)
    from radix.replay.demo import run_demo

    with shown_progress() as progress:
        report = run_demo(seed, Path(options.report), progress)
    status = finish(report, options.json)
    sys.stderr.write(f"report: {options.report}/\n")
    return status
