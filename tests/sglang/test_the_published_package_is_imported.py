"""What these tests are run with: SGLang's published package, not a copy of its interfaces."""

from __future__ import annotations

import inspect
from importlib.metadata import files, version
from pathlib import Path

import sglang.srt.managers.schedule_batch as requests
import sglang.srt.mem_cache.hicache_storage as storage
import sglang.srt.mem_cache.pool_host.mha as pools
from sglang.srt.mem_cache import memory_pool, radix_cache

from radix.engines.versions import TESTED, installed


def test_the_version_that_is_installed_is_the_one_the_adapter_names() -> None:
    assert version("sglang") in TESTED["sglang"]
    assert installed("sglang") == version("sglang")


def test_its_cache_and_its_storage_come_from_the_files_of_its_package() -> None:
    listed = {Path(str(entry.locate())).resolve() for entry in files("sglang") or []}
    for module in (requests, storage, pools, memory_pool, radix_cache):
        assert Path(inspect.getfile(module)).resolve() in listed, module.__name__
