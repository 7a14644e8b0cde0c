"""Where a replay keeps snapshots and windows: the policies of `--checkpoints`.

A policy is a sum of terms, each of which names places on a request's path. Kept here: places are
pages from the root, ascending, each once, behind the hit, and only where every group of the model
may be hit; a policy is refused by name before any work.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from radix.options import OptionError
from radix.replay.traces import Int64Array

OPTION = "--checkpoints"
TERMS = ("branch", "turn", "dense", "every=N")
_EVERY = re.compile(r"every=([0-9]{1,12})")
_KNOWN = f"terms are {', '.join(TERMS)}, joined by +, such as branch+turn"


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """A policy as typed. `every_tokens` is 0 where none of its terms is every=N."""

    text: str
    branch: bool
    turn: bool
    dense: bool
    every_tokens: int

    def placed(self, page_tokens: int, align_pages: int) -> Places:
        """Return the policy over pages of `page_tokens` tokens, hits at multiples of `align_pages`.

        Raises:
            OptionError: every=N is no multiple of the page.
        """
        if self.every_tokens % page_tokens:
            what = f"every={self.every_tokens} is no multiple of the page of {page_tokens} tokens"
            raise OptionError(OPTION, what)
        step = align_pages if self.dense else 0
        if self.every_tokens and not self.dense:
            step = math.lcm(self.every_tokens // page_tokens, align_pages)
        return Places(self, align_pages, step)


@dataclass(frozen=True, slots=True)
class Places:
    """A policy in pages. `step_pages`: of its places at fixed distances, 0 where it has none."""

    policy: CheckpointPolicy
    align_pages: int
    step_pages: int

    def between(self, hit_pages: int, known_pages: int, end_pages: int) -> Int64Array:
        """Return the places of one request, in pages. Cost: the places.

        Args:
            hit_pages: where its joint hit ends; all places lie behind it.
            known_pages: the prefix of it that is known without regard to snapshots and windows.
            end_pages: whole pages of its prompt and output.

        >>> parse_checkpoints("branch+turn")[0].placed(16, 1).between(2, 5, 9).tolist()
        [5, 9]
        """
        single = []
        if self.policy.branch:
            single.append(known_pages // self.align_pages * self.align_pages)
        if self.policy.turn:
            single.append(end_pages // self.align_pages * self.align_pages)
        places = np.array([place for place in single if place > hit_pages], np.int64)
        if self.step_pages:
            first = (hit_pages // self.step_pages + 1) * self.step_pages
            grid = np.arange(first, end_pages + 1, self.step_pages, dtype=np.int64)
            places = np.concatenate((places, grid))
        return np.unique(places) if len(places) > 1 else places


def parse_checkpoints(text: str) -> tuple[CheckpointPolicy, ...]:
    """Parse "branch+turn,dense,every=2048" into policies, in the order given.

    Raises:
        OptionError: a term is unknown or stands twice, or a policy stands twice.
    """
    policies = tuple(_policy(part.strip()) for part in text.split(","))
    if len({replace(policy, text="") for policy in policies}) < len(policies):
        raise OptionError(OPTION, f"a policy stands twice in {text!r}")
    return policies


def _policy(text: str) -> CheckpointPolicy:
    terms = [term.strip() for term in text.split("+")]
    every = 0
    for term in terms:
        found = _EVERY.fullmatch(term)
        if found is not None:
            every = int(found[1])
            if every < 1:
                raise OptionError(OPTION, f"{text!r}: every=N takes N of at least 1")
        elif term not in TERMS[:3]:
            raise OptionError(OPTION, f"unknown policy {text!r}; {_KNOWN}")
    names = [term.partition("=")[0] for term in terms]
    if len(set(names)) < len(names):
        raise OptionError(OPTION, f"a term stands twice in {text!r}")
    return CheckpointPolicy(text, "branch" in names, "turn" in names, "dense" in names, every)
