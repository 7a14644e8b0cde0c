"""How far a prompt, or keys, would reach in a directory of the disk tier that is read without its
owner. A directory does not say why something is not there: it was never stored, or has gone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix.groups import Rule, rule_of
from radix.keys import Namespace, page_keys, root_key
from radix.keysets import Mask
from radix.service.choosing import Chosen, owners_of
from radix.service.explaining import MOST, Asked, Reach
from radix.service.reach import first_gap, joint_pages
from radix.tier import Keys
from tiers.format import HAS_PAGES
from tiers.inspection import DiskReader

ABSENT = "not on this disk: never stored, or gone since"


def explain_disk(directory: Path, asked: Asked, chosen: Chosen) -> list[Reach]:
    """The namespaces of a directory that have most of it, at most 20. Changes nothing. Cost: the
    index once, and the pages in each namespace that is meant.

    Raises ``TierUnavailableError`` for a directory that cannot be read.
    """
    with DiskReader(directory) as reader:
        page_tokens = _page_tokens(directory, reader)
        wanted = {
            number: keys
            for number, canonical in reader.namespaces().items()
            if chosen.means(canonical)
            and (keys := _keys_in(canonical, asked, page_tokens)) is not None
        }
        names = reader.namespaces()
        described = reader.description.groups if reader.description is not None else ()
        there = _there(reader, wanted, max(1, len(described)))
    rules = tuple(rule_of(group, page_tokens) for group in described) if page_tokens else ()
    labels = [group.name for group in described] or ["group 0"]
    most = 0
    if asked.tokens is not None and page_tokens:
        most = max(0, len(asked.tokens) - 1) // page_tokens
    found = [
        _reach(directory, names[number], labels, there[number], rules, most) for number in wanted
    ]
    found.sort(key=lambda reach: (-reach.hit, -sum(reach.there.values())))
    return found[:MOST]


def _page_tokens(directory: Path, reader: DiskReader) -> int:
    """Tokens a page, 0 where its keys are made by engines: of a service its signature says so, of
    an embedded cache the pages themselves.
    """
    signature = directory.parent / "signature"
    if signature.is_file():
        return int(signature.read_text().split(";")[2])
    for rows, _ in reader.records():
        if len(rows) and reader.description is not None:
            return reader.description.page_bytes // 4 if rows["flags"][0] & HAS_PAGES else 0
    return 0


def _keys_in(canonical: bytes, asked: Asked, page_tokens: int) -> Keys | None:
    if asked.keys is not None:
        return asked.keys
    if not page_tokens or asked.tokens is None:
        return None
    return page_keys(root_key(canonical), asked.tokens, page_tokens)


def _there(reader: DiskReader, wanted: dict[int, Keys], groups: int) -> dict[int, list[Mask]]:
    """By namespace and group, which of the keys have a record."""
    places = {
        number: {key.tobytes(): at for at, key in enumerate(keys)}
        for number, keys in wanted.items()
    }
    there = {
        number: [np.zeros(len(keys), np.bool_) for _ in range(groups)]
        for number, keys in wanted.items()
    }
    for rows, _ in reader.records() if wanted else ():
        mine = rows[np.isin(rows["namespace"], list(wanted)) & (rows["epoch"] == reader.epoch)]
        columns = (mine["namespace"].tolist(), mine["group"].tolist(), mine["key_bytes"].tolist())
        for number, group, width, key in zip(*columns, mine["key"], strict=True):
            at = places[number].get(key[:width].tobytes())
            if at is not None and group < groups:
                there[number][group][at] = True
    return there


def _reach(
    directory: Path,
    canonical: bytes,
    labels: list[str],
    there: list[Mask],
    rules: tuple[Rule, ...],
    most: int,
) -> Reach:
    name = Namespace.parse(canonical)
    asked = len(there[0])
    hit = joint_pages(there, rules, most) if rules else min(map(first_gap, there))
    whole = hit >= (most if rules else asked)
    return Reach(
        store=str(directory),
        model=name.model,
        revision=name.revision,
        adapter=name.adapter,
        tenant=owners_of(name.salt)[0],
        asked=asked,
        hit=hit,
        pool=0,
        there={label: int(row.sum()) for label, row in zip(labels, there, strict=True)},
        reason="" if whole else ABSENT,
    )
