"""The order in which blocks go. The orders are native (``native/src/order.c``, ``policy.c``); this
module names them, refuses others (I17), and says what some of them go by. A user's own one is an
``EvictionPolicy``; ``radix/policy/given.py`` asks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.policy.cost import cost_of
from radix.tier import Tier
from radix.treeparts import Price

NATIVE_POLICIES = (
    "lru",
    "fifo",
    "lfu",
    "slru",
    "s3fifo",
    "arc",
    "hit_density",
    "priority",
    "cost",
)
# These know a block again that went and came back, so pages keep their keys.
KEYED_POLICIES = ("s3fifo", "arc", "hit_density")
# These go by the time, so that the cache tells it.
TIMED_POLICIES = ("priority",)
# These go by what a block saves, so that every group says what a token costs.
PRICED_POLICIES = ("cost",)
# Where whoever waits is matched, and thereby used, at every step, how often tells nothing.
STEPPED_POLICIES = ("lru", "priority")
# What the tree calls the order of a user's own policy.
GIVEN = "given"

Times = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Nodes:
    """Columns of nodes: element i of each is of node i. A node is a run of blocks that came, and
    were used, together; where a path forks inside it, it becomes two with one history.

    Time is counted in uses; nothing here depends on a clock, an address or a hash seed, so that all
    replicas are told the same. All arrays have the shape (n,), are read-only and the policy's to
    keep.

    ``order``: which order they stand in, a number for each group and tier; a policy that keeps
    something of its own keeps it for each. ``now``: the time. ``node``: uint32, the node's number,
    which another may get once it has gone. ``came``: uint64, when it came. ``last``: uint64, its
    last use; when it came, where there was none. ``before``: uint64, the last use that the policy
    was told of before this. ``key``: float64, what the policy answered last for it, 0 for what has
    come. ``uses``: uint32, uses so far, at most one a request. ``again``: uint32, of these the ones
    since the policy was told last. ``blocks``: uint32, blocks that it has, for ``went`` those that
    went. ``depth``: uint32, blocks before it on its path. ``tenant``: uint32, a number of whose it
    is, 0 where tenants are not told apart; only keys of one tenant are held against each other.
    """

    order: int
    now: int
    node: Counts
    came: Times
    last: Times
    before: Times
    key: npt.NDArray[np.float64]
    uses: Counts
    again: Counts
    blocks: Counts
    depth: Counts
    tenant: Counts

    def __len__(self) -> int:
        """How many nodes."""
        return len(self.node)


class EvictionPolicy(Protocol):
    """A user's own order, ``PrefixCache(policy=MyPolicy())`` or ``FlatStore(policy=MyPolicy())``.

    Every node has a key, and of the leaves that nothing pins the one with the least key goes first,
    of equal keys the one that was used longest ago; of its blocks the deepest. The policy gives the
    keys, and that is all it can do: what is pinned, what has something below it and what no hit can
    need any more is the cache's own affair whatever it answers.

    The three methods are called when blocks have to go, at most once each for an eviction however
    many it takes, with all that happened since the last one: ``went``, then ``came``, then
    ``used``, each only if there is something to tell. Each node is told once, as it stands now. The
    cache may not be called from inside. Whoever keeps replicas (``agree``) needs a policy that
    answers the same for the same calls: no clock, no chance but from a fixed seed.

    An answer that is not as many numbers as there are nodes, one that is no number (NaN), or an
    exception ends the policy: ``RuntimeWarning`` says why, the counter ``policy.failed`` is 1, the
    eviction goes on, and from then on what was used longest ago goes first.

    Cost: O(log nodes) natively for each key, beside what the methods take. Memory: 130 bytes for
    each node and column. Example: docs/policies.md.
    """

    def came(self, nodes: Nodes) -> npt.NDArray[np.float64]:
        """The keys of nodes that came; any real dtype, shape (n,)."""

    def used(self, nodes: Nodes) -> npt.NDArray[np.float64]:
        """New keys of nodes that were used, by requests (``again``) or by the one that they came
        with; any real dtype, shape (n,).
        """

    def went(self, nodes: Nodes) -> None:
        """Nodes of which blocks were evicted, in that order, with their last keys. One that lost
        only some is told again when it loses more.
        """


def check_policy(policy: str | EvictionPolicy) -> str:
    """The policy's name. ``ValueError`` for one that is not known, ``TypeError`` for what is none.

    ``lru``: the block whose path was leased or inserted longest ago goes first, exact at page
    granularity; of one path the deepest page goes first. The others, of which docs/policies.md
    tells more, take leaves only, too. They order the blocks of full groups, ``cost`` those of all
    groups; all else goes by last use. An object with the methods of ``EvictionPolicy`` gives
    the keys.
    """
    if not isinstance(policy, str):
        lacking = [
            name for name in ("came", "used", "went") if not callable(getattr(policy, name, None))
        ]
        if isinstance(policy, type) or lacking:
            raise TypeError(
                "policy must be a name, or an object with the methods came, used and went, "
                f"not {policy!r}" + (f" without {', '.join(lacking)}" if lacking else "")
            )
        return GIVEN
    if policy in NATIVE_POLICIES:
        return policy
    raise ValueError(
        f"eviction policy {policy!r} is unknown; use one of {', '.join(NATIVE_POLICIES)}"
    )


def prices_of(groups: Sequence[Group], tiers: Sequence[Tier]) -> list[Price]:
    """What the blocks of each (group, tier) save, by column: without one the whole model computes
    its tokens again, whatever the other groups have, so that all groups' costs count together.
    Groups of a tier that share its bytes make room for each other. ``ValueError`` for a group that
    says no cost. Cost: the columns.
    """
    whole = cost_of(groups)
    prices: list[Price] = []
    for group in groups:
        for number, tier in enumerate(tiers):
            pool = number if tier.capability.shares_bytes else len(prices)
            prices.append(Price(whole.linear, whole.quadratic, group.block_bytes, pool))
    return prices
