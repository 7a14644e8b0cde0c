"""What an installed wheel must do, in whichever interpreter runs this: load its extension, keep
and find prompts, and give back after a restart, byte for byte, what it wrote to a disk. Needs
nothing but the wheel and what that depends on.

``python native/check_wheel.py`` in an environment that has the wheel installed.
"""

from __future__ import annotations

import ctypes
import platform
import tempfile
from pathlib import Path

import numpy as np

import radix
import radix.cli
from radix import FlatStore, Group, PrefixCache
from radix._native import lib
from radix.events import KeysDone
from radix.tree import TreeCore
from tiers.disk import DiskTier
from tiers.host import HostTier

BLOCKS, BLOCK_BYTES, KEY_BYTES = 24, 8192, 16


def check_origin() -> None:
    """The extension is the wheel's, in one ABI for all versions."""
    folder = Path(radix.__file__).parent
    (extension,) = folder.glob("_native*.so")
    assert extension.name == "_native.abi3.so", extension
    assert not (folder.parent / "pyproject.toml").exists(), f"{folder} is a source folder"
    assert lib.RDX_OK == 0


def check_prompts() -> None:
    """Prompts are found again, up to what they share."""
    group = Group.full("kv", BLOCK_BYTES)
    with PrefixCache([group], [HostTier(4 << 20)], page_tokens=16) as cache:
        prompt = np.arange(200, dtype=np.int32)
        first = cache.admit(prompt)
        first.computed(len(prompt))
        first.finish()
        other = cache.admit(np.append(prompt[:100], [7, 8, 9]).astype(np.int32))
        assert other.hit_tokens == 96, other.hit_tokens
        other.abort()
        cache.poll()
        cache.check()


def check_answers() -> None:
    """What the tree answers hashes as the tuple that it equals, however tuples lie here."""
    tree = TreeCore(4, groups=1, tiers=1, keep_keys=False)
    found = tree.match(tree.root(), np.arange(9, dtype=np.int32), 0)
    assert found.limit_pages == 9, found
    assert hash(found) == hash(tuple(found)), hash(found)


def block(host: HostTier, slot: int) -> np.ndarray:
    """The memory of one block."""
    (plane,) = host.planes(0)
    address = int(plane["base"]) + int(plane["stride"]) * slot
    return np.ctypeslib.as_array((ctypes.c_uint8 * BLOCK_BYTES).from_address(address))


def check_bytes(folder: str) -> None:
    """A restart gives back what was written."""
    group, rng = Group.full("kv", BLOCK_BYTES), np.random.default_rng(7)
    keys = rng.integers(0, 256, (BLOCKS, KEY_BYTES), np.uint8)
    wanted = rng.integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)

    def opened() -> tuple[FlatStore, HostTier]:
        host = HostTier(4 << 20)
        disk = DiskTier(folder, limit_bytes=64 << 20)
        return FlatStore([group], [host, disk], key_bytes=KEY_BYTES), host

    store, host = opened()
    with store:
        reserved = store.reserve(keys)
        for row, slot in zip(wanted, reserved.slots, strict=True):
            block(host, int(slot))[:] = row
        store.commit(reserved)
        store.flush()
    store, host = opened()
    with store:
        store.fetch(keys)
        for _ in range(100):
            store.wait()
            if any(isinstance(event, KeysDone) for event in store.poll()):
                break
        for row, slot in zip(wanted, store.slots(keys), strict=True):
            assert np.array_equal(block(host, int(slot)), row)
        store.check()


def main() -> None:
    """Check all of it, and say where."""
    check_origin()
    check_prompts()
    check_answers()
    with tempfile.TemporaryDirectory() as folder:
        check_bytes(folder)
    assert callable(radix.cli.main)
    where = f"Python {platform.python_version()}, {platform.machine()}, numpy {np.__version__}"
    print(f"radix {radix.__version__}: {where}")


if __name__ == "__main__":
    main()
