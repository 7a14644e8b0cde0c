"""How one cache starts a request, and starts it again after it was preempted: its prompt matched,
what misses is counted with its reason, and the admission is a transaction (R4). Keeps I34: what a
request asks for is counted once, however often it is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radix.arguments import count_of
from radix.content import Prompt
from radix.errors import RequestError
from radix.facade import Facade
from radix.groups import Group
from radix.lifecycle import Terms, Work
from radix.misses import miss_reason
from radix.namespaces import Namespaces
from radix.ownership import AdoptedSlots, Ownership, rows_for_prompt
from radix.prompts import Prompts
from radix.requests import Requests
from radix.residency import Residency
from radix.tier import Slots
from radix.transfers import Transfers
from radix.tree import TreeCore


class Serving(Facade):
    """What a cache of prompts does for requests before they run. ``PrefixCache`` has the rest."""

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
        reason = ""
        if match.limit_pages > max(match.hit_pages, device_pages):
            # before anything is evicted for this request, which could be what it looks at
            reason = miss_reason(self.residency, match, asked)
        if self._shared is not None and rows is not None:
            self._shared.offer_all(rows)
        try:
            work = self.requests.admit(asked, match, rows, device_pages, terms, earlier)
        except BaseException:
            if self._shared is not None and rows is not None:
                self._shared.withdraw_all(rows)
            raise
        if earlier is None:
            self._prompts.count(asked, match, work.admitted_pages, reason)
        return work

    def _resume(
        self,
        work: Work,
        space: bytes,
        new_tokens: int | None,
        slots: Sequence[object] | None,
        device_tokens: int,
    ) -> Work:
        """Admits what was preempted again, with the tokens that it has by now (``Request.resume``).

        ``space``: the canonical bytes of its namespace, whose root may have gone meanwhile.
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
        asked = Prompt(self._spaces.root_of(space), tokens, work.chain)
        terms = replace(work.terms, new=new, cacheable=work.cacheable)
        return self._start(asked, rows, device // self.page_tokens, terms, 1, work)

    def _left_open(self) -> list[str]:
        """Requests that have not ended, and leases that nobody released."""
        left = [
            f"request {work.number} ({work.shown.value})" for work in self.requests.ending.open()
        ]
        own = self.requests.ending.leases + len(self.transfers.jobs)
        if count := self.tree.stats().leases - own:
            left.append(f"{count} lease{'s' if count > 1 else ''}")
        return left
