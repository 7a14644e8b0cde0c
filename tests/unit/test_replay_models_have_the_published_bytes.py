"""Presets keep exactly the bytes of the published dimensions, and a group that counts blocks of a
trace needs the same blocks as one that counts tokens.
"""

from __future__ import annotations

import pytest

from radix.groups import Group, Retention, rule_of
from radix.layout import Part
from radix.replay.models import PRESETS, Layers, Model

# Bytes a token over the groups that keep all, window layers and W, bytes of a snapshot.
PUBLISHED = {
    "Llama-3.1-8B": (131_072, 0, 0, 0),
    "Llama-3.1-70B": (327_680, 0, 0, 0),
    "Gemma-3-27B": (81_920, 52, 1024, 0),
    "gpt-oss-120b": (36_864, 18, 128, 0),
    "Qwen3-Next-80B-A3B": (24_576, 0, 0, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
    "DeepSeek-V3": (70_272, 0, 0, 0),
    "Jamba-v0.1": (16_384, 0, 0, 28 * (8192 * 16 * 4 + 8192 * 3 * 2)),
}


def layers(retention: Retention, grid_tokens: int | None = None) -> Layers:
    return Layers("kept", retention, 2, (Part("a", "int16", (("dim", 3),)),), grid_tokens)


def test_the_presets_are_those_that_are_published() -> None:
    assert list(PRESETS) == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_of_a_preset_are_the_published_ones(name: str) -> None:
    model, (token_bytes, window_layers, window, snapshot_bytes) = PRESETS[name], PUBLISHED[name]
    assert (model.name, model.token_bytes, model.snapshot_bytes) == (
        name,
        token_bytes,
        snapshot_bytes,
    )
    windows = [kept for kept in model.sets if kept.retention.rule == "window"]
    assert [(kept.layers, kept.retention.tokens) for kept in windows] == (
        [(window_layers, window)] if window else []
    )


def test_a_snapshot_of_qwen3_next_has_the_published_megabytes() -> None:
    assert round(PRESETS["Qwen3-Next-80B-A3B"].snapshot_bytes / 1e6, 1) == 77.3
    assert round(PRESETS["Jamba-v0.1"].snapshot_bytes / 1e6, 1) == 16.1


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("page", "entry"), [(16, 1), (512, 512)])
def test_blocks_have_the_bytes_of_their_tokens(name: str, page: int, entry: int) -> None:
    model = PRESETS[name]
    for kept, group in zip(model.sets, model.groups(page, entry), strict=True):
        tokens = 1 if kept.per_sequence else page
        assert group.block_bytes == kept.unit_bytes * tokens
        assert dict(group.layout.parts[0].axes)["layer"] == kept.layers


def needed(group: Group, page: int, length: int) -> tuple[int, int]:
    """The pages that a hit of `length` pages needs, as a range."""
    return rule_of(group, page).first_page(length), length


@pytest.mark.parametrize("entry", [1, 4, 16])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64])
def test_a_window_in_blocks_needs_the_blocks_that_it_needs_in_tokens(
    entry: int, tokens: int
) -> None:
    model = Model("m", (layers(Retention("window", tokens)),))
    (in_tokens,), (in_blocks,) = model.groups(entry), model.groups(entry, entry)
    for length in range(40):
        assert needed(in_blocks, 1, length) == needed(in_tokens, entry, length)


@pytest.mark.parametrize(("entry", "tokens"), [(4, 4), (4, 8), (4, 2), (4, 1), (1, 3), (16, 64)])
def test_chunks_in_blocks_need_the_blocks_that_they_need_in_tokens(entry: int, tokens: int) -> None:
    model = Model("m", (layers(Retention("chunked", tokens)),))
    (in_tokens,), (in_blocks,) = model.groups(entry), model.groups(entry, entry)
    for length in range(40):
        assert needed(in_blocks, 1, length) == needed(in_tokens, entry, length)


def test_chunks_that_end_inside_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks of 6 tokens do not end with the trace's blocks"):
        Model("m", (layers(Retention("chunked", 6)),)).groups(4, 4)


@pytest.mark.parametrize(("grid", "blocks"), [(64, 1), (512, 1), (2048, 4), (768, 3)])
def test_a_snapshot_stands_where_grid_and_blocks_meet(grid: int, blocks: int) -> None:
    (group,) = Model("m", (layers(Retention("state"), grid),)).groups(512, 512)
    assert (rule_of(group, 1).block_pages, group.per_sequence) == (blocks, True)


def test_a_grid_that_does_not_hold_whole_pages_is_refused() -> None:
    model = Model("m", (layers(Retention(), 24),))
    with pytest.raises(ValueError, match="grid_tokens 24 is no multiple of the page of 16 tokens"):
        model.groups(16)
    (group,) = model.groups(8)
    assert group.block_bytes == 2 * 3 * 2 * 24
