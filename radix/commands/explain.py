"""`radix explain`: why a prompt missed, asked of a service that runs or of a directory."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radix.commands.terminal import EXIT_DONE, Commands, add_chosen, check_target, show
from radix.options import OptionError
from radix.replay.report import write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_HELP = """\
Say how far a prompt reaches in every namespace that could be meant, and why no further: a miss for
another revision, another tenant or another kind of block shows as a hit there.
"""
_EXAMPLES = """\
examples:
  radix explain --tokens prompt.json
  radix explain --tokens - --namespace meta-llama/Llama-3.1-8B --socket /run/radix/radix.sock
  radix explain --keys keys.txt --data /var/lib/radix --json -

FILE of --tokens: token ids, as JSON or separated by spaces, commas or lines; of --keys: a key a
line, in hexadecimal. - is standard input.
exit status: 0 done, 1 it could not be asked, 2 bad input
"""


def add(commands: Commands) -> None:
    """Add `radix explain` and its options."""
    parser = commands.add_parser(
        "explain",
        help="say why a prompt missed",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tokens", metavar="FILE", help="the prompt as token ids")
    what.add_argument("--keys", metavar="FILE", help="block keys, as an engine made them")
    add_chosen(parser, "only what is this tenant's", "only this model", "the answer")


def run(options: argparse.Namespace) -> int:
    """Explain as the options say; return the exit status."""
    check_target("--json", options.json)
    asked = _asked(options)
    if options.data is not None:
        if options.socket is not None:
            raise OptionError("--socket", "cannot go with --data")
        reaches = _in_data(Path(options.data), asked)
    else:
        from radix.commands.asking import ask_control
        from radix.service.config import default_socket

        path = Path(options.socket or default_socket())
        reaches = ask_control(path, "/explain", asked)["reaches"]
    show(options.json, _table(reaches, "pages" if "tokens" in asked else "keys"))
    if options.json is not None:
        write_json(options.json, {"reaches": reaches})
    return EXIT_DONE


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    asked: dict[str, Any] = {"tenant": options.tenant, "namespace": options.namespace}
    name = "tokens" if options.tokens is not None else "keys"
    source = getattr(options, name)
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except UnicodeDecodeError:
        raise OptionError(f"--{name}", f"{source}: not text") from None
    words = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    if not words:
        raise OptionError(f"--{name}", f"{source}: nothing in it")
    if name == "keys":
        return asked | {"keys": words}
    if wrong := next((word for word in words if not word.isdigit() or int(word) >> 31), None):
        raise OptionError("--tokens", f"{source}: {wrong!r} is no token id in [0, 2^31)")
    return asked | {"tokens": [int(word) for word in words]}


def _in_data(data: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    from radix.service.choosing import anything, chosen_of
    from radix.service.on_disk import explain_disk
    from radix.service.questions import asked_of
    from tiers.inspection import directories_in

    found = directories_in(data) if data.is_dir() else []
    if not found:
        raise OptionError("--data", f"{data} holds no directory of a disk tier")
    named = asked["tenant"] is not None or asked["namespace"] is not None
    chosen = chosen_of(asked["tenant"], asked["namespace"]) if named else anything()
    reaches = [reach for each in found for reach in explain_disk(each, asked_of(asked), chosen)]
    reaches.sort(key=lambda reach: -reach.hit)
    return [asdict(reach) for reach in reaches]


def _table(reaches: list[dict[str, Any]], unit: str) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    title = f"how far it reaches, in {unit}" if reaches else "no namespace that could be meant"
    table = Table(title=title, title_justify="left")
    for column in ("model", "revision", "adapter", "tenant", "store"):
        table.add_column(column, overflow="fold")
    for column in ("asked", "hit", "in the pool", "there by group"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("why no further", overflow="fold")
    for each in reaches:
        names = [escape(each[name]) for name in ("model", "revision", "adapter", "tenant", "store")]
        counts = [f"{each[name]:,}" for name in ("asked", "hit", "pool")]
        there = ", ".join(f"{escape(name)} {count:,}" for name, count in each["there"].items())
        table.add_row(*names, *counts, there, each["reason"])
    return table
