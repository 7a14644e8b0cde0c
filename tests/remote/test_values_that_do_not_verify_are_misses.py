"""Backends give back what their media, and other programs, made of a value: Mooncake Store and
LMCache both return flipped bits without an error. Here every such value is a miss: counted,
removed, computed again; its neighbours are hits as before.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from radix._native import ffi, lib
from radix.errors import CorruptBlockError, TierError
from radix.tier import Transfer, Urgency, View
from tests.remote import peer
from tests.remote.watched import Watched
from tests.remoterig import mooncake_store, redis_nodes
from tiers.host import HostTier
from tiers.remote import RemoteTier
from tiers.remote_values import HEADER_BYTES, MAGIC
from tiers.rig import records_of

PAGES = 6


@pytest.fixture(scope="module", params=["redis", "mooncake"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend once for the file."""
    if request.param == "redis":
        with redis_nodes() as nodes:
            yield nodes.url
    else:
        with mooncake_store() as (master, _):
            yield master.url


def _flip(at: int) -> Callable[[bytes], bytes]:
    def change(value: bytes) -> bytes:
        out = bytearray(value)
        out[at % len(out)] ^= 1 << (at % 8)
        return bytes(out)

    return change


def _guarded(head: bytes, payload: bytes) -> bytes:
    """A header whose own checksum is right."""
    body = head[: HEADER_BYTES - 8]
    return (
        body + struct.pack("<Q", int(lib.rdx_xxh3_64(ffi.from_buffer(body), len(body)))) + payload
    )


def _older(value: bytes) -> bytes:
    head = bytearray(value[:HEADER_BYTES])
    head[len(MAGIC)] = 0  # the version
    return _guarded(bytes(head), value[HEADER_BYTES:])


def _other_layout(value: bytes) -> bytes:
    head = bytearray(value[:HEADER_BYTES])
    head[52:68] = bytes(16)  # the fingerprint
    return _guarded(bytes(head), value[HEADER_BYTES:])


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "first bit": _flip(0),
    "a bit of the key": _flip(95),
    "a bit of the guard": _flip(HEADER_BYTES - 1),
    "first bit of the payload": _flip(HEADER_BYTES),
    "last bit": lambda value: _flip(len(value) - 1)(value),
    "cut short by a byte": lambda value: value[:-1],
    "cut to its header": lambda value: value[:HEADER_BYTES],
    "cut within its header": lambda value: value[:50],
    "a byte too long": lambda value: value + b"x",
    "of another program": lambda value: b"x" * len(value),
    "zeros": lambda value: bytes(len(value)),
    "of an older format": _older,
    "of another layout": _other_layout,
}


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=list(CHANGES))
def test_a_value_that_is_not_what_was_stored_is_a_miss_and_goes(url: str, number: int) -> None:
    change, seed = list(CHANGES.values())[number], 100 + number
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched) as writer, peer.RankCache(url) as reader:
        writer.compute(seed, PAGES)
        each = len(watched.names) // PAGES
        bad = watched.names[3 * each + number % each]  # of the fourth page
        watched.change(bad, change)
        hit, right = reader.found(seed, PAGES)
        assert (hit, right) == (3 * peer.PAGE, True)
        assert reader.remote.counts.corrupt == 1
        assert not watched.there(bad)
        assert reader.remote.counts.removed == 1
        # The one that found it computes it again, and then it is right for others, too.
        assert reader.compute(seed, PAGES) == 3 * peer.PAGE
    with peer.RankCache(url) as another:
        assert another.found(seed, PAGES) == (PAGES * peer.PAGE, True)


def test_values_of_two_blocks_exchanged_are_both_misses(url: str) -> None:
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched) as writer, peer.RankCache(url) as reader:
        writer.compute(200, PAGES)
        each = len(watched.names) // PAGES
        one, other = watched.names[2 * each], watched.names[4 * each]
        kept: list[bytes] = []
        watched.change(one, lambda value: kept.append(value) or value)
        watched.change(other, lambda value: kept.append(value) or kept[0])
        watched.change(one, lambda value: kept[1])
        assert reader.found(200, PAGES) == (2 * peer.PAGE, True)
        assert reader.remote.counts.corrupt == 2


