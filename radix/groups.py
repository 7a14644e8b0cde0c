"""Groups: layers that share layout and retention. What a group is, is data on it, never a
subclass; no method or field elsewhere carries a kind in its name. Later kinds (windows, chunks,
states) are values of :class:`Retention` that this version describes and refuses to run by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
