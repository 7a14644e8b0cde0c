"""How much of a hit a request loads, and whether a tier is written at all: what loading takes at
the rates seen so far against computing the same tokens again (``radix.policy.cost``). Asked before
a request pins anything, so that what is not loaded is not pinned either. Keeps I34: a decision
changes nothing but how far the request goes on from what is cached.
"""

from __future__ import annotations

import numpy as np

from radix._native import Match
from radix.content import Prompt
from radix.events import Event, LoadDecided, PersistDecided, TransferEvent
from radix.misses import hits_down_to, sources
from radix.plan import Cursor, LoadDecision, PersistDecision
from radix.policy.cost import (
    Candidate,
    Compute,
    Economy,
    Hop,
    decide_load,
    decide_persist,
)
from radix.policy.rates import Rates
from radix.transfers import Transfers


class Judge:
    """Ask: ``limited``. Tell: ``decided``, ``heard``. ``measures``: whether what transfers take
    counts; replicas that decide alike go by the rates given (I33).
    """

    def __init__(
        self,
        transfers: Transfers,
        economy: Economy,
        align_tokens: int,
        events: list[Event],
        *,
        measures: bool,
    ) -> None:
        """Raises ``ValueError`` for a tier without a rate, or a group without a cost."""
        residency = transfers.residency
        self._transfers, self._residency, self._economy = transfers, residency, economy
        self._compute = Compute.of(residency.groups, economy.flops_per_s)
        self._page_tokens = residency.rules[0].page_tokens
        self._step = align_tokens // self._page_tokens
        self._events = events
        self._measures = measures
        self._ended_ns: dict[str, int] = {}  # by tier, when a load of it ended last
        top = 0 if transfers.borrowed is not None else 1  # the first tier that is loaded from
        self._loaded = range(top, len(residency.tiers))
        names = [residency.tiers[number].name for number in self._loaded]
        for name in names:
            if name not in economy.rates:
                raise ValueError(f"economy says no rate of tier {name!r}")
        self._rates = Rates({name: economy.rates[name] for name in names})
        self._verdicts: dict[int, PersistDecision] = {}
        transfers.worth = self.persists

    # ------------------------------------------------------------ loading
    def limited(
        self, asked: Prompt, match: Match, device_pages: int
    ) -> tuple[Match, LoadDecision | None]:
        """The match with as much of its hit as is worth loading, and why; None where nothing would
        be loaded. Changes nothing. Cost: the hit.
        """
        here = max(match.device_pages, device_pages)
        if match.hit_pages <= here:
            return match, None
        page = self._page_tokens
        at = Cursor(asked.root, match.node, match.structural_pages)
        lengths = hits_down_to(self._residency, at, match.limit_pages, self._step)
        candidates = [Candidate(here * page, ())] + [
            Candidate(pages * page, self._hops(at, pages, here))
            for pages in sorted({min(length, match.hit_pages) for length in lengths})
            if pages > here
        ]
        decision = decide_load(candidates, len(asked.tokens), self._compute, self._rates.now())
        hit = decision.tokens // page
        fields = (min(match.device_pages, hit), hit, match.structural_pages, match.limit_pages)
        return Match(*fields, match.stop, match.node), decision

    def _hops(self, at: Cursor, pages: int, here: int) -> tuple[Hop, ...]:
        """What each tier has to read for a hit of so many pages, of which ``here`` need nothing:
        what lies deep passes every tier above it.
        """
        nbytes = np.zeros(len(self._residency.tiers), np.int64)
        for group, rule in enumerate(self._residency.rules):
            ends, source = sources(self._residency, at, group, pages)
            source = source[ends >= here] if rule.everywhere else source
            for tier in self._loaded:
                below = int(np.count_nonzero(source >= tier))
                nbytes[tier] += below * self._residency.groups[group].block_bytes
        return tuple(
            Hop(self._residency.tiers[tier].name, int(nbytes[tier]), self._queued(tier))
            for tier in self._loaded
            if nbytes[tier]
        )

    def _queued(self, tier: int) -> int:
        """Bytes that a tier is to read already. Cost: the jobs."""
        return sum(
            job.move.blocks * self._residency.groups[job.move.group].block_bytes
            for job in self._transfers.jobs.values()
            if not job.storing and job.move.source == tier
        )

    def decided(self, request: int, decision: LoadDecision, *, resumed: bool) -> None:
        """A request was admitted by a decision: it is told, with its numbers, and counted, as a
        miss only where it asks for the first time (I34).
        """
        cut, metrics = decision.hit_tokens - decision.tokens, self._residency.metrics
        metrics.add(("economy", "loads decided"))
        metrics.add(("economy", "saved us"), round(max(0.0, decision.saved_s) * 1e6))
        if cut and not resumed:
            metrics.add(("match", "miss", "cheaper to compute"), cut)
        self._events.append(LoadDecided(request, decision))

    def heard(self) -> None:
        """What loads of a tier took that ended with this poll says how fast it is. Those that ran
        side by side count as one, and time that one before them took is not theirs. Cost: the
        events.
        """
        ended: dict[str, list[TransferEvent]] = {}
        for event in self._events if self._measures else ():
            if isinstance(event, TransferEvent) and event.source in self._economy.rates:
                ended.setdefault(event.source, []).append(event)
        for tier, loads in ended.items():
            until = max(event.end_ns for event in loads)
            since = max(min(event.start_ns for event in loads), self._ended_ns.get(tier, 0))
            self._ended_ns[tier] = until
            if not any(event.error for event in loads):
                nbytes = sum(event.nbytes for event in loads)
                self._rates.observe(tier, nbytes, (until - since) / 1e9)

    # ------------------------------------------------------------ keeping
    def persists(self, tier: int) -> bool:
        """Whether what stands in the tier above is worth writing there: whether a prefix of
        ``economy.context_tokens`` is read back faster than it is computed. Cost: the groups.
        """
        if tier not in self._loaded:
            return True
        tokens, nbytes = self._economy.context_tokens, 0
        pages = -(-tokens // self._page_tokens)
        for rule, group in zip(self._residency.rules, self._residency.groups, strict=True):
            if rule.lookup:
                blocks = 1 if rule.per_position else -(-pages // rule.block_pages)
                first = 0 if rule.per_position else rule.first_page(pages) // rule.block_pages
                nbytes += max(0, blocks - first) * group.block_bytes
        name = self._residency.tiers[tier].name
        rate = self._rates.now()[name]
        verdict = decide_persist(name, nbytes, 0, tokens, self._compute, rate)
        known = self._verdicts.get(tier)
        if known is None or known.keep != verdict.keep:
            self._verdicts[tier] = verdict
            self._events.append(PersistDecided(verdict))
        return verdict.keep


def judge_of(
    transfers: Transfers,
    economy: Economy | None,
    align_tokens: int,
    events: list[Event],
    agree: object,
) -> Judge | None:
    """The judge of a cache; None where the owner gave nothing to decide by. With ``agree`` (several
    replicas) the rates stay those given. ``TypeError`` for what is no ``Economy``.
    """
    if economy is None:
        return None
    if not isinstance(economy, Economy):
        raise TypeError(f"economy must be an Economy, not {type(economy).__name__}")
    return Judge(transfers, economy, align_tokens, events, measures=agree is None)
