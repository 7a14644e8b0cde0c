"""Whoever hears a cache's events knows what it holds, group by group and medium by medium: from the
start, after a gap, after a reset, and in which place of a prompt each block lies (I32, C67, C105,
C106; llm-d-router#2362: sparse groups without positions made routers believe in prefixes that are
not there).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from radix.cache import PrefixCache
from radix.errors import ClosedError
from radix.events import Event
from radix.groups import Group
from radix.keys import Namespace, page_keys, root_key
from radix.service.kv_events import MEDIA, KvPublisher
from radix.service.kv_wire import AllBlocksCleared, BlockRemoved, BlockStored
from radix.store import FlatStore
from tests.cacherig import Rig, build
from tests.mixes import full, state, window
from tests.routers import Router, held, nonempty
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PROMPT = list(range(24))
PAGE = 4
DEEP = {**MEDIA, "deep": ("STORAGE", "LOCAL")}


class Published:
    """A rig of which every poll is published, and the routers that hear it."""

    def __init__(self, rig: Rig, kept_batches: int = 10_000) -> None:
        self.rig = rig
        self.publisher = KvPublisher(
            rig.cache,
            replay_endpoint="tcp://127.0.0.1:*",
            media=DEEP,
            kept_batches=kept_batches,
        )
        self.routers: list[Router] = []
        poll = rig.poll

        def published() -> list[Event]:
            events = poll()
            self.publisher.publish(events)
            return events

        rig.poll = published  # type: ignore[method-assign]  # every poll is published

    def router(self) -> Router:
        """One more, which knows nothing yet."""
        self.routers.append(Router(self.publisher))
        return self.routers[-1]

    def agree(self) -> None:
        """Every router knows what is there."""
        self.rig.poll()
        wanted = held(self.publisher, self.rig.cache.resident())
        for router in self.routers:
            router.hear(self.publisher.batches)
            assert nonempty(router.held) == wanted

    def close(self) -> None:
        """Ends all of it."""
        for router in self.routers:
            router.close()
        self.publisher.close()


@pytest.fixture
def published(request: pytest.FixtureRequest) -> Iterator[Published]:
    groups, kept = getattr(request, "param", ((full(),), 10_000))
    made = Published(build(groups=groups, device=[12] * len(groups), below=(24,)), kept)
    yield made
    made.rig.finish_all()
    made.close()


def traffic(rig: Rig, seed: int, requests: int) -> None:
    """Prompts that branch, more than fits."""
    rng = random.Random(seed)
    for _ in range(requests):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 7) * PAGE)]
        rig.serve(prompt, rng.choice((None, Namespace(adapter="a"), Namespace(salt=b"t"))))


MIXED = (full(), window(9), state(8))


@pytest.mark.parametrize("published", [((full(),), 10_000), (MIXED, 10_000)], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_routers_know_what_every_medium_holds(published: Published, seed: int) -> None:
    published.router()
    for step in range(6):
        traffic(published.rig, seed * 100 + step, 4)
        published.agree()
    published.router()  # which was not there at the beginning
    published.agree()


@pytest.mark.parametrize("published", [((full(),), 3)], indirect=True)
def test_a_gap_that_is_no_longer_kept_is_filled_by_all_there_is(published: Published) -> None:
    router = published.router()
    published.agree()
    router.close()
    published.routers.clear()
    traffic(published.rig, 1, 12)
    late = published.router()
    late.next = router.next
    assert published.publisher.batches - late.next > 3
    assert late.again() >= 1 and late.next == published.publisher.batches
    assert isinstance(late.events[0], AllBlocksCleared)
    published.agree()
    traffic(published.rig, 2, 3)
    published.agree()


def test_a_copy_that_goes_leaves_the_other_where_it_is(published: Published) -> None:
    """C106: media are told apart, and a block that leaves one stays in the other."""
    router = published.router()
    published.rig.serve(PROMPT)
    published.agree()
    both = set(router.held["GPU", 0])
    assert len(both) == 6 and router.held["CPU", 0] == both
    published.rig.cache.evict(0, 6)
    published.agree()
    assert not router.held["GPU", 0] and router.held["CPU", 0] == both
    gone = [event for event in router.events if isinstance(event, BlockRemoved)]
    assert {event.medium for event in gone} == {"GPU"}


def test_after_a_reset_nothing_is_held(published: Published) -> None:
    """C67: "all cleared" was only logged by whoever heard it. Here it comes after each removal."""
    router = published.router()
    published.rig.serve(PROMPT)
    published.agree()
    assert any(router.held.values())
    published.rig.cache.reset()
    published.agree()
    assert not any(router.held.values()) and isinstance(router.events[-1], AllBlocksCleared)


def test_hearing_twice_changes_nothing(published: Published) -> None:
    """C105."""
    router = published.router()
    traffic(published.rig, 5, 6)
    published.agree()
    before = nonempty(router.held)
    router.next = 0
    router.again()
    assert nonempty(router.held) == before


@pytest.mark.parametrize("published", [(MIXED, 10_000)], indirect=True)
def test_each_block_says_its_tokens_place_parent_and_kind(published: Published) -> None:
    router = published.router()
    published.rig.serve(PROMPT)
    published.agree()
    root = root_key(published.rig.cache.namespace())
    names = page_keys(root, np.array(PROMPT, np.int32), PAGE)[:, :8].copy().view("<u8").ravel()
    stored = [event for event in router.events if isinstance(event, BlockStored)]
    assert {event.kv_cache_spec_kind for event in stored} == {
        "full_attention",
        "sliding_window",
        "mamba",
    }
    sparse = 0
    for event in stored:
        assert event.block_positions is not None and event.extra_keys is None
        size = event.block_size
        assert size == (8 if event.group_idx == 2 else PAGE)
        assert (event.kv_cache_spec_sliding_window == 9) == (event.group_idx == 1)
        for number, place in enumerate(event.block_positions):
            tokens = event.token_ids[number * size : (number + 1) * size]
            assert tokens == PROMPT[place : place + size]
            assert event.block_hashes[number] == names[(place + size) // PAGE - 1]
        first = event.block_positions[0]
        above = int(names[first // PAGE - 1]) if first else None
        assert event.parent_block_hash == above
        sparse += above is not None and above not in router.held[str(event.medium), event.group_idx]
    assert sparse, "no block stood behind one that is missing: the positions were not needed"


def test_namespaces_are_told_apart_and_say_nothing_of_a_tenant(published: Published) -> None:
    router = published.router()
    salted = Namespace(salt=b"secret of a tenant", adapter="lora-1")
    published.rig.serve(PROMPT, salted)
    published.rig.serve(PROMPT)
    published.agree()
    stored = [e for e in router.events if isinstance(e, BlockStored) and e.medium == "GPU"]
    space = (root_key(published.rig.cache.namespace(salted)).hex(),)
    assert [event.lora_name for event in stored] == ["lora-1", None]
    assert stored[0].extra_keys == [list(space)] * 6 or stored[0].extra_keys == [space] * 6
    assert stored[1].extra_keys is None
    assert not set(stored[0].block_hashes) & set(stored[1].block_hashes)
    assert "secret" not in repr(router.events)


def test_what_a_disk_kept_is_told_first(tmp_path: Path) -> None:
    def start() -> Published:
        disk = DiskTier(tmp_path, limit_bytes=4 << 20, segment_bytes=1 << 18)
        tiers = [DeviceTier(blocks=16, device="cpu"), HostTier(32 * 4096), disk]
        cache = PrefixCache((Group.full("kv", 64),), tiers, page_tokens=PAGE, events=True)
        return Published(Rig(cache, cache.tiers[0]))

    first = start()
    first.rig.serve(PROMPT)
    first.rig.cache.flush()
    first.close()
    first.rig.cache.close()
    again = start()
    router = again.router()
    again.agree()
    assert list(nonempty(router.held)) == [("STORAGE", 0)] and len(router.held["STORAGE", 0]) == 6
    assert isinstance(router.events[0], AllBlocksCleared)
    again.rig.finish_all()
    again.close()
    again.rig.cache.close()


def test_keys_of_a_flat_store_are_told_whole() -> None:
    group = Group.full("kv", 64)
    store = FlatStore([group], [HostTier(32 * 4096)], key_bytes=8, events=True)
    with store, KvPublisher(store, replay_endpoint="tcp://127.0.0.1:*") as publisher:
        keys = np.arange(24, dtype=np.uint8).reshape(3, 8)
        store.commit(store.reserve(keys, positions=[0, 1, 5]))
        publisher.publish(store.poll())
        router = Router(publisher)
        router.again()
        root = store.root_key()
        wanted = {root + key.tobytes() for key in keys}
        assert router.held == {("CPU", 0): wanted}
        store.forget(keys[1:2])
        publisher.publish(store.poll())
        router.hear(publisher.batches)
        assert router.held == {("CPU", 0): wanted - {root + keys[1].tobytes()}}
        router.close()


def test_who_asks_wrongly_or_goes_away_stops_nothing(published: Published) -> None:
    context = zmq.Context()
    asking = context.socket(zmq.DEALER)
    asking.connect(str(published.publisher.replay_endpoint))
    published.rig.serve(PROMPT)
    for frames in ([b"x"], [b"", b"short"], [b"", b"\xff" * 8], [b"", b"1", b"2", b"3"]):
        asking.send_multipart(frames)
        for _ in range(100):
            published.publisher.publish(())
            if asking.poll(20):
                break
        assert asking.recv_multipart()[-2:] == [b"\xff" * 8, b""]
    asking.send_multipart([b"", bytes(8)])
    context.destroy(linger=0)
    published.router()
    published.agree()


def test_what_cannot_be_told_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'deep'"):
        rig = build(below=(8, 8))
        KvPublisher(rig.cache)
    with pytest.raises(ValueError, match="events=True"):
        KvPublisher(build(events=False).cache)
    with pytest.raises(zmq.ZMQError):
        KvPublisher(build().cache, "tcp://127.0.0.1:nothing")
    publisher = KvPublisher(build().cache)
    publisher.close()
    publisher.close()
    with pytest.raises(ClosedError):
        publisher.publish(())
