"""A request that cannot grow stays as it was: the check that it can never fit comes before anything
of it is let go. A window that it had left was given up first, and the error came then.
"""

from __future__ import annotations

import pytest

from radix.errors import NeverFitsError
from tests.cacherig import build
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
