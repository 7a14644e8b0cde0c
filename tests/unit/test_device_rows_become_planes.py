"""Rows of any tensor become planes that hold the same bytes in the same order as the tensor's own
indices, so that two tensors of one layout exchange blocks whatever their strides are.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiers.device import MAX_PLANES, planes_of

DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float64]


def _bytes_of(planes: object, slot: int) -> bytes:
    return b"".join(
        ctypes.string_at(int(p["base"]) + slot * int(p["stride"]), int(p["bytes"]))
        for p in planes  # type: ignore[attr-defined]  # a structured array
    )


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of one to four dimensions: a slice of a larger one with its dimensions turned."""
    dims = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 4), min_size=dims, max_size=dims))
    around = draw(st.lists(st.integers(0, 2), min_size=dims, max_size=dims))
    dtype = draw(st.sampled_from(DTYPES))
    whole = [size + more for size, more in zip(sizes, around, strict=True)]
    width = dtype.itemsize
    raw = torch.randint(0, 256, (*whole[:-1], whole[-1] * width), dtype=torch.uint8)
    tensor = raw.view(dtype)
    for dim, (size, more) in enumerate(zip(sizes, around, strict=True)):
        tensor = tensor.narrow(dim, draw(st.integers(0, more)), size)
    return tensor.permute(draw(st.permutations(range(dims))))


@given(st.lists(tensors(), min_size=1, max_size=3))
def test_planes_hold_the_bytes_of_the_rows_in_order(parts: list[torch.Tensor]) -> None:
    rows = min(len(part) for part in parts)
    planes = planes_of(parts)
    for slot in range(rows):
        own = b"".join(
            bytes(part[slot].flatten().clone().untyped_storage().tolist()) for part in parts
        )
        assert _bytes_of(planes, slot) == own


def test_a_contiguous_row_is_one_plane() -> None:
    layer_first = torch.zeros((2, 8, 16, 4, 8), dtype=torch.bfloat16)
    assert len(planes_of([layer_first[0], layer_first[1]])) == 2
    assert len(planes_of([layer_first.transpose(0, 1)])) == 2
    assert len(planes_of([torch.zeros((8, 16, 4, 8))])) == 1


def test_rows_in_too_many_pieces_are_refused() -> None:
    scattered = torch.zeros((2, MAX_PLANES + 1, 2), dtype=torch.uint8)[:, :, :1]
    with pytest.raises(ValueError, match="more than 4096 pieces"):
        planes_of([scattered])
