"""docs/service.md names every option with its flag and default, every metric with its labels, and
only commands and files that are there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from radix.cli import COMMANDS, _parser
from radix.service.config import OPTIONS
from radix.service.metrics import COUNTERS, GAUGES
from radix.service.tenants import tenant_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "service.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.split("|")[1:-1])
    for line in TEXT.splitlines()
    if "|" in line
]


def test_every_option_stands_there_with_its_default() -> None:
    told = {row[0].strip("`"): row[1:] for row in ROWS if row[1:2] and row[1].startswith("`--")}
    assert list(told) == [option.key for option in OPTIONS]
    for option in OPTIONS:
        default = "none" if option.default is None else option.default or "the user's own"
        assert told[option.key] == (f"`{option.flag} {option.metavar}`", default, option.help)


def test_every_metric_stands_there_with_its_labels() -> None:
    told = {row[0].strip("`"): row[1] for row in ROWS if row[0].startswith("`radix_")}
    wanted = {"radix_info": "version, boot"}
    wanted |= {name: ", ".join(labels) or "-" for name, (_, labels) in GAUGES.items()}
    wanted |= {f"{name}_total": ", ".join(labels) or "-" for name, (_, labels) in COUNTERS.items()}
    assert told == wanted


def test_the_commands_and_files_that_it_names_exist() -> None:
    names = {command.__name__.rsplit(".", 1)[1] for command in COMMANDS}
    assert set(re.findall(r"`radix ([a-z]+)", TEXT)) <= names
    for line in re.findall(r"^radix .+$", TEXT, re.M):
        _parser().parse_args(line.split()[1:])
    for name in re.findall(r"`((?:radix\.|Container|alerts|grafana)[\w.-]+)`", TEXT):
        assert (ROOT / "deploy" / name).exists(), name


def test_the_tenant_that_it_shows_is_one(tmp_path: Path) -> None:
    block, others = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    told = tomllib.loads(block.replace("/etc/radix/acme.secret", str(secret)))
    acme = tenant_of("acme", told["tenants"]["acme"])
    assert (acme.uids, acme.namespaces, acme.weight) == ((1001,), ("acme/",), 2)
    apart = [tenant_of(*each) for each in tomllib.loads(others)["tenants"].items()]
    assert {(each.domain, each.own_blocks) for each in apart} == {("acme", True)}
    (flag,) = re.findall(r"`--tenant (\S+)`", TEXT)
    from radix.commands.serve import tenant_of_flag

    name, table = tenant_of_flag(flag.replace("/etc/radix/acme.secret", str(secret)))
    assert tenant_of(name, table).uids == (1001,)
