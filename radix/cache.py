"""PrefixCache: the facade. It puts the tree, the tiers, admission, transfers and the life of
requests together, applies each plan once, and hands out events when it is polled. It decides
nothing that a layer below could decide. Keeps I1 (empty namespaces go), I34 (hits and misses add up
to what was asked), and one thread at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from radix.admission import Largest, check_largest
from radix.agreement import Agree, Agreement
from radix.arguments import (
    at_least_one,
    check_supported,
    count_of,
    page_tokens_of,
    prompt_of,
    tiers_of,
)
from radix.audit import check_slots
from radix.content import PageKeys
from radix.driven import Reach
from radix.epochs import Epochs
from radix.errors import UnsupportedError
from radix.events import BlocksStored, Event
from radix.finding import Finding
from radix.front import above
from radix.gate import Gate
from radix.groups import Group, Rule, check_groups, path_group, rule_of
from radix.hints import Hints, Time
from radix.holding import Keeps, kept_pages
from radix.inserting import Inserted as Inserted
from radix.inserting import Inserting
from radix.judging import judge_of
from radix.keys import Namespace
from radix.lease import Home, drain
from radix.lifecycle import Fences, Work, terms_of
from radix.metrics import Metrics
from radix.misses import explain
from radix.namespaces import Namespaces
from radix.ownership import AdoptedSlots, Ownership, rows_for_prompt
from radix.plan import Cursor, Demand, Explanation
from radix.policy.checkpoint import Checkpoints
from radix.policy.cost import Economy
from radix.policy.eviction import (
    KEYED_POLICIES,
    PRICED_POLICIES,
    TIMED_POLICIES,
    EvictionPolicy,
    check_policy,
    prices_of,
)
from radix.policy.given import ask_policy
from radix.policy.limits import Limits, check_writes
from radix.pooled import pooled_insert
from radix.prefetching import Prefetches
from radix.prompts import Prompts
from radix.quotas import install, told_apart
from radix.request import Request
from radix.requests import Requests
from radix.residency import Residency
from radix.restoring import adopt
from radix.shares import Shares
from radix.spans import Value, recorded_span
from radix.stepping import Stepping
from radix.tenants import Tenants
from radix.tier import Tier
from radix.traffic import Traffic
from radix.transfers import Transfers
from radix.tree import TreeCore
from radix.writeback import WriteBack

EVERYTHING = Demand()


def _no_clock() -> int:
    return 0


class PrefixCache(Stepping, Traffic):
    """A prefix cache over tiers, the first of them the device (or the host where there is none).

    Requests: ``admit`` (then the request's own methods), ``poll``, ``wait``, ``passed``.
    Engine-driven: ``match``, ``lease``, ``insert``, ``evict``, ``offer``, ``spare``; for a step's
    requests: ``match_many``, ``lease_many``, ``insert_many``, ``release_many``.
    Ask: ``explain``, ``resident``, ``counters``, ``usage``, ``borrowed``. Run: ``set_mode``,
    ``flush``, ``check``, ``close``. Begin anew: ``reset``, ``fence_lifted``, ``set_revision``. One
    thread at a time: a call while another runs raises ``BusyError``.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        *,
        page_tokens: int = 16,
        keys: str = "tokens",
        ownership: Ownership = Ownership.OWNED,
        policy: str | EvictionPolicy = "lru",
        write: str = "write_through",
        events: bool = False,
        clock: Callable[[], int] | None = None,
        seed: int = 0,
        align_tokens: int = 1,
        checkpoints: Checkpoints | None = None,
        largest: Largest | None = None,
        limits: Limits | None = None,
        agree: Agree | None = None,
        economy: Economy | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        """Opens the tiers and takes over what a persistent one holds.

        ``tiers``: fastest first; they are the cache's from now on and closed with it. ``keys``:
        what a page is in the tree, its ``"tokens"`` or, for prompts with ``content``, a digest,
        ``"xxh3"`` or ``"sha256"`` (see ``PageKeys``). ``events``: keep the stream of blocks stored
        and removed for ``poll``. ``clock``: ns, for events, limits and hints (None: 0, and of
        hints a second is a step told by ``passed``). ``align_tokens``: hits are multiples of it,
        beside the groups' own grids. ``checkpoints``: how densely states are kept. ``largest``:
        ``NeverFitsError`` here already where it would not fit alone. ``write``: blocks go down when
        they are new (``"write_through"``), when they have to go (``"write_back"``) or when they are
        asked for again (``"write_after"``). ``limits``: bounds and deadlines of what moves.
        ``agree``: gives the element-wise minimum over all replicas of
        this cache, which are called alike, with fences that are step numbers (``Agreement``).
        ``economy``: load only what loads faster than it is computed. ``tenants``: whose blocks are
        whose. Raises ``ValueError``, ``TypeError``, ``TierError`` for a tier that does not open.
        """
        self.groups = check_groups(groups)
        self.page_tokens = page_tokens_of(page_tokens)
        self.keys = PageKeys(keys, self.page_tokens)
        bounds = check_writes(write, limits)
        self._timed = check_policy(policy) in TIMED_POLICIES
        timed = bounds.timed or self._timed
        self.agreement = Agreement(agree, tiers_of(tiers), clock or _no_clock, timed=timed)
        media = self.agreement.tiers
        check_supported(self.groups, len(media), self.page_tokens)
        rules = tuple(rule_of(group, self.page_tokens) for group in self.groups)
        self.align_tokens = math.lcm(self.page_tokens, at_least_one("align_tokens", align_tokens))
        placed = self._placed(media, ownership)
        self.metrics = Metrics()
        self._events: list[Event] = []
        self._clock = self.agreement.clock
        self.gate = Gate()
        self.fences = Fences()
        self._time = Time(clock and self._clock, lambda: self.fences.step)
        self.tree = self._ordered(policy, rules, placed, seed, events)
        self._spaces = Namespaces(self.tree, self.groups, self.page_tokens, scheme=self.keys.scheme)
        shares = told_apart(tenants, self.tree, self.groups, placed)
        self._place(placed, rules, shares, events)
        self._assemble(media, write, checkpoints, bounds)
        self._judge = judge_of(self.transfers, economy, self.align_tokens, self._events, agree)
        self._open(media, largest)

    def _ordered(
        self,
        policy: str | EvictionPolicy,
        rules: tuple[Rule, ...],
        placed: tuple[Tier, ...],
        seed: int,
        events: bool,
    ) -> TreeCore:
        """The tree, with its order of eviction, which is told what it goes by."""
        order = check_policy(policy)
        known_again = events or len(placed) > 1 or self._lent or order in KEYED_POLICIES
        tree = TreeCore(
            self.keys.page_bytes,
            groups=rules,
            tiers=len(placed),
            page_tokens=self.page_tokens,
            check_ids=not self.keys.opaque,
            keep_keys=known_again or placed[0].capability.persistent,
            policy=order,
            seed=seed,
        )
        ask_policy(tree, policy, self.metrics, self.gate)
        if order in PRICED_POLICIES:
            tree.price(prices_of(self.groups, placed))
        return tree

    def _placed(self, media: tuple[Tier, ...], ownership: Ownership) -> tuple[Tier, ...]:
        """Says who owns the first tier's slots; the tiers that the tree places blocks in."""
        if not isinstance(ownership, Ownership):
            raise TypeError(f"ownership must be an Ownership, not {type(ownership).__name__}")
        self.ownership, self._lent = ownership, ownership is Ownership.BORROWED
        if self._lent and len(media) < 2:
            raise ValueError("borrowed device slots need a tier below the device")
        self._shared = AdoptedSlots(media[0]) if ownership is Ownership.SHARED else None
        self.tiers = media if self._shared is None else (self._shared, *media[1:])
        self.opened = self.tiers
        return self.tiers[1:] if self._lent else self.tiers

    def _place(
        self,
        placed: tuple[Tier, ...],
        rules: tuple[Rule, ...],
        shares: Shares | None,
        events: bool,
    ) -> None:
        """Puts the tree's blocks into tiers, which count slots by tenant if told to."""
        self._dropped: deque[int] = deque()
        self._home = Home(self.tree, self._dropped, self.gate, self._time)
        stream = self._events if events else None
        if shares is not None:
            self.tiers = self.opened = (*self.tiers[: self._lent], *shares.fronts)
            placed = shares.fronts
        self.residency = Residency(self.tree, self.groups, placed, self.metrics, stream, rules)
        self.residency.root_keys = self._spaces.keys
        self.residency.root_names = self._spaces.names
        install(self.residency, self._spaces, shares)

    def _assemble(
        self, media: tuple[Tier, ...], write: str, checkpoints: Checkpoints | None, bounds: Limits
    ) -> None:
        """Puts what moves blocks, and what serves requests, over the tree and its tiers."""
        lent, clock, events = self._lent, self._clock, self._events
        self.transfers = Transfers(
            self.residency,
            clock,
            self._spaces.names,
            media[1:] if lent else media,
            media[0] if lent else None,
            events,
            write,
            bounds,
            lambda: self.fences.step,
        )
        self._back = WriteBack(self.transfers, bounds, enabled=write == "write_back")
        page, align = self.page_tokens, self.align_tokens
        self.requests = Requests(
            self.residency,
            self.transfers,
            self.fences,
            page,
            clock,
            events,
            align,
            checkpoints,
            self._time,
        )
        self._coarse = align > page
        plain = not self._coarse and not self.keys.opaque
        self._reach = Reach(self.gate, self.residency, self._spaces, plain)
        self.align_tokens = align = self.requests.align_tokens
        self._prompts = Prompts(self.residency, self._spaces, self.keys, align)
        alone = not self.agreement.shared
        self._finding = Finding(self.residency, self.transfers, self._prompts, alone=alone)
        self._ahead = Prefetches(self.transfers, self._finding)
        self._keeps = Keeps(self.residency, bounds.keep_share, self.transfers.now)
        self._epochs = Epochs(
            *(self.residency, self.transfers, self.requests, self._spaces, self._ahead),
            self._keeps,
        )
        self._inserting = Inserting(self.residency, self.transfers, page, align)
        self._pooled = None if self._inserting.coarse else pooled_insert(self._inserting)

    def _open(self, media: tuple[Tier, ...], largest: Largest | None) -> None:
        opened: list[Tier] = []
        try:
            for number, tier in enumerate(self.tiers):
                upper = media[above(media, number)] if number else None
                told = 1 if tier.capability.finds else path_group(self.residency.rules)[1]
                tier.attach(self.groups, self.keys.page_bytes * told, upper)
                opened.append(tier)
            if self.residency.shares is not None:
                self.residency.shares.opened()
            check_largest(media[0], self.groups, self.page_tokens, largest, self.align_tokens)
            self.transfers.wear.resume(adopt(self.residency, self._spaces))
        except BaseException:
            for tier in reversed(opened):
                tier.close()
            raise

    def namespace(self, namespace: Namespace | None = None) -> bytes:
        """Canonical bytes of a namespace in this cache: the groups' layouts are always in it."""
        return self._spaces.canonical(namespace)

    # ------------------------------------------------------------ requests
    def admit(
        self,
        tokens: object,
        *,
        new_tokens: int = 0,
        namespace: Namespace | None = None,
        slots: Sequence[object] | None = None,
        device_tokens: int = 0,
        cacheable_upto: int | None = None,
        chunk_tokens: int | None = None,
        boundaries: Sequence[int] = (),
        leave: int = 1,
        content: object = None,
        demand: Demand = EVERYTHING,
        hints: Hints | None = None,
    ) -> Request:
        """Starts a request: pins its hit, reserves its pages, starts the loads, all or nothing.

        ``tokens``: the prompt, int32 (other integers are converted once). ``new_tokens``: room to
        reserve for what will be sampled. ``slots``: by group, the engine's free slots to use
        (shared) or its page table (borrowed). ``device_tokens``: the engine's own device hit
        (borrowed). ``cacheable_upto``: tokens of which the state may be kept. ``chunk_tokens``: no
        step computes more, so that windows need no more (``Request.prepare``). ``boundaries``:
        lengths in tokens, as the end of the system prompt, at which a later request is to hit.
        ``leave``: tokens at the end that are computed in any case. ``content``: the images and
        the like in the prompt, ``Content`` each (of a cache whose ``keys`` are digests).
        ``demand``: what of the hit is read; a view of it where the slots are borrowed. ``hints``:
        what is said of its blocks once it ends or is preempted, unless ``finish`` says more.
        Raises ``NeverFitsError``, ``CapacityError``, ``ValueError``, ``TypeError``. Cost: prompt.
        """
        prompt = prompt_of(tokens)
        terms = terms_of(
            len(prompt),
            new_tokens,
            cacheable_upto,
            chunk_tokens,
            boundaries,
            demand,
            hints,
            self.groups,
        )
        if demand.view is not None and not self._lent:
            raise ValueError("demand: a view of blocks that the cache would share as whole ones")
        left = at_least_one("leave", leave)
        most, page = count_of("device_tokens", device_tokens), self.page_tokens
        rows = rows_for_prompt(
            self.ownership, slots, self.residency.rules, page, len(prompt), terms.new, most
        )
        with self.gate:
            self._drain()
            self._tell_time()
            asked = self._prompts.of(prompt, namespace, content)
            work = self._start(asked, rows, most // page, terms, left)
            return Request(self, work, namespace)

    def resume(
        self,
        work: Work,
        namespace: Namespace | None,
        new_tokens: int | None,
        slots: Sequence[object] | None,
        device_tokens: int,
    ) -> Work:
        """What ``Request.resume`` does: call that."""
        with self.gate:
            self._drain()
            return self._resume(work, namespace, new_tokens, slots, device_tokens)

    def poll(self) -> list[Event]:
        """Takes completions, lets what waited go on; the events since the last call.

        Never blocks. Cost: what ended and what waits.
        """
        with self.gate:
            self._drain()
            self.agreement.tick()
            self._tell_time()
            self.transfers.poll(self._ended)
            self._keeps.run()
            self.requests.run()
            self._finding.run()
            self._ahead.run()
            self._epochs.run()
            self._back.run()
            if self._judge is not None:
                self._judge.heard()
            events = self._events[:]
            self._events.clear()
            return events

    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until a tier has completions for ``poll``, or the time is over."""
        with self.gate:
            if not self.agreement.wait(timeout_s):
                self.transfers.wait(timeout_s)

    def passed(self, step: int) -> None:
        """Step fences up to ``step`` have passed; what waited for them happens at ``poll``."""
        with self.gate:
            self.fences.step = max(self.fences.step, count_of("step", step))

    def span(self, name: str, /, **args: Value) -> AbstractContextManager[None]:
        """Puts an interval of the engine's own (draft, verify, an all-gather) over the body into
        the events, by the cache's clock. ``args``: numbers and strings to see beside it.
        """
        return recorded_span(self.gate, self._clock, self._events, name, args)

    # ------------------------------------------------------------ asking
    def explain(
        self, tokens: object, *, namespace: Namespace | None = None, content: object = None
    ) -> Explanation:
        """Why ``tokens`` would hit as far as they would; changes nothing, counts nothing."""
        prompt = prompt_of(tokens)
        with self.gate:
            asked = self._prompts.of(prompt, namespace, content)
            match = self._prompts.match(asked, 1)
            at = Cursor(asked.root, match.node, match.structural_pages)
            kept = kept_pages(self.residency, self._keeps, at, match.hit_pages)
            terms = (asked, self.page_tokens, self.align_tokens)
            return explain(self.residency, match, *terms, kept * self.page_tokens)

    def resident(self) -> list[BlocksStored]:
        """What lies in which tier now, as the stream of events would have told it: parents before
        their children. Changes nothing. Raises ``UnsupportedError`` without ``events``, for pages
        have no keys then. Cost: everything.
        """
        with self.gate:
            if self.residency.events is None:
                raise UnsupportedError("what is resident is named by keys: give events=True")
            return self.residency.resident()

    # ------------------------------------------------------------ running
    def check(self) -> None:
        """Walks every invariant of tree and tiers; ``InvariantError`` names the first broken.

        Cost: everything. For tests and for doubt.
        """
        with self.gate:
            self._drain()
            self.residency.check(device=self.requests.placed)
            self.transfers.check()
            self._ahead.check()
            self.requests.check()
            check_slots(self.residency, self.transfers, self.requests, self._spaces.names)

    def _drain(self) -> None:
        if self._dropped:
            count = drain(self.tree, self._dropped)
            self.metrics.add(("lease", "dropped"), count)
