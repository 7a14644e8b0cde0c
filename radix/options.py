"""What people type, on a command line or in a file: the error that refuses an option by name, and
sizes of bytes. Sizes that are accepted are exact: worked out in integers, never in floating point.
"""

from __future__ import annotations

import re
from fractions import Fraction

from radix.errors import CacheError

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,12})?) ?(B|[kK]B|[MGTP]B|[KMGTP]iB)?")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class OptionError(CacheError, ValueError):
    """An option that cannot be used; `str()` is one line that names it and says why."""

    def __init__(self, option: str, what: str) -> None:
        super().__init__(f"{option}: {what}")
        self.option = option
        self.what = what


def size_of(text: str) -> Fraction | None:
    """Return the bytes of a size such as 4GiB, 1.5 MB or 4096; None for what is no size.

    Units with an i are powers of 1024, those without powers of 1000.

    >>> [str(size_of(text)) for text in ("2KiB", "1.5 MB", "4096", "2 K")]
    ['2048', '1500000', '4096', 'None']
    """
    size = _SIZE.fullmatch(text.strip())
    return None if size is None else Fraction(size[1]) * _unit_bytes(size[2] or "B")


def _unit_bytes(unit: str) -> int:
    base = 1024 if "i" in unit else 1000
    return int(base ** (1 + "KMGTP".index(unit[0].upper()) if len(unit) > 1 else 0))


def size_text(count_bytes: float) -> str:
    """Return bytes as people read them, to four digits.

    >>> [size_text(count) for count in (0, 1536, 1 << 30, 30 * 2**40 + 2**39)]
    ['0 B', '1.5 KiB', '1 GiB', '30.5 TiB']
    """
    value, unit = float(count_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.4g} {_UNITS[unit]}"
