"""vLLM's own tiering manager over the tier, driven at random as its connector drives it: prompts
that share beginnings, a host pool too small for them, restarts, resets that bring new weights,
blocks that rot, a medium that fails. Whatever happens, a row that is given for a key holds the
bytes of that key under the weights of now, and every request ends.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

from radix.tier import TierMode
from tests.vllm.offloaddriver import SAID
from tests.vllm.offloadrig import context_of
from tests.vllm.secondaryrig import ROW_BYTES, Host, config, content, key
from tests.vllm.test_secondary_damage_costs_hits_and_nothing_else import slab_files
from tests.vllm.test_secondary_stays_within_its_limit import bytes_on_disk, small

ROWS = 20
BLOCKS = 80
STEPS = 200
SEEDS = range(6)
PATIENCE_S = 120.0


class World:
    """An engine with its manager over one directory, and what its weights make of every key."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.saying = random.Random(seed)
        self.damage = random.Random(seed)  # what it hits depends on how far the disk has come
        self.weights = 0
        self.requests = 0
        self.seen: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self._start()

    def _start(self) -> None:
        extra = {"cpu_bytes_to_use": ROWS * ROW_BYTES}
        self.host = Host(self.folder, small(BLOCKS), config=config(extra_config=extra))
        primary = CPUPrimaryTierOffloadingManager(ROWS, self.host.region)
        self.manager = TieringOffloadingManager(primary, [self.host.tier])
        self.weights = 0  # those that the model's name stands for

    def close(self) -> None:
        self.told.update(self.host.counted())
        self.host.tier.shutdown()
        self.host.view.release()
        self.manager.shutdown()

    def bytes_of(self, name: bytes) -> bytes:
        """What belongs under a key with the weights of now."""
        return content(b"%d" % self.weights + name)

    def prompt(self) -> list[list[bytes]]:
        """The keys of each group: one of some prompts, cut off somewhere, so that beginnings are
        shared."""
        first, length = self.rng.randrange(12), self.rng.randrange(1, 7)
        return [[key(100 * first + i, group) for i in range(length)] for group in range(2)]

    def end_step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def find(self, groups: list[list[bytes]], context: ReqContext) -> list[bytes]:
        """The keys that can be loaded now, asked as the connector asks: again while any waits."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            hits, waits = [], False
            for names in groups:
                for name in names:
                    answer = self.manager.lookup(name, context)
                    if answer is LookupResult.MISS:
                        break
                    waits |= answer is not LookupResult.HIT
                    hits.append(name)
            if not waits:
                return hits
            self.end_step()
            self.host.tier.store.wait()
        raise AssertionError("a request waits for ever")

    def request(self) -> None:
        """One request from its first lookup to its end; its stores may end later."""
        self.requests += 1
        groups = self.prompt()
        context = context_of(f"request {self.requests}", hints=self.saying.choice(SAID))
        for names in groups:
            for place, name in enumerate(names, start=1):
                context.set_offload_key_position(name, 32 * place)
        self.manager.on_new_request(context)
        hits = self.find(groups, context)
        if hits:
            spec = self.manager.prepare_load(hits, context)
            for name, row in zip(hits, spec.chunk_ids.tolist(), strict=True):
                assert self.host.row(row) == self.bytes_of(name), (name, row)
                source = self.manager.get_load_source(name, context)
                self.seen[f"from {source.name}"] += 1
            self.manager.complete_load(set(hits), context)
        new = [name for names in groups for name in names if name not in hits]
        stored = self.manager.prepare_store(new, context) if new else None
        if stored is not None and stored.keys_to_store:
            rows = stored.store_spec.chunk_ids.tolist()
            for name, row in zip(stored.keys_to_store, rows, strict=True):
                self.host.write(row, self.bytes_of(name))
            self.manager.complete_store(set(stored.keys_to_store), context)
        self.manager.on_request_finished(context)
        self.end_step()

    def restart(self) -> None:
        self.close()
        self._start()

    def reset(self) -> None:
        """The engine's weights change: it resets its caches, then computes other bytes."""
        self.manager.reset_cache()
        self.weights += 1

    def rot(self) -> None:
        """A bit flips somewhere in a slab file, as likely as not in a block."""
        files = [path for path in slab_files(self.folder) if path.stat().st_size]
        if files:
            path = self.damage.choice(files)
            with path.open("r+b") as file:
                for _ in range(40):
                    at = self.damage.randrange(path.stat().st_size)
                    file.seek(at)
                    was = file.read(1)
                    file.seek(at)
                    file.write(bytes([was[0] ^ 1 << self.damage.randrange(8)]))

    def switch(self) -> None:
        """The medium fails for some requests."""
        self.host.tier.store.set_mode("disk", self.rng.choice([TierMode.READ_ONLY, TierMode.OFF]))
        for _ in range(self.rng.randrange(1, 6)):
            self.request()
        self.host.tier.store.set_mode("disk", TierMode.ON)

    def step(self) -> None:
        chance = self.rng.random()
        for limit, what in ((0.02, self.restart), (0.04, self.reset), (0.09, self.rot)):
            if chance < limit:
                self.seen[what.__name__] += 1
                return what()
        if chance < 0.12:
            return self.switch()
        self.request()
        if self.rng.random() < 0.2:
            self.host.tier.store.check()
            assert bytes_on_disk(self.folder) <= small(BLOCKS)
        return None


def run(folder: Path, seed: int) -> Counter[str]:
    """One world's life; what was seen and told in it."""
    world = World(folder, seed)
    try:
        for _ in range(STEPS):
            world.step()
    except BaseException as error:
        error.add_note(f"seed {seed}, request {world.requests}, seen {world.seen}")
        raise
    finally:
        world.close()
    return world.seen + world.told


def test_every_row_holds_its_keys_bytes_whatever_happens(tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        found = run(tmp_path / str(seed), seed)
        assert found["faults"] == 0, (seed, found)
        assert found["corrupt_blocks"] <= found["failed_load_blocks"], (seed, found)
        total += found
    for what in ("from DISK", "from HOST", "restart", "reset", "rot", "evicted_blocks"):
        assert total[what] >= len(SEEDS), (what, total)
    assert total["corrupt_blocks"] and total["declined_blocks"], total


def test_the_same_seed_is_the_same_run_up_to_the_disks_timing(tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        world = World(tmp_path / str(number), 3)
        for _ in range(40):
            world.step()
        world.close()
        runs.append((world.requests, world.rng.random()))
    assert runs[0] == runs[1]
