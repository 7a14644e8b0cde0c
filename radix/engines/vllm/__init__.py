"""The adapter for vLLM: a host and a disk tier of ours behind its offloading connector
(``RadixOffloadingSpec``), or our disk tier (``RadixDiskTier``), or a service that engines share
(``RadixServiceTier``), below its own. The engine finds them by name in this module; it must be
installed in every process of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radix.engines.vllm.spec import RadixOffloadingSpec

if TYPE_CHECKING:
    from radix.engines.vllm.secondary import RadixDiskTier
    from radix.engines.vllm.service_tier import RadixServiceTier

__all__ = ["RadixDiskTier", "RadixOffloadingSpec", "RadixServiceTier"]


def __getattr__(name: str) -> Any:
    """The tiers below the engine's own, which need more of it, once they are asked for."""
    if name == "RadixDiskTier":
        from radix.engines.vllm.secondary import RadixDiskTier

        return RadixDiskTier
    if name == "RadixServiceTier":
        from radix.engines.vllm.service_tier import RadixServiceTier

        return RadixServiceTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
