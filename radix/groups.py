"""Groups: layers that share layout and retention. What a group is, is data on it, never a
subclass; no method or field elsewhere carries a kind in its name. :class:`Rule` is the same in the
units of one cache, pages: what the native tree and every layer above it decide by. Keeps the
arithmetic of I15, I26 and I28 in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from radix._native import lib
from radix.layout import Layout, _positive

RETENTIONS = ("full", "window", "chunked", "state", "scratch")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which positions a hit at n needs.

    ``full``: every block of [0, n); ``window``: those of the last ``tokens - 1`` tokens before n,
    ``extra`` more for drafts; ``chunked``: from floor(n / tokens) * tokens to n; ``state``: one
    snapshot exactly at n; ``scratch``: never cached.
    """

    rule: str = "full"
    tokens: int = 0
    extra: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RETENTIONS:
            raise ValueError(f"retention {self.rule!r} is not one of {', '.join(RETENTIONS)}")
        if self.rule in ("window", "chunked"):
            _positive(f"retention {self.rule} tokens", self.tokens)
        elif self.tokens:
            raise ValueError(f"retention {self.rule} takes no tokens")
        if self.extra < 0:
            raise ValueError(f"retention extra must not be negative, not {self.extra}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What recomputing costs, FLOPs a token: ``linear`` + ``quadratic`` * context length."""

    linear: float
    quadratic: float


@dataclass(frozen=True, slots=True)
class Group:
    """One group of layers.

    ``grid_tokens``: tokens a block, a multiple of the page (None: one page a block); for a state
    the multiples at which a checkpoint may stand. ``per_sequence``: a block a checkpoint instead
    of a block a page. ``lookup``: whether its blocks limit a hit.
    """

    name: str
    layout: Layout
    retention: Retention = Retention()
    grid_tokens: int | None = None
    per_sequence: bool = False
    lookup: bool = True
    lookahead: int = 0
    cost: Cost | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("group name must not be empty")
        if self.grid_tokens is not None:
            _positive(f"group {self.name!r} grid_tokens", self.grid_tokens)
        if self.lookahead < 0:
            raise ValueError(f"group {self.name!r}: lookahead must not be negative")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of this group."""
        return self.layout.block_bytes

    @classmethod
    def full(cls, name: str, block_bytes: int) -> Group:
        """A group of plain attention KV of which only the bytes a block are known."""
        return cls(name, Layout.opaque(block_bytes))


@dataclass(frozen=True, slots=True)
class Rule:
    """The retention of a group over pages of ``page_tokens`` tokens, as the native tree takes it.

    ``code``: RDX_RULE_*. ``block_pages``: pages a block; of a state the distance of the places
    where a checkpoint may stand. ``reach_tokens``: of a window the tokens before n that a hit at n
    needs; of chunks the tokens of one; else 0. ``lookahead_pages``: the block that ends with page
    p stands in the tree at page p + ``lookahead_pages``, because its last entries depend on the
    tokens there. ``lookup``: whether it limits a hit.
    """

    code: int
    block_pages: int
    reach_tokens: int
    lookahead_pages: int
    lookup: bool
    page_tokens: int

    @property
    def grid_tokens(self) -> int:
        """Tokens between two lengths at which this group can be hit."""
        return self.block_pages * self.page_tokens

    @property
    def everywhere(self) -> bool:
        """Whether a hit at n needs every block of [0, n)."""
        return bool(self.code == lib.RDX_RULE_FULL)

    @property
    def per_position(self) -> bool:
        """Whether a hit at n needs one snapshot, taken exactly at n."""
        return bool(self.code == lib.RDX_RULE_STATE)

    @property
    def kept(self) -> bool:
        """Whether its blocks are ever cached."""
        return bool(self.code != lib.RDX_RULE_SCRATCH)

    def first_page(self, pages: int) -> int:
        """The first of the pages [first, ``pages``) whose blocks a hit of ``pages`` pages needs.

        Rounded down to a whole block; ``pages`` itself where nothing is needed.
        """
        if self.code == lib.RDX_RULE_FULL:
            return 0
        if self.code == lib.RDX_RULE_STATE:
            return max(0, pages - 1)
        if self.code == lib.RDX_RULE_SCRATCH:
            return pages
        tokens = pages * self.page_tokens
        if self.code == lib.RDX_RULE_WINDOW:
            first = max(0, tokens - self.reach_tokens)
        else:
            first = tokens // self.reach_tokens * self.reach_tokens
        if first >= tokens:
            return pages
        page = first // self.page_tokens
        return page // self.block_pages * self.block_pages


def rule_of(group: Group, page_tokens: int) -> Rule:
    """The group's retention in pages. ``ValueError`` where its grid does not fit the page."""
    codes = {
        "full": lib.RDX_RULE_FULL,
        "window": lib.RDX_RULE_WINDOW,
        "chunked": lib.RDX_RULE_CHUNKED,
        "state": lib.RDX_RULE_STATE,
        "scratch": lib.RDX_RULE_SCRATCH,
    }
    retention = group.retention
    grid = group.grid_tokens or page_tokens
    if retention.rule == "state":
        grid = math.lcm(page_tokens, grid)  # C49: a widened page does not widen the grid
    elif grid % page_tokens:
        raise ValueError(
            f"group {group.name!r}: grid_tokens {grid} must be a multiple of the page, "
            f"{page_tokens} tokens"
        )
    reach = retention.tokens
    if retention.rule == "window":
        reach = retention.tokens - 1 + retention.extra
    return Rule(
        code=codes[retention.rule],
        block_pages=grid // page_tokens,
        reach_tokens=reach,
        lookahead_pages=-(-group.lookahead // page_tokens),
        lookup=group.lookup and retention.rule != "scratch",
        page_tokens=page_tokens,
    )


def path_group(rules: Sequence[Rule]) -> tuple[int, int]:
    """The group whose blocks tell all the pages of a path when a disk is opened again, and how many
    pages one of them tells: the smallest blocks of a group that needs every one. (-1, 1): none.
    """
    found = [
        (rule.block_pages, number)
        for number, rule in enumerate(rules)
        if rule.everywhere and not rule.lookahead_pages
    ]
    pages, number = min(found, default=(1, -1))
    return number, pages


def check_groups(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups as a tuple; ``ValueError`` for none, or two of one name."""
    result = tuple(groups)
    if not result:
        raise ValueError("groups must not be empty")
    for group in result:
        if not isinstance(group, Group):
            raise TypeError(f"groups must hold Group, not {type(group).__name__}")
    names = [group.name for group in result]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two groups of one name: {name!r}")
    return result
