"""Write-expected: a block goes to a tier that lasts once pages that were asked for as often as it
are read back from there; a scan teaches that it is not, a conversation's newest blocks that they
are. Memory above is given everything.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench.writes import LastingIndex, conversations, count
from radix.cache import PrefixCache
from radix.groups import Group
from radix.policy.expected import CLASSES, LEAST, MOST_SEEN, Expected
from radix.policy.limits import Limits
from radix.store import FlatStore
from tests.cacherig import build
from tiers.host import HostTier
from tiers.index import IndexTier

RNG = np.random.default_rng(3)


def fresh(count: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, 16), np.uint8)


def ask(expected: Expected, keys: np.ndarray, *, below: bool = True) -> np.ndarray:
    """Asked for, and offered; what is worth a write."""
    expected.saw(keys, np.full(len(keys), below))
    worth = expected.worth(keys, 0.1)
    expected.wrote(int(worth.sum()))
    return worth


def test_what_is_not_known_is_written() -> None:
    assert ask(Expected(lambda: 1000), fresh(50)).all()


def test_a_scan_is_written_no_more_once_it_has_shown_what_it_is() -> None:
    expected = Expected(lambda: 500)
    written = [int(ask(expected, fresh(50)).sum()) for _ in range(200)]
    assert written[:5] == [50] * 5 and sum(written[-100:]) == 0
    assert expected.chances()[0] == 0 and expected.chances()[1:] == [1.0] * (CLASSES - 1)


def test_blocks_of_frequency_one_that_are_read_back_are_written() -> None:
    """Each page comes twice, the second time soon: nothing of frequency one is shut out."""
    expected, last, worth = Expected(lambda: 5000), fresh(50), []
    for _ in range(200):
        keys = fresh(50)
        worth.append(ask(expected, keys).all())
        ask(expected, last)
        last = keys
    assert all(worth)
    assert expected.chances()[0] > 0.8


def test_what_comes_again_too_late_or_while_it_lies_above_is_not_read_back() -> None:
    expected, later = Expected(lambda: 200), [fresh(50) for _ in range(60)]
    for turn in range(600):  # each comes again after 3,000 pages: fifteen times what fits
        ask(expected, later[turn % 60])
    assert expected.chances()[0] < 0.1
    above = Expected(lambda: 5000)
    for _ in range(300):
        keys = fresh(50)
        ask(above, keys)
        ask(above, keys, below=False)  # found in memory: the disk's copy was of no use
    assert above.chances()[0] == 0


def test_what_it_learned_fades_and_its_room_is_fixed() -> None:
    expected = Expected(lambda: 500)
    for _ in range(200):
        ask(expected, fresh(50))
    assert not ask(expected, fresh(50)).any()
    for _ in range(400):  # what was a scan comes back now
        keys = fresh(50)
        ask(expected, keys)
        ask(expected, keys)
    assert ask(expected, fresh(50)).all()
    endless = Expected(lambda: 1 << 40)
    for _ in range(200):
        endless.saw(fresh(1000), np.ones(1000, np.bool_))
    assert len(endless._seen) <= MOST_SEEN < 200_000 / 8
    assert LEAST > 1


def test_replicas_that_are_told_the_same_decide_alike() -> None:
    one, other, last = Expected(lambda: 300), Expected(lambda: 300), fresh(40)
    for turn in range(200):
        keys = fresh(40) if turn % 3 else last
        last = keys
        assert np.array_equal(ask(one, keys), ask(other, keys))


def test_conversations_hit_as_before_and_scans_cost_no_writes() -> None:
    """Half of the prompts are never asked for again; the chats lose no hit."""
    through, expected, after = (
        count(conversations(600, 7), 16, 64, 512, kind)
        for kind in ("write_through", "write_expected 0.1", "write_after 1")
    )
    assert expected.hits >= max(through.hits, after.hits)
    assert expected.written < through.written // 2


def test_memory_is_given_everything_and_the_disk_what_is_worth_it() -> None:
    tiers = [IndexTier(32), IndexTier(64, "host"), LastingIndex(256, "disk")]
    with PrefixCache([Group.full("kv", 1)], tiers, page_tokens=4, write="write_expected") as cache:
        for number in range(600):
            request = cache.admit(np.full(17, number, np.int32))
            request.computed(17)
            request.finish()
            cache.flush()
            cache.poll()
        counters = cache.counters()
        assert counters["store.blocks.host.kv"] == 2400
        written, refused = (
            counters[f"store.{what}.disk.kv"] for what in ("blocks", "not_expected")
        )
        assert 100 < written < 1800 and written + refused == 2400
        cache.check()


def test_keys_of_a_flat_store_go_down_alike() -> None:
    tiers = [HostTier(64 * 4096, segment_bytes=4096), LastingIndex(256, "disk")]
    with FlatStore([Group.full("kv", 4096)], tiers, key_bytes=16, write="write_expected") as store:
        for number in range(800):
            store.commit(store.reserve(fresh(4)))
            store.flush()
            if number == 20:
                assert store.counters()["store.blocks.disk.kv"] == 84, "nothing is known yet"
        counters = store.counters()
        written, refused = (
            counters[f"store.{what}.disk.kv"] for what in ("blocks", "not_expected")
        )
        assert written < 2000 and written + refused == 3200
        store.check()


def test_nothing_is_decided_where_nothing_lasts() -> None:
    rig = build(write="write_expected", below=(16, 32))
    for number in range(6):
        rig.serve([number] * 17)
    assert rig.cache.transfers.expected is None
    assert rig.cache.metrics.get("store", "blocks", "deep", "kv") == 24
    rig.finish_all()
    with pytest.raises(ValueError, match=r"write_expected must lie in \(0, 1\]"):
        Limits(write_expected=0)
