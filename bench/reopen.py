"""Reopening: how long a cache takes to open over a disk directory that holds many blocks, until
each of them can be hit.

Kept here: the directory is filled through the tier itself, prompts as an engine would store them;
the page cache is warm (it was just written); closing is not timed. The bytes of what is durable are
punched out of the slab files as they fill, because nothing of them is read at opening and a million
blocks of whole pages would take four gigabytes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from bench.disk import aligned_rows
from bench.measure import (
    LIMIT,
    OURS,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Target,
    no_collection,
    ratio,
)
from bench.workloads import Prompts, shared_prompts
from radix.cache import PrefixCache
from radix.groups import Group
from radix.keys import page_keys, root_key
from radix.tier import Records, Transfer, Urgency
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import AdoptedTier
from tiers.index import IndexTier

PAGE_TOKENS = 16
BLOCK_BYTES = 512
BATCH_BLOCKS = 4096
PUNCH_BATCHES = 32
GROUP = Group.full("kv", BLOCK_BYTES)


def _tier(folder: Path, blocks: int) -> DiskTier:
    limit = limit_for([GROUP], blocks * 5 // 4, PAGE_TOKENS * 4)
    return DiskTier(folder, limit_bytes=limit)


def _open(folder: Path, blocks: int) -> PrefixCache:
    return PrefixCache([GROUP], [IndexTier(1024), _tier(folder, blocks)], page_tokens=PAGE_TOKENS)


def _records(prompts: Prompts, blocks: int, namespace: bytes) -> Records:
    """A record for each page of the prompts that no earlier prompt has, the first ``blocks``."""
    root = root_key(namespace)
    keys, parents, pages, positions = [], [], [], []
    for prompt in prompts:
        own = page_keys(root, prompt, PAGE_TOKENS)
        keys.append(own)
        parents.append(np.concatenate([np.frombuffer(root, np.uint8)[None], own[:-1]]))
        pages.append(prompt.view(np.uint8).reshape(len(own), -1))
        positions.append(np.arange(len(own)))
    every = np.concatenate(keys)
    _, first = np.unique(every.view("V16").ravel(), return_index=True)
    first = np.sort(first)[:blocks]
    return Records(
        namespace=namespace,
        keys=every[first],
        parents=np.concatenate(parents)[first],
        pages=np.concatenate(pages)[first],
        positions=np.concatenate(positions)[first],
    )


def _fill(folder: Path, records: Records) -> None:
    """Stores a block for each record, in batches."""
    blocks = len(records.keys)
    with ExitStack() as stack:
        memory = stack.enter_context(aligned_rows(BATCH_BLOCKS, 4096, seed=1))
        upper = stack.enter_context(closing(AdoptedTier([[memory[:, :BLOCK_BYTES]]], "memory")))
        tier = stack.enter_context(closing(_tier(folder, blocks)))
        upper.attach((GROUP,), PAGE_TOKENS * 4, None)
        tier.attach((GROUP,), PAGE_TOKENS * 4, upper)
        for job, first in enumerate(range(0, blocks, BATCH_BLOCKS)):
            part = slice(first, min(first + BATCH_BLOCKS, blocks))
            slots = tier.reserve(0, part.stop - part.start)
            rows = np.arange(len(slots), dtype=np.int32)
            own = Records(
                records.namespace,
                records.keys[part],
                records.parents[part],
                None if records.pages is None else records.pages[part],
                records.positions[part],
            )
            tier.store(Transfer(job + 1, 0, rows, slots, Urgency.STORE, own), upper)
            tier.flush()
            for done in tier.poll():
                if not done.good.all():
                    raise RuntimeError(f"a store failed: {done.error}")
            tier.commit(0, slots)
            if (job + 1) % PUNCH_BATCHES == 0:
                _punch(folder)


def _punch(folder: Path) -> None:
    """Gives the bytes of the slab files back; their lengths stay."""
    for path in folder.glob("slab-*"):
        nbytes = str(path.stat().st_size)
        subprocess.run(["fallocate", "-p", "-l", nbytes, str(path)], check=True)


def _scan(folder: Path) -> tuple[int, float]:
    """Records and seconds of reading every value of the index through py-lmdb, and no more."""
    start = time.perf_counter()
    env: Any = lmdb.open(str(folder), readonly=True, lock=False, max_dbs=128)
    count = 0
    with env.begin(buffers=True) as txn:
        names = [bytes(key) for key in txn.cursor().iternext(values=False)]
        table = env.open_db(next(n for n in names if n.startswith(b"records-")), txn=txn)
        for _ in txn.cursor(db=table).iternext(keys=False, values=True):
            count += 1
    env.close()
    return count, time.perf_counter() - start


def run_reopen(sizes: Sizes, place: Place) -> Outcome:
    """Seconds from the constructor's call to a cache that can hit every block."""
    blocks, tokens = sizes["blocks"], sizes["tokens"]
    folder = place.data / "reopen"
    prompts = shared_prompts(
        2 * blocks * PAGE_TOKENS // tokens + sizes["group"],
        tokens,
        sizes["group"],
        tokens // 2,
        seed=8,
    )
    with PrefixCache([GROUP], [IndexTier(1)], page_tokens=PAGE_TOKENS) as naming:
        namespace = naming.namespace()
    records = _records(prompts, blocks, namespace)
    _fill(folder, records)
    rounds = Rounds()
    hit = restored = 0
    for number in range(sizes["rounds"] + 1):
        with no_collection():
            count, scan_s = _scan(folder)
            start = time.perf_counter()
            with closing(_tier(folder, blocks)) as tier:
                tier.attach((GROUP,), PAGE_TOKENS * 4, None)
                attach_s = time.perf_counter() - start
            start, cpu = time.perf_counter(), time.process_time()
            cache = _open(folder, blocks)
            open_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        with cache:
            restored += cache.counters()["restore.blocks.disk"]
            hit = cache.match(prompts[0])[0].hit_pages
        if count != len(records.keys):
            raise AssertionError(f"{count} records of {len(records.keys)}")
        if number:
            rounds.add("open the cache", OURS, "s", open_s)
            rounds.add("processor time of it", OURS, "s", cpu_s)
            rounds.add("open the tier alone", OURS, "s", attach_s)
            rounds.add("py-lmdb reads each record", LIMIT, "s", scan_s)
    shutil.rmtree(folder)
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"restored_blocks": restored, "hit_pages": hit},
        ratios=[ratio(found, "open the cache", "py-lmdb reads each record")],
        targets=[Target("open the cache", "at most", 1.5)],
    )


BENCHMARKS = (
    Benchmark(
        "reopen",
        "Opening a cache over a million blocks on disk, page cache warm",
        run_reopen,
        smoke={"blocks": 2000, "tokens": 1024, "group": 8, "rounds": 1},
        full={"blocks": 1_000_000, "tokens": 4096, "group": 8, "rounds": 7},
    ),
)
