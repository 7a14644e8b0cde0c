"""The tables of docs/scale.md are what the presets of models give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from radix.replay.models import PRESETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
PAGE_TOKENS = 16
TERA = 1e12
FLOPS_PER_S = 0.5 * 989e12
TREE_BYTES_PER_TOKEN, BLOCK_COLUMNS_BYTES, KEY_BYTES, RECORD_BYTES = 4.6, 4, 300, 200


def rows(columns: int) -> dict[str, list[str]]:
    """By model the fields of the table with so many columns of numbers."""
    found = {}
    for line in PAGE.read_text().splitlines():
        fields = [field.strip() for field in line.strip("|").split("|")]
        if fields[0] in PRESETS and len(fields) == columns + 1:
            found[fields[0]] = fields[1:]
    return found


def numbers(fields: list[str]) -> list[float]:
    return [float(each.replace(",", "")) for field in fields for each in re.split(r" / ", field)]


@pytest.mark.parametrize("name", PRESETS)
def test_weight_of_tokens_is_that_of_the_model(name: str) -> None:
    model = PRESETS[name]
    size, cost = model.token_bytes, model.cost
    assert cost is not None
    even = [
        size * FLOPS_PER_S / (cost.linear + cost.quadratic * context) / 1e9
        for context in (0, 32_768)
    ]
    wanted = [size, model.snapshot_bytes / 1e6, size * 32_768 / 1e9, TERA / size / 1e6, *even]
    assert numbers(rows(5)[name]) == pytest.approx(wanted, abs=0.0501, rel=0.006)


@pytest.mark.parametrize("name", PRESETS)
def test_weight_of_the_index_follows_from_the_blocks(name: str) -> None:
    blocks = TERA / (PRESETS[name].token_bytes * PAGE_TOKENS)
    tree = blocks * (PAGE_TOKENS * TREE_BYTES_PER_TOKEN + BLOCK_COLUMNS_BYTES)
    wanted = [blocks / 1e6, tree / 1e6, blocks * KEY_BYTES / 1e6, blocks * RECORD_BYTES / 1e6]
    for found, exact, half in zip(
        numbers(rows(4)[name]), wanted, (0.0051, 0.51, 0.51, 0.51), strict=True
    ):
        assert found == pytest.approx(exact, abs=half)


def test_both_tables_name_every_preset() -> None:
    assert set(rows(5)) == set(rows(4)) == set(PRESETS)
