"""Programs and wrappers around the caches for callers that are not one thread: ``BlockingStore``, a
flat store that many threads call at once.
"""

from radix.service.blocking import BlockingStore

__all__ = ["BlockingStore"]
