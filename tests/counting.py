"""What a call costs, counted so that no other process disturbs it: Python functions and memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType


def calls_of(work: Callable[[], object]) -> int:
    """Python functions that it calls, and turns of generators."""
    count = 0

    def seen(frame: FrameType, what: str, argument: object) -> None:
        nonlocal count
        count += what == "call"

    gc.collect()
    gc.disable()  # what others left behind may be told of its end
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def memory_of(work: Callable[[], object]) -> int:
    """The most bytes that it takes beside what was there: lists and arrays that C makes count."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
