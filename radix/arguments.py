"""What callers hand in, checked once at the boundary: a bad argument is a ``ValueError`` or
``TypeError`` that names it and what was expected, raised before anything has changed (C13, C24).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from radix.errors import UnsupportedError
from radix.groups import Group
from radix.keys import Tokens, as_tokens, check_range
from radix.tier import Slots, Tier

_INT32 = np.dtype(np.int32)  # one object for all arrays but those of exotic origin
MOST_PAGE_TOKENS = 65536
MOST_COLUMNS = 64  # RDX_MAX_COLUMNS


def int32(tokens: object) -> Tokens:
    """Token ids as a contiguous int32 array; int32 arrays pass unseen, others as ``as_tokens``."""
    if isinstance(tokens, np.ndarray) and tokens.dtype is _INT32 and tokens.ndim == 1:
        return tokens if tokens.flags.c_contiguous else np.ascontiguousarray(tokens)
    return as_tokens(tokens)


def storable(tokens: object) -> Tokens:
    """Token ids that may be stored: every id is in [0, 2^31). Cost: the ids."""
    run = int32(tokens)
    if len(run) and int(run.min()) < 0:
        check_range(run)
    return run


def prompt_of(tokens: object) -> Tokens:
    """A prompt: storable tokens, at least one."""
    run = storable(tokens)
    if not len(run):
        raise ValueError("tokens: an empty prompt, expected at least one token")
    return run


def count_of(name: str, value: object) -> int:
    """An integer that is not negative."""
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, bool | float | str) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, not {number}")
    return number


def page_tokens_of(value: object) -> int:
    """Tokens a page: 1 to 65536."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"page_tokens must be an int, not {type(value).__name__}")
    if not 1 <= value <= MOST_PAGE_TOKENS:
        raise ValueError(f"page_tokens must be 1 to {MOST_PAGE_TOKENS}, not {value}")
    return value


def rows_of(name: str, rows: Sequence[object], groups: int) -> list[Slots]:
    """The engine's slots, one int32 row a group."""
    result = [slots_of(f"{name}[{group}]", row) for group, row in enumerate(rows)]
    if len(result) != groups:
        raise ValueError(f"{name}: {len(result)} rows, expected one for each of {groups} groups")
    return result


def slots_of(name: str, row: object) -> Slots:
    """A row of slot numbers, int32."""
    array = np.asarray(row)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 31:
        raise ValueError(f"{name} must hold slots from 0 on, not {int(array.min())}")
    return np.ascontiguousarray(array, np.int32)


def tiers_of(tiers: Sequence[Tier]) -> tuple[Tier, ...]:
    """The tiers, at least one, each with a name of its own."""
    result = tuple(tiers)
    if not result:
        raise ValueError("tiers must not be empty")
    for tier in result:
        if not isinstance(tier, Tier):
            raise TypeError(f"tiers must hold tiers, not {type(tier).__name__}")
    names = [tier.name for tier in result]
    if len(set(names)) != len(names):
        raise ValueError(f"two tiers of one name in {names}")
    return result


def check_supported(groups: tuple[Group, ...], tiers: int, page_tokens: int) -> None:
    """``UnsupportedError`` naming what this version only describes."""
    if len(groups) * tiers > MOST_COLUMNS:
        raise UnsupportedError(
            f"{len(groups)} groups over {tiers} tiers: at most {MOST_COLUMNS} pairs of the two"
        )
    for group in groups:
        if group.retention.rule != "full" or group.per_sequence or group.lookahead:
            raise UnsupportedError(
                f"group {group.name!r}: retention {group.retention.rule!r} is not in this version"
            )
        if not group.lookup:
            raise UnsupportedError(
                f"group {group.name!r}: a group without lookup is not in this version"
            )
        if group.grid_tokens not in (None, page_tokens):
            raise UnsupportedError(
                f"group {group.name!r}: blocks of {group.grid_tokens} tokens over pages of "
                f"{page_tokens} are not in this version"
            )
        if group.layout.store_shards != 1:
            raise UnsupportedError(f"group {group.name!r}: sharded blocks are not in this version")
