"""Which tensor of which cache layer lies where in the blocks of which group. Groups are derived
from the layers of a cache that a short forward has filled: what a layer keeps of a prefix is data,
by its exact class; a class that is not known is refused by name. Keeps I24 and I26 where bytes are
written: what a layer does not hold any more is never claimed.

    a cache layer   keys, values (1, heads, tokens, width)     states {index: (1, ...)}
    a block         of one page, all layers of the group       of one length, all layers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from radix.engines.transformers.blocks import Blocks
from radix.errors import InvariantError, LayoutMismatchError, UnsupportedError
from radix.groups import Group, Retention, Rule, rule_of
from radix.layout import DTYPE_BYTES, Layout, Part
from radix.tier import Slots

# What a layer of exactly this class keeps: (rule of its group, attributes that hold tensors).
_ALL = ("full", ("keys", "values"))
_LAST = ("window", ("keys", "values"))
_ONE = ("state", ("conv_states", "recurrent_states"))
KEPT: Mapping[type, tuple[tuple[str, tuple[str, ...]], ...]] = {
    DynamicLayer: (_ALL,),
    DynamicSlidingWindowLayer: (_LAST,),
    LinearAttentionLayer: (_ONE,),
    LinearAttentionAndFullAttentionLayer: (_ALL, _ONE),
    DummyLayer: (),
}
_BY_TOKEN = ("head", "token", "width")


@dataclass(frozen=True, slots=True)
class Cell:
    """One tensor of one cache layer. ``index``: the state's, where ``field`` is a dictionary.

    ``offset``, ``nbytes``: its bytes in a block of ``group``; ``shape``: without the batch, of one
    page of tokens or of one state.
    """

    group: int
    layer: int
    field: str
    index: int | None
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def of(self, cache: Any) -> torch.Tensor:
        """The tensor as it stands in a cache. A view."""
        held = getattr(cache.layers[self.layer], self.field)
        tensor: torch.Tensor = held if self.index is None else held[self.index]
        return tensor


class Placement:
    """Where a model's cache lies in blocks of pages of ``page_tokens`` tokens.

    Down: ``put_pages``, ``put_state``. Up: ``fill``. Of the layers that give tokens up:
    ``keep_passing``, ``let_pass``. Ask: ``check``, ``first_token``. Data: ``groups``, ``rules``,
    ``cells``, ``kinds``.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        cells: Sequence[Cell],
        page_tokens: int,
        kinds: Sequence[type],
    ) -> None:
        """``kinds``: the classes of the cache's layers."""
        self.groups = tuple(groups)
        self.kinds = list(kinds)
        self.cells = tuple(cells)
        self.page_tokens = page_tokens
        self.rules: tuple[Rule, ...] = tuple(rule_of(group, page_tokens) for group in groups)
        self._passing = sorted(
            {
                cell.layer
                for cell in cells
                if not self.rules[cell.group].everywhere and not self.rules[cell.group].per_position
            }
        )

    # ------------------------------------------------------------ down
    def put_pages(self, cache: Any, blocks: Blocks, group: int, first: int, slots: Slots) -> None:
        """Writes pages [first, first + len(slots)) of a group; -1: not that page.

        Of a page that ends where the cache does, a layer need only hold the tokens that a hit at
        that end needs; the rest is zeros then. ``InvariantError`` for tokens that are gone.
        Cost: the bytes.
        """
        wanted = np.flatnonzero(slots >= 0)
        if not len(wanted):
            return
        page, last = self.page_tokens, first + len(slots)
        first += int(wanted[0])
        slots = slots[wanted[0] :]
        wanted = np.flatnonzero(slots >= 0)
        reach = self.rules[group].reach_tokens
        for cell in self.cells:
            if cell.group != group:
                continue
            tensor = cell.of(cache)[0]
            begin = self._length(cache, cell) - tensor.shape[-2]
            lacking = max(0, begin - first * page)
            ends_here = last == first + 1 and last * page == begin + tensor.shape[-2]
            if lacking and not (ends_here and begin <= max(0, last * page - reach)):
                raise InvariantError(
                    "I26", f"layer {cell.layer} holds no token before {begin}, page {first} does"
                )
            tokens = tensor[:, max(0, first * page - begin) : last * page - begin]
            tokens = torch.nn.functional.pad(tokens, (0, 0, lacking, 0))
            heads, _, width = cell.shape
            pages = tokens.reshape(heads, -1, page, width).permute(1, 0, 2, 3)
            self._write(blocks, cell, slots[wanted], pages[torch.from_numpy(wanted)])

    def put_state(self, cache: Any, blocks: Blocks, group: int, slot: int) -> None:
        """Writes the states of a group as the last forward left them. Cost: the bytes."""
        for cell in self.cells:
            if cell.group == group:
                self._write(blocks, cell, np.array([slot]), cell.of(cache))

    def _write(
        self, blocks: Blocks, cell: Cell, slots: npt.NDArray[Any], tensor: torch.Tensor
    ) -> None:
        data = tensor.detach().reshape(len(slots), -1).contiguous().cpu().view(torch.uint8)
        blocks.write(cell.group, slots, cell.offset, data.numpy())

    def _length(self, cache: Any, cell: Cell) -> int:
        length: int = cache.layers[cell.layer].get_seq_length()
        return length

    def check(self, cache: Any) -> None:
        """``LayoutMismatchError`` for a filled cache whose layers hold something else than blocks
        do: of another class, batch, dtype or size. Cost: the layers.
        """
        kinds = [type(layer) for layer in cache.layers]
        if kinds != self.kinds:
            raise LayoutMismatchError(
                f"past_key_values has layers {[kind.__name__ for kind in kinds]}, expected "
                f"{[kind.__name__ for kind in self.kinds]}"
            )
        for cell in self.cells:
            tensor, shape = cell.of(cache), list(cell.shape)
            found = list(tensor.shape)
            if cell.index is None:
                shape[1] = found[2] if len(found) == 4 else -1
            if found != [1, *shape] or tensor.dtype != cell.dtype:
                raise LayoutMismatchError(
                    f"past_key_values layer {cell.layer} {cell.field}: {tensor.dtype} of shape "
                    f"{tuple(found)}, expected {cell.dtype} of {(1, *shape)}"
                )

    def first_token(self, cache: Any) -> int:
        """The first token of which every layer holds what it keeps by token. Cost: the layers."""
        begins = [
            self._length(cache, cell) - cell.of(cache).shape[-2]
            for cell in self.cells
            if not self.rules[cell.group].per_position
        ]
        return max(begins, default=0)

    # ------------------------------------------------------------ up
    def fill(self, cache: Any, blocks: Blocks, slots: Sequence[Slots], length: int) -> None:
        """Fills an empty cache with what it held after ``length`` tokens, whole pages.

        ``slots``: by group those of the pages that a hit there needs, or of the one state. The
        tensors are copies. Cost: the bytes.
        """
        found: dict[tuple[int, str], torch.Tensor] = {}
        for cell in self.cells:
            rule, layer = self.rules[cell.group], cache.layers[cell.layer]
            tensor = self._read(blocks, cell, slots[cell.group])
            if rule.per_position:
                self._set_state(layer, cell, tensor)
                continue
            heads, _, width = cell.shape
            held = length if rule.everywhere else min(length, rule.reach_tokens)
            tokens = tensor.permute(1, 0, 2, 3).reshape(1, heads, -1, width)
            found[cell.layer, cell.field] = tokens[:, :, tokens.shape[2] - held :].contiguous()
        for number, field in found:
            if field != "keys":
                continue
            layer, keys, values = (
                cache.layers[number],
                found[number, field],
                found[number, "values"],
            )
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if number in self._passing:
                layer.cumulative_length = length

    def _read(self, blocks: Blocks, cell: Cell, slots: Slots) -> torch.Tensor:
        raw = blocks.read(cell.group, slots.astype(np.int64), cell.offset, cell.nbytes)
        data = torch.from_numpy(raw).view(cell.dtype)
        return data.reshape(len(slots), *cell.shape).to(cell.device)

    @staticmethod
    def _set_state(layer: Any, cell: Cell, state: torch.Tensor) -> None:
        layer.lazy_initialization(**{cell.field: state, "state_idx": cell.index})
        getattr(layer, cell.field)[cell.index].copy_(state)
        layer.has_previous_state[cell.index] = True

    # ------------------------------------------------------------ tokens that would be given up
    def keep_passing(self, cache: Any) -> None:
        """From now on a forward gives no token up, until ``let_pass``."""
        for number in self._passing:
            cache.layers[number].activate_past_recording()

    def let_pass(self, cache: Any) -> None:
        """Gives up what no further token needs."""
        for number in self._passing:
            layer = cache.layers[number]
            if layer.record_past:
                layer.crop(0)
                layer.record_past = False


