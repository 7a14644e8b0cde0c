"""A match ends at the first byte that differs, on every dispatch path: edges of one-byte pages let
each byte be the one, at and around the ends of streams and vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from radix._native import lib
from radix.plan import Cursor
from radix.tree import TreeCore

PATHS = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]
lib.rdx_dispatch_set(PATHS[-1])
EDGES = (4096, 8192, 12288, 16384, 20480)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[int]:
    before = lib.rdx_dispatch_get()
    assert lib.rdx_dispatch_set(request.param) == lib.RDX_OK
    yield request.param
    lib.rdx_dispatch_set(before)


@pytest.mark.parametrize("length", [1, 63, 64, 129, 4096, 8191, 8192, 8193, 16384, 20_001])
def test_first_difference_is_found_wherever_it_lies(path: int, length: int) -> None:
    rng = np.random.default_rng((path, length))
    tree = TreeCore(1, groups=1, tiers=1, check_ids=False, keep_keys=False)
    root = tree.root()
    run = rng.integers(0, 256, length, dtype=np.uint8)
    columns, slots = np.zeros(1, np.uint32), np.arange(length, dtype=np.int32)
    tree.insert(Cursor(root, root, 0), run, columns, slots)
    near = {edge + step for edge in EDGES for step in range(-66, 67)}
    some = set(rng.integers(0, length, 60).tolist())
    for first in sorted(at for at in near | some | {0, length - 1} if 0 <= at < length):
        other = run.copy()
        other[first] ^= 1
        for later in (0, 1, 32, 4096, 8192):  # more that differs behind it changes nothing
            if later and first + later < length:
                other[first + later] ^= 0x80
        assert tree.match(root, other, 0).structural_pages == first
    assert tree.match(root, run, 0).structural_pages == length
    # bytes beyond the prompt's end are not looked at
    for cut in (length // 2, length - 1):
        assert tree.match(root, run[:cut].copy(), 0).structural_pages == cut
