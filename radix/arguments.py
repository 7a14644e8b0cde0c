"""What callers hand in, checked once at the boundary: a bad argument is a ``ValueError`` or
``TypeError`` that names it and what was expected, raised before anything has changed (C13, C24).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from radix.errors import UnsupportedError
from radix.groups import Group, Rule
from radix.keys import Tokens, as_tokens, check_range
from radix.tier import Slots, Tier

_INT32 = np.dtype(np.int32)  # one object for all arrays but those of exotic origin
_ARRAY = np.ndarray
MOST_PAGE_TOKENS = 65536
MOST_COLUMNS = 64  # RDX_MAX_COLUMNS
MOST_SECONDS = 1e6  # eleven days: every clock takes them, in milliseconds and in nanoseconds


def int32(tokens: object) -> Tokens:
    """Token ids as a contiguous int32 array; int32 arrays pass unseen, others as ``as_tokens``."""
    if type(tokens) is _ARRAY and tokens.dtype is _INT32 and tokens.ndim == 1:
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


def seconds_of(name: str, value: object) -> float:
    """A time to wait: a negative one is over at once, an endless one takes ``MOST_SECONDS``."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if value != value:
        raise ValueError(f"{name} must be a number of seconds, not {value}")
    return MOST_SECONDS if value > MOST_SECONDS else max(0.0, float(value))


def patience_of(name: str, value: object) -> float:
    """As ``seconds_of``, and above 0: what must be answered at once never is."""
    seconds = seconds_of(name, value)
    if not seconds:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value}")
    return seconds


def number_below(name: str, value: object, most: int) -> int:
    """A number in [0, ``most``); ``TypeError`` or ``ValueError`` names it."""
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise ValueError(f"{name} is {value}, expected 0 to {most - 1}")
    number = count_of(name, value)
    if number >= most:
        raise ValueError(f"{name} is {value}, expected 0 to {most - 1}")
    return number


def page_tokens_of(value: object) -> int:
    """Tokens a page: 1 to 65536."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"page_tokens must be an int, not {type(value).__name__}")
    if not 1 <= value <= MOST_PAGE_TOKENS:
        raise ValueError(f"page_tokens must be 1 to {MOST_PAGE_TOKENS}, not {value}")
    return value


def rows_of(name: str, rows: Sequence[object], rules: Sequence[Rule]) -> list[Slots]:
    """The engine's slots, one int32 row a group; -1 for none where not every block is needed."""
    if len(rows) != len(rules):
        raise ValueError(f"{name}: {len(rows)} rows, expected one for each of {len(rules)} groups")
    return [
        slots_of(f"{name}[{group}]", row, 0 if rule.everywhere and rule.block_pages == 1 else -1)
        for group, (row, rule) in enumerate(zip(rows, rules, strict=True))
    ]


def slots_of(name: str, row: object, least: int = 0) -> Slots:
    """A row of slot numbers from ``least`` on, int32."""
    array = np.asarray(row)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    if array.size and not least <= int(array.min()) <= int(array.max()) < 1 << 31:
        raise ValueError(f"{name} must hold slots from {least} on, not {int(array.min())}")
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
        rule = group.retention.rule
        if not group.lookup and rule != "scratch":
            raise UnsupportedError(
                f"group {group.name!r}: a group without lookup is not in this version"
            )
        if group.per_sequence and rule != "state":
            raise UnsupportedError(
                f"group {group.name!r}: one block a sequence with retention {rule!r} is not in "
                "this version"
            )
        blocks = group.grid_tokens not in (None, page_tokens)
        if group.lookahead and (blocks or rule not in ("full", "window")):
            raise UnsupportedError(
                f"group {group.name!r}: lookahead with retention {rule!r} and blocks of "
                f"{group.grid_tokens or page_tokens} tokens is not in this version"
            )
    if all(group.retention.rule == "scratch" for group in groups):
        raise ValueError("groups: none of them is ever cached")


def at_least_one(name: str, value: object) -> int:
    """``value`` as a count of at least 1; ``TypeError`` or ``ValueError`` names it."""
    count = count_of(name, value)
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {count}")
    return count


def numbers_of(name: str, values: Sequence[object]) -> list[int]:
    """A sequence of counts; ``TypeError`` or ``ValueError`` names the one that is none."""
    return [count_of(f"{name}[{index}]", value) for index, value in enumerate(values)]


def boundaries_of(values: Sequence[object], tokens: int) -> list[int]:
    """Lengths inside a prompt of ``tokens`` tokens."""
    found = numbers_of("boundaries", values)
    for value in found:
        if not 0 < value <= tokens:
            raise ValueError(f"boundaries: {value} is not in the prompt of {tokens} tokens")
    return found
