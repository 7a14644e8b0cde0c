"""What the hits of a replayed model are worth: the seconds that a GPU did not compute, of which a
hit that is read from a tier is loaded only where that is faster (``radix.policy.cost``).

Kept here: each hit is judged once, by the same arithmetic as in a cache with an `Economy`; what is
not loaded counts as computed, in the seconds and in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radix.groups import Group, Rule
from radix.options import OptionError
from radix.policy.cost import Candidate, Compute, Hop, decide_load
from radix.policy.rates import Rate
from radix.replay.models import Model
from radix.replay.options import parse_amount, parse_bytes_per_s, parse_seconds

_TIER = "cache"


@dataclass(frozen=True, slots=True)
class Saving:
    """What one run saved.

    `saved_gpu_s` is the time that a GPU reaching `flops_per_s` would have computed for the tokens
    that were hit and loaded. Where hits are read from a tier, at `bytes_per_s` behind `latency_s`,
    `load_s` is what the `loads` took, over `loaded_bytes`; the `skipped` hits were faster to
    compute, `skipped_tokens` in all. Without a tier hits lie on the device and cost nothing.
    """

    flops_per_s: float
    bytes_per_s: float | None
    latency_s: float | None
    saved_gpu_s: float
    load_s: float
    loads: int
    loaded_bytes: int
    skipped: int
    skipped_tokens: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What to judge hits by: what the model costs to compute, and how fast the tier is (None: hits
    lie on the device).
    """

    compute: Compute
    rate: Rate | None


def parse_terms(
    model: Model, flops: str | None, rate: str | None, latency: str | None
) -> Terms | None:
    """Read `--flops`, `--rate` and `--latency`; None where nothing was asked.

    Raises:
        OptionError: a value is no number above 0, one needs another, or the model says no cost.
    """
    for option, text, needed, of in (
        ("--rate", rate, flops, "--flops"),
        ("--latency", latency, rate, "--rate"),
    ):
        if text is not None and needed is None:
            raise OptionError(option, f"needs {of}")
    if flops is None:
        return None
    if model.cost is None:
        raise OptionError("--flops", f"model {model.name!r} says no active_parameters")
    compute = Compute(parse_amount("--flops", flops), model.cost)
    if rate is None:
        return Terms(compute, None)
    wait = parse_seconds("--latency", latency) if latency is not None else 0.0
    return Terms(compute, Rate(wait, parse_bytes_per_s("--rate", rate)))


class Savings:
    """Sums over the hits of one run. Tell: `hit`. Ask: `total`."""

    def __init__(
        self, terms: Terms, groups: Sequence[Group], rules: Sequence[Rule], page_tokens: int
    ) -> None:
        self._terms = terms
        self._sizes = [group.block_bytes for group in groups]
        self._rules = tuple(rules)
        self._page_tokens = page_tokens
        self._saved_s = self._load_s = 0.0
        self._loads = self._loaded_bytes = self._skipped = self._skipped_tokens = 0

    def hit(self, pages: int, prompt_tokens: int) -> None:
        """A prompt of so many tokens hit so many pages. Cost: O(groups)."""
        if not pages:
            return
        tokens, rate = pages * self._page_tokens, self._terms.rate
        if rate is None:
            self._saved_s += self._terms.compute.seconds(0, tokens)
            return
        nbytes = self._bytes(pages)
        hit = Candidate(tokens, (Hop(_TIER, nbytes, 0),))
        prompt = max(tokens, prompt_tokens)
        decision = decide_load([hit], prompt, self._terms.compute, {_TIER: rate})
        if decision.tokens == 0:
            self._skipped += 1
            self._skipped_tokens += tokens
            return
        self._loads += 1
        self._loaded_bytes += nbytes
        self._load_s += decision.load_s
        self._saved_s += self._terms.compute.seconds(0, tokens)

    def _bytes(self, pages: int) -> int:
        """What all groups need for a hit of so many pages."""
        total = 0
        for rule, size in zip(self._rules, self._sizes, strict=True):
            if rule.per_position:
                total += size
            else:
                total += (pages - rule.first_page(pages)) // rule.block_pages * size
        return total

    def total(self) -> Saving:
        """Return the sums. Cost: O(1)."""
        rate = self._terms.rate
        return Saving(
            flops_per_s=self._terms.compute.flops_per_s,
            bytes_per_s=None if rate is None else rate.bytes_per_s,
            latency_s=None if rate is None else rate.latency_s,
            saved_gpu_s=self._saved_s,
            load_s=self._load_s,
            loads=self._loads,
            loaded_bytes=self._loaded_bytes,
            skipped=self._skipped,
            skipped_tokens=self._skipped_tokens,
        )
