"""Load or compute again, keep or let go: decided by what each costs in seconds. Pure arithmetic
over numbers that are given (the model's FLOPs, the engine's throughput) or measured (``rates``),
so that replicas that are told the same decide alike (I33); every decision carries its numbers.

    tokens   0 ........ on the device ........ m ................. hit ........ prompt
             |            have                 | compute, or load  |  compute   |
             |   loading up to a length m costs load(m) + compute(m, prompt)    |

Computing costs more the further along a token stands, so that of the lengths which one tier serves
only the ends can be best: the lengths asked about are those at which the tier changes, as far as
they can be hit in every group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from radix.groups import Cost, Group
from radix.plan import LoadDecision, PersistDecision
from radix.policy.rates import Rate


def check_positive(name: str, value: object, *, zero: bool = False) -> float:
    """A finite number above 0, or of 0 at least. ``TypeError``, ``ValueError`` by name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not (0 <= value < float("inf")) or (value == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be finite and {least}, not {value}")
    return float(value)


def cost_of(groups: Iterable[Group]) -> Cost:
    """What the whole model costs: the sum over its groups. ``ValueError`` for a group that says
    none. Cost: the groups.
    """
    costs: list[Cost] = []
    for group in groups:
        if group.cost is None:
            raise ValueError(f"group {group.name!r} says no cost: FLOPs a token are needed")
        costs.append(group.cost)
    linear = sum(each.linear for each in costs)
    return Cost(linear, sum(each.quadratic for each in costs))


@dataclass(frozen=True, slots=True)
class Compute:
    """What the engine computes: ``flops_per_s`` that it really reaches, and what the token at
    position p costs, ``cost.linear + cost.quadratic * p`` FLOPs.

    >>> llama = Compute(494.5e12, Cost(2 * 8.03e9, 4 * 32 * 32 * 128))
    >>> round(llama.seconds(0, 4096) * 1e3)  # milliseconds of a prompt of 4,096 tokens
    142
    """

    flops_per_s: float
    cost: Cost

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` for what is no throughput or cost."""
        check_positive("flops_per_s", self.flops_per_s)
        check_positive("cost.linear", self.cost.linear)
        check_positive("cost.quadratic", self.cost.quadratic, zero=True)

    @classmethod
    def of(cls, groups: Iterable[Group], flops_per_s: float) -> Compute:
        """The whole model: ``cost_of`` its groups. ``ValueError`` for a group without."""
        return cls(flops_per_s, cost_of(groups))

    def seconds(self, first: int, end: int) -> float:
        """How long the tokens of positions [first, end) take. Cost: O(1)."""
        tokens = max(0, end - first)
        before = tokens * (first + end - 1) / 2  # the positions summed
        return (self.cost.linear * tokens + self.cost.quadratic * before) / self.flops_per_s

    def break_even(self, token_bytes: float, context: int = 0) -> float:
        """The bytes a second at which loading a token of ``token_bytes`` with ``context`` tokens
        before it takes as long as computing it. Cost: O(1).
        """
        check_positive("token_bytes", token_bytes)
        return token_bytes * self.flops_per_s / (self.cost.linear + self.cost.quadratic * context)


@dataclass(frozen=True, slots=True)
class Economy:
    """What an engine says for a cache to decide by: ``flops_per_s`` that it really reaches,
    ``rates``: by the name of each tier below the device how fast it is read, until loads have shown
    it. ``context_tokens``: a tier is written while a prefix so long is read back faster than it is
    computed. The groups say what a token costs (``Group.cost``).
    """

    flops_per_s: float
    rates: Mapping[str, Rate]
    context_tokens: int = 8192

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` by name."""
        check_positive("flops_per_s", self.flops_per_s)
        for name, rate in self.rates.items():
            if not isinstance(rate, Rate):
                raise TypeError(f"rates[{name!r}] must be a Rate, not {type(rate).__name__}")
        if isinstance(self.context_tokens, bool) or not isinstance(self.context_tokens, int):
            kind = type(self.context_tokens).__name__
            raise TypeError(f"context_tokens must be an int, not {kind}")
        if self.context_tokens < 1:
            raise ValueError(f"context_tokens must be at least 1, not {self.context_tokens}")


class Hop(NamedTuple):
    """What one tier has to read for a hit: ``nbytes``, behind ``queued`` bytes that wait there."""

    tier: str
    nbytes: int
    queued: int


class Candidate(NamedTuple):
    """A length that can be hit, in tokens, and what has to be loaded for it (nothing: it lies on
    the device).
    """

    tokens: int
    hops: tuple[Hop, ...]


def load_seconds(hops: Sequence[Hop], rates: Mapping[str, Rate]) -> float:
    """How long loads over several tiers take that run side by side: the latency of each once, and
    the bytes of the slowest. ``KeyError`` for a tier without a rate. Cost: the hops.
    """
    moving = [(rates[hop.tier], hop) for hop in hops if hop.nbytes]
    latency = sum(rate.latency_s for rate, _ in moving)
    spans = [(hop.queued + hop.nbytes) / rate.bytes_per_s for rate, hop in moving]
    return latency + max(spans, default=0.0)


def decide_load(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    compute: Compute,
    rates: Mapping[str, Rate],
) -> LoadDecision:
    """The length at which loading and computing the rest ends first; of equal ones the longest.

    ``candidates``: lengths that can be hit, in ascending order; nothing at all is one anyway. What
    lies on the device (no hops) is never given up. Raises ``ValueError`` for lengths that do not
    ascend or exceed the prompt. Cost: the candidates.
    """
    lengths = [each.tokens for each in candidates]
    if lengths != sorted(set(lengths)) or (lengths and not 0 <= lengths[-1] <= prompt_tokens):
        raise ValueError(f"candidates must ascend to {prompt_tokens} at most, not {lengths}")
    nothing = max((each.tokens for each in candidates if not each.hops), default=0)
    recompute_s = compute.seconds(nothing, prompt_tokens)
    best = (recompute_s, nothing, 0.0)
    for each in candidates:
        if each.tokens > nothing:
            load_s = load_seconds(each.hops, rates)
            total = load_s + compute.seconds(each.tokens, prompt_tokens)
            if total <= best[0]:
                best = (total, each.tokens, load_s)
    total, tokens, load_s = best
    return LoadDecision(
        tokens=tokens,
        hit_tokens=max(lengths, default=0),
        prompt_tokens=prompt_tokens,
        load_s=load_s,
        compute_s=compute.seconds(tokens, prompt_tokens),
        recompute_s=recompute_s,
    )


def decide_persist(
    tier: str, nbytes: int, first: int, end: int, compute: Compute, rate: Rate
) -> PersistDecision:
    """Whether ``nbytes`` that save computing the tokens of [first, end) are worth keeping in a
    tier that is read at ``rate``: of a prefix all its tokens, of a snapshot all since the one
    before. Cost: O(1).
    """
    return PersistDecision(tier, nbytes, rate.seconds(nbytes), compute.seconds(first, end))
