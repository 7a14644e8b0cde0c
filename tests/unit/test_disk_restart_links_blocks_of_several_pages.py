"""A restart is warm for a model whose full groups all have blocks of several pages: no record of a
single page tells the way there, so each tells all pages of its block. Before, every block was given
back to the disk unlinked, and the first prompts after a restart missed (I24, I28).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.groups import Group, path_group, rule_of
from radix.tree import NO_SLOT
from tests.cacherig import Rig
from tests.mixes import full, state, window
from tests.treerig import Rig as TreeRig
from tests.treerig import full as rule
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PAGE = 4
STEM = list(range(100, 132))
# of STEM: all; forked in the second page of a block of two; forked after it; shorter
PROMPTS = (
    [*STEM, 1, 2, 3],
    [*STEM[:20], *range(200, 217)],
    [*STEM[:16], *range(300, 325)],
    [*STEM[:24], 9],
)
MODELS = {
    "two pages": (full(grid_tokens=8),),
    "four pages": (full(grid_tokens=16),),
    "two and three": (full(grid_tokens=8), full("latent", 32, grid_tokens=12)),
    "with a window": (window(9), full(grid_tokens=8)),
    "with a state": (full(grid_tokens=8), state()),
    "a page beside it": (full("long", grid_tokens=8), full("short", 32)),
}


def opened(folder: Path, groups: tuple[Group, ...], keys: str = "tokens") -> Rig:
    """An engine over device, host and disk, which looks at each byte that it is told is there."""
    device = DeviceTier(blocks=32, device="cpu")
    disk = DiskTier(folder, limit_bytes=16 << 20, segment_bytes=1 << 18)
    tiers = [device, HostTier(4 << 20, segment_bytes=1 << 16), disk]
    return Rig(PrefixCache(groups, tiers, page_tokens=PAGE, keys=keys, events=True), device)


def hits(cache: PrefixCache) -> list[int]:
    """Tokens of each prompt."""
    return [cache.explain(np.array(prompt, np.int32)).hit_tokens for prompt in PROMPTS]


@pytest.mark.parametrize("model", MODELS)
def test_what_hit_before_a_restart_hits_after_it(tmp_path: Path, model: str) -> None:
    groups = MODELS[model]
    rig = opened(tmp_path, groups)
    for prompt in PROMPTS:
        rig.serve(prompt)
    rig.cache.flush()
    before = hits(rig.cache)
    assert all(before), "there is something to lose"
    rig.finish_all()
    rig.cache.close()
    known = rig.known
    rig = opened(tmp_path, groups)
    rig.known = known
    rig.poll()  # hears what is there
    rig.cache.check()
    # of nine pages the blocks of three that end with the last stand behind all blocks of two
    lost = 1 if model == "two and three" else 0
    assert rig.cache.metrics.get("restore", "unlinked", "disk") == lost
    assert hits(rig.cache) == before
    for prompt in PROMPTS:
        rig.serve(prompt)  # looks at the bytes of all that hit
    rig.finish_all()
    rig.cache.close()


@pytest.mark.parametrize("keys", ["xxh3", "sha256"])
def test_pages_that_are_digests_link_alike(tmp_path: Path, keys: str) -> None:
    found = []
    for serving in (True, False):
        cache = opened(tmp_path, MODELS["two pages"], keys).cache
        for prompt in PROMPTS if serving else ():
            request = cache.admit(np.array(prompt, np.int32))
            request.wait()
            request.computed(len(prompt))
            request.finish()
        cache.flush()
        cache.check()
        found.append(hits(cache))
        cache.close()
    assert found[0] == found[1] and all(found[0])


def test_a_block_whose_beginning_went_is_given_back() -> None:
    """The records behind it link to nothing; what stands before it is found."""
    rig, prompt = TreeRig(rule(2)), list(range(8))
    at = rig.put(prompt, {0: [NO_SLOT, 1, NO_SLOT, 3, NO_SLOT, 5, NO_SLOT, 7]})
    chain, pages = rig.tree.keys(at, 0, 8), rig.tree.pages(at, 0, 8)
    parents = np.concatenate((np.frombuffer(b"n" * 16, np.uint8)[None], chain[:-1]))
    slots = np.array([NO_SLOT, 1, NO_SLOT, 3, NO_SLOT, 5, NO_SLOT, 7], np.int32)
    other = TreeRig(rule(2))
    kept = np.array([0, 1, 4, 5, 6, 7])  # the second block is gone
    linked = other.tree.restore(
        *(other.root, 0, chain[kept], parents[kept], pages[kept], slots[kept]), each_page=True
    )
    other.tree.check(device=False)
    assert linked[[1, 3, 5]].tolist() == [True, False, False]
    assert other.match(prompt).hit_pages == 2


def test_the_smallest_blocks_of_what_keeps_everything_tell_the_paths() -> None:
    def chosen(*groups: Group) -> tuple[int, int]:
        return path_group([rule_of(group, PAGE) for group in groups])

    assert chosen(window(9), full(grid_tokens=16), full("b", grid_tokens=8)) == (2, 2)
    assert chosen(full(grid_tokens=8), full("b")) == (1, 1)
    assert chosen(window(9), state()) == (-1, 1)
    assert chosen(full("draft", lookahead=1), full("b", grid_tokens=8)) == (1, 2)
