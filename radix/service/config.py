"""What `radix serve` is told: a TOML file, flags on top of it, and who may use the service.

Kept here: a configuration is accepted whole or refused with an `OptionError` that names the key and
what was expected; a key that nobody knows is a fault, not ignored; nothing listens beyond loopback
without both sides proving who they are. Secrets are read from files of their own and never printed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from radix.options import OptionError
from radix.policy.reuse import MOST as MOST_USES
from radix.service.tenants import Tenant, bytes_from, tenant_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_WRITES = ("write_through", "write_after", "write_expected")
_REMOTES = ("redis", "rediss", "mooncake")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0: any that is free."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the server's certificate and key, and of the authority that signs its clients'."""

    certificate: Path
    key: Path
    client_authority: Path


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What one client may take, and how long it may take for it.

    ``max_frame_bytes``: header and payload; ``max_pipeline``: requests of a connection that are not
    answered; ``max_leases``: keys that a connection pins, and as many that its reservations name
    beside those they bring; ``staging_bytes``: room of its reservations; ``keep_most_s``: the
    longest KEEP. ``handshake_s``: from connecting to a good HELLO; ``slow_s``: a frame begun, or an
    answer not taken; ``idle_s``: nothing asked (0: for ever); ``drain_s``: from SIGTERM until
    connections are cut; ``remote_s``: for an answer of the remote tier's backend.
    """

    max_frame_bytes: int
    max_connections: int
    max_pipeline: int
    max_leases: int
    staging_bytes: int
    keep_most_s: float
    handshake_s: float
    slow_s: float
    idle_s: float
    drain_s: float
    remote_s: float


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Everything that a service is told. Made by `read_config`.

    ``socket``: path of the UNIX socket (None: no such socket), ``socket_mode`` its permissions.
    ``listen``: TCP for other machines (None: none), with ``tls`` or tenants' secrets. ``admin``:
    HTTP, on loopback only (None: none). ``data``: directory of the disk tier (None: no disk).
    ``host_bytes``, ``disk_bytes``: limits of the tiers; ``remote``: URL of a remote tier (None:
    none), ``remote_blocks``: that a store may know there of each group; ``store_share``: what a
    store that says no size gets of what its domain has left. ``policy``, ``write``,
    ``write_after``, ``write_expected``: as of a flat store; ``write_budget_bytes_per_day``,
    ``write_burst_bytes``: of all disks of all stores together (None: no end; an hour's share).
    """

    socket: Path | None
    socket_mode: int
    listen: Address | None
    admin: Address | None
    data: Path | None
    host_bytes: int
    disk_bytes: int
    store_share: float
    remote: str | None
    remote_blocks: int
    policy: str
    write: str
    write_after: int
    write_expected: float
    write_budget_bytes_per_day: int | None
    write_burst_bytes: int | None
    threads: int
    log_level: str
    limits: ServiceLimits
    tls: Tls | None
    tenants: tuple[Tenant, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A key of the file, and the flag of the same name with dashes.

    ``table``: where it stands in the file ("": on top). ``default``: as typed; None: left out.
    ``parse``: takes the key and the text, raises `OptionError`.
    """

    name: str
    table: str
    default: str | None
    metavar: str
    help: str
    parse: Callable[[str, str], Any]

    @property
    def key(self) -> str:
        """Its full name in the file."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        prefix = "tls-" if self.table == "tls" else ""
        return f"--{prefix}{self.name.replace('_', '-')}"


def _text(key: str, text: str) -> str:
    if not text:
        raise OptionError(key, "expected a text, got an empty one")
    return text


def _path(key: str, text: str) -> Path:
    return Path(_text(key, text)).expanduser()


def _count_from(least: int, most: int = 1 << 31) -> Callable[[str, str], int]:
    def parse(key: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise OptionError(key, f"expected an integer from {least} to {most}, got {text!r}")
        return int(text)

    return parse


def _seconds(key: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}(?:\.[0-9]{1,6})?", text):
        raise OptionError(key, f"expected seconds such as 10 or 0.5, got {text!r}")
    return float(text)


def _positive(key: str, text: str) -> float:
    seconds = _seconds(key, text)
    if not seconds:
        raise OptionError(key, f"expected seconds above 0, got {text!r}")
    return seconds


def _part(key: str, text: str) -> float:
    if not re.fullmatch(r"[01]?\.[0-9]{1,9}|1", text) or not 0 < float(text) <= 1:
        raise OptionError(key, f"expected a part above 0 and up to 1 such as 0.1, got {text!r}")
    return float(text)


def _mode(key: str, text: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text) or int(text, 8) & 0o111:
        raise OptionError(key, f"expected permissions such as 600 or 660, got {text!r}")
    return int(text, 8)


def _one_of(known: Iterable[str]) -> Callable[[str, str], str]:
    names = tuple(known)

    def parse(key: str, text: str) -> str:
        if text not in names:
            raise OptionError(key, f"expected one of {', '.join(names)}, got {text!r}")
        return text

    return parse


def address_of(key: str, text: str) -> Address:
    """Parse 127.0.0.1:9470, [::1]:9470 or localhost:9470; names beyond localhost are refused.

    Raises:
        OptionError: it is no such address.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    expected = f"expected an address such as 127.0.0.1:9470, got {text!r}"
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise OptionError(key, expected)
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise OptionError(key, expected) from None
    return Address(host, int(port))


def _admin(key: str, text: str) -> Address:
    address = address_of(key, text)
    if not address.loopback:
        what = f"the admin page knows no users: expected a loopback address, got {text!r}"
        raise OptionError(key, what)
    return address


def _remote(key: str, text: str) -> str:
    if text.partition("://")[0] not in _REMOTES or not text.partition("://")[2]:
        known = ", ".join(f"{name}://" for name in _REMOTES)
        raise OptionError(key, f"expected a URL that begins with one of {known}; got {text!r}")
    return text


def default_socket() -> str:
    """Where the socket lies if nothing else is said: in the user's own run-time directory."""
    home = os.environ.get("XDG_RUNTIME_DIR")
    return f"{home}/radix.sock" if home else f"/tmp/radix-{os.getuid()}/radix.sock"


DEFAULT_ADMIN = "127.0.0.1:9470"
NONE = "none"  # as the value of an option that may be left out: turned off

OPTIONS: tuple[Option, ...] = (
    Option("socket", "", "", "PATH", "UNIX socket of engines on this machine", _path),
    Option("socket_mode", "", "600", "MODE", "permissions of the socket", _mode),
    Option("listen", "", NONE, "HOST:PORT", "TCP for engines on other machines", address_of),
    Option("admin", "", DEFAULT_ADMIN, "HOST:PORT", "admin page and metrics, loopback", _admin),
    Option("data", "", NONE, "DIR", "directory of the disk tier", _path),
    Option("host_bytes", "", "1GiB", "SIZE", "memory for blocks", bytes_from(MIB)),
    Option("disk_bytes", "", "16GiB", "SIZE", "disk for blocks and their index", bytes_from(MIB)),
    Option(
        *("store_share", "", "0.75", "SHARE", "of what is left, for a store that says no size"),
        _part,
    ),
    Option("remote", "", NONE, "URL", "remote tier below the disk", _remote),
    Option(
        *("remote_blocks", "", "1048576", "N", "blocks that a store may know in the remote tier"),
        _count_from(1, 1 << 30),
    ),
    Option(
        *("policy", "", "lru", "NAME", "what goes first where room is short (docs/policies.md)"),
        _text,
    ),
    Option(
        *("write", "", "write_through", "HOW", f"when blocks go to disk: {', '.join(_WRITES)}"),
        _one_of(_WRITES),
    ),
    Option(
        *("write_after", "", "1", "N", "uses after which a block goes down, with write_after"),
        _count_from(1, MOST_USES - 1),
    ),
    Option(
        *("write_expected", "", "0.1", "CHANCE", "of being read back, with write_expected"),
        _part,
    ),
    Option(
        *("write_budget_bytes_per_day", "", NONE, "SIZE", "what disks may be given to write a day"),
        bytes_from(MIB),
    ),
    Option(
        *("write_burst_bytes", "", NONE, "SIZE", "of it at once (none: the share of an hour)"),
        bytes_from(MIB),
    ),
    Option("threads", "", "4", "N", "threads that move bytes", _count_from(1, 64)),
    Option(
        *("log_level", "", "info", "LEVEL", "debug, info, warning or error"),
        _one_of(("debug", "info", "warning", "error")),
    ),
    Option(
        *("max_frame_bytes", "limits", "64MiB", "SIZE", "largest frame"),
        bytes_from(64 * KIB),
    ),
    Option("max_connections", "limits", "256", "N", "clients at once", _count_from(1, 65536)),
    Option(
        *("max_pipeline", "limits", "1024", "N", "requests a client may have unanswered"),
        _count_from(1),
    ),
    Option(
        "max_leases",
        "limits",
        "1048576",
        "N",
        "keys that a client may pin, or name in reservations",
        _count_from(1),
    ),
    Option(
        *("staging_bytes", "limits", "256MiB", "SIZE", "room for what a client is writing"),
        bytes_from(64 * KIB),
    ),
    Option("keep_most_s", "limits", "86400", "SECONDS", "longest KEEP", _seconds),
    Option("handshake_s", "limits", "5", "SECONDS", "for a client to say who it is", _seconds),
    Option("slow_s", "limits", "10", "SECONDS", "for a frame begun, an answer to take", _seconds),
    Option("idle_s", "limits", "0", "SECONDS", "until an idle client is cut (0: never)", _seconds),
    Option("drain_s", "limits", "30", "SECONDS", "for clients to end after SIGTERM", _seconds),
    Option("remote_s", "limits", "2", "SECONDS", "for an answer of the remote tier", _positive),
    Option("certificate", "tls", None, "FILE", "certificate of the server", _path),
    Option("key", "tls", None, "FILE", "its private key", _path),
    Option("client_authority", "tls", None, "FILE", "who signs clients' certificates", _path),
)
_OFF = (
    *("socket", "listen", "admin", "data", "remote"),
    *("write_budget_bytes_per_day", "write_burst_bytes"),
)


def read_config(
    file: Path | None = None,
    flags: Mapping[str, str] | None = None,
    tenants: Mapping[str, Mapping[str, Any]] | None = None,
) -> ServiceConfig:
    """Read a configuration: defaults, the file over them, flags over both.

    Args:
        file: TOML as in docs/service.md, None for none.
        flags: values as typed by the names of `OPTIONS` (`Option.key`).
        tenants: tables as they would stand in the file, over those that stand there. Without any
            there is one, "default": the user that runs the service.

    Raises:
        OptionError: names the key (of a file, the file too) and what was expected.
    """
    values = {option.key: option.default for option in OPTIONS}
    values["socket"] = default_socket()
    said: dict[str, Mapping[str, Any]] = {}
    if file is not None:
        told, said = _read_file(file)
        values |= told
    for key in flags or {}:
        if key not in values:
            raise OptionError(key, "no such option")
    values |= flags or {}
    parsed = {
        option.key: _value(option, values[option.key], file, flags or {}) for option in OPTIONS
    }
    limits = ServiceLimits(
        **{item.name: parsed[f"limits.{item.name}"] for item in fields(ServiceLimits)}
    )
    made = tuple(tenant_of(name, table) for name, table in {**said, **(tenants or {})}.items())
    config = ServiceConfig(
        **{option.name: parsed[option.key] for option in OPTIONS if not option.table},
        limits=limits,
        tls=_tls(parsed),
        tenants=made or (tenant_of("default", {"uids": [os.getuid()]}),),
    )
    _check(config)
    return config


def _value(option: Option, text: str | None, file: Path | None, flags: Mapping[str, str]) -> Any:
    if text is None or (text == NONE and option.name in _OFF):
        return None
    from_file = file is not None and option.key not in flags
    return option.parse(f"{file}: {option.key}" if from_file else option.flag, text)


def _read_file(file: Path) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """The options of a file as typed, and the tables of its tenants."""
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise OptionError("--config", f"{file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError("--config", f"{file}: not TOML ({error})") from None
    tenants = values.pop("tenants", {})
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    known = {option.key for option in OPTIONS}
    told: dict[str, str] = {}
    for key, value in flat.items():
        if key not in known:
            raise OptionError(f"{file}: {key}", f"unknown; known: {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise OptionError(f"{file}: {key}", f"expected a text or a number, got {value!r}")
        told[key] = str(value)
    if not isinstance(tenants, dict) or not all(isinstance(t, dict) for t in tenants.values()):
        raise OptionError(f"{file}: tenants", "expected tables such as [tenants.acme]")
    return told, tenants


def _tls(parsed: Mapping[str, Any]) -> Tls | None:
    given = {item.name: parsed[f"tls.{item.name}"] for item in fields(Tls)}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise OptionError(f"tls.{missing[0]}", f"needed with tls.{(set(given) - {*missing}).pop()}")
    for name, path in given.items():
        if not os.access(path, os.R_OK):
            raise OptionError(f"tls.{name}", f"{path} cannot be read")
    return Tls(**given)


def _check(config: ServiceConfig) -> None:
    """Refuse options that do not go together."""
    if config.socket is None and config.listen is None:
        raise OptionError("--socket", "nothing to listen on: give a socket or --listen")
    if config.listen is not None:
        proves = [t for t in config.tenants if t.secret is not None or t.certificate_names]
        if not proves:
            what = "TCP needs tenants that prove who they are: secret_file or certificate_names"
            raise OptionError("--listen", what)
        named = [t.name for t in config.tenants if t.certificate_names]
        if named and config.tls is None:
            raise OptionError(f"tenants.{named[0]}.certificate_names", "needs tls")
    if config.socket is not None and len(os.fsencode(config.socket)) > 107:
        raise OptionError("--socket", f"{config.socket} is longer than the 107 bytes of a socket")
    shared = {tenant.domain for tenant in config.tenants if not tenant.own_blocks}
    for tenant in config.tenants:
        if tenant.own_blocks and tenant.name in shared:
            what = "others share blocks in a domain of its name: give that domain another"
            raise OptionError(f"tenants.{tenant.name}.own_blocks", what)
    users: dict[int, str] = {}
    for tenant in config.tenants:
        for uid in tenant.uids:
            if uid in users:
                what = f"user {uid} is tenant {users[uid]!r} already"
                raise OptionError(f"tenants.{tenant.name}.uids", what)
            users[uid] = tenant.name
