"""A share of hits is answered as missing, each once, the same ones in every run; what the engine
then computes again is compared with what was kept, and what differs is dropped from every tier.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from radix.engines.vllm.canary import TRIES, alike
from radix.tier import Keys
from tests.vllm.offloadrig import HIT, MISS, PENDING, OffloadRig, content, key_of, keys_of


def again(rig: OffloadRig, keys: list[bytes], weights: int = 0) -> list[bytes]:
    """A request that looks, and offers what it computed; which keys it had to store."""
    request = rig.request(keys)
    rig.look(keys, request)
    rig.step()
    out = rig.offload.prepare_store(keys, request)
    assert out is not None
    rig.fill(out.keys_to_store, out.store_spec, weights)
    if out.keys_to_store:
        rig.offload.complete_store(set(out.keys_to_store), request)
    rig.offload.on_request_finished(request)
    rig.offload.check()
    return out.keys_to_store


def test_hit_is_refused_compared_once_and_then_a_hit_for_good() -> None:
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1, 2)
    rig.keep(keys)
    assert rig.look(keys, rig.request(keys)) == [MISS, MISS]
    rig.step()
    assert again(rig, keys) == keys
    assert (rig.count("canary.compared"), rig.count("canary.mismatched")) == (2, 0)
    assert rig.host.usage().used_blocks == (2,), "scratch slots were given back"
    request = rig.request(keys)
    assert rig.look(keys, request) == [HIT, HIT]
    assert rig.load(keys, request) == []
    assert again(rig, keys) == []


def test_what_differs_is_dropped_from_every_tier_and_counted(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path, canary=1.0)
    keys = keys_of(1, 2)
    rig.keep(keys)
    rig.settle()
    slot = int(rig.store.slots(_name(keys[0]), namespace=rig.offload._blocks.space)[0])
    rig.memory(0, slot)[:64] ^= 0x55
    again(rig, keys)
    assert (rig.count("canary.compared"), rig.count("canary.mismatched")) == (2, 1)
    for tier in range(2):
        found = rig.store.slots(_name(keys[0]), tier=tier, namespace=rig.offload._blocks.space)
        assert found.tolist() == [-1]
    rig.step()
    request = rig.request(keys)
    assert rig.look(keys, request) == [MISS, HIT]
    rig.step()
    rig.keep(keys)
    assert not rig.store.tree.stats().leases - len(rig.store.transfers.jobs)
    rig.close()


def _name(key: bytes) -> Keys:
    return np.frombuffer(key[:-4], np.uint8).reshape(1, -1)


def test_block_on_disk_alone_is_brought_up_to_be_compared(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    rig.evict_host()
    request = rig.request(keys)
    assert rig.look(keys, request) == [MISS]
    rig.step()
    rig.settle()
    out = rig.offload.prepare_store(keys, request)
    assert out is not None and out.keys_to_store == keys
    rig.fill(keys, out.store_spec)
    rig.offload.complete_store(set(keys), request)
    assert rig.count("canary.compared") == 1
    assert rig.look(keys, rig.request(keys)) == [HIT]
    rig.close()


def test_request_gets_one_answer_for_a_block_and_others_do_not_wait_for_it() -> None:
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    request = rig.request(keys)
    for _ in range(3):
        assert rig.look(keys, request) == [MISS]
        rig.step()
    assert rig.count("canary.refused") == 1
    out = rig.offload.prepare_store(keys, request)
    assert out is not None and out.keys_to_store == keys
    other = rig.look(keys, rig.request(keys))
    assert PENDING not in other, "the kept block is there all the time"


def test_block_that_is_never_offered_again_is_a_hit_in_the_end() -> None:
    """Generated tokens are not offered where only prompts are."""
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    for _ in range(TRIES):
        assert rig.look(keys, rig.request(keys)) == [MISS]
        rig.step()
    assert rig.look(keys, rig.request(keys)) == [HIT]


def test_block_with_one_huge_wrong_value_is_found_out() -> None:
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    slot = int(rig.store.slots(_name(keys[0]), namespace=rig.offload._blocks.space)[0])
    rig.memory(0, slot).view(np.float32)[9] = 1e30
    again(rig, keys)
    assert rig.count("canary.mismatched") == 1


def test_only_whole_blocks_are_compared() -> None:
    """Behind the end of a tail a block holds anything."""
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    tail = rig.request()
    tail.set_offload_key_position(keys[0], 20)
    assert rig.look(keys, tail) == [HIT]
    unknown = rig.request()
    assert rig.look(keys, unknown) == [HIT]


def test_share_is_of_keys_and_the_same_in_every_run() -> None:
    one, two, none = (OffloadRig(8, canary=share) for share in (0.1, 0.1, 0.0))
    keys = keys_of(*range(4000))
    picked = [key for key in keys if one.offload._canary.picks(key)]
    assert picked == [key for key in keys if two.offload._canary.picks(key)]
    assert 300 < len(picked) < 500
    assert not any(none.offload._canary.picks(key) for key in keys)
    for rig in (one, two, none):
        rig.close()


def test_scratch_without_room_compares_nothing_and_keeps_the_block() -> None:
    rig = OffloadRig(4, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    request, busy = rig.request(keys), rig.request()
    rig.look(keys, request)
    rig.step()
    for number in (5, 6, 7):
        assert rig.offload.prepare_store(keys_of(number), busy) is not None
    out = rig.offload.prepare_store(keys, request)
    assert out is not None and out.keys_to_store == []
    assert rig.count("canary.no room") == 1
    rig.step()
    rig.offload.check()


def test_comparison_that_a_reset_swallows_gives_back_what_it_held() -> None:
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    request = rig.request(keys)
    rig.look(keys, request)
    rig.step()
    assert rig.offload.prepare_store(keys, request) is not None
    rig.offload.reset_cache()
    rig.offload.check()
    rig.offload.on_reset_flushed()
    rig.step()
    assert rig.host.usage().used_blocks == (0,) and not rig.store.tree.stats().leases


def test_store_that_failed_is_not_compared() -> None:
    rig = OffloadRig(8, canary=1.0)
    keys = keys_of(1)
    rig.keep(keys)
    request = rig.request(keys)
    rig.look(keys, request)
    rig.step()
    assert rig.offload.prepare_store(keys, request) is not None
    rig.offload.complete_store(set(keys), request, success=False)
    assert not rig.count("canary.compared")
    assert rig.offload._canary.picks(keys[0]) and rig.host.usage().used_blocks == (1,)


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint8).numpy()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_values_within_the_tolerance_are_alike_and_beyond_it_are_not(kind: torch.dtype) -> None:
    torch.manual_seed(5)
    kept = torch.randn(512).to(kind)
    near = (kept.float() * 1.01).to(kind)
    far = kept.clone()
    far[77] += 1.0
    assert alike(_bytes(kept), _bytes(near), [kind], 0.05)
    assert not alike(_bytes(kept), _bytes(far), [kind], 0.05)
    far[77] = 30000.0
    assert not alike(_bytes(kept), _bytes(far), [kind], 0.05), "it is no measure of the others"
    assert not alike(_bytes(far), _bytes(kept), [kind], 0.05)
    assert not alike(_bytes(kept), _bytes(near), [], 0.05), "an unknown type: byte for byte"
    assert alike(_bytes(kept), _bytes(kept.clone()), [], 0.05)


def test_values_that_are_no_numbers_are_alike_only_bit_for_bit() -> None:
    kept = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    assert alike(
        _bytes(kept),
        _bytes(torch.tensor([1.01, float("nan"), float("inf"), 2.0])),
        [torch.float32],
        0.05,
    )
    lost = torch.tensor([1.0, 3.0, float("inf"), 2.0])
    assert not alike(_bytes(kept), _bytes(lost), [torch.float32], 0.05)
    assert not alike(_bytes(lost), _bytes(kept), [torch.float32], 0.05)


def test_eight_bit_values_are_read_as_such() -> None:
    kept = torch.randn(256).to(torch.float8_e4m3fn)
    far = kept.clone()
    far[3] = torch.tensor(400.0).to(torch.float8_e4m3fn)
    near = _bytes(kept).copy()
    assert alike(_bytes(kept), near, [torch.float8_e4m3fn], 0.05)
    far_bytes = _bytes(far)
    assert not alike(_bytes(kept), far_bytes, [torch.float8_e4m3fn], 0.05)


def test_block_of_a_recurrent_group_may_hold_two_types() -> None:
    narrow = torch.randn(64).to(torch.bfloat16)
    wide = torch.randn(64)
    kept = np.concatenate([_bytes(narrow), _bytes(wide)])
    near = np.concatenate([_bytes((narrow.float() * 1.01).to(torch.bfloat16)), _bytes(wide * 1.01)])
    both = [torch.bfloat16, torch.float32]
    assert alike(kept, near, both, 0.05)
    wrong = near.copy()
    wrong[:16] = content(key_of(1))[16:32]
    assert not alike(kept, wrong, both, 0.05)
