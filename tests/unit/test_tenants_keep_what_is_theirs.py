"""What one tenant does costs another nothing that is its share: a scan of twenty times the capacity
leaves conversations where they are, quotas bound and floors keep, on every tier, in both facades
and after a restart.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radix import Cost, Group, Ownership, PrefixCache, Retention
from radix.errors import CapacityError, NeverFitsError, RequestError
from radix.keys import Namespace
from radix.policy.eviction import NATIVE_POLICIES
from radix.store import FlatStore
from radix.tenants import Tenant, Tenants
from tests.ownpolicies import OwnLfu
from tests.unit.storerig import BLOCK, StoreRig, keys
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 16
KV = Group.full("kv", 64)
CHATS = Namespace(salt=b"chats")
SCAN = Namespace(salt=b"scan")


def cache_of(blocks: int, tenants: Tenants | None, *below: int, **options: object) -> PrefixCache:
    """A cache that moves no bytes."""
    tiers = [IndexTier(blocks)]
    tiers += [IndexTier(n, name) for n, name in zip(below, ("host", "deep"), strict=False)]
    if isinstance(policy := options.get("policy"), type):
        options["policy"] = policy()
    group = replace(KV, cost=Cost(1e9, 1e3)) if policy == "cost" else KV
    return PrefixCache([group], tiers, page_tokens=PAGE, tenants=tenants, **options)


def serve(cache: PrefixCache, tokens: np.ndarray, space: Namespace) -> int:
    """One request, to its end; its hit."""
    request = cache.admit(tokens, namespace=space)
    while not request.ready:
        cache.poll()
    request.computed(len(tokens))
    request.finish()
    cache.poll()
    return request.hit_tokens


def ratio(cache: PrefixCache, conversations: int, scanned: int) -> float:
    """The hit ratio of conversations that go on in any order, with ``scanned`` prompts of another
    tenant, of 65 pages each, between any two of their turns.
    """
    rng, scan = np.random.default_rng(5), np.random.default_rng(6)
    chats = [rng.integers(0, 1 << 20, 4 * PAGE, np.int32) for _ in range(conversations)]
    asked = hit = 0
    for turn in range(100):
        chat = turn if turn < conversations else int(rng.integers(conversations))
        more = rng.integers(0, 1 << 20, PAGE // 2, np.int32)
        chats[chat] = np.concatenate((chats[chat], more))
        hits = serve(cache, chats[chat], CHATS)
        if turn >= conversations:
            asked, hit = asked + len(chats[chat]), hit + hits
        for _ in range(scanned):
            serve(cache, scan.integers(0, 1 << 20, 65 * PAGE, np.int32), SCAN)
    cache.check()
    return hit / asked


@pytest.mark.parametrize("conversations", [10, 24])
@pytest.mark.parametrize("below", [(), (60,)], ids=["device", "device and host"])
@pytest.mark.parametrize("policy", [*NATIVE_POLICIES, OwnLfu])
def test_a_scan_leaves_conversations_where_they_are(
    policy: str | type, below: tuple[int, ...], conversations: int
) -> None:
    """A scan of far more than twenty times the capacity, of all of it between two turns: the tenant
    hits what it hits alone in half of the room, under every order of eviction.
    """
    room, between = 200, 4 * 65
    assert between >= room + sum(below) and 100 * between >= 20 * (room + sum(below))
    half = tuple(blocks // 2 for blocks in below)
    alone = ratio(cache_of(room // 2, None, *half, policy=policy), conversations, 0)
    without = ratio(cache_of(room, None, *below, policy=policy), conversations, 4)
    apart = ratio(cache_of(room, Tenants(), *below, policy=policy), conversations, 4)
    assert alone > 0.4
    assert without < (0.2 if policy == "s3fifo" else 0.05)
    assert abs(apart - alone) <= 0.02


def test_weights_divide_what_both_want() -> None:
    cache = cache_of(120, Tenants({"chats": Tenant(3), "scan": Tenant(1)}))
    for number in range(40):
        for space in (CHATS, SCAN):
            tokens = np.random.default_rng(number).integers(0, 1 << 20, 4 * PAGE, np.int32)
            serve(cache, tokens, space)
    use = cache.tenant_use()
    assert use["chats"].tiers["device"].blocks == pytest.approx(90, abs=4)
    assert use["scan"].tiers["device"].blocks == pytest.approx(30, abs=4)
    cache.set_tenants(Tenants({"chats": Tenant(1), "scan": Tenant(3)}))
    for number in range(40, 80):
        tokens = np.random.default_rng(number).integers(0, 1 << 20, 4 * PAGE, np.int32)
        serve(cache, tokens, SCAN)
    assert cache.tenant_use()["scan"].tiers["device"].blocks == pytest.approx(90, abs=4)
    cache.check()


def test_unused_room_is_anybodys() -> None:
    cache = cache_of(100, Tenants({"chats": Tenant(50)}))
    rng = np.random.default_rng(1)
    for _ in range(25):
        serve(cache, rng.integers(0, 1 << 20, 4 * PAGE, np.int32), SCAN)
    use = cache.tenant_use()["scan"]
    assert use.tiers["device"].blocks == 100
    assert use.tiers["device"].evicted == 0


def test_a_quota_bounds_blocks_and_running_requests_alike() -> None:
    cache = cache_of(100, Tenants({"scan": Tenant(quota={"device": 30 * 64})}))
    rng = np.random.default_rng(1)
    for _ in range(10):
        serve(cache, rng.integers(0, 1 << 20, 7 * PAGE, np.int32), SCAN)
    share = cache.tenant_use()["scan"].tiers["device"]
    assert (share.blocks, share.quota_bytes) == (30, 30 * 64)
    running = [cache.admit(rng.integers(0, 1 << 20, 10 * PAGE, np.int32), namespace=SCAN)]
    running.append(cache.admit(rng.integers(0, 1 << 20, 10 * PAGE, np.int32), namespace=SCAN))
    running.append(cache.admit(rng.integers(0, 1 << 20, 10 * PAGE, np.int32), namespace=SCAN))
    share = cache.tenant_use()["scan"].tiers["device"]
    assert (share.blocks, share.private, share.used_bytes) == (0, 30, 30 * 64)
    with pytest.raises(CapacityError, match="tenant 'scan'") as short:
        cache.admit(rng.integers(0, 1 << 20, PAGE, np.int32), namespace=SCAN)
    assert (short.value.free, short.value.evictable) == (0, 0)
    with pytest.raises(NeverFitsError, match="quota of tenant 'scan'"):
        cache.admit(rng.integers(0, 1 << 20, 31 * PAGE, np.int32), namespace=SCAN)
    serve(cache, rng.integers(0, 1 << 20, 60 * PAGE, np.int32), CHATS)
    for request in running:
        request.abort()
    cache.check()
    assert cache.tenant_use()["scan"].refused == 1


def test_a_floor_is_kept_from_those_who_need_more() -> None:
    cache = cache_of(100, Tenants({"chats": Tenant(0.001, floor={"device": 0.25})}))
    rng = np.random.default_rng(1)
    serve(cache, rng.integers(0, 1 << 20, 40 * PAGE, np.int32), CHATS)
    for _ in range(20):
        serve(cache, rng.integers(0, 1 << 20, 15 * PAGE, np.int32), SCAN)
    assert cache.tenant_use()["chats"].tiers["device"].blocks == 25
    with pytest.raises(CapacityError, match="tenant 'scan'"):
        cache.admit(rng.integers(0, 1 << 20, 76 * PAGE, np.int32), namespace=SCAN)
    assert cache.tenant_use()["chats"].tiers["device"].blocks == 25
    serve(cache, rng.integers(0, 1 << 20, 100 * PAGE, np.int32), CHATS)  # its own is its own
    cache.check()


def test_a_copy_beyond_the_quota_is_shorter() -> None:
    cache = cache_of(100, Tenants({"scan": Tenant(quota={"host": 8 * 64})}), 100)
    rng = np.random.default_rng(1)
    for _ in range(6):
        serve(cache, rng.integers(0, 1 << 20, 12 * PAGE, np.int32), SCAN)
    share = cache.tenant_use()["scan"].tiers["host"]
    assert 0 < share.blocks <= 8
    assert share.private == 0
    cache.check()


def test_an_insert_beyond_the_quota_stores_less() -> None:
    cache = cache_of(100, Tenants({"scan": Tenant(quota={"device": 8 * 64})}))
    tokens = np.arange(20 * PAGE, dtype=np.int32)
    _, cursor = cache.match(tokens, namespace=SCAN)
    lease = cache.lease(cursor)
    done = cache.insert(tokens, lease, partial=True)
    assert done.created_pages == 8
    lease.release()
    cache.check()


def test_slots_of_the_engine_count_once_they_are_inserted() -> None:
    cache = cache_of(
        100, Tenants({"scan": Tenant(quota={"device": 8 * 64})}), ownership=Ownership.SHARED
    )
    free = list(range(100))
    for number in range(6):
        tokens = np.arange(3 * PAGE, dtype=np.int32) + number * 1000
        _, cursor = cache.match(tokens, namespace=SCAN)
        lease = cache.lease(cursor)
        own, free = free[:3], free[3:]
        if number % 2:
            cache.insert(tokens, lease, slots=[np.array(own, np.int32)])
            lease.release()
        else:
            cache.insert_many([tokens], [lease], slots=[[np.array(own, np.int32)]])
            cache.release_many([lease])
        free += cache.spare(0).tolist()
        assert cache.tenant_use()["scan"].tiers["device"].blocks == min(8, 3 * number + 3)
    assert len(free) == 92
    cache.check()


def test_groups_of_one_budget_are_one_pool() -> None:
    """The tier's bytes are what is divided, whichever group they are of."""
    groups = [Group.full("kv", 64), Group("near", KV.layout, Retention("window", 32))]
    tenants = Tenants({"scan": Tenant(quota={"device": 0.5})})
    tier = IndexTier(limit_bytes=100 * 64)
    cache = PrefixCache(groups, [tier], page_tokens=PAGE, tenants=tenants)
    rng = np.random.default_rng(2)
    chat = rng.integers(0, 1 << 20, 30 * PAGE, np.int32)
    serve(cache, chat, CHATS)
    for _ in range(60):
        serve(cache, rng.integers(0, 1 << 20, 10 * PAGE, np.int32), SCAN)
        use = cache.tenant_use()["scan"].tiers["device"]
        assert use.used_bytes <= 50 * 64 == use.quota_bytes
        cache.check()
    assert serve(cache, chat, CHATS) >= 28 * PAGE
    with pytest.raises(NeverFitsError, match="quota of tenant 'scan'"):
        cache.admit(rng.integers(0, 1 << 20, 40 * PAGE, np.int32), namespace=SCAN)


