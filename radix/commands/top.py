"""`radix top`: what a service does, in a terminal, from its `/status`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from radix.commands.asking import ServiceAnswerError, ask_admin
from radix.commands.terminal import EXIT_DONE, Commands
from radix.options import OptionError, size_text
from radix.replay.options import parse_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_EXAMPLES = """\
examples:
  radix top
  radix top --admin 127.0.0.1:9470 --every 1
  radix top --once --json

exit status: 0 done, 1 the service said no, 2 no service answers, 130 interrupted
"""
DEFAULT_EVERY = "2"


def add(commands: Commands) -> None:
    """Add `radix top` and its options."""
    parser = commands.add_parser(
        "top",
        help="show what a service does",
        description="Show tiers, hits, misses and tenants of a service, again and again.",
        epilog=_EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--admin", metavar="HOST:PORT", help="its admin address (127.0.0.1:9470)")
    parser.add_argument(
        "--every", metavar="SECONDS", help=f"from one look to the next ({DEFAULT_EVERY})"
    )
    parser.add_argument("--once", action="store_true", help="look once, and end")
    parser.add_argument("--json", action="store_true", help="with --once: the status as it is")


def run(options: argparse.Namespace) -> int:
    """Show it until interrupted, or once; return the exit status."""
    from radix.service.config import DEFAULT_ADMIN

    every = parse_seconds("--every", options.every or DEFAULT_EVERY)
    if options.json and not options.once:
        raise OptionError("--json", "needs --once")
    address = options.admin or DEFAULT_ADMIN
    status = ask_admin(address, "/status")
    if options.json:
        sys.stdout.write(json.dumps(status, indent=2) + "\n")
        return EXIT_DONE
    from rich.console import Console
    from rich.live import Live

    if options.once:
        Console().print(screen(status, None))
        return EXIT_DONE
    with Live(screen(status, None), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(max(0.1, every))
            before = status
            try:
                status = ask_admin(address, "/status")
            except (OptionError, ServiceAnswerError) as error:
                live.update(screen(before, None, str(error)), refresh=True)
                continue
            live.update(screen(status, before), refresh=True)


def screen(status: dict[str, Any], before: dict[str, Any] | None, fault: str = "") -> Group:
    """What is shown of a status; rates are those since ``before``."""
    from rich.console import Group
    from rich.markup import escape
    from rich.text import Text

    addresses = "  ".join(f"{name} {text}" for name, text in status["addresses"].items())
    style = "green" if status["state"] == "running" else "yellow"
    head = Text.from_markup(
        f"[b]radix[/b] {escape(status['version'])}  [{style}]{status['state']}[/{style}]  "
        f"up {_ago(status['uptime_s'])}  {status['connections']} connections  {escape(addresses)}"
    )
    parts: list[Any] = [head]
    if fault:
        parts.append(Text(fault, style="red"))
    parts += [_tiers(status), _asked(status, before), _misses(status), _tenants(status)]
    return Group(*parts)


def _table(title: str, *columns: str, left: int) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", expand=True)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    return table


def _tiers(status: dict[str, Any]) -> Table:
    columns = ("store", "tier", "mode", "used", "limit", "full", "blocks", "hits")
    table = _table("tiers", *columns, left=3)
    for store in status["stores"]:
        for number, tier in enumerate(store["tiers"]):
            table.add_row(
                store["name"] if not number else "",
                tier["name"],
                tier["mode"],
                size_text(tier["used_bytes"]),
                size_text(tier["limit_bytes"]),
                _percent(tier["used_bytes"], tier["limit_bytes"]),
                f"{sum(tier['blocks'].values()):,}",
                f"{store['asked']['hits'].get(tier['name'], 0):,}",
            )
    return table


def _asked(status: dict[str, Any], before: dict[str, Any] | None) -> Table:
    columns = ("store", "unit", "asked", "hit", "hit just now", "transfers", "leases", "index")
    table = _table("asked", *columns, left=2)
    was = {store["name"]: store["asked"] for store in (before or {"stores": []})["stores"]}
    for store in status["stores"]:
        now, old = store["asked"], was.get(store["name"], store["asked"])
        hits = sum(now["hits"].values())
        table.add_row(
            store["name"],
            now["unit"],
            f"{now['asked']:,}",
            _percent(hits, now["asked"]),
            _percent(hits - sum(old["hits"].values()), now["asked"] - old["asked"]),
            f"{store['transfers_under_way']:,}",
            f"{store['leases']:,}",
            size_text(store["index_bytes"]),
        )
    return table


def _misses(status: dict[str, Any]) -> Table:
    table = _table("misses", "reason", "unit", "count", left=2)
    found: dict[tuple[str, str], int] = {}
    for store in status["stores"]:
        for reason, count in store["asked"]["misses"].items():
            key = (reason, store["asked"]["unit"])
            found[key] = found.get(key, 0) + count
    for (reason, unit), count in sorted(found.items(), key=lambda item: -item[1])[:8]:
        table.add_row(reason, unit, f"{count:,}")
    return table


def _tenants(status: dict[str, Any]) -> Table:
    columns = (
        *("tenant", "domain", "connections", "leases", "asked", "hit"),
        *("holds", "evicted", "quota", "weight"),
    )
    table = _table("tenants", *columns, left=2)
    for tenant in status["tenants"]:
        asked = tenant["asked"]
        quota, holds, went = (tenant[n] for n in ("quota_bytes", "used_bytes", "evicted_blocks"))
        table.add_row(
            tenant["name"],
            tenant["domain"],
            f"{tenant['connections']:,}",
            f"{tenant['leases']:,}",
            f"{asked['asked']:,}",
            _percent(sum(asked["hits"].values()), asked["asked"]),
            "-" if holds is None else size_text(sum(holds.values())),
            "-" if went is None else f"{sum(went.values()):,}",
            "none" if quota is None else size_text(quota),
            f"{tenant['weight']:g}",
        )
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "-"


def _ago(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
