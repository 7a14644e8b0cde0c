"""Adapters for SGLang: ``RadixHiCache``, storage below its hierarchical cache
(``--hicache-storage-backend dynamic``), and ``plugin``, which registers a radix cache in place of
its own (``--radix-cache-backend radix``). Nothing of SGLang is imported before one of them is used,
and neither brings the other's part of the engine with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# It imports nothing of the engine before it is called; and the name must be the function's, not the
# module's, when the engine loads its entry point.
from radix.engines.sglang.plugin import plugin

if TYPE_CHECKING:
    from radix.engines.sglang.storage import RadixHiCache

__all__ = ["RadixHiCache", "plugin"]


def __getattr__(name: str) -> Any:
    if name == "RadixHiCache":
        from radix.engines.sglang.storage import RadixHiCache

        return RadixHiCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