def derive(cache: Any, length: int, page_tokens: int) -> Placement:
    """The placement of a cache that holds ``length`` tokens, from its layers.

    Raises ``UnsupportedError`` for a layer whose class, or the shape of what it holds, is not
    known, and for a cache that cannot tell its length.
    """
    found: dict[tuple[str, int], list[tuple[int, str, int | None, torch.Tensor]]] = {}
    for number, layer in enumerate(cache.layers):
        if type(layer) not in KEPT:
            known = ", ".join(sorted(each.__name__ for each in KEPT))
            raise UnsupportedError(
                f"cache layer {number} is a {type(layer).__name__}, expected one of {known}"
            )
        for rule, fields in KEPT[type(layer)]:
            reach = layer.sliding_window if rule == "window" else 0
            tensors = found.setdefault((rule, reach), [])
            for field in fields:
                held = getattr(layer, field)
                if not isinstance(held, dict):
                    tensors.append((number, field, None, held))
                    continue
                tensors += [(number, field, i, held[i]) for i in held if held[i] is not None]
    if all(rule == "state" for rule, _ in found):
        raise UnsupportedError(
            "no layer of the cache keeps anything by token, so that it cannot tell its length: "
            "purely recurrent models are not supported"
        )
    groups: list[Group] = []
    cells: list[Cell] = []
    for (rule, reach), tensors in sorted(found.items(), key=lambda item: item[0]):
        if tensors:
            cells += _cells(len(groups), rule, reach, tensors, length, page_tokens, groups)
    return Placement(groups, cells, page_tokens, [type(layer) for layer in cache.layers])


