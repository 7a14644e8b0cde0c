"""What an engine computes and samples over a cache is what it computes and samples without one, and
the cache was really used: random conversations with branches, evictions, reloads from host and
disk, a restart, and drafts (I24, I26, I28).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.refengine import Served, run

SOURCES = ("device", "host", "disk", "branch checkpoint", "window", "accepted draft")


def _run_all(seeds: Iterable[int], folder: Path) -> Served:
    total = Served()
    for seed in seeds:
        (folder / str(seed)).mkdir()
        try:
            total.add(run(seed, folder / str(seed)))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return total


def _assert_used(total: Served, talks: int) -> None:
    assert total.talks >= talks, total
    assert total.hit >= 0.4 * total.prompt, total
    for source in SOURCES:
        assert total.sources[source] > 0, f"{source} served nothing: {total}"


def test_engine_over_a_cache_answers_as_without_it(tmp_path: Path) -> None:
    _assert_used(_run_all(range(12), tmp_path), 20)


@pytest.mark.long
def test_engine_over_a_cache_answers_as_without_it_for_long(tmp_path: Path) -> None:
    _assert_used(_run_all(range(1000, 1080), tmp_path), 200)
