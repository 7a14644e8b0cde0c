"""What the option dictionaries of all adapters have in common: which keys are ours, which the
engine's, what other backends call the same thing, and what a value must be. Refused whole, naming
what is known, so that a misspelt limit never becomes a default. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any


def chosen(
    kind: type,
    given: Mapping[str, Any],
    where: str,
    *,
    engine: Sequence[str],
    elsewhere: Mapping[str, str],
    needed: Iterable[str],
) -> dict[str, Any]:
    """The entries of ``given`` that are fields of the dataclass ``kind``.

    ``where``: what the user wrote them into; ``engine``: keys of the same dictionary that the
    engine reads; ``elsewhere``: other backends' names of ours. Raises ``ValueError`` for a key that
    is neither ours nor the engine's, naming what is known, and where a ``needed`` one is missing.
    """
    names = [field.name for field in fields(kind)]
    unknown = sorted(set(given) - {*names, *engine})
    if unknown:
        hints = [f"{key} is {elsewhere[key]} here" for key in unknown if key in elsewhere]
        raise ValueError(
            f"{where} has unknown keys {', '.join(unknown)}"
            f"{''.join('; ' + hint for hint in hints)}; known are {', '.join(names)} and the "
            f"engine's {', '.join(engine)}"
        )
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(f"{where} needs {' and '.join(missing)}, of {', '.join(names)}")
    return {name: given[name] for name in names if name in given}


def text(name: str, value: object, *, empty: bool = True) -> None:
    """Raises ``TypeError`` for what is no text, ``ValueError`` for an empty one that may not be."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    if not value and not empty:
        raise ValueError(f"{name} must not be empty")


def secret_in(path: str | None) -> bytes | None:
    """What a file holds, without the blanks at its ends. ``OSError`` where it cannot be read."""
    return None if path is None else Path(path).expanduser().read_bytes().strip()


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raises ``ValueError`` for a value that is not one of those known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def share(name: str, value: object) -> None:
    """Raises ``TypeError`` for what is no number, ``ValueError`` for one outside of 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number from 0 to 1, not {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, not {value}")
