"""SGLang's KV placement events replayed into a dictionary are the pages in the tree, at every step;
a parent is stored before its child and removed after it, and namespaces share no block (I32).
"""

from __future__ import annotations

import pytest
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from radix.engines.sglang.backend import RadixBackend
from tests.sglang.driving import Traffic
from tests.sglang.scheduling import Scheduler


class Router:
    """A consumer of the events."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.parents: dict[int, int | None] = {}
        self.tokens: dict[int, tuple[object, ...]] = {}

    def take(self, events: list[object]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.parents.clear()
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    assert block not in self.parents.values(), "a parent went before its child"
                    del self.parents[block]
            elif isinstance(event, BlockStored):
                self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert event.block_size == self.page
        assert len(event.token_ids) == self.page * len(event.block_hashes)
        parent = event.parent_block_hash
        for number, block in enumerate(event.block_hashes):
            assert parent is None or parent in self.parents, "a child came before its parent"
            assert block not in self.parents, "a block was stored twice"
            tokens = tuple(event.token_ids[number * self.page : (number + 1) * self.page])
            before = self.tokens.setdefault(block, (parent, event.cache_salt, tokens))
            assert before == (parent, event.cache_salt, tokens), "one name for two blocks"
            self.parents[block] = parent
            parent = block


@pytest.mark.parametrize("eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page", [1, 16])
def test_events_replayed_are_the_pages_that_are_in_the_tree(page: int, eagle: bool) -> None:
    seed = 11
    scheduler = Scheduler(RadixBackend, page, max(8, 300 // page), eagle=eagle, events=True)
    traffic, router, most = Traffic(seed, [scheduler], 200), Router(page), 0
    for step in range(300):
        traffic.step()
        router.take(scheduler.cache.take_events())
        total = scheduler.cache.total_size()
        assert len(router.parents) * page == total, f"seed {seed}, step {step}"
        most = max(most, total)
    assert most > 0


def test_nothing_is_told_unless_events_are_asked_for() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    run = scheduler.start(scheduler.request([1, 2, 3]))
    assert run is not None
    scheduler.finish(run)
    assert scheduler.cache.take_events() == []
    told = Scheduler(RadixBackend, 1, 64, events=True)
    assert [type(event) for event in told.cache.take_events()] == [AllBlocksCleared]
    run = told.start(told.request([1, 2, 3], None, "tenant"))
    assert run is not None
    told.finish(run)
    (event,) = told.cache.take_events()
    assert (event.token_ids, event.cache_salt, event.medium) == ([1, 2, 3], "tenant", "GPU")
