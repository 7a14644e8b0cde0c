"""SGLang's radix cache over the native tree: for models of which every layer attends to everything.
SGLang's allocator owns the token slots and keeps its page tables; the tree owns what it took from a
request until it is evicted (``Ownership.SHARED``): duplicates go back to the allocator at once, and
nothing else of a request is ever freed here.

    a request's row   0 ........ protected ........... shared ........ last .... its own tail
    before            the tree's | the request's own, | the request's | not a
                                 | twice in the pool  | own           | whole page
    after             the tree's | the tree's; its own| the tree's    | the request's own
                                 | were freed         |               |

Ranks run the same calls on the same inputs and decide alike: no hash order, no slot number of the
device enters a decision, and a clock only where there is one rank (I33). Tokens are the tree's keys
as the engine has them, 64 bits each, so that those which stand for an image keep all their bits.
Keeps I7, I13, I16, I32.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    MatchPrefixParams,
    MatchResult,
)

from radix._native import tree_evict, tree_insert, tree_match
from radix.arguments import page_tokens_of
from radix.engines.hinting import Hearing
from radix.engines.sglang.events import Placements, Space
from radix.engines.sglang.order import by_weight
from radix.engines.sglang.slots import PageTable
from radix.engines.versions import require
from radix.errors import LeaseError, StaleError, UnsupportedError
from radix.gate import Gate
from radix.hints import Time, said_of
from radix.keys import Namespace, root_key
from radix.lease import Home, Lease, drain, lease_of
from radix.metrics import Metrics
from radix.plan import Cursor
from radix.policy.eviction import STEPPED_POLICIES, TIMED_POLICIES, check_policy
from radix.tree import AT_ANY_AGE, TreeCore

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

logger = logging.getLogger(__name__)

# What the adapter overrides or calls, and the parameters that it counts on.
NEEDED = {
    "match_prefix": ("params",),
    "checkpoint": ("req", "up_to"),
    "evict": ("params",),
    "lock": ("node",),
    "unlock": ("lock",),
    "path_device_indices": ("node",),
    "prefix_device_indices": ("req",),
    "dfs_weight_order": ("node_handles",),
    "root_node_handle": ("extra_key",),
    "free_kv_row": ("kv", "ranges"),
    "on_release": ("req", "checkpointed"),
    "supports_prefix_sharing": (),
}
_TOKEN_BYTES = 8
_FIRST_SWEEP = 64
_UNTIMED = "several ranks, which must decide alike, have no clock in common"
_COLUMN = np.zeros(1, np.uint32)  # the only one: one group, one tier
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class Place:
    """Where a path ends: what SGLang passes around as a node. It may grow stale; then it names a
    shorter prefix, never another one. Once it was locked it names where the lock ends, which stays
    while any lock does. ``cursor.root`` is 0 where nothing of the namespace is known.
    """

    __slots__ = ("cursor", "space", "tree")

    def __init__(self, tree: TreeCore, cursor: Cursor, space: Space) -> None:
        self.tree = tree
        self.cursor = cursor
        self.space = space

    def __repr__(self) -> str:
        return f"Place({self.cursor}, {self.space})"


class RadixBackend(BasePrefixCache):  # type: ignore[misc]  # the engine is not in the environment
    """SGLang's ``BasePrefixCache``, called by one scheduler thread.

    A request: ``match_prefix``, ``lock``, ``path_device_indices``, ``checkpoint``, ``unlock``.
    Room: ``evict``, ``evictable_size``, ``protected_size``, ``total_size``. Scheduling:
    ``dfs_weight_order``, ``touch_prefix``. Begin anew: ``reset``. Doubt: ``sanity_check``.
    """

    sliding_window_size = None
    disable = False

    def __init__(self, params: CacheInitParams) -> None:
        """``params``: the pools, and ``page_size`` in tokens. Raises: ``UnsupportedError`` for what
        SGLang's base class or the parameters ask that is not there, ``ValueError`` for numbers.
        """
        require("sglang", BasePrefixCache, NEEDED)
        if params.disable:
            raise UnsupportedError("a cache that is disabled is SGLang's own, not this one")
        if (policy := check_policy(params.eviction_policy.lower())) not in STEPPED_POLICIES:
            raise UnsupportedError(f"policy {policy!r} is not for SGLang's scheduler; use 'lru'")
        alone = _ranks(params) == 1
        self._policy, self._timed = policy, alone and policy in TIMED_POLICIES
        self._time = Time(monotonic_ns if alone else None, lambda: 0)
        self.metrics = Metrics()
        self._hearing = Hearing(self.metrics, untimed=None if alone else _UNTIMED)
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size = page_tokens_of(params.page_size)
        self.device = torch.device(self.token_to_kv_pool_allocator.device)
        # A draft head's KV at a position depends on the token after it: a unit is the pair.
        self._pairs = bool(params.is_eagle)
        self._placements = Placements(params, pairs=self._pairs)
        self.kv_events = self._placements.recorder
        pages = self.token_to_kv_pool_allocator.size // self.page_size
        self._table = PageTable(pages, self.page_size, self.device)
        self._gate = Gate()
        if params.enable_metrics:
            self.init_metrics_collector()
        self.reset()

    def reset(self) -> None:
        """Forgets everything. The slots are not freed: the scheduler clears the allocator itself.

        Locks that are still held stay valid, for a tree that nobody matches any more.
        """
        page_tokens = self.page_size + self._pairs
        self._tree = TreeCore(
            page_tokens * _TOKEN_BYTES,
            groups=1,
            tiers=1,
            check_ids=False,
            keep_keys=self.kv_events.enabled,
            page_tokens=self.page_size,
            policy=self._policy,
        )
        self._roots: dict[Space, int] = {}
        self._sweep_at = _FIRST_SWEEP
        self._dropped: deque[int] = deque()
        self._home = Home(self._tree, self._dropped, self._gate, self._time)
        self._counted: dict[Place, list[Lease]] = {}
        self._table.clear()
        self.kv_events.record_all_cleared()

    # ------------------------------------------------------------ finding
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """How many of the key's tokens are there, in whole pages, and where that ends. They become
        the most recently used: SGLang matches what waits at every step, and counts on that to keep
        it. Cost: the tokens compared.
        """
        place = self._use(params.key)
        return MatchResult(place.cursor.pages * self.page_size, place, place, place)

    def touch_prefix(self, key: RadixKey) -> None:
        """Makes what is there of a key the most recently used. Cost: that of a match."""
        self._use(key)

    def _use(self, key: RadixKey) -> Place:
        self._tell_time()
        place = self._find(key)
        if place.cursor.pages:
            self._tree.touch(place.cursor)
        return place

    def _tell_time(self) -> None:
        """What time it is, where the order of eviction goes by it."""
        if self._timed:
            self._tree.tell_time(self._time.now())

    def _find(self, key: RadixKey) -> Place:
        if key.is_bigram and not self._pairs:
            raise UnsupportedError(
                "a key of token pairs in a cache of tokens; expected is_eagle of the parameters"
            )
        space = (key.extra_key, key.cache_salt)
        root = self._roots.get(space, 0)
        ids, limit = key.token_ids, key.limit
        count = self._whole_pages(len(ids) if limit is None else min(len(ids), max(0, limit)))
        if not root or not count:
            return Place(self._tree, _tuple(Cursor, (root, root, 0)), space)
        found = tree_match(self._tree.capsule, root, self._pages(ids, 0, count), 0, 1)
        return Place(self._tree, _tuple(Cursor, (root, found[5], found[2])), space)

    def _whole_pages(self, tokens: int) -> int:
        return max(0, tokens - self._pairs) // self.page_size

    def _pages(self, ids: array[int], first: int, last: int) -> Any:
        """The tree's keys of pages [first, last): the tokens themselves, or rows that overlap by
        the one token that a pair looks ahead.
        """
        page = self.page_size
        run = memoryview(ids)[first * page : last * page + self._pairs]
        if run.itemsize != _TOKEN_BYTES:
            raise TypeError(f"token_ids must be array('q'), not items of {run.itemsize} bytes")
        if not self._pairs:
            return run
        flat = np.frombuffer(run, np.int64)
        return np.lib.stride_tricks.sliding_window_view(flat, page + 1)[::page].copy()

    def path_device_indices(self, node: Place) -> torch.Tensor:
        """The token slots from the root to ``node``, int64 on the device; valid until the next
        eviction, unless the path is locked. A stale node gives fewer. Cost: the slots.
        """
        return self._table.token_slots(self._numbers(node))

    def _numbers(self, node: Place) -> Any:
        cursor = node.cursor
        if not cursor.pages or node.tree is not self._tree:
            return np.empty(0, np.int32)
        try:
            return self._tree.slots(cursor, 0, 0, cursor.pages)
        except StaleError:
            if self._roots.get(node.space) != cursor.root:
                return np.empty(0, np.int32)
            found = self._tree.resolve(cursor)
            return self._tree.slots(found, 0, 0, found.pages)

    def root_node_handle(self, extra_key: str | None = None) -> Place:
        """Where every path of a namespace begins."""
        root = self._roots.get((extra_key, None), 0)
        return Place(self._tree, Cursor(root, root, 0), (extra_key, None))

    def dfs_weight_order(self, node_handles: Sequence[Place]) -> list[int]:
        """Indices of requests, those that share a prefix one after the other, the heaviest first.

        Cost: the pages of their paths.
        """
        return by_weight([self._numbers(place) for place in node_handles])

    # ------------------------------------------------------------ pins
    def lock(self, node: Place) -> Lease:
        """Pins the path to ``node`` until ``unlock``. Cost: nodes newly pinned."""
        root, cursor = self._root(node.space), node.cursor
        if cursor.root != root or node.tree is not self._tree:
            cursor = Cursor(root, root, 0)
        lease = lease_of(self._home, cursor)
        # Where it ends inside an edge, that was split: the node named so far lies behind the pin.
        node.tree, node.cursor = self._tree, lease.cursor
        return lease

    def unlock(self, lock: Lease | None) -> None:
        """Lets go what ``lock`` pins, which becomes the most recently used. None is nothing."""
        if lock is not None:
            self._tell_time()
            lock.release()

    def inc_lock_ref(self, node: Place) -> IncLockRefResult:
        """``lock`` for callers that unlock by node; the tokens that cannot go any more, negative.

        Cost: that of ``lock``.
        """
        before = self.evictable_size()
        self._counted.setdefault(node, []).append(self.lock(node))
        return IncLockRefResult(delta=self.evictable_size() - before)

    def dec_lock_ref(self, node: Place, params: DecLockRefParams | None = None) -> DecLockRefResult:
        """Gives back one ``inc_lock_ref`` of the same node. Raises: ``LeaseError`` for one more."""
        held = self._counted.get(node)
        if not held:
            raise LeaseError("dec_lock_ref: the node is not locked")
        before = self.evictable_size()
        held.pop().release()
        if not held:
            del self._counted[node]
        return DecLockRefResult(delta=self.evictable_size() - before)

    def _root(self, space: Space) -> int:
        """The root of a namespace, made if it is new."""
        root = self._roots.get(space)
        if root is None:
            if len(self._roots) >= self._sweep_at:
                self._sweep()
            root = self._roots[space] = self._tree.root(_root_key(space))
        return root

    def _sweep(self) -> None:
        """Lets empty namespaces go (I1). Cost: the namespaces, spread over as many new ones."""
        for space, root in list(self._roots.items()):
            if self._tree.drop_root(root):
                del self._roots[space]
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._roots))

    # ------------------------------------------------------------ in and out
    def checkpoint(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        """Shares the whole pages of the request's first ``up_to`` tokens, whose KV is written.

        What another request has shared meanwhile goes back to the allocator, and the row names the
        tree's slots instead; the request's lock then reaches to the end of what it shares. Cost:
        the new pages.
        """
        kv, page, ids = req.kv, self.page_size, req.full_untruncated_fill_ids
        last = self._whole_pages(min(up_to, len(ids)))
        lease, own = self._lease_of(req), kv.cache_protected_len // page
        first = lease.pages
        if first < own:
            logger.warning("%s: its prefix is not locked; nothing of it is shared", req.rid)
            return
        row = self.req_to_token_pool.req_to_token[kv.req_pool_idx]
        shared = min(first, last)
        if last > first:
            shared += self._insert(lease, ids, first, last, row)
            if self.kv_events.enabled and shared < last:
                self._tell_stored(lease.cursor, ids, shared, last, _space(req))
        if shared > own:
            lo, hi = own * page, shared * page
            self.token_to_kv_pool_allocator.free_segment(row[lo:hi], start_pos=lo)
            kept = self._tree.slots(lease.cursor, 0, own, shared - own)
            self.req_to_token_pool.write(
                (kv.req_pool_idx, slice(lo, hi)), self._table.token_slots(kept)
            )
        kv.cache_protected_len = max(own, last) * page
        kv.cache_inserted_len = max(kv.cache_inserted_len, kv.cache_protected_len)
        req.last_node = Place(self._tree, lease.cursor, _space(req))

    def on_release(self, req: Req, *, checkpointed: bool) -> None:
        """At a request's end, what it says of the path that it used decides the order of eviction:
        ``radix_hints`` in its custom parameters. Never raises for what it says. Cost: the path.
        """
        if not req.finished():
            return  # retracted: it comes again
        hints = self._hearing.of(req.rid, req.sampling_params.custom_params)
        place = req.last_node
        if hints is not None and isinstance(place, Place) and place.tree is self._tree:
            self._tree.hint(place.cursor, said_of(hints, self._time.now()))

    def _lease_of(self, req: Req) -> Lease:
        """The request's lock, in its own namespace whatever it was matched in: a forced miss has
        the root of another.
        """
        lease: Lease | None = req.lock
        root = self._root(_space(req))
        if lease is None or lease.cursor.root != root:
            self.unlock(lease)
            lease = req.lock = self.lock(Place(self._tree, Cursor(root, root, 0), _space(req)))
        return lease

    def _insert(
        self, lease: Lease, ids: array[int], first: int, last: int, row: torch.Tensor
    ) -> int:
        """Pages [first, last) enter the tree, the lease covers them; how many were there before."""
        tree, table, page = self._tree, self._table, self.page_size
        root, node, _ = lease.cursor
        numbers = table.take(last - first)
        try:
            done = tree_insert(
                tree.capsule,
                (root, node, first),
                self._pages(ids, first, last),
                _COLUMN,
                numbers,
                None,
                lease.native(tree),
            )
        except BaseException:
            table.give(numbers)
            raise
        lease.cursor = _tuple(Cursor, (root, done[0], done[1]))
        there = done[2]
        if there:
            table.give(numbers[:there])
        if first + there < last:
            table.put(numbers[there:], row[(first + there) * page : last * page : page])
        return there

    def _tell_stored(
        self, at: Cursor, ids: array[int], first: int, last: int, space: Space
    ) -> None:
        before = min(first, 1)
        keys = self._tree.keys(at, first - before, last - first + before)
        self._placements.stored(keys, bool(before), ids, first, space)

    def evict(self, params: EvictParams) -> EvictResult:
        """Frees at least ``params.num_tokens`` tokens, or all that nobody has locked, the least
        recently used first, a path from its end. Cost: the pages freed.
        """
        began = perf_counter()  # for the metric alone
        if self._dropped:
            drain(self._tree, self._dropped)
        self._tell_time()
        count = min(-(-params.num_tokens // self.page_size), self._evictable_pages())
        if count <= 0:
            return EvictResult()
        numbers = np.empty(count, np.int32)
        keys = np.empty((count, 16), np.uint8) if self.kv_events.enabled else None
        count = tree_evict(self._tree.capsule, 0, count, AT_ANY_AGE, numbers, keys)
        numbers = numbers[:count]
        slots = self._table.token_slots(numbers)
        self._table.give(numbers)
        self.token_to_kv_pool_allocator.free_segment(slots, start_pos=0)
        if keys is not None:
            self._placements.removed(keys[:count])
        self.update_eviction_metrics(count * self.page_size, began)
        return EvictResult(num_tokens_evicted=count * self.page_size)

    # ------------------------------------------------------------ asking
    def _evictable_pages(self) -> int:
        stats = self._tree.column_stats(0)
        return stats.resident - stats.protected

    def evictable_size(self) -> int:
        """Tokens in the tree that nobody has locked."""
        return self._evictable_pages() * self.page_size

    def full_evictable_size(self) -> int:
        """The same: every layer attends to everything."""
        return self.evictable_size()

    def protected_size(self) -> int:
        """Tokens in the tree that are locked."""
        return self._tree.column_stats(0).protected * self.page_size

    def full_protected_size(self) -> int:
        """The same: every layer attends to everything."""
        return self.protected_size()

    def total_size(self) -> int:
        """Tokens in the tree."""
        return self._tree.column_stats(0).resident * self.page_size

    def pretty_print(self) -> None:
        """Prints what the tree holds, in numbers."""
        print(f"{self._tree.stats()} {self._tree.column_stats(0)}")

    def sanity_check(self) -> None:
        """Walks every invariant of the tree and of the table. Cost: everything.

        Raises: ``InvariantError`` that names the first that is broken.
        """
        self._tree.check()
        self._table.check(self._tree.column_stats(0).resident)


def _ranks(params: CacheInitParams) -> int:
    """How many schedulers run the same calls, and must decide alike."""
    groups = (
        params.tp_cache_group,
        params.attn_cp_cache_group,
        params.attn_tp_cache_group,
        params.pp_cache_group,
    )
    return max(
        int(params.pp_size), *(1 if group is None else int(group.size()) for group in groups)
    )


def _space(req: Req) -> Space:
    """What separates a request's KV from that of others."""
    return req.extra_key, req.cache_salt or None


def _root_key(space: Space) -> bytes:
    """What page keys of a namespace chain from; no two have the same."""
    extra, salt = (
        (b"", b"") if part is None else (b"=", part.encode(errors="surrogatepass"))
        for part in space
    )
    return root_key(Namespace(content=b"".join(extra), salt=b"".join(salt)).canonical())
