"""Prompts with images in them hit exactly the pages whose tokens and contents they share with what
was computed before, from the device, the host and the disk, also after a restart; and every byte of
a hit is that of its own prefix, contents included (C29; I5, I24, I34).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.content import Content
from radix.groups import Group, Retention
from radix.keys import Namespace
from radix.layout import Layout
from radix.request import Request
from tests.oracle import expand
from tests.ticktier import Bytes, peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier

GROUPS = (Group.full("kv", 64), Group.full("latent", 24))
DIGESTS = tuple(hashlib.sha256(name).digest() for name in (b"cat", b"dog", b"owl"))
CAT, DOG, OWL = DIGESTS
KINDS = ("xxh3", "sha256")
Meaning = tuple[object, ...]  # of a page: what each of its tokens stands for


class Engine:
    """It computes on a device in memory, reads every byte of a hit, and knows by itself how long
    each hit must be: nothing is lost here, the disk holds it all.
    """

    def __init__(self, folder: Path, keys: str, page_tokens: int) -> None:
        self.page, self.folder = page_tokens, folder
        self.known: set[tuple[object, ...]] = set()
        self.served: dict[str, int] = {}
        self.options = {"keys": keys, "page_tokens": page_tokens, "events": True}
        self.open()

    def open(self) -> None:
        """Opens the tiers; only the disk still holds what it held."""
        self.device = DeviceTier(blocks=64, device="cpu")
        tiers = [
            self.device,
            HostTier(512 * 4096, segment_bytes=4096),
            DiskTier(self.folder, limit_bytes=8 << 20, segment_bytes=1 << 18),
        ]
        self.cache = PrefixCache(GROUPS, tiers, **self.options)

    def reopen(self) -> None:
        """All is made durable, and a new cache comes."""
        self.cache.flush()
        self.cache.check()
        self.cache.close()
        self.open()

    def close(self) -> None:
        """Nothing may be held at the end."""
        self.cache.check()
        self.cache.close()

    def meanings(
        self, space: Namespace | None, tokens: list[int], contents: list[Content]
    ) -> list[Meaning]:
        """For each full page all that leads up to its end, one entry a page."""
        stands = [
            (
                token,
                [
                    (one.digest, one.length_tokens, at - one.offset_tokens)
                    for one in contents
                    if one.offset_tokens <= at < one.end_tokens
                ],
            )
            for at, token in enumerate(tokens)
        ]
        chain: Meaning = (str(space),)
        found = []
        for lo in range(0, len(tokens) - self.page + 1, self.page):
            text = repr((chain, stands[lo : lo + self.page])).encode()
            chain = (hashlib.sha256(text).digest(),)
            found.append(chain)
        return found

    def expected(self, chain: Meaning, group: int) -> Bytes:
        """What a block must hold."""
        seed = hashlib.sha256(repr((chain, group)).encode()).digest()[:8]
        return expand([int.from_bytes(seed, "little")], GROUPS[group].block_bytes)[0]

    def serve(
        self,
        tokens: list[int],
        contents: list[Content],
        sampled: list[int],
        space: Namespace | None = None,
    ) -> int:
        """One request from beginning to end; its hit, which must be what the engine expects."""
        before = self.meanings(space, tokens, contents)
        usable = (len(tokens) - 1) // self.page
        shared = sum(1 for chain in before[:usable] if chain in self.known)
        found, _ = self.cache.match(np.array(tokens, np.int32), namespace=space, content=contents)
        assert found.hit_pages == shared
        why = self.cache.explain(tokens, namespace=space, content=contents)
        assert why.hit_tokens == shared * self.page
        request = self.cache.admit(tokens, new_tokens=8, namespace=space, content=contents)
        request.wait()
        assert request.hit_tokens == shared * self.page
        for tier, count in request.sources.items():
            self.served[tier] = self.served.get(tier, 0) + count
        self.read(request, before[:shared])
        after = self.meanings(space, tokens + sampled, contents)
        self.write(request, before, shared)
        request.computed(len(tokens))
        for count, token in enumerate(sampled, len(tokens) + 1):
            request.append([token])
            self.write(request, after[: count // self.page], len(before))
            request.computed(count)
        self.read(request, after)
        request.finish()
        self.known.update(after)
        self.settle()
        return request.hit_tokens

    def write(self, request: Request, chains: list[Meaning], first: int) -> None:
        """What a kernel does: fills the pages from ``first`` on."""
        for group in range(len(GROUPS)):
            table = request.slots(group)
            for page in range(first, len(chains)):
                block = peek(self.device, group, table[page])
                block[:] = self.expected(chains[page], group)

    def read(self, request: Request, chains: list[Meaning]) -> None:
        """Every byte of these pages must be the right one."""
        for group in range(len(GROUPS)):
            table = request.slots(group)
            for page, chain in enumerate(chains):
                found = peek(self.device, group, table[page])
                assert np.array_equal(found, self.expected(chain, group)), (group, page)

    def settle(self) -> None:
        """Until nothing is under way."""
        for _ in range(400):
            self.cache.wait(0.02)
            self.cache.poll()
            if not self.cache.transfers.jobs and not self.cache.requests.works:
                return
        raise AssertionError("never idle")

    def empty(self, *tiers: int) -> None:
        """Evicts everything from these tiers."""
        for tier in tiers:
            for group in range(len(GROUPS)):
                self.cache.evict(group, 1 << 10, tier=tier)


@contextmanager
def engine(folder: Path, keys: str, page_tokens: int) -> Iterator[Engine]:
    """An engine, closed at the end."""
    one = Engine(folder, keys, page_tokens)
    try:
        yield one
    except BaseException:
        one.cache.close()
        raise
    one.close()


both = pytest.mark.parametrize("keys", KINDS)
pages = pytest.mark.parametrize("page", [4, 16])


@both
@pages
def test_two_images_hit_on_device_host_and_disk(tmp_path: Path, keys: str, page: int) -> None:
    """The same two images at the same places hit at each source; another order, another offset
    or no image ends the hit where the first difference lies.
    """
    tokens = [7] * (6 * page + 1)
    cat, dog = Content(page + 1, page + 2, CAT), Content(4 * page, 3, DOG)
    with engine(tmp_path, keys, page) as one:
        assert one.serve(tokens, [cat, dog], [1, 2]) == 0
        assert one.serve(tokens, [dog, cat], [1, 3]) == 6 * page
        one.empty(0)
        assert one.serve(tokens, [cat, dog], [2]) == 6 * page
        one.empty(0, 1)
        assert one.serve(tokens, [cat, dog], [3]) == 6 * page
        one.reopen()
        assert one.serve(tokens, [cat, dog], [4]) == 6 * page
        # what differs ends the hit: the offset by one, no image, another one, swapped digests
        moved = Content(page + 2, page + 2, CAT)
        assert one.serve(tokens, [moved, dog], []) == page
        assert one.serve(tokens, [], []) == page
        assert one.serve(tokens, [cat], []) == 4 * page
        assert one.serve(tokens, [cat, Content(4 * page, 3, OWL)], []) == 4 * page
        swapped = [Content(page + 1, page + 2, DOG), Content(4 * page, 3, CAT)]
        assert one.serve(tokens, swapped, []) == page
        assert one.served["host"] and one.served["disk"] and one.served["device"]


@both
@pages
def test_random_prompts_with_images_hit_what_they_share(
    tmp_path: Path, keys: str, page: int
) -> None:
    """Many prompts of few ids and images, in two namespaces, with evictions and restarts."""
    seed = 20 + page + len(keys)
    rng = random.Random(seed)
    spaces = (None, Namespace("llava", revision="r2"))
    shared: list[tuple[list[int], list[Content]]] = []
    hits = 0
    with engine(tmp_path, keys, page) as one:
        for step in range(80):
            if shared and rng.random() < 0.8:
                tokens, contents = rng.choice(shared)
                upto = rng.randrange(len(tokens) // 2, len(tokens) + 1)
                tokens = tokens[:upto]
                contents = [content for content in contents if content.end_tokens <= upto]
            else:
                tokens, contents = [], []
            tokens, contents = list(tokens), list(contents)
            while len(tokens) < 2 * page or rng.random() < 0.5:
                tokens += [rng.randrange(2) for _ in range(rng.randrange(1, 2 * page))]
                if rng.random() < 0.5:
                    length = rng.randrange(1, 2 * page)
                    contents.append(Content(len(tokens), length, rng.choice(DIGESTS)))
                    tokens += [0] * length
                if len(tokens) > 8 * page:
                    break
            try:
                sampled = [rng.randrange(2) for _ in range(rng.randrange(8))]
                hits += one.serve(tokens, contents, sampled, rng.choice(spaces))
            except BaseException as error:
                error.add_note(f"seed {seed} step {step}")
                raise
            shared.append((tokens, contents))
            one.empty(*rng.choice(((), (), (), (0,), (0, 1))))
            if rng.random() < 0.08:
                one.reopen()
        assert hits and sorted(one.served) == ["device", "disk", "host"], f"seed {seed}"


@both
def test_windows_and_snapshots_of_prompts_with_images_come_back(tmp_path: Path, keys: str) -> None:
    """After a restart their records find the pages of the same tokens and contents, no others."""
    groups = (
        Group.full("kv", 64),
        Group("near", Layout.opaque(24), Retention("window", 6)),
        Group("state", Layout.opaque(40), Retention("state")),
    )
    tokens, contents = np.arange(21, dtype=np.int32) % 5, [Content(3, 6, CAT), Content(13, 2, DOG)]

    def start() -> PrefixCache:
        disk = DiskTier(tmp_path, limit_bytes=8 << 20, segment_bytes=1 << 18)
        tiers = [HostTier(256 * 4096, segment_bytes=4096), disk]
        return PrefixCache(groups, tiers, page_tokens=4, keys=keys)

    cache = start()
    request = cache.admit(tokens, content=contents, boundaries=[8])
    for stop in request.cuts(len(tokens)):
        request.snapshot(stop)
    request.computed(len(tokens))
    request.finish()
    cache.flush()
    cache.close()
    cache = start()
    assert cache.metrics.get("restore", "unlinked", "disk") == 0
    swapped = [Content(3, 6, CAT), Content(13, 2, OWL)]
    for given, hit in ((contents, 20), (swapped, 8), (contents[:1], 8), (None, 0)):
        assert cache.explain(tokens, content=given).hit_tokens == hit
        request = cache.admit(tokens, content=given)
        request.wait()
        assert request.hit_tokens == hit
        request.abort()
        cache.flush()
    cache.check()
    cache.close()


@both
def test_engine_driven_calls_take_contents_and_go_on_from_a_lease(keys: str) -> None:
    """A run that is inserted in pieces, each behind the lease of the one before, is the run
    inserted at once: the keys go on from the last page, and the prefix costs nothing.
    """
    tokens = np.arange(41, dtype=np.int32) % 3
    contents = [Content(2, 7, CAT), Content(9, 1, DOG), Content(30, 9, CAT)]
    keys_of = []
    for steps in ((41,), (2, 9, 10, 17, 29, 41), (12, 30, 39, 40)):
        cache = PrefixCache(
            [Group.full("kv", 64)], [IndexTier(64)], page_tokens=4, keys=keys, events=True
        )
        found, cursor = cache.match(tokens, content=contents)
        assert found.hit_pages == 0 and cursor.pages == 0
        with cache.lease(cursor) as lease:
            for upto in steps:
                there = [one for one in contents if one.end_tokens <= upto]
                cache.insert(tokens[:upto], lease, content=there)
        assert cache.match(tokens, content=contents)[0].hit_pages == 10
        for leave in (0, 1, 2, 5, 6, 9, 40, 41, 99):
            hit = cache.match(tokens, content=contents, leave=leave)[0]
            assert hit.hit_pages == max(0, 41 - leave) // 4, leave
            assert hit.structural_pages == 10
        at = cache.match(tokens, content=contents)[1]
        keys_of.append(cache.tree.keys(at, 0, 10).tobytes())
        assert cache.match(tokens)[0].hit_pages == 0
        assert cache.explain(tokens, content=contents[:2]).hit_tokens == 28
        cache.check()
        cache.close()
    assert len(set(keys_of)) == 1


def _caches() -> Iterator[PrefixCache]:
    for keys in ("tokens", *KINDS):
        cache = PrefixCache([Group.full("kv", 64)], [IndexTier(16)], page_tokens=4, keys=keys)
        yield cache
        cache.check()
        assert [usage.used_blocks for usage in cache.usage().values()] == [(0,)]
        cache.close()


def test_bad_contents_are_refused_and_change_nothing() -> None:
    good = Content(0, 4, CAT)
    bad = [
        ([Content(7, 3, CAT)], ValueError, "reaches beyond the prompt of 9 tokens"),
        ([good, Content(3, 1, DOG)], ValueError, "content at token 3 overlaps"),
        ([(0, 4, CAT)], TypeError, r"content\[0\] must be a Content"),
        (good, TypeError, "content must be a sequence of Content"),
    ]
    tokens = np.arange(9, dtype=np.int32)
    for cache in _caches():
        wrong = list(bad)
        if not cache.keys.opaque:
            wrong.append(([good], ValueError, "keys='xxh3' or 'sha256'"))
        lease = cache.lease(cache.match(tokens)[1])
        before = cache.tree.stats()
        for contents, kind, match in wrong:
            for call in (
                cache.match,
                cache.admit,
                cache.explain,
                partial(cache.insert, lease=lease),
            ):
                with pytest.raises(kind, match=match):
                    call(tokens, content=contents)
        assert cache.tree.stats() == before
        assert cache.match(tokens, content=())[0].hit_pages == 0
        assert cache.match(tokens, content=None)[0].hit_pages == 0
        lease.release()


def test_keys_of_another_name_are_refused() -> None:
    with pytest.raises(ValueError, match="keys is 'pages', expected one of tokens, xxh3, sha256"):
        PrefixCache([Group.full("kv", 64)], [IndexTier(16)], keys="pages")
