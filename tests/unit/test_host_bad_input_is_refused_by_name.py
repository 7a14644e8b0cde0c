"""What the host tier cannot be, it says before it takes any memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radix.errors import UnsupportedError
from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.host import AdoptedTier, HostTier, fitting_segment
from tiers.index import IndexTier
from tiers.memory import memory_limit_bytes

KV = (Group.full("kv", 4096),)


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"limit_bytes": 0}, ValueError, "limit_bytes must be at least 1, not 0"),
        ({"limit_bytes": -1}, ValueError, "limit_bytes"),
        ({"limit_bytes": 1.5}, TypeError, "limit_bytes must be an int, not float"),
        ({"limit_bytes": True}, TypeError, "limit_bytes"),
        ({"limit_bytes": 4096, "file_name": "a/b"}, ValueError, "file_name"),
        ({"limit_bytes": 4096, "file_name": ""}, ValueError, "file_name"),
        ({"limit_bytes": 4096, "name": ""}, ValueError, "name"),
    ],
)
def test_a_bad_argument_is_named(wrong: dict[str, Any], error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        HostTier(**wrong)


def test_more_than_the_memory_there_is_is_refused() -> None:
    most, source = memory_limit_bytes()
    assert most > 0
    with pytest.raises(ValueError, match="limit_bytes") as caught:
        HostTier(most + 1)
    assert source in str(caught.value) and str(most) in str(caught.value)


def test_a_slab_below_one_block_is_refused_and_can_be_closed() -> None:
    for limit, segment, named in ((4096, None, "limit_bytes 4096"), (1 << 20, 4096, "5000 bytes")):
        host = HostTier(limit, segment_bytes=segment)
        with pytest.raises(ValueError, match=named):
            host.attach((Group.full("kv", 4096), Group.full("odd", 5000)), 64, None)
        host.close()


def test_a_neighbour_without_bytes_is_refused_whole() -> None:
    index = IndexTier(4)
    index.attach(KV, 64, None)
    host = HostTier(4 * 4096)
    with pytest.raises(UnsupportedError, match="'device' has neither addresses nor copies"):
        host.attach(KV, 64, index)
    host.attach(KV, 64, None)
    slots = host.reserve(0, 1)
    with pytest.raises(UnsupportedError):
        host.store(Transfer(1, 0, slots, slots, Urgency.STORE, None), index)
    assert host.pending() == 0
    host.close()


def test_sides_of_different_sizes_are_never_copied() -> None:
    rows = np.zeros((2, 100), np.uint8)
    engine = AdoptedTier([[rows]])
    engine.attach((Group.full("kv", 100),), 64, None)
    host = HostTier(4 * 4096)
    host.attach(KV, 64, engine)
    slots = host.reserve(0, 2)
    transfer = Transfer(1, 0, np.arange(2, dtype=np.int32), slots, Urgency.STORE, None)
    with pytest.raises(Exception, match="argument"):
        host.store(transfer, engine)
    with pytest.raises(ValueError, match="1 upper slots, 2 lower"):
        host.store(Transfer(1, 0, slots[:1], slots, Urgency.STORE, None), engine)
    assert host.pending() == 0 and host.poll() == []
    host.close()


@pytest.mark.parametrize(
    ("fragments", "named"),
    [
        ([[]], "rows"),
        ([[np.zeros((0, 100), np.uint8)]], "rows"),
        ([[np.zeros((2, 50), np.uint8), np.zeros((3, 50), np.uint8)]], "rows"),
        ([[np.zeros((2, 100, 2), np.uint8)[:, :, 0]]], "not contiguous"),
        ([[np.broadcast_to(np.zeros((1, 100), np.uint8), (2, 100))]], "not writable"),
        ([[np.zeros((2, 99), np.uint8)]], "rows of 99 bytes, a block has 100"),
        ([[np.zeros((2, 100), np.uint8)]] * 2, "2 groups, the cache has 1"),
    ],
)
def test_foreign_memory_that_holds_no_blocks_is_refused(fragments: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        AdoptedTier(fragments).attach((Group.full("kv", 100),), 64, None)


def test_one_size_of_block_gets_the_whole_slab_as_its_segment() -> None:
    """A capacity given in blocks is then exactly that capacity."""
    for blocks in (1, 7, 8000):
        assert fitting_segment([65536], blocks * 65536) == blocks * 65536
    host = HostTier(7 * 8192)
    host.attach((Group.full("odd", 5000),), 64, None)
    assert host.capacity_blocks(0) == host.free_blocks(0) == 7
    host.close()
