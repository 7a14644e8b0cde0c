"""What the requests of a trace would have said at their ends: when the next one of their
conversation came, or that none did. An engine knows that of tool calls and of sessions that are
closed, and is wrong at times, so that hints can be made as wrong as is wanted.

Kept here: the same trace and error give the same hints on every machine; a request never hears of
another conversation but by an error.
"""

from __future__ import annotations

import math
import random

import numpy as np

from radix.hints import MOST_SECONDS, Hints
from radix.options import OptionError
from radix.replay.traces import Trace

THINK = "think"
# What the shape of the errors is drawn from; another one would make other tables.
_SEED = 0


def tick_s(trace: Trace) -> float:
    """Return the seconds that one unit of the trace's timestamps stands for."""
    return 1.0 if trace.block_tokens else 1e-3


def returns_of(trace: Trace) -> list[float | None]:
    """Return for each request the seconds until the next one of its conversation; None: the last.

    Cost: O(requests).

    Raises:
        OptionError: the trace names no conversations.
    """
    if not len(trace.streams) or int(np.min(trace.streams)) < 0:
        raise OptionError("--hints", f"{trace.name} does not say which session a request is of")
    found: list[float | None] = [None] * len(trace)
    coming: dict[int, float] = {}
    times = (trace.timestamps * tick_s(trace)).tolist()
    for number in range(len(trace) - 1, -1, -1):
        stream = int(trace.streams[number])
        if stream in coming:
            found[number] = min(max(0.0, coming[stream] - times[number]), MOST_SECONDS)
        coming[stream] = times[number]
    return found


def hints_of(trace: Trace, error: float = 0.0) -> list[Hints]:
    """Return what each request says at its end. Cost: O(requests).

    Args:
        trace: whose requests name conversations.
        error: 0: all is true. That share of the requests says what is true of another one, drawn at
            random, and all times are off by a factor e^x, x normal with this deviation.

    Raises:
        OptionError: the trace names no conversations.
    """
    true, draw = returns_of(trace), random.Random(_SEED).random
    said: list[Hints] = []
    for own in true:
        seconds = own
        if error and draw() < error:
            seconds = true[int(draw() * len(true))]
        if error and seconds is not None:
            # Box and Muller: of Python's generator only random() is promised for ever.
            normal = math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
            seconds = min(seconds * math.exp(error * normal), MOST_SECONDS)
        said.append(Hints(ended=True) if seconds is None else Hints(expects_return=seconds))
    return said
