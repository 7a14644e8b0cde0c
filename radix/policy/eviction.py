"""The order in which blocks go. The orders are native (``native/src/order.c``, ``policy.c``); this
module names them and refuses by name those that this version does not have (I17).
"""

from __future__ import annotations

from radix.errors import UnsupportedError

NATIVE_POLICIES = ("lru", "fifo", "lfu", "slru", "s3fifo", "arc", "hit_density")
PLANNED_POLICIES = ("priority", "cost")
# These know a block again that went and came back, so pages keep their keys.
KEYED_POLICIES = ("s3fifo", "arc", "hit_density")
# Where whoever waits is matched, and thereby used, at every step, uses tell nothing.
STEPPED_POLICIES = ("lru",)


def check_policy(name: str) -> str:
    """The policy's name. ``UnsupportedError`` for one that comes later, ``ValueError`` for others.

    ``lru``: the block whose path was leased or inserted longest ago goes first, exact at page
    granularity; of one path the deepest page goes first. The others, of which docs/policies.md
    tells more, take leaves only, too: ``fifo`` what came first, ``lfu`` what was used least, where
    uses grow old, ``slru`` what was used once and then what was used again. They order the blocks
    of full groups; those of windows and states always go by last use.
    """
    if name in NATIVE_POLICIES:
        return name
    if name in PLANNED_POLICIES:
        raise UnsupportedError(f"eviction policy {name!r} is not in this version; use 'lru'")
    raise ValueError(
        f"eviction policy {name!r} is unknown; use one of {', '.join(NATIVE_POLICIES)}"
    )
