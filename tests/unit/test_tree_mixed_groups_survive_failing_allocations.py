"""A call that fails for want of memory leaves a tree of windows, chunks and snapshots as it was,
and works at the next try.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from radix._native import lib
from radix.tree import NO_SLOT
from tests.treerig import Rig, chunked, full, state, window

T = TypeVar("T")
PROMPT = list(range(40))


def through(rig: Rig, call: Callable[..., T], *arguments: object) -> tuple[T, int]:
    """Makes a call with the first, second, ... allocation failing; its result, and the failures."""
    before = rig.everything()
    for nth in range(1, 99):
        lib.rdx_alloc_fail_at(nth)
        try:
            return call(*arguments), nth - 1
        except MemoryError:
            lib.rdx_alloc_fail_at(0)
            assert rig.everything() == before
        finally:
            lib.rdx_alloc_fail_at(0)
    raise AssertionError("it never worked")


def row(rng: random.Random, odds: float) -> list[int]:
    """Slots for every page of the prompt, with gaps."""
    return [k + 1 if rng.random() < odds else NO_SLOT for k in range(len(PROMPT))]


@pytest.mark.parametrize("seed", range(8))
def test_a_failed_call_leaves_everything(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(full(), window(5), chunked(6, 2), state(), full(2))
    columns = np.array(rig.columns, np.uint32)
    failures = 0
    for turn in range(6):
        slots = np.array([row(rng, odds) for odds in (1, 0.5, 0.5, 0.2, 1)], np.int32)
        tokens = np.array([*PROMPT[: rng.randrange(40)], *range(turn * 100 + 100, 9999)], np.int32)
        tokens = tokens[:40]
        tree = rig.tree
        (lease, node, pages), failed = through(rig, tree.lease, rig.start)
        failures += failed
        at = rig.start._replace(node=node, pages=pages)
        failures += through(rig, tree.insert, at, tokens, columns, slots, None, lease)[1]
        end = tree.lease_end(rig.root, lease)
        more = np.array(row(rng, 0.3), np.int32)
        column, first = rng.randrange(1, 4), rng.randrange(30)
        failures += through(rig, tree.attach, end, column, 0, more)[1]
        failures += through(rig, tree.drop_span, end, column, first, 5)[1]
        failures += through(rig, tree.drop, end, 1, first)[1]
        failures += through(rig, tree.move, lease, end._replace(pages=rng.randrange(40)))[1]
        failures += through(rig, tree.forget, end, 1, 20, np.empty(40, np.int32), None)[1]
        rig.tree.release(lease, stamp=bool(turn % 2))
        rig.tree.check(device=False)
    assert failures > 3, f"seed {seed}"


def test_what_frees_needs_no_memory() -> None:
    rig = Rig(full(), window(5), state())
    rig.put(PROMPT, {0: range(40), 1: range(40), 2: [9, 39]})
    lease = rig.lease(PROMPT)
    rig.tree.narrow(lease, 0)
    slots = np.empty(7, np.int32)
    for call in (
        lambda: rig.match(PROMPT),
        lambda: rig.tree.release(lease),
        lambda: rig.tree.touch(rig.find(PROMPT[:20])),
        lambda: rig.tree.evict(1, slots),
        lambda: rig.tree.evict(2, slots[:1]),
    ):
        lib.rdx_alloc_fail_at(1)
        try:
            call()
        finally:
            lib.rdx_alloc_fail_at(0)
    rig.tree.check(device=False)
