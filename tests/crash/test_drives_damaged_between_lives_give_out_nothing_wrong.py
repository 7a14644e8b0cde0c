"""A disk tier lives several lives, over one drive or more, and between them its files are cut,
exchanged, torn, damaged or put back from a copy of an earlier moment. It always opens, and calls no
block good whose bytes are not those of its group, namespace, key and weights (I22, I24, I31).
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from radix.groups import Group
from tests.crash.diskrig import DiskRig, key_of, records_of
from tests.oracle import expand

SPACES = (b"model-a", b"model-b", b"model-c")
GROUPS = (Group.full("kv", 8192), Group.full("small", 4096))
LIVES, NUMBERS, PAGE = 7, 60, 4096
DAMAGES = (
    *("none", "lock", "old drive", "empty drive", "exchanged slabs", "cut slab", "no slab"),
    *("noise in slab", "shifted slab", "old index", "torn index", "torn index", "bits of index"),
)
Block = tuple[int, bytes, int]  # group, namespace, number


def bytes_of(block: Block, weights: int) -> npt.NDArray[np.uint8]:
    """What it holds under these weights, which its key does not name."""
    group, space, number = block
    which = number + (SPACES.index(space) + 1 << 32) + (weights << 40) + (group + 1 << 50)
    return np.asarray(expand(np.array([which], np.uint64), GROUPS[group].block_bytes)[0])


class Lives:
    """One tier from its first life to its last, drawn from a seed; ``seen`` counts what came up."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.folder, self.seen = folder, Counter[str]()
        drives = self.draw.choice([1, 1, 2, 3])
        one = drives == 1 and self.draw.random() < 0.4
        self.payload = "lmdb" if one else "slab"
        self.paths = [folder / f"drive-{number}" for number in range(drives)]
        self.copies: list[tuple[int, list[Path]]] = []  # with the weights of then
        self.weights = 0

    def run(self) -> Counter[str]:
        for _ in range(LIVES):
            limit = self.draw.choice([2, 3, 4, 6]) << 20
            with DiskRig(self.paths, limit_bytes=limit, groups=GROUPS, payload=self.payload) as rig:
                self.live(rig)
                if self.draw.random() < 0.5:
                    self.copy()  # while it is open
            if self.draw.random() < 0.5:
                self.copy()
            self.damage(self.draw.choice(DAMAGES), self.draw.randrange(len(self.paths)))
        return self.seen

    # ------------------------------------------------------------ a life
    def live(self, rig: DiskRig) -> None:
        held: dict[Block, int] = {}
        for part in rig.restored:
            of = part.records
            for key, slot, number in zip(of.keys, part.slots, of.positions.tolist(), strict=True):
                assert key.tobytes() == key_of(number)
                held[part.group, of.namespace, number] = int(slot)
        self.free(rig, held, self.missing(rig, held, list(held)))
        rig.tier.check()
        for _ in range(self.draw.randrange(4, 14)):
            chance = self.draw.random()
            if chance < 0.15:
                rig.tier.renew()
                self.weights += 1
                self.free(rig, held, list(held))
            elif chance < 0.3:
                self.free(rig, held, self.some(list(held), 20))
            else:
                self.store(rig, held)
        rig.tier.check()
        gone = self.missing(rig, held, self.some(list(held), 30))
        assert not gone, "what was stored in this life is there"

    def some(self, blocks: list[Block], most: int) -> list[Block]:
        return self.draw.sample(blocks, min(len(blocks), self.draw.randrange(1, most + 1)))

    def free(self, rig: DiskRig, held: dict[Block, int], blocks: list[Block]) -> None:
        for group in range(len(GROUPS)):
            slots = [held.pop(block) for block in blocks if block[0] == group]
            rig.tier.free(group, np.array(slots, np.int32))

    def store(self, rig: DiskRig, held: dict[Block, int]) -> None:
        group, space = self.draw.randrange(len(GROUPS)), self.draw.choice(SPACES)
        drawn = self.draw.sample(range(NUMBERS), self.draw.randrange(1, 16))
        numbers = [number for number in drawn if (group, space, number) not in held]
        while rig.tier.free_blocks(group) < len(numbers):
            mine = [block for block in held if block[0] == group]
            self.free(rig, held, self.some(mine, 16))
        slots = rig.tier.reserve(group, len(numbers))
        for row, number in enumerate(numbers):
            rig.rows[group][row] = bytes_of((group, space, number), self.weights)
        rig.start_store_of(records_of(numbers, space), slots, group)
        (done,) = rig.settle()
        rig.tier.commit(group, slots[done.good])
        rig.tier.abort(group, slots[~done.good])
        # A block of LMDB's that is damaged where only LMDB sees it may stop the stores of a life.
        assert done.good.all() or self.payload == "lmdb", done.error
        for number, slot, good in zip(numbers, slots.tolist(), done.good, strict=True):
            if good:
                held[group, space, number] = slot

    def missing(self, rig: DiskRig, held: dict[Block, int], blocks: list[Block]) -> list[Block]:
        """Loads blocks; which do not come. What comes is right."""
        gone = []
        for group in range(len(GROUPS)):
            mine = [block for block in blocks if block[0] == group]
            for first in range(0, len(mine), 64):
                part = mine[first : first + 64]
                done = rig.load((held[block] for block in part), group)
                for row, block in enumerate(part):
                    right = (rig.rows[group][row] == bytes_of(block, self.weights)).all()
                    assert right or not done.good[row], f"wrong bytes of {block}"
                gone += [block for row, block in enumerate(part) if not done.good[row]]
        self.seen["good"] += len(blocks) - len(gone)
        self.seen["gone"] += len(gone)
        return gone

    # ------------------------------------------------------------ between lives
    def copy(self) -> None:
        targets = [self.folder / f"copy-{len(self.copies)}-{path.name}" for path in self.paths]
        for path, target in zip(self.paths, targets, strict=True):
            shutil.copytree(path, target)
        self.copies.append((self.weights, targets))

    def damage(self, what: str, drive: int) -> None:
        path = self.paths[drive]
        if what == "lock":
            (path / "lock").write_bytes(b"\xff" * 300)
        elif what == "empty drive" and drive:  # without its first a tier is another one
            for each in path.iterdir():
                each.unlink()
        elif what == "old drive" and self.copies:
            weights, copies = self.draw.choice(self.copies)
            # all of a tier put back from before a reset: nobody can know
            if len(self.paths) > 1 or weights == self.weights:
                shutil.rmtree(path)
                shutil.copytree(copies[drive], path)
        elif "slab" in what and self.payload == "slab":
            self.damage_slab(what, drive)
        elif "index" in what and (what == "bits of index" or self.copies):
            self.damage_index(what)
        else:
            what = "none"
        self.seen[what] += 1

    def damage_slab(self, what: str, drive: int) -> None:
        slab = self.paths[drive] / "slab-0000"
        other = self.paths[drive - 1] / "slab-0000"
        if not (slab.exists() and other.exists()):
            return
        data = slab.read_bytes()
        if what == "exchanged slabs":
            slab.write_bytes(other.read_bytes())
            other.write_bytes(data)
        elif what == "cut slab":
            os.truncate(slab, self.draw.randrange(len(data) + 1))
        elif what == "no slab":
            slab.unlink()
        elif what == "shifted slab":
            places = PAGE * self.draw.randrange(1, 4)
            slab.write_bytes(data[places:] + data[:places])
        else:
            slab.write_bytes(self.flipped(data, 20))

    def damage_index(self, what: str) -> None:
        index = self.paths[0] / "data.mdb"
        data = index.read_bytes()
        if what == "bits of index":
            index.write_bytes(self.flipped(data, self.draw.choice([1, 5, 50])))
            return
        old = (self.draw.choice(self.copies)[1][0] / "data.mdb").read_bytes()
        if what == "torn index":
            size, share = max(len(old), len(data)), self.draw.choice([0.1, 0.5, 0.9])
            wide = data.ljust(size, b"\0"), old.ljust(size, b"\0")
            pages = range(0, size, PAGE)
            old = b"".join(wide[self.draw.random() < share][at : at + PAGE] for at in pages)
        index.write_bytes(old)

    def flipped(self, data: bytes, bits: int) -> bytes:
        out = bytearray(data)
        for _ in range(bits if out else 0):
            out[self.draw.randrange(len(out))] ^= 1 << self.draw.randrange(8)
        return bytes(out)


def _live(tmp_path: Path, seeds: range) -> None:
    seen = Counter[str]()
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen += Lives(folder, seed).run()
        shutil.rmtree(folder)
    assert seen["good"] > 100 * len(seeds) and seen["gone"] > len(seeds)
    assert len([what for what in DAMAGES if seen[what]]) > len(DAMAGES) // 2


def test_damaged_drives_give_out_nothing_wrong(tmp_path: Path) -> None:
    _live(tmp_path, range(8))


@pytest.mark.long
def test_drives_damaged_in_many_ways_give_out_nothing_wrong(tmp_path: Path) -> None:
    _live(tmp_path, range(1000, 1200))
