"""`radix events`: what a service holds, republished as KV events for routers.

Kept here: standard output gets one line of JSON, the addresses, once routers can subscribe; while
the service is away they are told that nothing is held. SIGTERM and SIGINT end it with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from radix.commands.terminal import EXIT_DONE, Commands, complain
from radix.options import OptionError
from radix.replay.options import parse_seconds

if TYPE_CHECKING:
    from radix.service.kv_bridge import Bridge
    from radix.service.link import Credentials

_HELP = """\
Read what a service holds, over one authenticated connection, and publish it as vLLM's KV events
over ZeroMQ: all that is there first, then each change. Only what the tenant's own domain holds is
told.
"""
_EXAMPLES = """\
examples:
  radix events
  radix events --connect unix:/run/radix/radix.sock --publish tcp://127.0.0.1:5557 \\
      --replay tcp://127.0.0.1:5558 --topic kv-events
  radix events --connect 10.0.0.5:9471 --tenant acme --secret-file /etc/radix/acme.secret

docs/events.md tells what routers hear. exit status: 0 ended by a signal, 1 the service does not let
it in or speaks another version, 2 bad input
"""
DEFAULT_PUBLISH = "tcp://127.0.0.1:5557"
DEFAULT_EVERY = "0.05"
_MOST_PAUSE_S = 5.0


def add(commands: Commands) -> None:
    """Add `radix events` and its options."""
    parser = commands.add_parser(
        "events",
        help="publish what a service holds, for routers",
        description=_HELP,
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--connect",
        metavar="ADDRESS",
        help="the service: its socket, PATH or unix:PATH, or HOST:PORT (the default socket)",
    )
    parser.add_argument(
        "--publish", metavar="ENDPOINT", help=f"of a ZeroMQ PUB socket ({DEFAULT_PUBLISH})"
    )
    parser.add_argument("--replay", metavar="ENDPOINT", help="where routers ask again (nowhere)")
    parser.add_argument("--topic", metavar="TEXT", default="", help="of every message (empty)")
    parser.add_argument("--rank", metavar="N", help="data parallel rank in every message (none)")
    parser.add_argument(
        "--every", metavar="SECONDS", help=f"from one look to the next ({DEFAULT_EVERY})"
    )
    parser.add_argument("--tenant", metavar="NAME", default="", help="who this is")
    parser.add_argument("--secret-file", metavar="FILE", help="the tenant's secret, over TCP")
    for name, what in (
        ("certificate", "certificate to show"),
        ("key", "its private key"),
        ("authority", "who signed the service's certificate"),
    ):
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=what)


def run(options: argparse.Namespace) -> int:
    """Publish until a signal ends it; return the exit status."""
    every = parse_seconds("--every", options.every or DEFAULT_EVERY)
    if options.rank is not None and not (options.rank.isdigit() and len(options.rank) < 6):
        raise OptionError("--rank", f"expected a number, got {options.rank!r}")
    address, who = _service(options)
    from radix.service.kv_bridge import Bridge
    from radix.service.kv_stream import BindError
    from radix.service.watching import Watch

    rank = None if options.rank is None else int(options.rank)
    try:
        bridge = Bridge(
            lambda: Watch(address, who),
            options.publish or DEFAULT_PUBLISH,
            options.replay,
            topic=options.topic,
            rank=rank,
        )
    except BindError as error:
        where = [options.publish or DEFAULT_PUBLISH, *([options.replay] if options.replay else [])]
        raise OptionError("--publish", f"cannot bind {' or '.join(where)}: {error}") from None
    try:
        return _publish(bridge, every)
    finally:
        bridge.close()


def _publish(bridge: Bridge, every: float) -> int:
    from radix.service.calls import ServiceGoneError

    ends: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ends.append(number))
    stream, pause = bridge.stream, every
    addresses = {"publish": stream.endpoint, "replay": stream.replay_endpoint}
    print(json.dumps({"ready": True, "pid": os.getpid(), **addresses}), flush=True)
    while not ends:
        try:
            more, pause = bridge.step(), every
        except ServiceGoneError as error:
            if pause == every:
                complain(f"{error}; trying again", EXIT_DONE)
            more, pause = False, min(_MOST_PAUSE_S, 2 * pause)
        _wait(bridge, ends, 0.0 if more else pause)
    return EXIT_DONE


def _wait(bridge: Bridge, ends: list[int], seconds: float) -> None:
    """Waits, answering who asks; a signal ends it within the tenth of a second."""
    until = time.monotonic() + seconds
    while not ends and (left := until - time.monotonic()) > 0:
        bridge.stream.wait(min(left, 0.1))
        bridge.stream.answer()


def _service(options: argparse.Namespace) -> tuple[str, Credentials]:
    """Where the service is, and who asks."""
    import ssl
    from pathlib import Path

    from radix.service.config import default_socket
    from radix.service.encryption import client_context
    from radix.service.link import Credentials, host_of, is_path
    from radix.service.tenants import secret_of

    address = (options.connect or default_socket()).removeprefix("unix:")
    if not is_path(address):
        try:
            host_of(address)
        except ValueError as error:
            raise OptionError("--connect", str(error)) from None
    files = [options.tls_authority, options.tls_certificate, options.tls_key]
    tls = None
    if any(files):
        if not all(files):
            raise OptionError("--tls-key", "needed are certificate, key and authority together")
        try:
            tls = client_context(*(str(Path(file).expanduser()) for file in files))
        except ssl.SSLError as error:
            raise OptionError("--tls-certificate", f"do not fit: {error}") from None
    secret = secret_of("--secret-file", options.secret_file)
    return address, Credentials(options.tenant, secret, tls)
