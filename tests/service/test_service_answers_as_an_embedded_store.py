"""Over a real service in its own process: every block read is the block that was written, whoever
asks and however; keys and prompts, through shared memory and over TCP, waiting and not.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import CapacityError, LeaseError, NeverFitsError, RequestError
from radix.groups import Group, Retention
from radix.keys import Namespace
from radix.service import AsyncClient, Client, ServiceLimitError
from tests.service.rig import GROUPS, SIZE, Service, content, contents, keys_of
from tests.servicerig import together

SECRET = "a secret of thirty-two bytes, yes"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    tenants = {"here": {"uids": [os.getuid()], "secret_file": str(secret)}}
    with Service(folder, tenants, listen="127.0.0.1:0", data=str(folder / "data")) as running:
        yield running
        running.check()


def over_tcp(service: Service, **settings: Any) -> Client:
    return Client(
        service.addresses["listen"],
        settings.pop("groups", GROUPS),
        tenant="here",
        secret=SECRET.encode(),
        pool_bytes=4 << 20,
        **settings,
    )


def local(service: Service, **settings: Any) -> Client:
    return service.client(pool_bytes=4 << 20, **settings)


@pytest.mark.parametrize("made", [local, over_tcp])
def test_what_is_stored_is_loaded_into_any_row(service: Service, made: Any) -> None:
    names: list[object] = [f"{made.__name__} {i}" for i in range(48)]
    keys, memory = keys_of(names), contents(names)
    with made(service, memory=[[memory]]) as client:
        assert not client.load(keys, np.arange(48)).any()
        assert client.store(keys, np.arange(48)).all()
        assert (client.has(keys) >= 0).all()
        memory[:] = 0
        order = np.random.default_rng(1).permutation(48)
        assert client.load(keys, order).all()
        assert (memory[order] == contents(names)).all()
        client.forget(keys[:3])
        assert client.has(keys[:4]).tolist()[:3] == [-1, -1, -1]
        good, blocks = client.read(keys[:5])
        assert good.tolist() == [False] * 3 + [True] * 2
        assert (blocks == contents(names[3:5])).all()
        assert client.write(keys[:3], contents(names[:3])).all()
        assert client.valid_lengths([keys, keys[:7], keys[40:]]).tolist() == [48, 7, 8]


@pytest.mark.parametrize("made", [local, over_tcp])
@pytest.mark.parametrize("sizes", [(16544,), (4256, 12288), (8192, 20480, 1000)])
def test_blocks_of_any_sizes_come_back_as_they_went(
    service: Service, made: Any, sizes: tuple[int, ...]
) -> None:
    """Sizes of which a pool counts its slots in another unit than a block's own length."""
    groups = [Group.full(f"g{size}", size) for size in sizes]
    names: list[object] = [f"{made.__name__} of {sizes} {i}" for i in range(9)]
    with made(service, groups=groups) as client:
        for group, size in enumerate(sizes):
            assert client.write(keys_of(names), contents(names, size), group).all()
        for group, size in enumerate(sizes):
            good, blocks = client.read(keys_of(names), group)
            assert good.all()
            assert (blocks == contents(names, size)).all()
        client.reset()


@pytest.mark.parametrize("made", [local, over_tcp])
def test_groups_lend_as_many_rows_as_each_has(service: Service, made: Any) -> None:
    """Fault: a client held the rows of every group against those of the group that lends the
    fewest, so that of an engine with pools of several sizes the larger ones were refused.
    """
    groups = [Group.full("many", SIZE), Group.full("few", SIZE)]
    names: list[object] = [f"rows {made.__name__} {i}" for i in range(8)]
    many, few = contents(names), np.zeros((2, SIZE), np.uint8)
    with made(service, groups=groups, memory=[[many], [few]]) as client:
        assert client.store(keys_of(names), np.arange(8)).all()
        many[:] = 0
        assert client.load(keys_of(names), np.arange(8)).all()
        assert (many == contents(names)).all()
        with pytest.raises(ValueError, match="rows must be 1 rows below 2"):
            client.load(keys_of(names[:1]), [2], 1)
        client.reset()


