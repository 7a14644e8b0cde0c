"""How a user names a service among the options of an adapter: the same keys and the same checks in
all of them. Keeps no invariant of its own.
"""

from __future__ import annotations

from typing import Protocol

from radix.engines.options import secret_in, text
from radix.service.backend import Service

# What other tiers call the same thing.
ELSEWHERE = dict.fromkeys(("socket", "address", "url"), "service")


class NamesService(Protocol):
    """Options that may name a service."""

    @property
    def service(self) -> str | None:
        """Where it is, the path of its socket or host:port; None where none is named."""

    @property
    def tenant(self) -> str:
        """As of ``Service``."""

    @property
    def secret_file(self) -> str | None:
        """What holds the tenant's secret."""

    @property
    def timeout_s(self) -> float:
        """As of ``Service``."""

    @property
    def pool_bytes(self) -> int:
        """As of ``Service``."""


def check_service(options: NamesService, **beside: object) -> None:
    """Raises ``TypeError`` or ``ValueError`` for an option that is not what it must be, named, and
    where no service is named for what means nothing without one. ``beside``: more of the latter.
    """
    text("tenant", options.tenant)
    if options.secret_file is not None:
        text("secret_file", options.secret_file, empty=False)
    if options.service is not None:
        text("service", options.service, empty=False)
        _service(options.service, options, None)
        return
    needing = {
        "tenant": options.tenant,
        "secret_file": options.secret_file,
        "pool_bytes": options.pool_bytes,
        **beside,
    }
    if any(needing.values()):
        raise ValueError(f"{', '.join(needing)} need a service")


def service_in(options: NamesService) -> Service | None:
    """The service, None without one. ``OSError`` where the secret cannot be read."""
    if options.service is None:
        return None
    return _service(options.service, options, secret_in(options.secret_file))


def _service(address: str, options: NamesService, secret: bytes | None) -> Service:
    return Service(
        address,
        tenant=options.tenant,
        secret=secret,
        timeout_s=options.timeout_s,
        pool_bytes=options.pool_bytes,
    )
