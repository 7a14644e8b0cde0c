"""A trace and a model made ready for each other: groups in the trace's own unit, and of each
request what is looked up and what is computed.

A cache entry is a token id, or the id of a block of some hundred tokens. Kept here: only whole
blocks are cached, so that a last block that the lengths of the trace show to be partial is left
out; and one token of each prompt is left to compute, which lies behind the whole blocks where the
lengths say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from radix.groups import Group, Rule, rule_of
from radix.options import OptionError
from radix.replay.chains import Chains
from radix.replay.models import Model
from radix.replay.traces import Int32Array, Int64Array, Trace

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """What all replays of one model over one trace share.

    A cache entry is `entry_tokens` tokens, a page `page_entries` entries; a hit ends at a multiple
    of `align_pages`. Of request i the first `whole[i]` entries of its prompt are looked up, of
    which `left[i]` never count as hit. `odd_lengths` counts requests whose length does not fit
    their blocks: all of these count as whole.
    """

    trace: Trace
    chains: Chains
    model: Model
    groups: tuple[Group, ...]
    rules: tuple[Rule, ...]
    entry_tokens: int
    page_entries: int
    align_pages: int
    whole: Int64Array
    left: Int64Array
    odd_lengths: int

    @property
    def page_tokens(self) -> int:
        """Tokens a page. Cost: O(1)."""
        return self.entry_tokens * self.page_entries

    @property
    def lengths(self) -> Int64Array:
        """Tokens of each prompt, as the trace tells them or in whole blocks. Cost: the requests."""
        counted = np.diff(self.trace.offsets) * self.entry_tokens
        return np.where(self.trace.lengths > 0, self.trace.lengths, counted)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts. Cost: the requests."""
        return int(self.lengths.sum())

    def requests(self) -> Iterator[tuple[Int32Array, Int32Array, int]]:
        """Yield of each request the entries to look up, those computed when it ends, and how many
        of the first never count as hit. Cost: O(1), or the entries where there is an output.
        """
        counts = zip(self.whole.tolist(), self.left.tolist(), strict=True)
        pairs = zip(self.trace.prompts(), self.trace.turns(), strict=True)
        for (prompt, turn), (whole, left) in zip(pairs, counts, strict=True):
            known = prompt[:whole]
            yield known, turn if len(turn) > len(prompt) else known, left


def fit(trace: Trace, chains: Chains, model: Model, block_tokens: int) -> ModelTrace:
    """Put a trace and a model together; neither is changed. Cost: the requests.

    Args:
        trace: the prompts; each id of a block trace stands for `block_tokens` tokens.
        chains: the same trace's blocks.
        model: whose groups are to be cached.
        block_tokens: tokens a block, of a block trace.

    Raises:
        OptionError: the model's blocks do not fit the page.
    """
    entry = block_tokens if trace.unit == "block" else 1
    page = trace.page_tokens
    try:
        groups = model.groups(page * entry, entry)
        rules = tuple(rule_of(group, page) for group in groups)
    except ValueError as error:
        raise OptionError("--model", str(error)) from None
    counts, lengths = np.diff(trace.offsets), trace.lengths
    whole, odd = counts, 0
    if trace.unit == "block":
        told, fitting = lengths > 0, lengths // entry
        whole = np.where(told & (fitting == counts - 1), fitting, counts)
        odd = int((told & (fitting != counts) & (fitting != counts - 1)).sum())
    # Where the prompt goes on behind its whole blocks, a token of it is left anyhow.
    left = (lengths <= whole * entry).astype(np.int64)
    return ModelTrace(
        trace=trace,
        chains=chains,
        model=model,
        groups=groups,
        rules=rules,
        entry_tokens=entry,
        page_entries=page,
        align_pages=math.lcm(*(rule.block_pages for rule in rules)),
        whole=whole,
        left=left,
        odd_lengths=odd,
    )
