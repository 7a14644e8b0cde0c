"""Tenants of a service: who may connect as which, what they may name, and how much room they have.

Kept here: a tenant is accepted whole or refused with an `OptionError` that names the key and what
was expected; a secret is read from a file that nobody else may read, and never printed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from radix.options import OptionError, size_of
from radix.tenants import LEAST_WEIGHT, MOST_WEIGHT

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LEAST_SECRET_BYTES = 16
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares blocks with whom, and how much room that is.

    ``uids``: users that may connect to the UNIX socket as this tenant; ``secret``: what proves it
    over TCP (None: not over TCP, unless ``certificate_names`` do); ``certificate_names``: common
    names of TLS certificates that are this tenant. ``namespaces``: its models must begin with one
    of these texts. ``domain``: tenants of one domain share a pool and may hit each other's blocks.
    ``own_blocks``: of these tenants it shares the pool alone: its blocks are its own, others
    neither hit nor push them out beyond their share. ``quota_bytes``, ``disk_quota_bytes``: None
    for no limit of its own. ``floor_bytes``, ``disk_floor_bytes``: what the others of its domain
    leave it (None: nothing). ``weight``: its share where room is short.
    """

    name: str
    domain: str
    uids: tuple[int, ...]
    secret: bytes | None = field(repr=False)
    certificate_names: tuple[str, ...]
    namespaces: tuple[str, ...]
    own_blocks: bool
    quota_bytes: int | None
    disk_quota_bytes: int | None
    floor_bytes: int | None
    disk_floor_bytes: int | None
    weight: float


_SIZES = ("quota_bytes", "disk_quota_bytes", "floor_bytes", "disk_floor_bytes")
_TENANT_KEYS = tuple(item.name for item in fields(Tenant) if item.name != "name")


def _bytes(key: str, text: str) -> int:
    size = size_of(text)
    if size is None or size.denominator != 1 or size >= _MOST_BYTES:
        raise OptionError(key, f"expected a size such as 8GiB, got {text!r}")
    return size.numerator


def bytes_from(least: int) -> Callable[[str, str], int]:
    """A parser of sizes from `least` bytes up: takes the key and the text."""

    def parse(key: str, text: str) -> int:
        count = _bytes(key, text)
        if count < least:
            raise OptionError(key, f"expected at least {least} bytes, got {text!r}")
        return count

    return parse


def tenant_of(name: str, table: Mapping[str, Any]) -> Tenant:
    """Return the tenant of a table such as ``[tenants.acme]``. Reads its ``secret_file``.

    Raises:
        OptionError: names the key and what was expected.
    """
    where = f"tenants.{name}"
    if not _NAME.fullmatch(name):
        raise OptionError(where, "expected a name of letters, digits, '_', '.' and '-'")
    known = {key for key in _TENANT_KEYS if key != "secret"} | {"secret_file"}
    for key in table:
        if key not in known:
            raise OptionError(f"{where}.{key}", f"unknown; known: {', '.join(sorted(known))}")
    values = {key: _sized(f"{where}.{key}", table.get(key)) for key in _SIZES}
    for floor, quota in (("floor_bytes", "quota_bytes"), ("disk_floor_bytes", "disk_quota_bytes")):
        least, most = values[floor], values[quota]
        if least is not None and most is not None and least > most:
            what = f"expected at most its {quota}, {most}, got {least}"
            raise OptionError(f"{where}.{floor}", what)
    domain = table.get("domain", name)
    if not isinstance(domain, str) or not _NAME.fullmatch(domain):
        raise OptionError(f"{where}.domain", f"expected a name, got {domain!r}")
    weight, own = table.get("weight", 1), table.get("own_blocks", False)
    if type(weight) not in (int, float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        bounds = f"{LEAST_WEIGHT} to {MOST_WEIGHT:.0f}"
        raise OptionError(f"{where}.weight", f"expected a number of {bounds}, got {weight!r}")
    if not isinstance(own, bool):
        raise OptionError(f"{where}.own_blocks", f"expected true or false, got {own!r}")
    return Tenant(
        name=name,
        domain=domain,
        uids=_uids(f"{where}.uids", table.get("uids", [])),
        secret=secret_of(f"{where}.secret_file", table.get("secret_file")),
        certificate_names=_texts(f"{where}.certificate_names", table.get("certificate_names", [])),
        namespaces=_texts(f"{where}.namespaces", table.get("namespaces", [""])),
        own_blocks=own,
        weight=float(weight),
        **values,
    )


def _sized(key: str, value: Any) -> int | None:
    return None if value is None else bytes_from(1)(key, str(value))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise OptionError(key, f"expected a list of texts, got {value!r}")
    return tuple(value)


def _uids(key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise OptionError(key, f"expected a list of user ids such as [1000], got {value!r}")
    return tuple(value)


def secret_of(key: str, value: Any) -> bytes | None:
    """What the file of a secret holds, None for none; ``OptionError`` where others may read it."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise OptionError(key, f"expected the path of a file, got {value!r}")
    path = Path(value).expanduser()
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OptionError(key, f"{path} may be read by others: chmod 600 it")
        secret = path.read_bytes().strip()
    except OSError as error:
        raise OptionError(key, f"{path}: {error.strerror or error}") from None
    if len(secret) < _LEAST_SECRET_BYTES:
        what = f"{path} holds {len(secret)} bytes, expected at least {_LEAST_SECRET_BYTES}"
        raise OptionError(key, what)
    return secret
