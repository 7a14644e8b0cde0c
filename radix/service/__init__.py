"""Programs and wrappers around the caches for callers that are not one thread: ``BlockingStore``, a
flat store that many threads call at once; ``Client`` and ``AsyncClient``, a store of a service that
runs in a process of its own (``radix.service.server``).
"""

from radix.service.aclient import AsyncClient
from radix.service.blocking import BlockingStore
from radix.service.calls import DeniedError, Hit, ServiceGoneError, ServiceLimitError
from radix.service.client import Client

__all__ = [
    "AsyncClient",
    "BlockingStore",
    "Client",
    "DeniedError",
    "Hit",
    "ServiceGoneError",
    "ServiceLimitError",
]
