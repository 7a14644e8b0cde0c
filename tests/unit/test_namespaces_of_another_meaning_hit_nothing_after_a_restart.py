"""A disk that another process filled serves again what means the same, whatever the hash seed, and
nothing else: another revision, dtype, layout, page or kind of page finds 0 hits, and what is
foreign is given back to be written over (C26, C30; I24).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.content import Content
from radix.groups import Group
from radix.keys import Namespace
from radix.layout import Layout, Part
from tiers.disk import DiskTier
from tiers.host import HostTier

TOKENS = np.arange(33, dtype=np.int32)
IMAGE = (Content(5, 9, b"cat".ljust(32, b".")),)
SPACE = Namespace("llava", "sql", revision="r1", adapter_version="2", salt=b"tenant")

STORE = """
import sys
from pathlib import Path
from tests.unit.test_namespaces_of_another_meaning_hit_nothing_after_a_restart import fill
fill(Path(sys.argv[1]), keys=sys.argv[2])
"""


def kv(dtype: str = "float16", heads: int = 1) -> Group:
    """A group of 64 bytes a head and page, whatever the dtype says they are."""
    return Group("kv", Layout((Part("k", dtype, (("head", heads), ("dim", 32))),)))


def start(
    folder: Path, keys: str = "tokens", group: Group | None = None, page_tokens: int = 8
) -> PrefixCache:
    """A cache over a small host and a disk."""
    tiers = [
        HostTier(32 * 4096, segment_bytes=4096),
        DiskTier(folder, limit_bytes=4 << 20, segment_bytes=1 << 18),
    ]
    return PrefixCache([group or kv()], tiers, page_tokens=page_tokens, keys=keys, events=True)


def contents(cache: PrefixCache) -> tuple[Content, ...]:
    """The image, where pages can hold one."""
    return IMAGE if cache.keys.opaque else ()


def fill(folder: Path, keys: str = "tokens", page_tokens: int = 8) -> None:
    """Serves the prompt once and makes it durable."""
    cache = start(folder, keys, page_tokens=page_tokens)
    request = cache.admit(TOKENS, namespace=SPACE, content=contents(cache))
    request.computed(len(TOKENS))
    request.finish()
    cache.flush()
    assert hit(cache) == 32
    cache.close()


def hit(cache: PrefixCache, space: Namespace | None = SPACE) -> int:
    """Tokens of the prompt that hit."""
    found, _ = cache.match(TOKENS, namespace=space, content=contents(cache))
    return found.hit_pages * cache.page_tokens


@pytest.mark.parametrize("keys", ["tokens", "xxh3", "sha256"])
def test_another_process_finds_what_one_stored(tmp_path: Path, keys: str) -> None:
    """C26 (LMCache#1139): the root's hash was random in each process, so a restart hit nothing."""
    for seed in ("1", "4242"):
        subprocess.run(
            [sys.executable, "-c", STORE, str(tmp_path / seed), keys],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        cache = start(tmp_path / seed, keys)
        assert hit(cache) == 32
        assert cache.metrics.get("restore", "blocks", "disk") == 4
        cache.check()
        cache.close()


def test_another_revision_version_or_tenant_finds_nothing(tmp_path: Path) -> None:
    """C30 (cluster#4213), C28: a name without revision stood for all of them."""
    fill(tmp_path)
    cache = start(tmp_path)
    others = [
        None,
        Namespace("llava", "sql", revision="r2", adapter_version="2", salt=b"tenant"),
        Namespace("llava", "sql", revision="r1", adapter_version="3", salt=b"tenant"),
        Namespace("llava", "sql", revision="r1", salt=b"tenant"),
        Namespace("llava", "sql", adapter_version="2", salt=b"tenant"),
        Namespace("llavar1", "sql", adapter_version="2", salt=b"tenant"),
        Namespace("llava", "sql2", revision="r1", salt=b"tenant"),
        Namespace("llava", "sql", revision="r1", adapter_version="2", salt=b"other"),
        Namespace("llava", "sql", revision="r1", adapter_version="2", content=b"tenant"),
    ]
    assert [hit(cache, space) for space in others] == [0] * len(others)
    assert hit(cache) == 32
    cache.close()


FOREIGN = {
    "another dtype of the same bytes": ("tokens", 8, {"group": kv("bfloat16")}),
    "another layout": ("tokens", 8, {"group": kv(heads=2)}),
    "another page": ("tokens", 8, {"page_tokens": 4}),
    "keys instead of tokens of the same bytes": ("tokens", 8, {"keys": "sha256"}),
    "tokens instead of keys of the same bytes": ("sha256", 8, {"keys": "tokens"}),
    "short keys instead of tokens": ("tokens", 4, {"keys": "xxh3", "page_tokens": 4}),
    "tokens instead of short keys": ("xxh3", 4, {"keys": "tokens", "page_tokens": 4}),
    "another page under keys of one width": ("sha256", 8, {"keys": "sha256", "page_tokens": 4}),
    "other keys": ("xxh3", 8, {"keys": "sha256"}),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_means_other_bytes_is_ignored_and_reclaimed(tmp_path: Path, what: str) -> None:
    """C30: store with fingerprint f1, reopen with f2. Pages of another kind but the same width
    must not alias, nor keep the disk from opening.
    """
    keys, page_tokens, options = FOREIGN[what]
    fill(tmp_path, keys, page_tokens)
    cache = start(tmp_path, **options)
    assert hit(cache) == 0
    assert [usage.used_blocks for usage in cache.usage().values()] == [(0,), (0,)]
    assert cache.metrics.get("restore", "blocks", "disk") == 0
    assert cache.tree.stats().pages == 0
    cache.check()
    request = cache.admit(TOKENS, namespace=SPACE, content=contents(cache))
    assert request.hit_tokens == 0
    request.computed(len(TOKENS))
    request.finish()
    cache.flush()
    assert hit(cache) == 32
    cache.check()
    cache.close()
    # and what was foreign does not come back
    cache = start(tmp_path, keys, page_tokens=page_tokens)
    assert hit(cache) == 0
    cache.check()
    cache.close()


def test_groups_whose_blocks_stand_elsewhere_are_foreign(tmp_path: Path) -> None:
    """The same layout, but a block for two pages: block i is of other tokens."""
    fill(tmp_path)
    records = []
    for group in (kv(), Group("kv", kv().layout, grid_tokens=16)):
        tiers = [DiskTier(tmp_path, limit_bytes=4 << 20, segment_bytes=1 << 18)]
        cache = PrefixCache([group], tiers, page_tokens=8)
        records.append(hit(cache))
        cache.close()
    assert records == [32, 0]