def test_a_lease_shows_blocks_without_a_copy_and_ends_once(service: Service) -> None:
    names: list[object] = [f"lease {i}" for i in range(8)]
    keys = keys_of(names)
    with local(service) as client:
        client.write(keys[:6], contents(names[:6]))
        with client.lease(keys=keys) as leased:
            assert leased.held().tolist() == [True] * 6 + [False] * 2
            view = leased.block(2)
            assert not view.flags.writeable and not view.flags.owndata
            assert (view == content(names[2])).all()
            assert leased.intact()
            with pytest.raises(LeaseError):
                leased.block(7)
            assert client.stat()["leased_keys"] == 8
        assert client.stat()["leased_keys"] == 0
        assert not leased.intact()
        with pytest.raises(LeaseError):
            leased.block(2)


def test_a_reservation_is_written_in_place_and_ends_once(service: Service) -> None:
    names: list[object] = [f"room {i}" for i in range(6)]
    keys = keys_of(names)
    with local(service) as client, local(service) as other:
        client.write(keys[:1], contents(names[:1]))
        room = client.reserve(keys)
        assert room.there.tolist() == [True] + [False] * 5
        again = other.reserve(keys)
        assert again.coming.tolist() == [False] + [True] * 5
        for index in range(1, 6):
            room.block(index)[:] = content(names[index])
        assert (client.has(keys) >= 0).sum() == 1  # not before the commit
        good = np.array([True, True, True, True, True, False])
        assert client.commit(room, good).tolist() == [True] * 5 + [False]
        with pytest.raises(LeaseError):
            client.commit(room)
        with pytest.raises(LeaseError):
            client.abort(room)
        assert (other.read(keys)[0]).tolist() == [True] * 5 + [False]
        other.abort(again)


def test_a_reservation_of_nothing_new_ends_none_of_another(service: Service) -> None:
    """Fault: a client that brought blocks from several threads found some with the bytes of others.
    Mechanism: a reservation in which no key was granted named the place of another's staging memory
    as its own, of no bytes, and gave it back as it ended; the next one was lent that place, too.
    Source: the storage of SGLang, three threads over a service.
    """
    keys = keys_of(["nothing new a", "nothing new b", "nothing new c"])
    with local(service) as client:
        client.write(keys[:1], contents(["a"]))
        writing = client.reserve(keys[1:2])
        nothing = client.reserve(keys[:1])
        assert nothing.there.all()
        client.commit(nothing)
        other = client.reserve(keys[2:])
        writing.block(0)[:] = content("b")
        other.block(0)[:] = content("c")
        assert client.commit(writing).all() and client.commit(other).all()
        good, blocks = client.read(keys)
        assert good.all()
        assert (blocks == contents(["a", "b", "c"])).all()


def test_prompts_hit_the_pages_that_they_share(service: Service) -> None:
    groups = [
        Group.full("full", SIZE),
        Group("window", GROUPS[0].layout, Retention("window", 40)),
    ]
    tokens = np.arange(16 * 12, dtype=np.int32)
    with service.client(groups=groups, page_tokens=16, pool_bytes=4 << 20) as client:
        for group in (0, 1):
            room = client.reserve(tokens=tokens, group=group)
            for page in range(12):
                room.block(page)[:] = content((group, page))
            assert client.commit(room, durable=group == 0).all()
        assert client.lookup(tokens).pages == 11  # the last token is computed in any case
        assert client.lookup(tokens, leave=0).pages == 12
        other = np.concatenate([tokens[:100], tokens[:92] + 7])
        assert client.lookup(other).pages == 6
        with client.lease(other) as leased:
            assert leased.pages == 6
            assert leased.held(0).all()
            assert leased.held(1).tolist() == [False] * 3 + [True] * 3  # of 39 tokens before 96
            assert (leased.block(5, 1) == content((1, 5))).all()
        assert client.lookup(tokens, namespace=Namespace("another")).pages == 0
        with pytest.raises(ValueError, match="tokens"):
            client.lookup([3, -1])


