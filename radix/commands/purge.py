"""`radix purge`: namespaces or tenants leave, for good, a service that runs or a directory.

Kept here: what was purged stays away whatever happens then; nothing else is touched.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radix.commands.terminal import EXIT_DONE, Commands, add_chosen, check_target, tiers_of
from radix.options import OptionError, size_text
from radix.replay.progress import shown_progress
from radix.replay.report import write_json

_HELP = """\
Remove every block of a tenant, or of a model, durably: from a service that runs, by its socket, or
from a directory that no process holds, by --data; of a tier over several drives all its paths.
"""
_EXAMPLES = """\
examples:
  radix purge --tenant acme
  radix purge --namespace meta-llama/Llama-3.1-8B --socket /run/radix/radix.sock
  radix purge --namespace model=llama,revision=r1 --tenant acme --data /var/lib/radix
  radix purge --tenant acme --data /drive0/radix /drive1/radix

exit status: 0 durable, 1 it could not be done, 2 bad input
"""


def add(commands: Commands) -> None:
    """Add `radix purge` and its options."""
    parser = commands.add_parser(
        "purge",
        help="remove a tenant's or a model's blocks for good",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    add_chosen(parser, "a domain of a service, or a salt", "a model", "what went", drives=True)


def run(options: argparse.Namespace) -> int:
    """Purge as the options say; return the exit status."""
    check_target("--json", options.json)
    from radix.service.choosing import chosen_of

    chosen = chosen_of(options.tenant, options.namespace)
    if options.data is not None:
        if options.socket is not None:
            raise OptionError("--socket", "cannot go with --data")
        told, text = _purge_data([Path(each) for each in options.data], chosen.means)
    else:
        told, text = _purge_service(options)
    if options.json is not None:
        write_json(options.json, told)
    sys.stderr.write(f"{text}\n")
    return EXIT_DONE


def _purge_data(paths: list[Path], means: Any) -> tuple[dict[str, Any], str]:
    from tiers.purging import purge_disk

    found = tiers_of("--data", paths)
    reports = []
    with shown_progress() as progress:
        for directory in found:
            progress.phase(f"purge {directory[0]}", 1)
            reports.append(purge_disk(directory, means))
    entries = sum(each.entries for each in reports)
    size = size_text(sum(each.payload_bytes for each in reports))
    text = (
        f"{entries:,} entries of {sum(each.namespaces for each in reports)} namespaces went, {size}"
    )
    return {"directories": [asdict(each) for each in reports], "entries": entries}, text


def _purge_service(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from radix.commands.asking import ask_control
    from radix.service.config import default_socket

    asked = {"tenant": options.tenant, "namespace": options.namespace}
    told = ask_control(Path(options.socket or default_socket()), "/purge", asked)
    text = (
        f"{told['keys']:,} keys of {told['namespaces']} namespaces went, and {told['entries']:,} "
        f"entries of {told['directories']} directories that nobody had open"
    )
    if told["remotes"]:
        text += f"; of {told['remotes']} stores nothing is found in the remote tier any more"
    return told, text