def test_values_that_are_gone_are_misses_and_nothing_else(url: str) -> None:
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched) as cache:
        cache.compute(300, PAGES)
        cache.reset(["device"])
        watched.remove(watched.names[-1:], 10.0)
        assert cache.compute(300, PAGES) == (PAGES - 1) * peer.PAGE
        counts = cache.remote.counts
        assert (counts.gone, counts.corrupt, counts.outages) == (1, 0, 0)


def test_a_damaged_epoch_finds_nothing_and_another_begins(url: str) -> None:
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched) as writer:
        writer.compute(400, PAGES)
        watched.change("radix:epoch", lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    with peer.RankCache(url) as reader:
        assert reader.found(400, PAGES)[0] == 0
        assert reader.compute(401, PAGES) == 0
    with peer.RankCache(url) as another:
        assert another.found(401, PAGES) == (PAGES * peer.PAGE, True)


def test_random_bytes_never_verify(url: str) -> None:
    rng = np.random.default_rng(5)
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched) as writer, peer.RankCache(url) as reader:
        writer.compute(500, PAGES)
        for name in watched.names:
            watched.change(name, lambda value: rng.bytes(int(rng.integers(1, len(value) + 9))))
        assert reader.found(500, PAGES) == (0, True)


@pytest.mark.parametrize("shards", [None, (0, 4)])
def test_a_block_that_rots_above_is_stored_nowhere(
    url: str, shards: tuple[int, int] | None
) -> None:
    """A checksum of what is sent vouches for the copy; the one taken at commit decides."""
    host = HostTier(1 << 20, verify=True)
    host.attach((peer.KV,), 64, None)
    remote = RemoteTier(
        peer.client_of(url), blocks=8, prefix=f"rot-{shards is None}", staging_bytes=65536
    )
    remote.attach((peer.KV,), 64, host)
    slots = host.reserve(0, 3)
    plane = host.planes(0)[0]
    for slot, row in zip(slots.tolist(), peer.blocks_of(9, 3), strict=True):
        ctypes.memmove(int(plane["base"] + slot * plane["stride"]), row.tobytes(), len(row))
    host.commit(0, slots)
    ctypes.memset(int(plane["base"] + slots[1] * plane["stride"]) + 40, 0, 16)
    parts = [None] if shards is None else [View((0, 3), (at, at + 1)) for at in range(*shards)]
    lower = remote.reserve(0, 3)
    for job, part in enumerate(parts):
        records = records_of(0, 0, 3)
        remote.store(Transfer(job, 0, slots, lower, Urgency.STORE, records, part), host)
        remote.flush()
        (done,) = remote.poll()
        bad = [index for index, good in enumerate(done.good) if not good]
        assert bad in ([], [1]) if part else bad == [1]
        if bad:
            assert isinstance(done.error, CorruptBlockError)
    remote.commit(0, lower[[0, 2]])
    if shards:
        with pytest.raises(TierError, match="only some parts"):
            remote.commit(0, lower[[1]])
    remote.abort(0, lower[[1]])
    remote.check()
    remote.close()
    host.close()


def test_tenants_who_do_not_trust_each_other_name_by_sha256(url: str) -> None:
    watched = Watched(peer.client_of(url))
    with peer.RankCache(watched, digest="sha256") as writer:
        writer.compute(600, PAGES)
        assert {len(name.split("{")[1].split("}")[0]) for name in watched.names} == {64}
    with peer.RankCache(url, digest="sha256") as reader:
        assert reader.found(600, PAGES) == (PAGES * peer.PAGE, True)
    with peer.RankCache(url) as other:
        assert other.found(600, PAGES)[0] == 0
