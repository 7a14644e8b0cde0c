"""How one cache starts a request, and starts it again after it was preempted: its prompt matched,
what misses is counted with its reason, and the admission is a transaction (R4). Keeps I34: what a
request asks for is counted once, however often it is resumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from radix.arguments import count_of
from radix.content import Prompt
from radix.epochs import Epochs
from radix.errors import RequestError
from radix.finding import Finding
from radix.groups import Group
from radix.judging import Judge
from radix.keys import Namespace
from radix.lifecycle import Terms, Work
from radix.misses import miss_reason
from radix.namespaces import Namespaces
from radix.ownership import AdoptedSlots, Ownership, rows_for_prompt
from radix.prompts import Prompts
from radix.requests import Requests
from radix.residency import Residency
from radix.tenancy import Tenancy
from radix.tier import Slots
from radix.transfers import Transfers
from radix.tree import TreeCore


class Serving(Tenancy, ABC):
    """What a cache of prompts does for requests before they run, and what takes effect on all of
    them at once: ``reset``, ``set_revision``, ``fence_lifted``. ``PrefixCache`` has the rest.
    """

    groups: tuple[Group, ...]
    ownership: Ownership
    page_tokens: int
    tree: TreeCore
    residency: Residency
    transfers: Transfers
    requests: Requests
    _spaces: Namespaces
    _prompts: Prompts
    _shared: AdoptedSlots | None
    _epochs: Epochs
    _finding: Finding
    _judge: Judge | None = None

    def reset(self, tiers: Sequence[str] | None = None) -> None:
        """A new epoch in the tiers named, in all of them for None: nothing that they hold, or that
        is on its way into them, is ever found again. Where the first is among them, requests that
        run go on with what they hold and share nothing more, those that load begin without a hit.

        A persistent tier keeps the epoch over a restart, durably when this returns. Slots that
        somebody reads rest until that has ended (``fence_lifted``). ``TierError`` where the epoch
        cannot be written: nothing has changed. ``ValueError`` for a name that no tier has. Cost:
        what the tiers hold.
        """
        if isinstance(tiers, str):
            raise TypeError("tiers must be a sequence of names, not str")
        with self.gate:
            self._drain()
            names = [tier.name for tier in self.opened]
            for name in () if tiers is None else tiers:
                if name not in names:
                    raise ValueError(f"tier {name!r} is not one of {names}")
            first = self.requests.loading.top  # the engine's own tier is none of the tree's
            self._finding.forget()
            self._epochs.reset(
                [
                    first + number
                    for number, name in enumerate(names)
                    if tiers is None or name in tiers
                ]
            )

    def set_revision(self, revision: str) -> None:
        """Tells that the weights are these now (``Namespace.revision`` of namespaces that name
        none): state of others is never matched again and leaves before anything else. Requests
        that run finish on their own and share nothing more. To be called once after a restart,
        too. Blocks until what leaves a persistent tier has left it durably. Cost: what leaves.
        """
        if not isinstance(revision, str):
            raise TypeError(f"revision must be str, not {type(revision).__name__}")
        Namespace(revision=revision)  # raises what cannot be encoded
        with self.gate:
            self._drain()
            if revision != self._spaces.revision:
                self._finding.forget()
                self._epochs.revise(revision)
                for tier in self.residency.tiers:
                    if tier.capability.persistent:
                        tier.flush()

    def fence_lifted(self) -> None:
        """Says that all transfers that were under way at the last ``reset`` are over, though their
        acknowledgements were swallowed: what they held is free.
        """
        with self.gate:
            self._epochs.lift()

    @abstractmethod
    def _drain(self) -> None:
        """Gives back the leases that were dropped."""

    def _start(
        self,
        asked: Prompt,
        rows: list[Slots] | None,
        device_pages: int,
        terms: Terms,
        leave: int,
        earlier: Work | None = None,
    ) -> Work:
        """Admits a prompt. ``rows``: the engine's slots, by group; given back where it fails."""
        match = self._prompts.match(asked, leave)
        found, decision = match, None
        if self._judge is not None:
            found, decision = self._judge.limited(asked, match, device_pages)
        reason = ""
        if match.limit_pages > max(match.hit_pages, device_pages):
            # before anything is evicted for this request, which could be what it looks at
            reason = miss_reason(self.residency, match, asked)
        if self._shared is not None and rows is not None:
            self._shared.offer_all(rows)
        if earlier is None and self._finding.able:
            self._finding.ask(asked, match, leave)  # for the next one that begins alike
        try:
            work = self.requests.admit(asked, found, rows, device_pages, terms, earlier)
        except BaseException:
            if self._shared is not None and rows is not None:
                self._shared.withdraw_all(rows)
            raise
        if earlier is None:
            left = match.hit_pages - found.hit_pages  # has a reason of its own
            self._prompts.count(asked, match, work.admitted_pages + left, reason)
        if decision is not None and self._judge is not None:
            self._judge.decided(work.number, decision, resumed=earlier is not None)
        return work

    def _resume(
        self,
        work: Work,
        namespace: Namespace | None,
        new_tokens: int | None,
        slots: Sequence[object] | None,
        device_tokens: int,
    ) -> Work:
        """Admits what was preempted again, with the tokens that it has by now (``Request.resume``).

        Under other weights than before where these were changed meanwhile: it finds nothing then.
        """
        if not work.quiet:
            raise RequestError(
                f"resume: request {work.number} is {work.shown.value}, not preempted"
            )
        tokens = work.tokens[: work.count].copy()
        left = max(0, work.prompt_tokens + work.terms.new - work.count)
        new = left if new_tokens is None else count_of("new_tokens", new_tokens)
        device = count_of("device_tokens", device_tokens)
        rows = rows_for_prompt(
            self.ownership, slots, self.residency.rules, self.page_tokens, len(tokens), new, device
        )
        root = self._spaces.root(namespace)
        asked = Prompt(root, tokens, work.chain.under(self._spaces.names[root]))
        terms = replace(work.terms, new=new, cacheable=work.cacheable)
        return self._start(asked, rows, device // self.page_tokens, terms, 1, work)

    def _left_open(self) -> list[str]:
        """Requests that have not ended, and leases that nobody released."""
        self._drain()
        left = [
            f"request {work.number} ({work.shown.value})" for work in self.requests.ending.open()
        ]
        if count := self._epochs.leases():
            left.append(f"{count} lease{'s' if count > 1 else ''}")
        return left