def test_a_pool_that_is_short_says_by_how_much(service: Service) -> None:
    group = [Group.full("large", 1 << 20)]
    with service.client(groups=group, pool_bytes=4 << 20) as client:
        names: list[object] = [f"short {i}" for i in range(5)]
        keys = keys_of(names)
        with pytest.raises(NeverFitsError) as never:
            client.reserve(keys)
        assert (never.value.needed, never.value.capacity) == (5, 4)
        room = client.reserve(keys[:3])
        with pytest.raises(CapacityError) as short:
            client.reserve(keys[3:])
        assert (short.value.needed, short.value.free) == (2, 1)
        client.abort(room)
        assert client.write(keys[:4], contents(names[:4], 1 << 20)).all()
        leased = client.lease(keys=keys[:4])
        with pytest.raises(CapacityError) as pinned:
            client.reserve(keys[4:])
        assert pinned.value.leased == 4
        leased.release()
        client.reserve(keys[4:])


def test_what_is_kept_outlives_its_client_and_not_its_time(service: Service) -> None:
    group = [Group.full("kept", 1 << 18)]
    names: list[object] = [f"kept {i}" for i in range(12)]
    keys, blocks = keys_of(names), contents(names, 1 << 18)
    with service.client(groups=group, pool_bytes=2 << 20) as client:
        assert client.write(keys[:3], blocks[:3]).all()
        number, count = client.keep(keys[:3], 60)
        assert count == 3
        with pytest.raises(ServiceLimitError, match="half"):
            client.keep(keys[:8], 60)
        with pytest.raises(ValueError, match="milliseconds"):
            client.keep(keys[:1], 1e7)
    with service.client(groups=group) as client:
        for first in (3, 6, 9):  # more than the rest of the pool
            assert client.write(keys[first : first + 3], blocks[first : first + 3]).all()
        assert client.has(keys[:3]).tolist() == [0, 0, 0]
        client.unkeep(number)
        client.keep(keys[:1], 0.05)
        assert client.stat()["keeps"] == 1
    service.until(lambda _: _keeps(service, group) == 0)


def _keeps(service: Service, group: list[Group]) -> int:
    with service.client(groups=group) as client:
        return int(client.stat()["keeps"])


def test_events_replayed_are_what_is_there(service: Service) -> None:
    group = [Group.full("events", 1 << 16)]
    names: list[object] = [f"event {i}" for i in range(40)]
    keys = keys_of(names)
    with service.client(groups=group, pool_bytes=1 << 20) as client:
        for first in range(0, 40, 8):
            client.write(keys[first : first + 8], contents(names[first : first + 8], 1 << 16))
        client.flush()
        there: set[tuple[int, bytes]] = set()
        since = 0
        while True:
            told = client.events(since, 3)
            assert not told.lost
            for event in told.events:
                here = {(event.tier, row.tobytes()[16:]) for row in event.ids}
                there = there | here if event.stored else there - here
            if told.following == since:
                break
            since = told.following
        in_pool = {key for tier, key in there if tier == 0}
        found = client.has(keys)
        assert in_pool == {keys[i].tobytes() for i in range(40) if found[i] == 0}
        assert 0 < len(in_pool) <= 16


def test_tcp_carries_what_memory_would_and_refuses_what_it_cannot(service: Service) -> None:
    with over_tcp(service) as client:
        with pytest.raises(RequestError, match="read"):
            client.lease(keys=keys_of([1]))
        with pytest.raises(RequestError, match="write"):
            client.reserve(keys_of([1]))
        assert client.flush() is None


