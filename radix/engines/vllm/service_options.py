"""What a user says about ``RadixServiceTier`` in its entry of ``secondary_tiers``, as one frozen
value: refused whole where a key is unknown. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radix.engines.options import chosen, one_of, secret_in, text
from radix.engines.service_options import ELSEWHERE, check_service
from radix.engines.vllm.disk_options import AFTER_RESET, ENGINE_KEYS


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of the tier.

    ``service``: the path of the socket of `radix serve`, with a '/', or host:port. ``tenant``,
    ``secret_file``: who this is, over TCP. ``revision``, ``after_reset``: as of ``RadixDiskTier``.
    ``timeout_s``: for any answer; a service that does not give one is a miss. ``pool_bytes``: of a
    store that is new in the service, 0 for ``store_share`` of what its domain has left.
    """

    service: str
    tenant: str = ""
    secret_file: str | None = None
    revision: str = ""
    after_reset: str = "hide"
    timeout_s: float = 5.0
    pool_bytes: int = 0

    def __post_init__(self) -> None:
        text("service", self.service, empty=False)
        check_service(self)
        text("revision", self.revision)
        one_of("after_reset", self.after_reset, AFTER_RESET)

    @property
    def secret(self) -> bytes | None:
        """What the file of the secret holds. ``OSError`` where it cannot be read."""
        return secret_in(self.secret_file)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ServiceOptions:
        """The options in an entry of ``secondary_tiers``. Raises as ``DiskOptions.of``."""
        return cls(
            **chosen(
                *(cls, given, "the entry of RadixServiceTier"),
                engine=ENGINE_KEYS,
                elsewhere={**ELSEWHERE, "host_bytes": "service"},
                needed=("service",),
            )
        )
