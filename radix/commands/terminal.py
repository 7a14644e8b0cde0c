"""What every command of the command line has in common: its exit statuses, one line for a fault,
tables where they do not disturb JSON.

Kept here: results go to standard output, progress and errors to standard error; rich is loaded only
where a table is shown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from radix.options import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_DONE = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class Commands(Protocol):
    """Where a command adds its parser: what `argparse` gives for subcommands."""

    def add_parser(self, name: str, **settings: Any) -> Parser:
        """Add a command of this name and return its parser."""
        ...


class Parser(argparse.ArgumentParser):
    """A parser that complains in one line, as every other fault of the input does.

    Options are never completed from their first letters: a later option would change their meaning.
    Descriptions and examples stay in the lines that they are written in.
    """

    def __init__(self, **settings: Any) -> None:
        lines = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=lines, **settings)
        self.later: Callable[[Parser], None] | None = None  # adds options once they are asked for

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, after the options that take long to name were added."""
        if self.later is not None:
            later, self.later = self.later, None
            later(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the process with exit status 2 and one line that says what was wrong."""
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def check_target(option: str, target: str | None) -> None:
    """Refuse a result file that cannot be written before the work is done, not after."""
    if target is None or (target == "-" and option == "--json"):
        return
    path = Path(target)
    if path.is_dir():
        raise OptionError(option, f"{target} is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(option, f"{target} cannot be written")


def show(json_target: str | None, *tables: RenderableType) -> None:
    """Print tables on standard output, or on standard error where that is taken by JSON."""
    from rich.console import Console

    console = Console(stderr=json_target == "-")
    if json_target == "-" and not sys.stderr.isatty():
        return
    for table in tables:
        console.print(table)


def complain(what: str, status: int) -> int:
    """Print one line on standard error, whatever the text holds, and return the exit status."""
    sys.stderr.write(f"radix: {' '.join(what.split())}\n")
    return status


def tiers_of(option: str, paths: Sequence[Path]) -> list[list[Path]]:
    """The disk tiers that a command means, each with its paths: all that lie in one folder, or one
    tier over several drives.

    Raises:
        OptionError: there is none, or not in that order.
    """
    from tiers.inspection import directories_in

    for path in paths:
        if not path.is_dir():
            raise OptionError(option, f"{path} is no directory")
    found = directories_in(paths[0])
    if not found:
        raise OptionError(option, f"{paths[0]} holds no directory of a disk tier")
    if len(paths) > 1 and found != [paths[0]]:
        raise OptionError(option, f"{paths[0]} must be the first path of the tier itself")
    return [[each, *paths[1:]] for each in found]


def add_chosen(
    parser: argparse.ArgumentParser,
    tenant: str,
    namespace: str,
    result: str,
    *,
    drives: bool = False,
) -> None:
    """Add the options that say of whose blocks a command is, and where they are; the texts: what a
    tenant, a namespace and the file of --json mean to it. ``drives``: all paths of a tier are
    needed.
    """
    parser.add_argument("--tenant", metavar="NAME", help=tenant)
    fields = "fields of model, revision, adapter, adapter_version"
    parser.add_argument(
        "--namespace", metavar="MODEL|FIELD=VALUE,...", help=f"{namespace}, or {fields}"
    )
    parser.add_argument("--socket", metavar="PATH", help="the service's socket (its default)")
    where = "a directory instead of a service"
    if drives:
        where += "; of a tier over several drives the first path, then the others"
        parser.add_argument("--data", metavar="DIR", nargs="+", help=where)
    else:
        parser.add_argument("--data", metavar="DIR", help=where)
    parser.add_argument("--json", metavar="FILE", help=f"write {result} as JSON; - is stdout")
