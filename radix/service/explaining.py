"""How far a prompt, or keys, would reach in a service that runs, in every namespace that could be
meant, and why no further: so that a miss for another revision, tenant or kind of block shows.
Changes nothing and counts nothing. Called by the thread that owns the stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from radix.keys import Namespace, page_keys
from radix.keysets import Mask
from radix.service.choosing import Chosen, owners_of
from radix.service.hosting import Hosted
from radix.service.reach import first_gap, joint_pages
from radix.service.reporting import name_of
from radix.tier import Keys

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
        keys, most = asked.keys, 0
        if asked.tokens is not None:
            keys = page_keys(flat.residency.root_keys[root], asked.tokens, signature.page_tokens)
            most = max(0, len(asked.tokens) - _LEAVE) // signature.page_tokens
        assert keys is not None  # one of the two is given
        yield _reach(hosted, root, Namespace.parse(canonical), keys, most)


def _reach(hosted: Hosted, root: int, name: Namespace, keys: Keys, most: int) -> Reach:
    flat, rules = hosted.flat, hosted.signature.rules
    core = flat.residency.core(root)
    nodes = core.find(keys)
    tiers = [flat.residency.where(core, nodes, group) for group in range(len(flat.groups))]
    there: list[Mask] = [found >= 0 for found in tiers]
    pool: list[Mask] = [found == 0 for found in tiers]
    if rules:
        hit, near = joint_pages(there, rules, most), joint_pages(pool, rules, most)
    else:
        hit, near = min(map(first_gap, there)), min(map(first_gap, pool))
    return Reach(
        store=name_of(hosted),
        model=name.model,
        revision=name.revision,
        adapter=name.adapter,
        tenant=owners_of(name.salt)[0],
        asked=len(keys),
        hit=hit,
        pool=near,
        there={group.name: int(row.sum()) for group, row in zip(flat.groups, there, strict=True)},
        reason=_reason(hosted, root, keys, there, hit, most if rules else len(keys)),
    )


def _reason(hosted: Hosted, root: int, keys: Keys, there: list[Mask], hit: int, most: int) -> str:
    if hit >= most:
        return "below one page" if len(keys) > most or not len(keys) else ""
    missing = ~np.logical_and.reduce(there)
    missing[:hit] = False
    first = np.flatnonzero(missing)
    if not len(first):
        return "window gap or no checkpoint"
    at = int(first[0])
    return next(iter(hosted.flat.residency.why_absent(root, keys[at : at + 1])), "cold")
