"""A prefix cache for heterogeneous model state: what is kept, where it lies, when it is finished.

This package decides; the package ``tiers`` executes. Importing it loads neither torch nor lmdb.
"""

import sys

# The tree relies on the interpreter lock for its short calls; without one they would race.
if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("radix does not support free-threaded Python yet; use a build with the GIL")

from radix.admission import Largest, pool_sizes
from radix.cache import PrefixCache
from radix.content import Content
from radix.drafts import ROOT
from radix.errors import (
    BusyError,
    CacheError,
    CapacityError,
    ClosedError,
    CorruptBlockError,
    InvariantError,
    LayoutMismatchError,
    LeaseError,
    NeverFitsError,
    RequestError,
    TierError,
    TierFullError,
    TierUnavailableError,
    TimedOutError,
    UnsupportedError,
)
from radix.events import KeysDone, LoadDecided, PersistDecided, RequestState, SpanEvent
from radix.groups import Cost, Group, Retention
from radix.holding import Keep
from radix.inserting import Inserted
from radix.keys import Namespace
from radix.keysets import Fetch, FetchState, FlatLease, Reservation, hash_keys
from radix.layout import Layout, Part
from radix.lease import Lease
from radix.ownership import Ownership
from radix.plan import Cursor, Demand, Explanation, LoadDecision, Need, PersistDecision
from radix.policy.checkpoint import Checkpoints
from radix.policy.cost import Compute, Economy
from radix.policy.limits import Breaker, Limits, Patience
from radix.policy.rates import Rate
from radix.prefetching import Prefetch, PrefetchState
from radix.ranks import Orders, Ranks, RankWorker
from radix.replicas import verify_replicas
from radix.request import Request
from radix.shards import Parallelism, Shards, shards_of
from radix.stages import Stage
from radix.store import FlatStore
from radix.tenants import Tenant, Tenants, TenantUse, TierShare
from radix.tier import TierMode, View
from radix.waiting import Turn, Waiter, Waiting
from radix.writeback import Room

__version__ = "0.1.0"

__all__ = [
    "ROOT",
    "Breaker",
    "BusyError",
    "CacheError",
    "CapacityError",
    "Checkpoints",
    "ClosedError",
    "Compute",
    "Content",
    "CorruptBlockError",
    "Cost",
    "Cursor",
    "Demand",
    "Economy",
    "Explanation",
    "Fetch",
    "FetchState",
    "FlatLease",
    "FlatStore",
    "Group",
    "Inserted",
    "InvariantError",
    "Keep",
    "KeysDone",
    "Largest",
    "Layout",
    "LayoutMismatchError",
    "Lease",
    "LeaseError",
    "Limits",
    "LoadDecided",
    "LoadDecision",
    "Namespace",
    "Need",
    "NeverFitsError",
    "Orders",
    "Ownership",
    "Parallelism",
    "Part",
    "Patience",
    "PersistDecided",
    "PersistDecision",
    "Prefetch",
    "PrefetchState",
    "PrefixCache",
    "RankWorker",
    "Ranks",
    "Rate",
    "Request",
    "RequestError",
    "RequestState",
    "Reservation",
    "Retention",
    "Room",
    "Shards",
    "SpanEvent",
    "Stage",
    "Tenant",
    "TenantUse",
    "Tenants",
    "TierError",
    "TierFullError",
    "TierMode",
    "TierShare",
    "TierUnavailableError",
    "TimedOutError",
    "Turn",
    "UnsupportedError",
    "View",
    "Waiter",
    "Waiting",
    "hash_keys",
    "pool_sizes",
    "shards_of",
    "verify_replicas",
]