def test_replicas_with_tenants_decide_alike() -> None:
    def run() -> tuple[list[object], object]:
        tenants = Tenants({"chats": Tenant(2, floor={"device": 0.1}), "scan": Tenant(0.5)})
        cache = cache_of(40, tenants, 60, events=True)
        rng, told = np.random.default_rng(8), []
        for turn in range(80):
            space = (CHATS, SCAN, None)[turn % 3]
            request = cache.admit(rng.integers(0, 3, 6 * PAGE, np.int32), namespace=space)
            while not request.ready:
                told += cache.poll()
            request.computed(6 * PAGE)
            request.finish()
            told += cache.poll()
        return [repr(event) for event in told], cache.tenant_use()

    assert run() == run()


def test_keys_have_tenants_too() -> None:
    tenants = Tenants({"scan": Tenant(quota={"rows": 20 * BLOCK})})
    rig = StoreRig(40, HostTier(1 << 20, segment_bytes=1 << 16), tenants=tenants)
    rig.bring(*range(18), namespace=CHATS)
    for first in range(100, 900, 10):
        rig.bring(*range(first, first + 10), namespace=SCAN)
        rig.end()
    have = rig.store.has(keys(*range(18)), namespace=CHATS)
    assert (have == 0).all()
    use = rig.store.tenant_use()
    assert use["chats"].tiers["rows"].blocks == 18
    assert use["scan"].tiers["rows"].blocks == 20
    assert (use["chats"].asked, use["chats"].hit) == (18, 18)
    with pytest.raises(NeverFitsError, match="quota of tenant 'scan'"):
        rig.store.reserve(keys(*range(1000, 1021)), namespace=SCAN)
    rig.end()
    assert rig.store.tenant_use()["scan"].tiers["host"].blocks > 20
    rig.store.close()


