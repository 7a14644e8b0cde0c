"""Conversations with branches over every family: the tokens are those of ``generate`` without a
cache, only what is not cached is fed to the model, and hits come from host and disk, over evictions
and a restart (I24).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.engines.transformers.families import BY_NAME, FAMILIES, Family, model_of
from tests.engines.transformers.talks import opened, run

NAMES = [family.name for family in FAMILIES]


def _check(counts: Counter[str], turns: int) -> None:
    """Hits came from both tiers, under pressure, and are at least 40 % of all prompt tokens."""
    assert counts["hit"] >= 0.4 * counts["prompt"], counts
    assert counts["host"] + counts["disk"] == counts["hit"], counts
    assert counts["host"] and counts["disk before the restart"] and counts["evicted"], counts
    assert counts["branches"] and counts["without cache"] <= turns // 5, counts


@pytest.mark.parametrize("name", NAMES)
def test_five_conversations_with_branches_get_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Five conversations of four turns, interleaved."""
    _check(run(model_of(name), 7, tmp_path / "kept", conversations=5, turns=4), 20)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_fifty_conversations_with_branches_get_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Fifty, five at a time over one cache each."""
    for seed in range(100, 110):
        folder = tmp_path / f"kept{seed}"
        _check(run(model_of(name), seed, folder, conversations=5, turns=4), 20)


@pytest.mark.long
def test_chunks_kept_as_windows_get_the_same_tokens(tmp_path: Path) -> None:
    """Llama4's chunked layers keep what a window of a chunk's length does."""
    _check(run(model_of("Llama4"), 7, tmp_path / "kept", conversations=5, turns=4), 20)


@pytest.mark.parametrize(
    ("name", "page"), [("Gemma3", 48), ("gpt-oss", 5), ("Qwen3-Next", 7), ("LFM2", 24)]
)
def test_pages_of_any_size_get_the_same_tokens(name: str, page: int, tmp_path: Path) -> None:
    """Pages longer than the window, and pages that divide nothing."""
    counts = run(model_of(name), 11, tmp_path / "kept", conversations=2, turns=3, page=page)
    assert counts["hit"] and counts["disk"], counts


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_groups_are_what_the_cache_layers_say(family: Family, tmp_path: Path) -> None:
    """By group name: what every block is kept of, a window, one state."""
    with opened(model_of(family.name), tmp_path / "kept") as cached:
        assert tuple(group.name for group in cached.groups) == family.groups


def test_a_family_whose_state_starts_anew_is_fed_single_tokens(tmp_path: Path) -> None:
    """Jamba computes a right state only token by token behind a restored one."""
    model = BY_NAME["Jamba"].model()
    counts = run(model, 5, tmp_path / "kept", conversations=1, turns=3, token_by_token=True)
    assert counts["hit"] and counts["disk"], counts
