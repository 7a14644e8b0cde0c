"""What a disk tier says about its blocks, so that whoever reads the directory without its owner can
tell one group's blocks from another's and check each part of them. It decides nothing: the
fingerprint alone says whether blocks may be used. Keeps no invariant of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radix.groups import Group, Retention
from radix.layout import Layout, Part

_MARK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Description:
    """Groups in the order of their numbers, the bytes of a page, the owner's limit, and the
    fingerprint of the tables that it is about.
    """

    fingerprint: bytes
    groups: tuple[Group, ...]
    page_bytes: int
    limit_bytes: int


def write_description(
    fingerprint: bytes, groups: Sequence[Group], page_bytes: int, limit_bytes: int
) -> bytes:
    """The description as bytes. Cost: the parts."""
    told = {
        "page_bytes": page_bytes,
        "limit_bytes": limit_bytes,
        "groups": [
            {
                "name": group.name,
                "retention": group.retention.rule,
                "tokens": group.retention.tokens,
                "grid_tokens": group.grid_tokens,
                "per_sequence": group.per_sequence,
                "store_shards": group.layout.store_shards,
                "parts": [
                    {
                        "name": part.name,
                        "dtype": part.dtype,
                        "axes": part.axes,
                        "shard_axis": part.shard_axis,
                        "distinct_shards": part.distinct_shards,
                        "first_layer": part.first_layer,
                    }
                    for part in group.layout.parts
                ],
            }
            for group in groups
        ],
    }
    return fingerprint + json.dumps(told, separators=(",", ":")).encode()


def read_description(text: bytes) -> Description | None:
    """The description that ``write_description`` made; None for bytes that are none."""
    try:
        told = json.loads(text[_MARK_BYTES:])
        return Description(
            fingerprint=text[:_MARK_BYTES],
            groups=tuple(_group(entry) for entry in told["groups"]),
            page_bytes=int(told["page_bytes"]),
            limit_bytes=int(told["limit_bytes"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _group(entry: Any) -> Group:
    parts = tuple(
        Part(
            name=part["name"],
            dtype=part["dtype"],
            axes=tuple((str(axis), int(size)) for axis, size in part["axes"]),
            shard_axis=part["shard_axis"],
            distinct_shards=part["distinct_shards"],
            first_layer=part["first_layer"],
        )
        for part in entry["parts"]
    )
    return Group(
        name=entry["name"],
        layout=Layout(parts, entry["store_shards"]),
        retention=Retention(entry["retention"], entry["tokens"]),
        grid_tokens=entry["grid_tokens"],
        per_sequence=entry["per_sequence"],
    )