def test_a_restart_finds_whose_blocks_are_whose(tmp_path: Path) -> None:
    def open_store(tenants: Tenants) -> FlatStore:
        disk = DiskTier(tmp_path / "disk", limit_bytes=8 << 20, segment_bytes=1 << 16)
        rig = StoreRig(40, disk, tenants=tenants)
        return rig

    rig = open_store(Tenants())
    rig.bring(*range(10), namespace=CHATS)
    rig.bring(*range(30), namespace=SCAN)
    rig.end()
    rig.store.close()
    rig = open_store(Tenants())
    use = rig.store.tenant_use()
    assert use["chats"].tiers["disk"].blocks == 10
    assert use["scan"].tiers["disk"].blocks == 30
    assert (use["chats"].tiers["rows"].blocks, use["chats"].tiers["disk"].private) == (0, 0)
    rig.store.check()
    rig.store.close()


def test_who_asks_is_counted_by_tenant() -> None:
    cache = cache_of(100, Tenants())
    tokens = np.arange(10 * PAGE, dtype=np.int32)
    serve(cache, tokens, CHATS)
    serve(cache, tokens, CHATS)
    serve(cache, tokens, SCAN)
    use = cache.tenant_use()
    assert (use["chats"].asked, use["chats"].hit) == (320, 144)
    assert (use["scan"].asked, use["scan"].hit) == (160, 0)


