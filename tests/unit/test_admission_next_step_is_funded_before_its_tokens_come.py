"""R1: an append let the tree's blocks in the window of a request fund slots that its very next step
needed, before they fell behind: the request had its tokens and could never step again.
"""

from __future__ import annotations

import pytest

from radix.errors import CapacityError
from tests.cacherig import build
from tests.mixes import full, window


def test_append_takes_what_the_next_step_needs_or_refuses() -> None:
    rig = build(page_tokens=1, groups=(full(), window(3)), device=(32, 6))
    live = rig.until_ready(rig.admit([0, 1], chunk_tokens=4))
    rig.compute(live, 2)
    other = rig.until_ready(rig.admit([9]))
    with pytest.raises(CapacityError):
        live.request.append([50, 51, 52, 53])
    assert len(live.request) == 2
    rig.end(other, abort=True)
    rig.poll()
    live.request.append([50, 51, 52, 53])
    rig.compute(live, 6)
    rig.end(live)
    rig.settle()
    rig.finish_all()
