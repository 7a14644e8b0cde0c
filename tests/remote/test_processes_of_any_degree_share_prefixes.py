"""Caches in two processes, at different tensor parallel degrees, use each other's blocks through a
real backend: what one stored is found by key in the other, and every byte that it gets is right.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remote import peer
from tests.remoterig import mooncake_store, redis_nodes

ROOT = Path(__file__).resolve().parents[2]
PAGES = 9
ALL = PAGES * peer.PAGE
Elsewhere = Callable[[str, int, int], dict[str, Any]]


@pytest.fixture(scope="module", params=["redis", "mooncake"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend once for the file."""
    if request.param == "redis":
        with redis_nodes() as nodes:
            yield nodes.url
    else:
        with mooncake_store() as (master, _):
            yield master.url


@pytest.fixture(scope="module")
def elsewhere(url: str) -> Iterator[Elsewhere]:
    """What another process does: write or read, at a degree, a prompt."""
    command = [sys.executable, "-m", "tests.remote.peer"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def act(what: str, degree: int, seed: int) -> dict[str, Any]:
            print(json.dumps([url, what, degree, seed, PAGES]), file=child.stdin, flush=True)
            answer: dict[str, Any] = json.loads(child.stdout.readline())
            return answer

        try:
            yield act
        finally:
            child.kill()


@pytest.mark.parametrize(("theirs", "ours"), [(2, 4), (4, 1)])
def test_what_one_process_stores_another_hits_at_another_degree(
    url: str, elsewhere: Elsewhere, theirs: int, ours: int
) -> None:
    seed = 10 * theirs + ours
    assert elsewhere("write", theirs, seed) == {"stored": PAGES * theirs}
    found = peer.read(url, ours, seed, PAGES)
    assert found == {"hits": [ALL] * ours, "right": [True] * ours}
    assert peer.write(url, ours, seed + 500, PAGES) == {"stored": PAGES * ours}
    assert elsewhere("read", theirs, seed + 500) == {
        "hits": [ALL] * theirs,
        "right": [True] * theirs,
    }


def test_a_shard_that_nobody_stored_is_a_miss_for_who_needs_it(url: str) -> None:
    with peer.RankCache(url, peer.view_of(2, 0)) as cache:  # rank 0 of 2 alone
        cache.compute(77, PAGES)
    found = peer.read(url, 4, 77, PAGES)
    assert found["hits"] == [ALL, ALL, 0, 0], "shards 2 and 3 were never stored"
    assert found["right"] == [True] * 4
    assert peer.read(url, 1, 77, PAGES)["hits"] == [0], "a whole block needs every shard"


def test_what_one_process_forgets_no_other_finds(url: str, elsewhere: Elsewhere) -> None:
    peer.write(url, 1, 88, PAGES)
    assert elsewhere("read", 1, 88)["hits"] == [ALL]
    with peer.RankCache(url, peer.view_of(1, 0)) as cache:
        cache.reset()
        assert cache.found(88, PAGES)[0] == 0
    assert elsewhere("read", 1, 88)["hits"] == [0]
