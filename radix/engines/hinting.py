"""What a request says to an engine for this cache: its hints, under one name in the dictionary that
the engine carries beside a request. They are read where the cache first hears of a request, which
is inside the engine's loop: what is no hint is counted, told once in the log and left out, and the
request goes on without. Keeps no invariant of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields

from radix.hints import Hints
from radix.metrics import Metrics

_LOG = logging.getLogger(__name__)
KEY = "radix_hints"
_NAMES = tuple(field.name for field in fields(Hints))


def hints_in(given: object) -> Hints:
    """The hints of a dictionary as JSON gives it: ``Hints`` by its names, null where nothing is
    said. For whoever sends them too, to be told before the engine is.

    Raises ``TypeError`` or ``ValueError`` that names what is wrong.

    >>> hints_in({"keep_for": 60, "priority": 5})
    Hints(expects_return=None, keep_for=60, priority=5, ended=False)
    """
    if not isinstance(given, Mapping):
        what = f"a dictionary of {', '.join(_NAMES)}"
        raise TypeError(f"{KEY} must be {what}, not {type(given).__name__}")
    if unknown := sorted(str(name) for name in given if name not in _NAMES):
        raise ValueError(f"{KEY} has unknown {', '.join(unknown)}; known are {', '.join(_NAMES)}")
    return Hints(**{name: value for name, value in given.items() if value is not None})


def standing(hints: Hints) -> Hints | None:
    """What of hints holds while the request runs, None where nothing does: the rest is of its end.

    >>> standing(Hints(priority=3, ended=True))
    Hints(expects_return=None, keep_for=None, priority=3, ended=False)
    """
    if hints.keep_for is None and hints.priority is None:
        return None
    return Hints(keep_for=hints.keep_for, priority=hints.priority)


class Hearing:
    """``of`` a request: its hints. ``hints.taken``, ``hints.refused`` count what came.

    ``untimed``: why seconds cannot be taken here; None where they can.
    """

    def __init__(self, metrics: Metrics, *, untimed: str | None = None) -> None:
        self._metrics = metrics
        self._untimed = untimed
        self._told = False

    def of(self, request: str, params: object) -> Hints | None:
        """What a request says in the dictionary that came with it; None where that is nothing, or
        nothing that can be taken. Never raises. Cost: O(1).
        """
        if not isinstance(params, Mapping) or params.get(KEY) is None:
            return None
        try:
            hints = hints_in(params[KEY])
            if hints.timed and self._untimed is not None:
                raise ValueError(f"{KEY} says seconds, and {self._untimed}")
        except (TypeError, ValueError) as error:
            self._refuse(request, error)
            return None
        self._metrics.add(("hints", "taken"))
        return hints

    def _refuse(self, request: str, error: Exception) -> None:
        self._metrics.add(("hints", "refused"))
        if not self._told:
            self._told = True
            _LOG.warning("%s: hints left out: %s (further ones are counted)", request, error)
