"""``align_tokens``: hits are multiples of what an engine can go on from, whichever call asks."""

from __future__ import annotations

import pytest

from tests.cacherig import build
from tests.mixes import full, state, window


@pytest.mark.parametrize("groups", [(full(),), (full(), window(6)), (full(), state(4))])
@pytest.mark.parametrize("align", [1, 8, 12])
def test_match_admit_and_explain_agree_on_aligned_hits(
    groups: tuple[object, ...], align: int
) -> None:
    rig = build(groups=groups, device=64, page_tokens=4, align_tokens=align)
    prompt = [token % 3 for token in range(40)]
    rig.serve(prompt)
    longer = [*prompt, 1]
    found, _ = rig.cache.match(longer)
    told = rig.cache.explain(longer)
    live = rig.until_ready(rig.admit(longer))
    assert found.hit_pages * 4 == told.hit_tokens == live.request.hit_tokens
    assert live.request.hit_tokens % align == 0
    assert live.request.hit_tokens == 40 // max(4, align) * max(4, align)
    rig.finish_all()


def test_align_of_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match="align_tokens must be at least 1, not 0"):
        build(align_tokens=0)
