"""The reference model computes one function of its tokens, however they are cut into chunks and
wherever their pages lie: bit for bit. So what the reference engine finds to differ is the cache's.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.refmodel import Kind, Model, Paged


def _model(rng: random.Random, seed: int) -> Model:
    page = rng.choice((1, 2, 4))
    ahead = rng.choice((("full", 0), ("window", 2 * page + 1)))
    return Model(
        (
            Kind("full", layers=2, grid=rng.choice((None, 2 * page))),
            Kind("near", "window", rng.choice((1, page, page + 1))),
            Kind("memory", "state", layers=2, grid=3),
            Kind("far", "window", 3 * page),
            Kind("chunk", "chunked", 3 * page),
            Kind("ahead", *ahead, lookahead=True),
        ),
        page,
        seed,
    )


def _tables(model: Model, rng: random.Random, tokens: int) -> dict[str, np.ndarray]:
    tables = {}
    for kind in model.kinds:
        blocks = -(-tokens // kind.block_tokens(model.page_tokens))
        tables[kind.name] = np.array(rng.sample(range(2 * blocks), blocks), np.int32)
    return tables


def _paged(model: Model, tokens: int) -> Paged:
    page = model.page_tokens
    return Paged(model, {kind.name: kind.tensors(page, 2 * tokens) for kind in model.kinds})


@pytest.mark.parametrize("seed", range(6))
def test_chunks_over_pages_equal_the_plain_loop(seed: int) -> None:
    rng = random.Random(seed)
    model = _model(rng, seed)
    tokens = [rng.randrange(32) for _ in range(rng.randint(20, 50))]
    wanted = model.reference(tokens)
    tables, slots, paged = _tables(model, rng, len(tokens)), {"memory": 3}, _paged(model, 50)
    start = 0
    while start < len(tokens):
        end = min(len(tokens), start + rng.randint(1, 9))
        before = tokens[start - 1] if start else None
        found = paged.forward(tokens[start:end], start, tables, slots, before)
        assert np.array_equal(found, wanted[start:end]), f"seed {seed}, tokens {start} to {end}"
        for kind in model.kinds:  # what lies behind the window is nobody's any more
            if kind.rule in ("window", "chunked"):
                gone = kind.sees_from(end) // kind.block_tokens(model.page_tokens)
                tables[kind.name][:gone] = -1
        start = end


@pytest.mark.parametrize("seed", range(4))
def test_every_path_of_a_tree_equals_the_plain_loop(seed: int) -> None:
    rng = random.Random(100 + seed)
    model = _model(rng, seed)
    tokens = [rng.randrange(32) for _ in range(rng.randint(5, 20))]
    parents = [-1, *(rng.randint(0, i - 1) for i in range(1, 8))]
    drafts = [rng.randrange(32) for _ in parents]
    total = len(tokens) + len(parents)
    tables, paged = _tables(model, rng, total), _paged(model, total)
    paged.forward(tokens, 0, tables, {"memory": 0})
    paged.look([tokens[-1], drafts[0]], len(tokens) - 1, tables)
    rows = paged.rows(tables, total)
    found, states = paged.verify(
        drafts,
        parents,
        len(tokens),
        {name: every[: len(tokens)] for name, every in rows.items()},
        {name: every[len(tokens) :] for name, every in rows.items()},
        {"memory": paged.states("memory", 0)},
    )
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path.append(drafts[at])
            at = parents[at]
        wanted = model.reference([*tokens, *reversed(path)])
        assert np.array_equal(found[node], wanted[-1]), f"seed {seed}, node {node}"
        assert len(states[node]["memory"]) == 2


def test_what_a_model_must_not_read_changes_its_output() -> None:
    """Each kind of state matters: a model that ignored one would find no fault in a cache."""
    model = _model(random.Random(1), 1)
    tokens = list(range(20))
    wanted = model.reference([*tokens, 7])[-1]
    for kind in model.kinds:
        paged = _paged(model, 40)
        tables = _tables(model, random.Random(2), 21)
        paged.forward(tokens, 0, tables, {"memory": 0})
        if kind.rule == "state":
            states = paged.states("memory", 0)
            paged.put("memory", 0, [type(s)(s.conv, s.memory + 1e-3) for s in states])
        else:
            last = max(kind.sees_from(20), 0)
            if last == 20:
                continue  # a window of one token sees itself alone
            row = paged.rows(tables, 20)[kind.name][last]
            paged._parts(kind, 0)[1][row] += 1e-2
        found = paged.forward([7], 20, tables, {"memory": 0}, tokens[-1])[-1]
        assert np.abs(found - wanted).max() > 1e-9, kind.name
