"""After ``set_revision`` state of the weights before is never matched again, in no tier and after
no restart; it leaves first, and requests that run finish on their own (C30 for live updates).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.cache import PrefixCache
from radix.content import Content
from radix.keys import Namespace
from tests.cacherig import GROUPS, Rig, build
from tests.resetting import served_again
from tiers.device import DeviceTier
from tiers.disk import DiskTier

PROMPT = list(range(12))
SCHEDULES = pytest.mark.parametrize("late", [False, True], ids=["synchronous", "asynchronous"])


def test_old_state_is_found_in_no_tier_and_leaves_at_once() -> None:
    rig = build(groups=2, below=(32, 32), device=16)
    rig.cache.set_revision("r1")
    rig.serve(PROMPT)
    assert served_again(rig, PROMPT) == 8
    rig.cache.set_revision("r2")
    rig.poll()
    rig.cache.check()
    assert served_again(rig, PROMPT) == 0 and not rig.walk()
    rig.serve(PROMPT)
    assert served_again(rig, PROMPT) == 8
    rig.cache.set_revision("r2")
    assert served_again(rig, PROMPT) == 8, "the same weights: nothing has changed"
    rig.finish_all()


def test_namespaces_that_name_their_weights_keep_what_they_have() -> None:
    rig = build(device=16)
    named = Namespace(model="another", revision="r1")
    rig.serve(PROMPT, named)
    rig.serve(PROMPT)
    rig.cache.set_revision("r9")
    assert rig.cache.explain(PROMPT, namespace=named).hit_tokens == 8
    assert served_again(rig, PROMPT) == 0
    rig.finish_all()


@SCHEDULES
def test_request_that_runs_finishes_on_its_own_weights(late: bool) -> None:
    """What it computes from then on is shared with nobody, what it reads stays while it runs."""
    rig = build(below=(32,), device=16)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=4))
    rig.compute(live, 8)
    before = live.request.slots().tolist()
    rig.cache.set_revision("r1")
    rig.compute(live, 12, rig.fence() if late else None)
    live.request.append([1, 2])
    rig.poll()
    rig.cache.check()
    assert live.request.slots()[:3].tolist() == before[:3], "its page table is its own"
    other = rig.until_ready(rig.admit(PROMPT))
    assert other.request.hit_tokens == 0
    rig.end(live, fence=rig.fence() if late else None)
    rig.pass_step()
    rig.compute(other, 12)
    rig.end(other)
    rig.settle()
    rig.poll()
    rig.cache.check()
    assert not rig.cache._spaces.retired
    assert rig.cache.metrics.total("store", "blocks") == 2 + 3, "two of the old, then all new"
    rig.finish_all()


def test_request_that_loads_finishes_on_its_own_weights() -> None:
    rig = build(below=(32,), device=16)
    rig.serve(PROMPT)
    rig.empty()
    rig.ticks[0].pace = 0.0
    live = rig.admit(PROMPT)
    rig.cache.set_revision("r1")
    rig.poll()
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.until_ready(live)
    assert live.request.hit_tokens == 8
    rig.compute(live, 12)
    rig.end(live)
    rig.settle()
    rig.poll()
    assert served_again(rig, PROMPT) == 0 and not rig.walk()
    rig.finish_all()


def test_preempted_request_is_resumed_under_the_weights_of_now() -> None:
    rig = build(device=16)
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    rig.preempt(live)
    rig.poll()
    rig.cache.set_revision("r1")
    again = rig.until_ready(rig.resume(live))
    assert again.request.hit_tokens == 0
    rig.compute(again, 12)
    rig.end(again)
    rig.settle()
    assert served_again(rig, PROMPT) == 8
    rig.finish_all()


def test_preempted_prompt_with_an_image_keeps_it_under_new_weights() -> None:
    rig = build(device=16, keys="sha256")
    image = [Content(2, 3, bytes(32))]
    request = rig.cache.admit(PROMPT, content=image)
    request.computed(12)
    request.preempt()
    rig.cache.set_revision("r1")
    rig.cache.poll()
    request.resume()
    request.computed(12)
    request.finish()
    rig.cache.poll()
    assert rig.cache.explain(PROMPT, content=image).hit_tokens == 8
    assert rig.cache.explain(PROMPT).hit_tokens == 0
    rig.cache.close()


def test_old_state_under_a_lease_leaves_when_that_ends() -> None:
    rig = build(below=(32,), device=4)
    rig.serve(PROMPT)
    lease = rig.cache.lease(rig.cache.match([*PROMPT, 0])[1])
    rig.cache.set_revision("r1")
    assert served_again(rig, PROMPT) == 0
    rig.cache.check()
    assert rig.cache.tiers[0].free_blocks(0) == 1
    lease.release()
    rig.poll()
    assert rig.cache.tiers[0].free_blocks(0) == 4 and not rig.cache._spaces.retired
    rig.finish_all()


def _on_disk(folder: Path) -> Rig:
    disk = DiskTier(folder, limit_bytes=2 << 20, segment_bytes=1 << 16)
    device = DeviceTier(blocks=16, device="cpu")
    return Rig(PrefixCache(GROUPS[:1], [device, disk], page_tokens=4, events=True), device)


@pytest.mark.parametrize("told", [False, True])
def test_old_state_is_not_found_after_a_restart(tmp_path: Path, told: bool) -> None:
    rig = _on_disk(tmp_path)
    rig.serve(PROMPT)
    rig.serve([5] * 12)
    rig.cache.set_revision("r2")
    rig.serve([7] * 12)
    rig.finish_all()
    rig.cache.close()
    again = _on_disk(tmp_path)
    if told:
        again.cache.set_revision("r2")
    for old in (PROMPT, [5] * 12):
        assert served_again(again, old) == 0
    assert served_again(again, [7] * 12) == (8 if told else 0)
    again.cache.close()


@pytest.mark.parametrize(
    ("revision", "error"), [(7, TypeError), (None, TypeError), ("\ud800", ValueError)]
)
def test_revision_that_is_none_is_refused(revision: object, error: type[Exception]) -> None:
    rig = build(device=8)
    rig.serve(PROMPT)
    with pytest.raises(error, match="revision"):
        rig.cache.set_revision(revision)
    assert served_again(rig, PROMPT) == 8
    rig.finish_all()