def _cells(
    number: int,
    rule: str,
    reach: int,
    tensors: list[tuple[int, str, int | None, torch.Tensor]],
    length: int,
    page_tokens: int,
    groups: list[Group],
) -> list[Cell]:
    """The cells of one group, which is added to ``groups``."""
    layers = sorted({layer for layer, *_ in tensors})
    parts: list[Part] = []
    shapes: list[tuple[int, ...]] = []
    for layer, field, index, tensor in tensors:
        name = f"{layer}.{field}" if index is None else f"{layer}.{field}.{index}"
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            raise UnsupportedError(f"cache layer {name} has dtype {dtype}")
        shape = tuple(tensor.shape[1:])
        axes: Sequence[str] = [f"axis{axis}" for axis in range(len(shape))]
        if index is None:
            held = length if rule == "full" else min(length, reach - 1)
            if tensor.ndim != 4 or tensor.shape[0] != 1 or tensor.shape[2] != held:
                raise UnsupportedError(
                    f"cache layer {name} has shape {tuple(tensor.shape)} after {length} tokens, "
                    f"expected (1, heads, {held}, width)"
                )
            shape, axes = (shape[0], page_tokens, shape[2]), _BY_TOKEN
        elif tensor.shape[0] != 1:
            raise UnsupportedError(f"cache layer {name} has shape {tuple(tensor.shape)}")
        sized = tuple(zip(axes, shape, strict=True))
        parts.append(Part(name, dtype, sized, first_layer=layers.index(layer)))
        shapes.append(shape)
    layout = Layout(tuple(parts))
    retention = Retention(rule, reach) if rule == "window" else Retention(rule)
    name = f"{rule}{reach}" if reach else rule
    groups.append(Group(name, layout, retention, per_sequence=rule == "state"))
    offsets = _offsets(layout)
    found = zip(parts, shapes, tensors, strict=True)
    return [
        Cell(
            group=number,
            layer=layer,
            field=field,
            index=index,
            offset=offsets[part.name],
            nbytes=part.nbytes,
            shape=shape,
            dtype=tensor.dtype,
            device=tensor.device,
        )
        for part, shape, (layer, field, index, tensor) in found
    ]


def _offsets(layout: Layout) -> dict[str, int]:
    """Where each part begins in a block of one piece."""
    found: dict[str, int] = {}
    for layer in range(layout.layers):
        at = int(layout.runs[0, layer, 0])
        for part in layout.contents(0, layer):
            found[part.name] = at
            at += part.nbytes
    return found


def check_alike(one: Placement, other: Placement) -> None:
    """``LayoutMismatchError`` where blocks at two lengths differ: a state that grows, say."""
    for left, right in zip(one.groups, other.groups, strict=True):
        if left.layout.fingerprint != right.layout.fingerprint:
            raise LayoutMismatchError(
                f"group {left.name!r}: what its layers hold changes its shape with the tokens"
            )
