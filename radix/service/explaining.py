"""How far a prompt, or keys, would reach in a service that runs, and why no further: for a client
in its own namespace (EXPLAIN), for who runs the service in every namespace that could be meant, so
that a miss for another revision, tenant or kind of block shows. Changes and counts nothing. Called
by the thread that owns the stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radix.groups import Rule
from radix.keys import Namespace, page_keys
from radix.keysets import Mask
from radix.service.choosing import Chosen, owners_of
from radix.service.hosting import Hosted
from radix.service.reach import first_gap, joint_pages
from radix.service.reporting import name_of
from radix.tier import Keys, TierMode
from radix.tree import NO_SLOT

MOST = 20
_LEAVE = 1  # the last token is computed in any case


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as tokens (int32), or keys as they are; one of the two is None."""

    tokens: Any | None
    keys: Keys | None


@dataclass(frozen=True, slots=True)
class Reach:
    """What one namespace has of what was asked. ``hit``: pages, or keys, from the first on that a
    request could use, ``pool`` of them without loading; ``there``: by group, of ``asked``, wherever
    they stand; ``reason``: of the first that is missing, empty where none is.
    """

    store: str
    model: str
    revision: str
    adapter: str
    tenant: str
    asked: int
    hit: int
    pool: int
    there: dict[str, int]
    reason: str


def explain_stores(stores: Iterable[Hosted], asked: Asked, chosen: Chosen) -> list[Reach]:
    """The namespaces that have most of it, at most 20, the farthest reach first. Cost: the pages in
    each namespace that is meant.
    """
    found = [reach for hosted in stores for reach in _in_store(hosted, asked, chosen)]
    found.sort(key=lambda reach: (-reach.hit, -sum(reach.there.values())))
    return found[:MOST]


def _in_store(hosted: Hosted, asked: Asked, chosen: Chosen) -> Iterator[Reach]:
    flat, signature = hosted.flat, hosted.signature
    if asked.tokens is not None and not signature.page_tokens:
        return  # its keys are made by its clients: give those
    if asked.keys is not None and asked.keys.shape[1] != signature.key_bytes:
        return
    for root, canonical in flat.namespaces().items():
        if not chosen.means(canonical):
            continue
        keys, most = asked.keys, 0 if asked.keys is None else len(asked.keys)
        if asked.tokens is not None:
            keys = page_keys(flat.residency.root_keys[root], asked.tokens, signature.page_tokens)
            most = max(0, len(asked.tokens) - _LEAVE) // signature.page_tokens
        assert keys is not None  # one of the two is given
        yield _reach(hosted, root, Namespace.parse(canonical), keys, most)


def _reach(hosted: Hosted, root: int, name: Namespace, keys: Keys, most: int) -> Reach:
    found = why_no_further(hosted, root, keys, most)
    return Reach(
        store=name_of(hosted),
        model=name.model,
        revision=name.revision,
        adapter=name.adapter,
        tenant=owners_of(name.salt)[0],
        asked=len(keys),
        hit=found.hit,
        pool=found.pool,
        there=found.there,
        reason=found.reason,
    )


@dataclass(frozen=True, slots=True)
class Far:
    """How far keys reach in one namespace: as of ``Reach``; ``tiers``: of the blocks that a hit of
    ``hit`` pages may need, by the first readable tier that has them.
    """

    hit: int
    pool: int
    there: dict[str, int]
    tiers: dict[str, int]
    reason: str


def why_no_further(hosted: Hosted, root: int, keys: Keys, most: int) -> Far:
    """How far the keys reach, at most ``most`` of them, and why no further. Changes nothing.

    Cost: the keys x the groups.
    """
    flat, rules = hosted.flat, hosted.signature.rules
    core = flat.residency.core(root)
    nodes = core.find(keys)
    tiers = [flat.residency.where(core, nodes, group) for group in range(len(flat.groups))]
    there: list[Mask] = [found >= 0 for found in tiers]
    hit = _far(there, rules, most)
    counts = np.bincount(
        np.concatenate([found[:hit] for found in tiers]) + 1, minlength=len(flat.tiers) + 1
    ).tolist()
    named = zip(flat.tiers, counts[1:], strict=True)
    return Far(
        hit=hit,
        pool=_far([found == 0 for found in tiers], rules, most),
        there={group.name: int(row.sum()) for group, row in zip(flat.groups, there, strict=True)},
        tiers={tier.name: count for tier, count in named if count},
        reason=_reason(hosted, root, keys, there, hit, most),
    )


def _far(there: list[Mask], rules: Sequence[Rule], most: int) -> int:
    if rules:
        return joint_pages(there, rules, most)
    return min(most, *map(first_gap, there))


def _reason(hosted: Hosted, root: int, keys: Keys, there: list[Mask], hit: int, most: int) -> str:
    """Of the first block that is missing; where none is, of what a group needs before it."""
    if hit >= most:
        return "below one page" if len(keys) > most or not len(keys) else ""
    flat, rules = hosted.flat, hosted.signature.rules
    limiting = [g for g in range(len(there)) if not rules or rules[g].lookup]
    whole = [group for group in limiting if not rules or rules[group].everywhere]
    gaps = [group for group in whole if not there[group][hit]]
    anything = np.logical_or.reduce([there[group] for group in limiting])
    gaps = gaps or ([] if anything[hit:most].any() else limiting[:1])
    if gaps:
        reasons = flat.residency.why_absent(root, keys[hit : hit + 1], gaps[0])
        return next(iter(reasons), "cold")
    off = [number for number, tier in enumerate(flat.tiers) if tier.mode is TierMode.OFF]
    if off and _far(_with(hosted, root, keys, there, off), rules, most) > hit:
        return "tier out"
    others = [group for group in limiting if group in whole or rules[group].per_position]
    without = _far([there[group] for group in others], [rules[group] for group in others], most)
    return "window gap" if not others or without > hit else "no checkpoint"


def _with(
    hosted: Hosted, root: int, keys: Keys, there: list[Mask], off: Sequence[int]
) -> list[Mask]:
    """What would be there if these tiers were on, too."""
    flat = hosted.flat
    core = flat.residency.core(root)
    nodes, found = core.find(keys), [row.copy() for row in there]
    for group, row in enumerate(found):
        for number in off:
            row |= core.slots(nodes, flat.tree.column(group, number)) != NO_SLOT
    return found
