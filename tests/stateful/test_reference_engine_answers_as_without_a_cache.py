"""What an engine computes and samples over a cache is what it computes and samples without one, and
the cache was really used: random conversations with branches, evictions, reloads from host and
disk, a restart, and drafts (I24, I26, I28).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.refengine import Engine, run
from tests.refmodel import VOCAB
from tests.refworld import Ask, Served, World

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


def _some(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]


@pytest.mark.parametrize("seed", range(8))
def test_each_turn_hits_where_the_turn_before_ended(seed: int, tmp_path: Path) -> None:
    """Whatever groups the model has: the second turn hits all that its grids allow."""
    world, rng = World.draw(seed).roomy(), random.Random(seed)
    engine = Engine(world, tmp_path)
    past, known = _some(rng, world.grid, world.grid + 4), 0
    for turn in range(3):
        ask = Ask.of(world.model, past + _some(rng, 2, 9), rng.randint(4, 12), turn, len(past))
        hit = engine.serve(ask)
        assert hit >= world.reach(known), f"seed {seed} turn {turn}: {hit} of {known}"
        past, known = ask.tokens, len(ask.tokens) - 1
    engine.close()


@pytest.mark.parametrize("seed", range(8))
def test_diverging_prompts_hit_at_the_second_or_third(seed: int, tmp_path: Path) -> None:
    """At the second where the engine passed the boundary, else the second leaves a checkpoint."""
    world, rng = World.draw(seed).roomy(), random.Random(seed)
    engine = Engine(world, tmp_path)
    system = _some(rng, world.grid, 3 * world.grid + 4)
    for number in range(3):
        prompt = [*system, number, *_some(rng, 2 * world.page, 4 * world.page + 2)]
        hit = engine.serve(Ask.of(world.model, prompt, 5, number, len(system)))
        if number == 2 or (number == 1 and world.boundaries):
            assert hit == world.reach(len(system)), f"seed {seed}: {hit} of {len(system)}"
    engine.close()


@pytest.mark.long
def test_engine_over_a_cache_answers_as_without_it_for_long(tmp_path: Path) -> None:
    _assert_used(_run_all(range(1000, 1080), tmp_path), 200)
