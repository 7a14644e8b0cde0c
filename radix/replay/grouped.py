"""Replay a trace through all groups of a model under one budget of bytes, without bytes.

The cache is the one that engines use, over an `IndexTier` that counts bytes for all groups
together: windows, snapshots and full blocks make room for each other. Kept here: what counts is the
joint hit of each prompt at its turn, one token left to compute; what its request computes is
inserted behind the leased hit, with windows and snapshots at the places of a checkpoint policy;
what one request brings never exceeds what its leased hit leaves of the budget.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

from radix.cache import PrefixCache
from radix.keys import Namespace
from radix.options import OptionError
from radix.policy.eviction import PRICED_POLICIES
from radix.replay.chains import encode_chains
from radix.replay.checkpoints import CheckpointPolicy, Places
from radix.replay.model_trace import BLOCK_TOKENS, ModelTrace, fit
from radix.replay.models import Model
from radix.replay.options import BUDGET_LIMIT_BYTES, Budget
from radix.replay.progress import Progress
from radix.replay.report import ModelReport, ModelRun
from radix.replay.room import PathEnds, Room
from radix.replay.saving import Savings, Terms
from radix.replay.traces import Int32Array, Trace
from tiers.index import IndexTier

__all__ = ["BLOCK_TOKENS", "model_report", "replay_model"]

LRU = "lru"
_STEP = 64
_DEVICE = 0


def model_report(
    trace: Trace,
    model: Model,
    block_tokens: int,
    budgets: Sequence[Budget],
    policies: Sequence[CheckpointPolicy],
    progress: Progress,
    terms: Terms | None = None,
    orders: Sequence[str] = (LRU,),
) -> ModelReport:
    """Run each policy under each budget and order of eviction, after one run without a limit that
    tells what percentages are of.

    Cost: as `replay_model`, once more than there are pairs.

    Args:
        trace: the prompts.
        model: whose groups are cached.
        block_tokens: tokens that an id of a block trace stands for.
        budgets: at least one; the same bytes for all policies.
        policies: at least one; the full footprint is that of the first.
        progress: told each run and how far it is.
        terms: what to count saved seconds by; None: they are not counted.
        orders: of eviction, at least one.

    Raises:
        OptionError: model, orders, budgets or policies do not fit the trace's page or each other.
    """
    if model.cost is None and set(orders) & set(PRICED_POLICIES):
        raise OptionError("--policy", f"model {model.name!r} says no active_parameters")
    work = fit(trace, encode_chains(trace), model, block_tokens)
    for policy in policies:
        policy.placed(work.page_tokens, work.align_pages)
    progress.phase(f"{policies[0].text}, no limit", len(trace))
    free = replay_model(work, policies[0], BUDGET_LIMIT_BYTES, progress)
    footprint_bytes = sum(free.resident_bytes.values())
    runs = []
    for budget in [budget.bytes(footprint_bytes) for budget in budgets]:
        _check_budget(work, budget)
        for policy, order in product(policies, orders):
            progress.phase(f"{policy.text}, {order}, {budget:,} bytes", len(trace))
            runs.append(replay_model(work, policy, budget, progress, terms, order))
    return ModelReport(
        trace=trace.name,
        requests=len(trace),
        blocks=work.chains.blocks,
        unique_blocks=work.chains.unique_blocks,
        model=model.name,
        page_tokens=work.page_tokens,
        prompt_tokens=work.prompt_tokens,
        odd_lengths=work.odd_lengths,
        footprint_bytes=footprint_bytes,
        footprint_checkpoints=policies[0].text,
        footprint_hit_tokens=free.hit_tokens,
        runs=tuple(runs),
    )


def _check_budget(work: ModelTrace, budget_bytes: int) -> None:
    for group in work.groups:
        if group.block_bytes > budget_bytes:
            what = f"{budget_bytes} bytes hold no block of group {group.name!r}"
            raise OptionError("--budget-bytes", f"{what}, {group.block_bytes} bytes")


def replay_model(
    work: ModelTrace,
    policy: CheckpointPolicy,
    budget_bytes: int,
    progress: Progress,
    terms: Terms | None = None,
    order: str = LRU,
) -> ModelRun:
    """Run a checkpoint policy over a whole trace under one budget, and one order of eviction, and
    count its joint hits.

    Cost: about 50 us a request and 0.3 us a new block of each group.

    Raises:
        OptionError: the budget does not hold one block of each group, or the policy's places are
            not whole pages.
    """
    _check_budget(work, budget_bytes)
    places = policy.placed(work.page_tokens, work.align_pages)
    began = time.perf_counter()
    device = IndexTier(limit_bytes=budget_bytes)
    with PrefixCache(
        list(work.groups), [device], page_tokens=work.page_entries, policy=order
    ) as cache:
        serving = _Serving(work, cache, places, budget_bytes, terms)
        lengths = work.lengths.tolist()
        requests = zip(work.requests(), work.trace.spaces(), strict=True)
        for number, ((prompt, turn, left), space) in enumerate(requests):
            if number % _STEP == 0:
                progress.reach(number)
            serving.serve(prompt, turn, left, lengths[number], space)
        progress.reach(len(work.trace))
        return serving.run(order, time.perf_counter() - began)


class _Serving:
    """One pass over an open cache: `serve` a request, at the end `run`."""

    def __init__(
        self,
        work: ModelTrace,
        cache: PrefixCache,
        places: Places,
        budget_bytes: int,
        terms: Terms | None,
    ) -> None:
        self._work = work
        self._cache = cache
        self._places = places
        self._room = Room(work, budget_bytes)
        self._sizes = [group.block_bytes for group in work.groups]
        self._columns = [cache.tree.column(number, _DEVICE) for number in range(len(work.groups))]
        self._snapshots = [number for number, rule in enumerate(work.rules) if rule.per_position]
        self._parts = any(not rule.everywhere for rule in work.rules)
        self._budget_bytes = budget_bytes
        self._savings = None
        if terms is not None:
            self._savings = Savings(terms, work.groups, work.rules, work.page_tokens)
        self._hit_pages = self._usable_pages = self._known_pages = 0
        self._state_bytes = self._state_bytes_peak = 0

    def serve(
        self,
        prompt: Int32Array,
        turn: Int32Array,
        left: int,
        tokens: int,
        space: Namespace | None = None,
    ) -> None:
        """Look a prompt of so many tokens up, then share what its request computed: `turn`, the
        prompt and more.
        """
        cache, page = self._cache, self._work.page_entries
        found, cursor = cache.match(prompt, namespace=space, leave=left)
        hit, known = found.hit_pages, min(found.structural_pages, found.limit_pages)
        self._usable_pages += hit
        if self._savings is not None:
            self._savings.hit(hit, tokens)
        self._known_pages += known
        if found.structural_pages > found.limit_pages:
            self._hit_pages += cache.match(prompt, namespace=space, leave=0)[0].hit_pages
        else:
            self._hit_pages += hit
        ends = PathEnds(hit, known, found.structural_pages, len(turn) // page)
        end, places = self._room.fitted(self._places, ends)
        boundaries = tuple((places * page).tolist()) if self._parts else ()
        # What is known behind the hit is computed again for its windows and states.
        at = cursor._replace(pages=hit) if self._parts else cursor
        with cache.lease(at) as lease:
            cache.insert(turn[: end * page], lease, boundaries=boundaries)
        self._state_bytes = sum(self._held(number) for number in self._snapshots)
        self._state_bytes_peak = max(self._state_bytes_peak, self._state_bytes)

    def _held(self, group: int) -> int:
        """Bytes of a group's resident blocks."""
        resident = self._cache.tree.column_stats(self._columns[group]).resident
        return resident * self._sizes[group]

    def run(self, order: str, seconds: float) -> ModelRun:
        """Return what this pass has counted. Cost: O(groups)."""
        work = self._work
        full = sum(
            group.block_bytes // rule.block_pages
            for group, rule in zip(work.groups, work.rules, strict=True)
            if rule.everywhere
        )
        names = [group.name for group in work.groups]
        return ModelRun(
            policy=order,
            capacity_blocks=self._budget_bytes // full if full else 0,
            hit_blocks=self._hit_pages,
            usable_hit_blocks=self._usable_pages,
            total_blocks=work.chains.blocks,
            seconds=seconds,
            tenants={},
            model=work.model.name,
            checkpoints=self._places.policy.text,
            budget_bytes=self._budget_bytes,
            hit_tokens=self._usable_pages * work.page_tokens,
            known_tokens=self._known_pages * work.page_tokens,
            state_bytes=self._state_bytes,
            state_bytes_peak=self._state_bytes_peak,
            resident_bytes={name: self._held(number) for number, name in enumerate(names)},
            evicted_blocks={
                name: self._cache.metrics.total("evict", "blocks", "device", name) for name in names
            },
            saving=None if self._savings is None else self._savings.total(),
        )