def test_many_tasks_of_one_loop_are_answered_at_once(service: Service) -> None:
    names: list[object] = [f"task {i}" for i in range(60)]
    keys, memory = keys_of(names), contents(names)
    memory = np.concatenate([memory, np.zeros_like(memory)])

    async def one(client: AsyncClient, n: int) -> None:
        span = slice(5 * n, 5 * n + 5)
        assert (await client.store(keys[span], np.arange(5 * n, 5 * n + 5))).all()
        assert (await client.lookup(keys=keys[span], leave=0)).pages == 5
        with await client.lease(keys=keys[span]) as leased:
            assert (leased.block(4) == content(names[5 * n + 4])).all()
        assert (await client.load(keys[span], 60 + np.arange(5 * n, 5 * n + 5))).all()
        good, blocks = await client.read(keys[span])
        assert good.all() and (blocks == contents(names[span])).all()

    async def run() -> None:
        async with AsyncClient(
            service.path, GROUPS, memory=[[memory]], pool_bytes=4 << 20
        ) as client:
            await asyncio.gather(*(one(client, n) for n in range(12)))
            await client.flush()
            assert (await client.stat())["writing"] == 0

    asyncio.run(run())
    assert (memory[60:] == memory[:60]).all()
    service.check()


def test_random_clients_read_what_was_written_or_miss(service: Service) -> None:
    """Three threads, each its own client, over a pool too small for all their keys, with the disk
    below it. The bytes of a block follow from its namespace and its number alone.
    """
    spaces = [None, Namespace("a"), Namespace("b", salt=b"x")]
    failures: list[BaseException] = []

    def act(seed: int) -> None:
        draw = np.random.default_rng(seed)
        memory = np.zeros((32, SIZE), np.uint8)
        with local(service, memory=[[memory]]) as client:
            for _ in range(60):
                space = int(draw.integers(0, 3))
                numbers = np.unique(draw.integers(0, 1500, int(draw.integers(1, 24))))
                names: list[object] = [(space, int(n)) for n in numbers]
                keys, rows = keys_of(list(numbers)), np.arange(len(numbers))
                place = {"namespace": spaces[space]}
                what = draw.random()
                if what < 0.4:
                    memory[rows] = contents(names)
                    client.store(keys, rows, durable=bool(draw.random() < 0.2), **place)
                elif what < 0.8:
                    memory[:] = 0
                    good = client.load(keys, rows, **place)
                    assert (memory[rows][good] == contents(names)[good]).all()
                elif what < 0.9:
                    good, blocks = client.read(keys, **place)
                    wanted = [name for name, there in zip(names, good, strict=True) if there]
                    assert (blocks == contents(wanted)).all()
                else:
                    client.forget(keys[:2], **place)

    def run(seed: int) -> None:
        try:
            act(seed)
        except BaseException as error:  # outermost: a thread of the test; the test raises it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    service.check()


def test_threads_of_one_client_load_at_once(service: Service) -> None:
    """Fault: of two threads that looked at once whether what they had copied was still leased, one
    raised RuntimeError. Mechanism: the poll object of a connection takes one caller at a time.
    Source: the storage of SGLang, three threads over a service.
    """
    names: list[object] = [f"at once {i}" for i in range(4)]
    keys, memory = keys_of(names), np.zeros((12, SIZE), np.uint8)
    with local(service, memory=[[memory]]) as client:
        assert client.write(keys, contents(names)).all()

        def load(first: int) -> None:
            rows = np.arange(first, first + 4)
            with client.lease(keys=keys) as leased:
                for _ in range(20_000):
                    assert leased.intact()
                for _ in range(50):
                    assert client.load(keys, rows).all()

        together(*(partial(load, first) for first in (0, 4, 8)))
    assert (memory == contents([*names, *names, *names])).all()


def test_the_folder_of_the_disk_is_its_owners_alone(service: Service) -> None:
    folder = Path(service.path).parent
    assert (folder / "data" / "here").stat().st_mode & 0o077 == 0
    assert Path(service.path).stat().st_mode & 0o777 == 0o600
