"""`radix serve`: the tiers of one machine for many engines.

Kept here: standard output gets one line of JSON, the addresses, once clients can connect; the log
goes to standard error. SIGTERM and SIGINT let clients end and then end; a second one ends now.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radix.commands.terminal import EXIT_DONE, Commands, Parser
from radix.options import OptionError

if TYPE_CHECKING:
    from radix.service.config import ServiceConfig
    from radix.service.server import Server

_LOG = logging.getLogger("radix.service")
_HELP = """\
Serve host, disk and remote tiers to the engines of this machine over a UNIX socket, and to others
over TCP. Without any option: a socket of the user's own, 1 GiB of memory, no disk.
"""
_EXAMPLES = """\
examples:
  radix serve
  radix serve --host-bytes 64GiB --disk-bytes 1TB --data /var/lib/radix
  radix serve --config /etc/radix/radix.toml --log-level debug
  radix serve --listen 0.0.0.0:9471 --tenant acme:secret_file=/etc/radix/acme.secret,weight=2

docs/service.md tells what each option means. exit status: 0 drained, 1 the service failed,
2 bad input
"""


def add(commands: Commands) -> None:
    """Add `radix serve` and its options."""
    parser = commands.add_parser(
        "serve",
        help="serve tiers to many engines",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.later = _add_options


def _add_options(parser: Parser) -> None:
    """The options of the configuration: only who serves loads the service."""
    from radix.service.config import OPTIONS

    parser.add_argument("--config", metavar="FILE", help="TOML file of options; flags lie over it")
    for option in OPTIONS:
        default = f" ({option.default})" if option.default else ""
        parser.add_argument(
            option.flag,
            dest=option.key,
            metavar=option.metavar,
            help=(option.help + default).replace("%", "%%"),
        )
    parser.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,...",
        help="a tenant as in the file's [tenants.NAME]; lists are written a+b",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it; return the exit status."""
    from radix.service.config import OPTIONS, read_config

    given = {key: value for key, value in vars(options).items() if value is not None}
    flags = {option.key: given[option.key] for option in OPTIONS if option.key in given}
    file = None if options.config is None else Path(options.config)
    config = read_config(file, flags, dict(map(tenant_of_flag, options.tenant)))
    if config.remote is not None:
        _check_remote(config.remote)
    from radix.service.logs import log_as_json
    from radix.service.server import Server

    log_as_json(config.log_level)
    with ExitStack() as ending:
        server = Server(config)
        ending.callback(server.stop)
        addresses = _serve(server, config, ending)
        print(json.dumps(addresses), flush=True)
        _notify("READY=1")
        server.join()
    _LOG.info("ended")
    return EXIT_DONE


def _check_remote(url: str) -> None:
    """An URL that no store could use is told before anything listens."""
    from tiers.remote_url import backend_of

    try:
        backend_of(url)
    except ImportError as error:
        extra = "mooncake" if url.startswith("mooncake") else "redis"
        raise OptionError("--remote", f"pip install 'radix-tiers[{extra}]' ({error})") from None
    except ValueError as error:
        raise OptionError("--remote", str(error)) from None


def _serve(server: Server, config: ServiceConfig, ending: ExitStack) -> dict[str, Any]:
    """Starts everything; the line that says so."""
    _end_on_signals(server)
    server.start()
    if config.admin is not None:
        from radix.service.admin import AdminServer
        from radix.service.explorer import look

        def asked(question: Mapping[str, str]) -> dict[str, Any]:
            told: dict[str, Any] = server.ask(lambda: look(stores_of(server), question))
            return told

        try:
            admin = ending.enter_context(AdminServer(config.admin, server.status, asked))
        except OSError as error:
            raise OptionError("--admin", f"{config.admin}: {error.strerror or error}") from None
        server.addresses["admin"] = str(admin.address)
    if config.socket is not None:
        from radix.service.control import ControlServer, control_path
        from radix.service.questions import answers_of

        ending.enter_context(ControlServer(control_path(config.socket), answers_of(server)))
    told = {"ready": True, "pid": os.getpid(), **server.addresses}
    _LOG.info("ready", extra={"addresses": dict(server.addresses)})
    return told


def stores_of(server: Server) -> dict[str, Any]:
    """The stores that are open, by the names that the status gives them."""
    from radix.service.reporting import name_of

    return {name_of(hosted): hosted.flat for hosted in server.context.stores()}


def _end_on_signals(server: Server) -> None:
    asked = False

    def end(number: int, _: object) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)  # what is not durable now would not be by waiting either
        asked = True
        _LOG.info("draining", extra={"signal": signal.Signals(number).name})
        _notify("STOPPING=1")
        server.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def tenant_of_flag(text: str) -> tuple[str, dict[str, Any]]:
    """A tenant as typed: its name, and its table as it would stand in the file.

    >>> tenant_of_flag("acme:uids=1000+1001,quota_bytes=8GiB,weight=2")
    ('acme', {'uids': [1000, 1001], 'quota_bytes': '8GiB', 'weight': 2.0})
    """
    name, colon, rest = text.partition(":")
    table: dict[str, Any] = {}
    for entry in rest.split(",") if colon else ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise OptionError("--tenant", f"expected NAME:KEY=VALUE,..., got {text!r}")
        table[key] = _typed(key, value)
    return name, table


def _typed(key: str, value: str) -> Any:
    if key == "uids":
        with suppress(ValueError):
            return [int(part) for part in value.split("+")]
    if key in ("namespaces", "certificate_names"):
        return value.split("+")
    if key == "own_blocks":
        return {"true": True, "false": False}.get(value, value)
    if key == "weight":
        with suppress(ValueError):
            return float(value)
    return value


def _notify(what: str) -> None:
    """Tells systemd, where it is what started us (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.sendto(what.encode(), address)