def test_tenants_of_no_terms_are_forgotten_with_their_namespaces() -> None:
    cache = cache_of(30, Tenants({"chats": Tenant(2)}))
    rng = random.Random(3)
    for number in range(400):
        tokens = np.array([rng.randrange(1 << 20) for _ in range(3 * PAGE)], np.int32)
        serve(cache, tokens, Namespace(salt=b"%d" % number))
    serve(cache, tokens, CHATS)
    cache.check()
    assert len(cache.tenant_use()) < 200
    assert sum(use.tiers["device"].blocks for use in cache.tenant_use().values()) == 30


def test_terms_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="weight is 0"):
        Tenant(0)
    with pytest.raises(ValueError, match=r"quota\['device'\] is 1.5"):
        Tenant(quota={"device": 1.5})
    with pytest.raises(TypeError, match="floor must be a mapping"):
        Tenant(floor=3)
    with pytest.raises(ValueError, match="default has a floor"):
        Tenants(default=Tenant(floor={"device": 1}))
    with pytest.raises(ValueError, match="tier 'tape' is not one of"):
        cache_of(10, Tenants({"a": Tenant(quota={"tape": 1})}))
    with pytest.raises(ValueError, match="floors in tier 'device' are 704 of 640 bytes"):
        cache_of(10, Tenants({"a": Tenant(floor={"device": 704})}))
    with pytest.raises(TypeError, match="tenants must be Tenants"):
        cache_of(10, {"a": 1})
    with pytest.raises(RequestError, match="made without tenants"):
        cache_of(10, None).set_tenants(Tenants())
    cache = cache_of(10, Tenants({"a": Tenant(2)}))
    with pytest.raises(ValueError, match="of must stay"):
        cache.set_tenants(Tenants(of=lambda namespace: namespace.model))
    with pytest.raises(ValueError, match="tier 'tape'"):
        cache.set_tenants(Tenants({"a": Tenant(quota={"tape": 1})}))
    assert cache.residency.shares.tenants.terms("a").weight == 2
