"""The adapter for vLLM: a host and a disk tier of ours behind its offloading connector
(``RadixOffloadingSpec``), or our disk tier below its own (``RadixDiskTier``). The engine finds
both by name in this module; it must be installed in every process of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radix.engines.vllm.spec import RadixOffloadingSpec

if TYPE_CHECKING:
    from radix.engines.vllm.secondary import RadixDiskTier

__all__ = ["RadixDiskTier", "RadixOffloadingSpec"]


def __getattr__(name: str) -> Any:
    """``RadixDiskTier``, which needs more of the engine, once it is asked for."""
    if name == "RadixDiskTier":
        from radix.engines.vllm.secondary import RadixDiskTier

        return RadixDiskTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
