"""The order in which blocks go. The order itself is native (``native/src/order.c``); this module
names the policies and refuses by name those that this version does not have (I17).
"""

from __future__ import annotations

from radix.errors import UnsupportedError

NATIVE_POLICIES = ("lru",)
PLANNED_POLICIES = ("fifo", "lfu", "slru", "priority", "s3fifo", "arc", "hit_density", "cost")


def check_policy(name: str) -> str:
    """The policy's name. ``UnsupportedError`` for one that comes later, ``ValueError`` for others.

    ``lru``: the block whose path was leased or inserted longest ago goes first, exact at page
    granularity; of one path the deepest page goes first.
    """
    if name in NATIVE_POLICIES:
        return name
    if name in PLANNED_POLICIES:
        raise UnsupportedError(f"eviction policy {name!r} is not in this version; use 'lru'")
    raise ValueError(
        f"eviction policy {name!r} is unknown; use one of {', '.join(NATIVE_POLICIES)}"
    )
