"""A request that cannot grow stays as it was: the check that it can never fit comes before anything
of it is let go. A window that it had left was given up first, and the error came then. Where it
only cannot grow now, what it let go of for that is its own again.
"""

from __future__ import annotations

import pytest

from radix.errors import CapacityError, NeverFitsError
from tests.cacherig import Rig, build
from tests.engineslots import Live
from tests.mixes import full, window

PAGE = 4


def test_a_request_that_can_never_fit_keeps_the_windows_that_it_names() -> None:
    rig = build(groups=[full(), window(PAGE + 1)], device=(12, 4))
    prefix = [7] * (2 * PAGE)
    rig.serve([*prefix, 1])
    live = rig.admit([*prefix, *[8] * (3 * PAGE)], chunk_tokens=PAGE, cacheable_upto=2 * PAGE)
    rig.until_ready(live)
    rig.compute(live, live.told + PAGE)
    rig.compute(live, live.told + PAGE)
    before = [row.tolist() for row in live.request._work.table]
    assert before[1][1] >= 0, "a page of the hit, behind its window, pinned and named as yet"
    assert rig.cache.residency.available(0, 1) == 0
    with pytest.raises(NeverFitsError):
        rig.append(live, [9] * (20 * PAGE))
    assert [row.tolist() for row in live.request._work.table] == before
    rig.cache.check()
    rig.end(live)
    rig.finish_all()


def _left_behind(rig: Rig) -> Live:
    """A request that names a page of its hit behind its window, and will share nothing more."""
    prefix = [7] * (2 * PAGE)
    rig.serve([*prefix, 1])
    live = rig.admit([*prefix, *[8] * (3 * PAGE)], chunk_tokens=PAGE, cacheable_upto=2 * PAGE)
    rig.until_ready(live)
    rig.compute(live, live.told + PAGE)
    rig.compute(live, live.told + PAGE)
    assert rig.cache.residency.available(0, 1) == 0
    return live


@pytest.mark.parametrize("older", [False, True])
def test_a_request_that_cannot_grow_now_keeps_the_windows_that_it_names(older: bool) -> None:
    rig = build(groups=[full(), window(PAGE + 1)], device=(12, 4))
    live = _left_behind(rig)
    if older:
        rig.cache.reset()  # its blocks rest in quarantine, for it alone
    held = live.request._work.held[1]
    before = [row.tolist() for row in live.request._work.table], held.spare[:]
    assert before[0][1][1] >= 0, "a page of the hit, behind its window, pinned and named as yet"
    room = [rig.cache.residency.available(0, group) for group in (0, 1)]
    taken = rig.cache.residency.reserve(0, 0, room[0])  # somebody else has the rest
    with pytest.raises(CapacityError):
        rig.append(live, [9] * PAGE)
    assert ([row.tolist() for row in live.request._work.table], held.spare) == before
    assert [rig.cache.residency.available(0, group) for group in (0, 1)] == [0, room[1]]
    rig.cache.residency.tiers[0].abort(0, taken)
    rig.cache.check()
    rig.append(live, [9] * PAGE)
    rig.end(live)
    rig.finish_all()
