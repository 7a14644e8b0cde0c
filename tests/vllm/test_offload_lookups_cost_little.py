"""The engine asks key by key, thousands of times a step: the store is asked once a step for each
key, and what is counted and touched is so in one call a group at the end (vllm#51333).
"""

from __future__ import annotations

from tests.vllm.offloadrig import HIT, MISS, OffloadRig, keys_of


def test_store_is_asked_once_a_step_and_told_once_at_its_end() -> None:
    rig = OffloadRig(16)
    kept, absent = keys_of(*range(8)), keys_of(*range(100, 108))
    rig.keep(kept)
    request = rig.request(kept)
    asked = 0
    ask = rig.offload._ask

    def counting(name: bytes, group: int) -> int:
        nonlocal asked
        asked += 1
        return ask(name, group)

    rig.offload._ask = counting
    for _ in range(5):
        assert rig.look(kept + absent, request) == [HIT] * 8 + [MISS] * 8
    assert asked == 16
    assert rig.count("has.blocks") == 0 and rig.store.tree.stats().leases == 0
    rig.step()
    assert rig.count("has.hit.host") == 8 and rig.count("has.miss.cold") == 8
    rig.look(kept, request)
    assert asked == 24, "another step asks again"
