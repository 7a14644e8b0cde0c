"""Our storage over a real service in a process of its own: pages that one engine stored others
find, by configuration alone; a service that is stopped, killed or started again costs time or a
miss, never other bytes and never an exception; tenants by secret see what is theirs.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from radix.engines.sglang import RadixHiCache
from radix.engines.sglang.storage_options import Options
from radix.service import Client, DeniedError
from radix.service.held import Room
from tests.service.rig import Service
from tests.sglang.rig import (
    attach,
    config,
    fill,
    indices,
    key,
    mark,
    mha_pool,
    mla_pool,
    number_of,
    ours,
    page_bytes,
    seeded,
    state_pool,
)
from tests.sglang.test_storage_refuses_what_it_does_not_know import KEYS, OTHERS, PAGES

WAIT_S = 60.0


def started(folder: Path) -> Service:
    """A service over a folder: the same folder gives it again, warm."""
    return Service(folder, data=str(folder / "data"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with started(tmp_path) as running:
        yield running
        if running.process.poll() is None:
            running.check()


def told(service: Service, **more: Any) -> dict[str, Any]:
    return {"service": service.path, **more}


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def flushed(storage: Any) -> None:
    """Waits until the service has on its disk what was stored."""
    storage._opened._writing.flush()


def failed(storage: Any) -> set[str]:
    return {name for name in storage.counters() if name.startswith("failed")}


@pytest.mark.parametrize("v1", [1, 0])
def test_processes_share_pages_through_one_service(service: Service, v1: int) -> None:
    pools = {"kv": mha_pool(), "mamba": state_pool()}
    first = {"kv": mha_pool(), "mamba": state_pool()}
    keys, pages = [key(n) for n in range(6)], list(range(6))
    for name in pools:
        fill(first[name], 1)
    storage = ours(told(service), pools, extra={"interface_v1": v1})
    assert storage.batch_exists(keys) == 0
    child = os.fork()
    if child == 0:  # a process that stores and dies at once
        code = 1
        try:
            other = ours(told(service), first, extra={"interface_v1": v1})
            transfers = [
                PoolTransfer(PoolName(name), indices(pool, pages), keys=keys)
                for name, pool in first.items()
            ]
            kept = other.batch_set_v2(transfers)
            code = int(kept != {PoolName(name): [True] * 6 for name in first})
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.batch_exists([*keys, key(99)]) == 6
    into = [10, 3, 7, 0, 15, 12]
    for name, pool in pools.items():
        transfer = PoolTransfer(PoolName(name), indices(pool, into), keys=keys)
        assert storage.batch_get_v2([transfer]) == {PoolName(name): [True] * 6}
        for page, place in zip(pages, into, strict=True):
            assert page_bytes(pool, place) == page_bytes(first[name], page)
    assert not failed(storage)
    storage.close()


@pytest.mark.parametrize("what", [name for name in OTHERS if name != "data rank"])
def test_another_configuration_is_a_miss_and_takes_nothing_away(
    service: Service, what: str
) -> None:
    mine = mha_pool()
    fill(mine, 1)
    usual = ours(told(service, pool_bytes=4 << 20), {"kv": mine})
    assert usual.batch_set_v1(KEYS, indices(mine, PAGES)) == [True] * 4
    make, changes = OTHERS[what]
    pool = make()
    fill(pool, 2)
    before = [page_bytes(pool, page) for page in PAGES]
    storage = ours(told(service, pool_bytes=4 << 20), {"kv": pool}, **changes)
    assert storage.batch_exists(KEYS) == 0
    assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    assert [page_bytes(pool, page) for page in PAGES] == before
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    stored = [page_bytes(mine, page) for page in PAGES]
    fill(mine, 3)
    assert usual.batch_get_v1(KEYS, indices(mine, PAGES)) == [True] * 4
    assert [page_bytes(mine, page) for page in PAGES] == stored
    assert not failed(storage) | failed(usual)
    storage.close()
    usual.close()


def test_replicas_of_one_server_find_each_others_pages(service: Service) -> None:
    """They hold the same share of the same weights: which of them it was decides no bytes."""
    pools = [mha_pool(), mha_pool()]
    fill(pools[0], 1)
    replicas = [ours(told(service), {"kv": pool}, dp_rank=rank) for rank, pool in enumerate(pools)]
    assert replicas[0].batch_set_v1(KEYS, indices(pools[0], PAGES)) == [True] * 4
    assert replicas[1].batch_get_v1(KEYS, indices(pools[1], PAGES)) == [True] * 4
    for page in PAGES:
        assert page_bytes(pools[1], page) == page_bytes(pools[0], page)
    for each in replicas:
        each.close()


def test_ranks_of_a_model_with_latents_read_what_the_first_one_wrote(service: Service) -> None:
    """Of its states each rank has its own: those of another are not found under any name."""
    pools = [{"kv": mla_pool(), "mamba": state_pool()} for _ in range(2)]
    for pool in pools[0].values():
        fill(pool, 1)
    ranks = [
        ours(told(service), pools[n], is_mla_model=True, tp_rank=n, tp_size=2) for n in range(2)
    ]
    for name, pool in pools[0].items():
        transfer = PoolTransfer(PoolName(name), indices(pool, PAGES), keys=KEYS)
        assert ranks[0].batch_set_v2([transfer]) == {PoolName(name): [True] * 4}
    for name, pool in pools[1].items():
        transfer = PoolTransfer(PoolName(name), indices(pool, PAGES), keys=KEYS)
        assert ranks[1].batch_get_v2([transfer]) == {PoolName(name): [name == "kv"] * 4}
    for page in PAGES:
        assert page_bytes(pools[1]["kv"], page) == page_bytes(pools[0]["kv"], page)
    state = PoolTransfer(PoolName.MAMBA, keys=[""], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = [rank.batch_exists_v2(KEYS, [state]).kv_hit_pages for rank in ranks]
    assert found == [4, 0]
    for rank in ranks:
        rank.close()


def test_tensor_ranks_of_other_models_have_pages_of_their_own(service: Service) -> None:
    pools = [mha_pool(), mha_pool()]
    ranks = [ours(told(service), {"kv": pools[n]}, tp_rank=n, tp_size=2) for n in range(2)]
    assert ranks[0].batch_set_v1(KEYS, indices(pools[0], PAGES)) == [True] * 4
    assert [rank.batch_exists(KEYS) for rank in ranks] == [4, 0]
    for rank in ranks:
        rank.close()


def test_a_service_that_was_killed_and_started_again_is_warm(tmp_path: Path) -> None:
    pool = mha_pool()
    fill(pool, 1)
    content = [page_bytes(pool, page) for page in PAGES]
    with started(tmp_path) as service:
        storage = ours(told(service), {"kv": pool})
        assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
        flushed(storage)
        service.kill()
    fill(pool, 2)
    before = [page_bytes(pool, page) for page in PAGES]
    assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    assert storage.batch_exists(KEYS) == 0
    assert storage.exists(KEYS[0]) is False
    assert [page_bytes(pool, page) for page in PAGES] == before
    gone = {"failed.get", "failed.set", "failed.exists"}
    assert failed(storage) == {f"{each}.ServiceGoneError" for each in gone}
    with started(tmp_path) as service:
        until(lambda: storage.batch_exists(KEYS) == 4)
        until(lambda: storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [True] * 4)
        assert [page_bytes(pool, page) for page in PAGES] == content
        until(lambda: storage.batch_set_v1([key(9)], indices(pool, [9])) == [True])
        service.check()
        storage.close()


def test_a_service_that_is_killed_in_the_middle_never_gives_other_bytes(tmp_path: Path) -> None:
    """Three threads, as the engine has, that keep, bring and ask without a pause, while the service
    is killed twice. Each page says of which key it is; after each start pages move again.
    """
    pool, seed = mha_pool(tokens=128), 5
    size = pool.size // pool.page_size
    spans = [range(n * size // 3, (n + 1) * size // 3) for n in range(3)]
    came = [0, 0, 0]
    failures: list[BaseException] = []
    over = threading.Event()

    def work(which: int, storage: Any) -> None:
        chance, where = seeded(seed * 10 + which)
        while not over.is_set():
            pages, numbers = chance.sample(spans[which], 5), chance.sample(range(1, 40), 5)
            keys = [key(n) for n in numbers]
            if chance.random() < 0.5:
                for page, number in zip(pages, numbers, strict=True):
                    mark(pool, page, number)
                good = storage.batch_set_v1(keys, indices(pool, pages))
                for page in pages:
                    mark(pool, page, -1)  # the engine uses its slots again at once
            else:
                good = storage.batch_get_v1(keys, indices(pool, pages))
                for page, number, there in zip(pages, numbers, good, strict=True):
                    assert not there or number_of(pool, page) == number, where("get")
                came[which] += sum(good)
            assert len(good) == 5 and 0 <= storage.batch_exists(keys) <= 5

    def run(which: int, storage: Any) -> None:
        try:
            work(which, storage)
        except BaseException as error:  # outermost: a thread of the test; the test raises it
            failures.append(error)

    first = started(tmp_path)
    storage = ours(told(first, timeout_s=1.0), {"kv": pool})
    threads = [threading.Thread(target=run, args=(n, storage)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(3):
            with started(tmp_path) if turn else first as service:
                before = sum(came)
                until(lambda was=before: bool(failures) or sum(came) > was)
                if turn < 2:
                    service.kill()
                else:
                    service.check()
                    over.set()
                    for thread in threads:
                        thread.join(WAIT_S)
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures, failures[0]
    assert failed(storage) <= {f"failed.{n}.ServiceGoneError" for n in ("get", "set", "exists")}
    storage.close()


@pytest.mark.timeout(60)  # less than the 90 s that a write has if nothing is said
@pytest.mark.parametrize("moment", ["before it is asked", "before a page is kept"])
def test_a_stopped_service_is_a_miss_in_time_and_is_asked_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pool = mha_pool()
    fill(pool, 1)
    storage = ours(told(service, timeout_s=0.3), {"kv": pool})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    fills = Room.fill

    def stops(room: Room, *given: Any) -> bool:
        well = fills(room, *given)
        service.process.send_signal(signal.SIGSTOP)
        return well

    if moment == "before it is asked":
        service.process.send_signal(signal.SIGSTOP)
    else:
        monkeypatch.setattr(Room, "fill", stops)
    try:
        assert storage.batch_set_v1([key(7)], indices(pool, [7])) == [False]
        assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
        assert storage.batch_exists(KEYS) == 0
        assert storage.batch_exists_v2(KEYS, []).kv_hit_pages == 0
        late = ours(told(service, timeout_s=0.3), {"kv": mha_pool()})  # and nobody's start waits
        late.close()
        assert storage.get_stats() is None
    finally:
        monkeypatch.undo()
        service.process.send_signal(signal.SIGCONT)
    until(lambda: storage.batch_exists(KEYS) == 4)
    until(lambda: storage.batch_get_v1(KEYS, indices(pool, [9, 8, 6, 5])) == [True] * 4)
    assert [page_bytes(pool, page) for page in (9, 8, 6, 5)] == [
        page_bytes(pool, page) for page in PAGES
    ]
    storage.close()


def test_a_service_that_comes_later_is_used_then(tmp_path: Path) -> None:
    pool = mha_pool()
    fill(pool, 1)
    storage = ours({"service": str(tmp_path / "radix.sock")}, {"kv": pool})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    with started(tmp_path):
        until(lambda: storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4)
        until(lambda: storage.batch_exists(KEYS) == 4)
        storage.close()
        assert storage.batch_exists(KEYS) == 0
        assert storage.clear() is False


def test_clear_forgets_for_this_process_and_takes_nothing_from_others(service: Service) -> None:
    pool, theirs = mha_pool(), mha_pool()
    fill(pool, 1)
    storage, other = ours(told(service), {"kv": pool}), ours(told(service), {"kv": theirs})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    assert storage.clear() is True
    assert storage.batch_exists(KEYS) == 0
    assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    fill(pool, 2)  # what other weights make of the same tokens
    assert storage.batch_set_v1(KEYS[:1], indices(pool, [0])) == [True]
    assert storage.batch_exists(KEYS) == 1
    fill(theirs, 1)
    before = [page_bytes(theirs, page) for page in PAGES]
    fill(theirs, 3)
    assert other.batch_get_v1(KEYS, indices(theirs, PAGES)) == [True] * 4
    assert [page_bytes(theirs, page) for page in PAGES] == before
    for each in (storage, other):
        each.close()


def test_pages_that_were_on_their_way_when_all_was_forgotten_are_misses(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = mha_pool()
    storage = ours(told(service), {"kv": pool})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    load = Client.load

    def clears(client: Client, *given: Any, **named: Any) -> Any:
        came = load(client, *given, **named)
        assert came.all() and storage.clear()
        return came

    monkeypatch.setattr(Client, "load", clears)
    assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    storage.close()


def test_a_row_that_is_named_twice_gets_neither_page(service: Service) -> None:
    pool = mha_pool()
    fill(pool, 1)
    storage = ours(told(service), {"kv": pool})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    before = page_bytes(pool, 7)
    assert storage.batch_get_v1(KEYS[:2], indices(pool, [7, 7])) == [False, False]
    assert page_bytes(pool, 7) == before
    assert failed(storage) == {"failed.get.ValueError"}
    storage.close()


def test_what_moved_is_counted_and_told_to_the_engine(service: Service) -> None:
    pool = mha_pool()
    storage = ours(told(service), {"kv": pool}, enable_storage_metrics=True)
    storage.batch_set_v1(KEYS, indices(pool, PAGES))
    storage.batch_get_v1([*KEYS, key(99)], indices(pool, [*PAGES, 9]))
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([4], [4])
    assert storage.counters() == {
        "service.stored": 4,
        "service.not_stored": 0,
        "service.loaded": 4,
        "service.not_loaded": 1,
    }
    assert storage.directory is None
    storage.close()


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """A service over TCP with two tenants; the options of either of them."""
    known = {}
    for name in ("red", "blue", "wrong"):
        file = tmp_path / name
        file.write_text(f"the secret of {name}, of many bytes")
        file.chmod(0o600)
        known[name] = {"secret_file": str(file), "namespaces": ["org/"]}
    del known["wrong"]
    with Service(tmp_path, known, listen="127.0.0.1:0") as running:

        def of(tenant: str, secret: str = "") -> dict[str, Any]:
            where = {"service": running.addresses["listen"], "tenant": tenant}
            return where | {"secret_file": str(tmp_path / (secret or tenant))}

        yield of
        running.check()


def test_tenants_by_secret_see_what_is_theirs(tenants: Callable[..., dict[str, Any]]) -> None:
    pool = mha_pool()
    fill(pool, 1)
    red, also, blue = (
        ours(tenants(name), {"kv": each})
        for name, each in (("red", pool), ("red", mha_pool()), ("blue", mha_pool()))
    )
    assert red.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    assert [each.batch_exists(KEYS) for each in (red, also, blue)] == [4, 4, 0]
    assert blue.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    for each in (red, also, blue):
        each.close()


def test_who_is_not_let_in_is_told_at_start(
    tenants: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(DeniedError):
        ours(tenants("red", "wrong"), {"kv": mha_pool()})
    with pytest.raises(DeniedError, match="may use 'org/'"):
        ours(tenants("red"), {"kv": mha_pool()}, model_name="other/model")
    with pytest.raises(OSError, match="nothing"):
        RadixHiCache(config(tenants("red", "nothing")), {})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"service": "here"}, ValueError, "a path with '/' or host:port"),
        ({"service": ""}, ValueError, "service must not be empty"),
        ({"service": 7}, TypeError, "service must be text"),
        ({"service": None}, ValueError, "needs directory and limit_bytes"),
        ({"service": "/s", "tenant": 7}, TypeError, "tenant must be text"),
        ({"service": "/s", "secret_file": ""}, ValueError, "secret_file must not be empty"),
        ({"service": "/s", "timeout_s": 0}, ValueError, "timeout_s must be"),
        ({"service": "/s", "pool_bytes": -1}, ValueError, "pool_bytes must be"),
        ({"service": "/s", "socket": "/s"}, ValueError, "socket is service here"),
        ({"service": "/s", "directory": "d"}, ValueError, "has directory, .* beside 'service'"),
        ({"service": "/s", "policy": "lru", "threads": 3}, ValueError, "has policy, threads, of"),
        (
            {"directory": "d", "limit_bytes": 1, "tenant": "red"},
            ValueError,
            "tenant, secret_file, pool_bytes need a service",
        ),
    ],
)
def test_options_are_refused_by_name(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Options.of(given)


def test_pools_that_come_late_are_in_the_service_too(service: Service) -> None:
    """The engine adds pools after it was said that all are there; the first call fixes them."""
    pools = {"kv": mha_pool(), "mamba": state_pool()}
    storage = attach(RadixHiCache(config(told(service)), {}), {"kv": pools["kv"]})
    storage.register_mem_host_pool_v2(pools["mamba"], PoolName.MAMBA)
    for name, pool in pools.items():
        fill(pool, 4)
        transfer = PoolTransfer(PoolName(name), indices(pool, PAGES), keys=KEYS)
        assert storage.batch_set_v2([transfer]) == {PoolName(name): [True] * 4}
    assert not failed(storage)
    storage.close()
