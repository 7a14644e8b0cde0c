"""What other caches stored in a tier that several write to: behind the local hit of a prompt the
keys of its further pages are known, so that the tier can be asked for just these, many at once,
while everything else goes on. What it has becomes part of the tree as blocks that lie there, and is
a hit from then on. Keeps I7 (a slot that the tree does not take goes back) and I33: where replicas
have to decide alike nothing is asked, because answers differ.

    pages    0 ...... local hit ............ last full page
    asked                       | keys, a batch at a time; the first that is absent ends it |
    adopted                     | slots of the directory, attached | -->  a longer hit
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from radix._native import Match, ffi, lib
from radix.content import Prompt
from radix.errors import StaleError, TierError
from radix.finders import finder_of
from radix.groups import Rule
from radix.plan import Cursor, Pages
from radix.prompts import Prompts
from radix.residency import Residency
from radix.tier import Finder, Found, Keys, Records, Seek, Slots, TierMode
from radix.transfers import Transfers
from radix.tree import NO_SLOT

Mask = npt.NDArray[np.bool_]
MOST_PAGES = 2048  # asked for behind one local hit
MOST_OPEN = 32  # prompts about which something is asked at once
AGAIN_POLLS = 256  # so long an answer counts, before the same is asked again
_MOST_REMEMBERED = 4096


class Asking:
    """What was asked about one prompt. ``settled``: every answer has come, and what was there is in
    the tree.
    """

    __slots__ = ("first", "keys", "leave", "left", "pages", "prompt", "settled", "there", "tier")

    def __init__(
        self, prompt: Prompt, leave: int, tier: int, first: int, keys: Keys, pages: list[Pages]
    ) -> None:
        self.prompt, self.leave, self.tier = prompt, leave, tier
        self.first, self.keys = first, keys
        self.pages = pages  # by group: what would be of use, ascending, as the tree counts
        self.there = [np.zeros(len(each), np.bool_) for each in pages]
        self.left: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}  # by question: group, which
        self.settled = False


class Finding:
    """The questions of one cache. ``ask`` about a prompt, ``run`` once a poll, ``forget`` at a
    reset. ``able``: whether some tier can be asked at all.
    """

    def __init__(
        self, residency: Residency, transfers: Transfers, prompts: Prompts, *, alone: bool
    ) -> None:
        """``alone``: no replica has to decide alike."""
        self._residency, self._transfers, self._prompts = residency, transfers, prompts
        self._finders: dict[int, Finder] = {}
        for number, tier in enumerate(residency.tiers if alone else ()):
            if (finder := finder_of(tier)) is not None:
                self._finders[number] = finder
        self._open: dict[int, Asking] = {}
        self._asked: dict[tuple[int, bytes], int] = {}
        self._next = 1
        self._polls = 0

    @property
    def able(self) -> bool:
        """Cost: O(1)."""
        return bool(self._finders)

    # ------------------------------------------------------------ asking
    def ask(self, prompt: Prompt, match: Match, leave: int) -> Asking | None:
        """Asks for what lies behind a match; None where nothing is asked: nothing is unknown, it
        was asked a moment ago, or too much is open. Never blocks. Cost: the pages behind the hit.
        """
        if match.limit_pages <= match.hit_pages or len(self._asking()) >= MOST_OPEN:
            return None
        for number in reversed(self._finders):
            if self._residency.tiers[number].mode is TierMode.ON:
                return self._ask(prompt, match, leave, number)
        return None

    def _asking(self) -> set[int]:
        return {id(asking) for asking in self._open.values()}

    def _ask(self, prompt: Prompt, match: Match, leave: int, number: int) -> Asking | None:
        residency, first = self._residency, match.hit_pages
        at = Cursor(prompt.root, match.node, match.structural_pages)
        ahead = max((rule.lookahead_pages for rule in residency.rules), default=0)
        full = len(prompt.tokens) // self._prompts.page_tokens
        end = min(full, match.limit_pages + ahead, first + MOST_PAGES)
        rows = self._rows(prompt, first, end)
        parent = residency.parent_key(at, first)
        keys = _chained(parent, rows)
        if not self._is_new(prompt.root, keys[0].tobytes()):
            return None
        wanted = [_entries(rule, first, end) for rule in residency.rules]
        prompt = Prompt(prompt.root, prompt.tokens.copy(), prompt.chain)
        asking = Asking(prompt, leave, number, first, keys, wanted)
        parents = np.concatenate((np.frombuffer(parent, np.uint8)[None], keys[:-1]))
        name = self._transfers.namespace_of(prompt.root)
        for group, pages in enumerate(wanted):
            known = self._known(at, group, pages, match.structural_pages)
            asking.there[group] = known
            which = np.flatnonzero(~known)
            if not len(which):
                continue
            mine = pages[which] - first
            records = Records(name, keys[mine], parents[mine], rows[mine], pages[which])
            seek = Seek(self._next, group, records, residency.rules[group].everywhere)
            try:
                self._finders[number].seek(seek)
            except TierError:
                break  # too much is asked, or it has just gone: of the rest nothing is there
            self._open[self._next] = asking
            asking.left[self._next] = (group, which)
            self._next += 1
        if not asking.left:
            del self._asked[prompt.root, keys[0].tobytes()]
            return None
        residency.metrics.add(("find", "asked", residency.tiers[number].name))
        return asking

    def _rows(self, prompt: Prompt, first: int, end: int) -> Keys:
        span = prompt.chain.span(prompt.tokens, first, end)
        width = self._residency.tree.page_bytes
        return np.ascontiguousarray(span).view(np.uint8).reshape(end - first, width)

    def _is_new(self, root: int, key: bytes) -> bool:
        """Whether this was not asked a moment ago; remembers it."""
        at = self._asked.get((root, key))
        if at is not None and self._polls - at < AGAIN_POLLS:
            return False
        if len(self._asked) >= _MOST_REMEMBERED:
            self._asked.clear()
        self._asked[root, key] = self._polls
        return True

    def _known(self, at: Cursor, group: int, pages: Pages, structural: int) -> Mask:
        """Which entries lie in some tier of ours already."""
        known = np.zeros(len(pages), np.bool_)
        inside = pages < structural
        if inside.any():
            mine = pages[inside]
            lo, count = int(mine[0]), int(mine[-1] - mine[0]) + 1
            tiers = range(len(self._residency.tiers))
            known[inside] = self._transfers.held(at, group, tiers, lo, count)[mine - lo]
        return known

    # ------------------------------------------------------------ answers
    def run(self) -> None:
        """Takes answers; what is there becomes part of the tree. Cost: what has come."""
        self._polls += 1
        for finder in self._finders.values():
            for found in finder.found():
                self._heard(found)

    def _heard(self, found: Found) -> None:
        asking = self._open.pop(found.number, None)
        if asking is None:
            return
        group, which = asking.left.pop(found.number)
        asking.there[group][which] |= found.there
        if asking.left:
            return
        if any(each.any() for each in asking.there):
            with suppress(StaleError, TierError):  # then it is not adopted, and a miss as before
                self._adopt(asking)
        asking.settled = True

    def reached(self, asking: Asking) -> tuple[Cursor, int] | None:
        """The end of the path that is known now of a prompt that was asked about, and its hit in
        pages; None where its namespace is gone. Cost: the prompt.
        """
        try:
            match = self._prompts.match(asking.prompt, asking.leave)
        except StaleError:
            return None
        at = Cursor(asking.prompt.root, match.node, match.structural_pages)
        return at, match.hit_pages

    def forget(self) -> None:
        """What was asked before counts no more."""
        for asking in self._open.values():
            asking.settled = True
        self._open.clear()
        self._asked.clear()

    def _adopt(self, asking: Asking) -> None:
        """Gives what is there slots of the tier's directory, and attaches them behind the hit."""
        residency, tree = self._residency, self._residency.tree
        match = self._prompts.find(asking.prompt, asking.leave)
        end = self._end(asking)
        if match.hit_pages < asking.first or end <= match.hit_pages:
            return
        first = match.hit_pages
        at = Cursor(asking.prompt.root, match.node, match.structural_pages)
        lease, node, pages = tree.lease(at._replace(pages=first))
        try:
            slots, end = self._claimed(asking, at, first, end, match.structural_pages)
            if end > first:
                span = asking.prompt.chain.span(asking.prompt.tokens, first, end)
                residency.enter(Cursor(at.root, node, pages), span, asking.tier, slots)
        finally:
            tree.release(lease, stamp=False)

    def _end(self, asking: Asking) -> int:
        """How far the path can go: as far as each group that needs every block has them all."""
        ends: list[int] = []
        some = asking.first
        for rule, pages, there in zip(
            self._residency.rules, asking.pages, asking.there, strict=True
        ):
            found = pages[there]
            if len(found):
                some = max(some, int(found[-1]) + 1)
            if rule.everywhere and rule.lookup:
                run = len(there) if there.all() else int(np.argmin(there))
                ends.append(int(pages[run - 1]) + 1 if run else asking.first)
        return min(ends) if ends else some

    def _claimed(
        self, asking: Asking, at: Cursor, first: int, end: int, structural: int
    ) -> tuple[Slots, int]:
        """Slots by group and page of [first, end), -1 for none; where the directory is short for a
        group that needs every block, a shorter end.
        """
        residency, tier = self._residency, self._residency.tiers[asking.tier]
        finder = self._finders[asking.tier]
        slots = np.full((len(residency.rules), end - first), NO_SLOT, np.int32)
        order = sorted(range(len(residency.rules)), key=lambda g: not residency.rules[g].everywhere)
        for group in order:
            pages = asking.pages[group][asking.there[group]]
            pages = pages[(pages >= first) & (pages < end)]
            pages = pages[~self._known(at, group, pages, structural)]
            taken = self._transfers.fitting(asking.tier, group, len(pages), at.root)
            if len(taken) < len(pages) and residency.rules[group].everywhere:
                end = int(pages[len(taken)])
            pages = pages[: len(taken)]
            if not len(pages):
                continue
            try:
                finder.claim(group, taken, self._records(asking, pages))
            except TierError:
                tier.abort(group, taken)
                raise
            slots[group, pages - first] = taken
        for group in order:  # of groups that came before the end was known
            behind = slots[group, end - first :]
            if (behind != NO_SLOT).any():
                tier.abort(group, behind[behind != NO_SLOT])
        return np.ascontiguousarray(slots[:, : end - first]), end

    def _records(self, asking: Asking, pages: Pages) -> Records:
        rows = self._rows(asking.prompt, asking.first, asking.first + len(asking.keys))
        mine = pages - asking.first
        name = self._transfers.namespace_of(asking.prompt.root)
        keys = asking.keys[mine]
        return Records(name, keys, np.zeros_like(keys), rows[mine], pages)


def _chained(parent: bytes, rows: Keys) -> Keys:
    """The chained keys of pages behind ``parent``. Cost: their bytes."""
    keys = np.empty((len(rows), 16), np.uint8)
    lib.rdx_keys_chain(
        parent, ffi.from_buffer(rows), len(rows), rows.shape[1], ffi.from_buffer("uint8_t[]", keys)
    )
    return keys


def _entries(rule: Rule, first: int, end: int) -> Pages:
    """The pages of [first, end) at which a block of a group may stand."""
    pages = np.arange(first, end, dtype=np.int64)
    if not rule.kept or not rule.lookup:
        return pages[:0]
    own = pages - rule.lookahead_pages + 1
    chosen: Pages = pages[(own > 0) & (own % rule.block_pages == 0)]
    return chosen
