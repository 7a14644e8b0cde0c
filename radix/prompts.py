"""Prompts as one cache asks for them: a run of tokens, and what is set into it, becomes pages of
the tree in a namespace, and is matched by them. Where pages are digests each is made once (I5); a
hit leaves the last tokens, is a multiple of what every group can be hit at, and with what missed
adds up to what was asked (I34).
"""

from __future__ import annotations

from radix._native import Match
from radix.content import PageKeys, Prompt
from radix.keys import Namespace, Tokens
from radix.misses import aligned
from radix.namespaces import Namespaces
from radix.plan import Cursor
from radix.residency import Residency


class Prompts:
    """Make: ``of``, ``behind``. Find: ``find``, ``match``. Tell: ``count``."""

    def __init__(
        self, residency: Residency, spaces: Namespaces, keys: PageKeys, align_tokens: int
    ) -> None:
        self._residency = residency
        self._spaces = spaces
        self._keys = keys
        self.page_tokens = keys.page_tokens
        self._align_pages = align_tokens // keys.page_tokens

    def of(self, tokens: Tokens, namespace: Namespace | None, content: object) -> Prompt:
        """A prompt of a namespace, and the contents set into it; nothing changes where they are
        refused. Cost: the contents.
        """
        contents = self._keys.contents(content, len(tokens))
        root = self._spaces.root(namespace)
        return Prompt(root, tokens, self._keys.chain(self._spaces.names[root], contents))

    def behind(self, at: Cursor, tokens: Tokens, content: object) -> Prompt:
        """The same prompt, whose pages before ``at`` are in the tree. Cost: the contents."""
        keys, tree = self._keys, self._residency.tree
        if content is None and not keys.opaque:
            return Prompt(at[0], tokens, keys.of_tokens)
        contents = keys.contents(content, len(tokens))
        chain = keys.chain(self._spaces.names[at.root], contents)
        if keys.opaque and at.pages:
            chain.begin(at.pages, tree.pages(at, at.pages - 1, 1).tobytes())
        return Prompt(at.root, tokens, chain)

    def find(self, prompt: Prompt, leave: int, readable: int | None = None) -> Match:
        """How much of a prompt the readable tiers have (None: all that can be read now); its last
        ``leave`` tokens never count as hit. Changes nothing. Cost: the tokens.
        """
        tree, leave = self._residency.tree, min(leave, len(prompt.tokens))
        if readable is None:
            readable = self._residency.readable()
        if not self._keys.opaque:
            return tree.match(prompt.root, prompt.tokens, leave, readable)
        limit = max(0, len(prompt.tokens) - leave) // self._keys.page_tokens
        return tree.match_upto(prompt.root, prompt.pages, limit, readable)

    def match(self, prompt: Prompt, leave: int) -> Match:
        """``find`` with hits that are multiples of what every group can be hit at."""
        found, step = self.find(prompt, leave), self._align_pages
        if step > 1 and (found.hit_pages % step or found.device_pages % step):
            return aligned(self._residency, prompt.root, found, step)
        return found

    def count(self, prompt: Prompt, match: Match, hit_pages: int, reason: str) -> None:
        """Counts a prompt that was asked for, of which ``hit_pages`` are served; what is missing,
        and why. The tiers that serve the hit are counted once it is there.
        """
        page, metrics, tokens = self._keys.page_tokens, self._residency.metrics, len(prompt.tokens)
        if self._residency.shares is not None:
            self._residency.shares.count(prompt.root, asked=tokens)
        metrics.add(("match", "queries"))
        metrics.add(("match", "queried_tokens"), tokens)
        if tail := tokens - match.limit_pages * page:
            metrics.add(("match", "miss", "below one page"), tail)
        if match.limit_pages > hit_pages:
            metrics.add(("match", "miss", reason), (match.limit_pages - hit_pages) * page)
