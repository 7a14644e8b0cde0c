"""What a replay must know of a model to count its bytes: its sets of layers, as presets and as TOML
files.

A `Model` is data: for each set of layers that share layout and retention the parts that one layer
keeps. Kept here: a preset's bytes are those of the published dimensions; a file is accepted whole
or refused with an `OptionError` that names file, place and what was expected; the groups made of a
model have blocks of exactly the bytes that its parts have, whatever the trace's unit is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

from radix.groups import Cost, Group, Retention
from radix.layout import Layout, Part


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer multiplies for one token and one token before it: `heads` queries with keys of
    `key` numbers and values of `value` numbers.
    """

    heads: int
    key: int
    value: int

    @property
    def flops(self) -> int:
        """FLOPs for one pair of tokens in one layer. Cost: O(1)."""
        return 2 * self.heads * (self.key + self.value)


@dataclass(frozen=True, slots=True)
class Layers:
    """A set of layers of one model.

    `parts` are those of one layer and one token; of a retention by `state`, of one layer and one
    snapshot. `grid_tokens`: tokens a block (None: one page), or the multiples at which a snapshot
    may stand. `attention`: None where no pair of tokens is multiplied (a recurrent state), or where
    nobody says.
    """

    name: str
    retention: Retention
    layers: int
    parts: tuple[Part, ...]
    grid_tokens: int | None
    attention: Attention | None = None

    @property
    def per_sequence(self) -> bool:
        """Whether it keeps a snapshot a checkpoint instead of a block a page. Cost: O(1)."""
        return self.retention.rule == "state"

    @property
    def unit_bytes(self) -> int:
        """Bytes that all its layers keep of one token, or of one snapshot. Cost: O(parts)."""
        return self.layers * sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a replay sees it: its name, its sets of layers, at least one, and the parameters
    that each token is multiplied with (None: nobody says, and nothing is known of its cost).
    """

    name: str
    sets: tuple[Layers, ...]
    active_parameters: float | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes a token over the sets that keep all tokens. Cost: O(sets).

        >>> PRESETS["Llama-3.1-8B"].token_bytes
        131072
        """
        return sum(kept.unit_bytes for kept in self.sets if kept.retention.rule == "full")

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of one checkpoint: a snapshot of every set that keeps them. Cost: O(sets)."""
        return sum(kept.unit_bytes for kept in self.sets if kept.per_sequence)

    @property
    def cost(self) -> Cost | None:
        """What computing a token costs: of windows that are full, of chunks on average a half.

        Twice the active parameters, and for each token before it what the layers multiply. Cost:
        O(sets). Source: the usual count of a forward's FLOPs (two a parameter).
        """
        if self.active_parameters is None:
            return None
        costs = [self._cost_of(kept, self.active_parameters) for kept in self.sets]
        linear = sum(each.linear for each in costs)
        return Cost(linear, sum(each.quadratic for each in costs))

    def _cost_of(self, kept: Layers, active: float) -> Cost:
        """The part of a set: parameters by layers, which are taken to be alike."""
        linear = 2 * active * kept.layers / sum(each.layers for each in self.sets)
        if kept.attention is None:
            return Cost(linear, 0)
        pairs = kept.layers * kept.attention.flops
        if kept.retention.rule == "full":
            return Cost(linear, pairs)
        seen = kept.retention.tokens / (2 if kept.retention.rule == "chunked" else 1)
        return Cost(linear + pairs * seen, 0)

    def groups(self, page_tokens: int, entry_tokens: int = 1) -> tuple[Group, ...]:
        """Return the groups of a cache whose page is `page_tokens` of the model's tokens.

        A trace of blocks gives one number for `entry_tokens` tokens: retention and grid of the
        groups then count such entries, rounded so that a hit between two blocks needs the same
        blocks. The bytes stay those of the tokens. Cost: O(parts).

        Raises:
            ValueError: a grid is no multiple of the page, or chunks do not end with the blocks.
        """
        return tuple(
            _group(kept, page_tokens, entry_tokens, self._entry_cost(kept, entry_tokens))
            for kept in self.sets
        )

    def _entry_cost(self, kept: Layers, entry_tokens: int) -> Cost | None:
        if self.active_parameters is None:
            return None
        cost = self._cost_of(kept, self.active_parameters)
        return Cost(cost.linear * entry_tokens, cost.quadratic * entry_tokens**2)


def _group(kept: Layers, page_tokens: int, entry_tokens: int, cost: Cost | None) -> Group:
    grid = kept.grid_tokens
    block_tokens = grid or page_tokens
    if not kept.per_sequence and block_tokens % page_tokens:
        raise ValueError(
            f"group {kept.name!r}: grid_tokens {block_tokens} is no multiple of the page of "
            f"{page_tokens} tokens"
        )
    head: tuple[tuple[str, int], ...] = (("layer", kept.layers),)
    if not kept.per_sequence:
        head += (("token", block_tokens),)
    parts = tuple(Part(part.name, part.dtype, (*head, *part.axes)) for part in kept.parts)
    if grid is not None:
        # A snapshot off the trace's blocks could never be hit.
        grid = math.lcm(grid, entry_tokens) // entry_tokens
    return Group(
        name=kept.name,
        layout=Layout(parts),
        retention=_retention(kept, entry_tokens),
        grid_tokens=grid,
        per_sequence=kept.per_sequence,
        cost=cost,
    )


def _retention(kept: Layers, entry_tokens: int) -> Retention:
    """The retention in entries of `entry_tokens` tokens: exact for hits between two entries."""
    given = kept.retention
    if entry_tokens == 1 or not given.tokens:
        return given
    if given.rule == "window":
        reach = given.tokens - 1 + given.extra
        return Retention("window", 1 - (-reach // entry_tokens))
    if given.tokens % entry_tokens and entry_tokens % given.tokens:
        raise ValueError(
            f"group {kept.name!r}: chunks of {given.tokens} tokens do not end with the trace's "
            f"blocks of {entry_tokens}"
        )
    return Retention(given.rule, max(1, given.tokens // entry_tokens))


def _attention(
    name: str, layers: int, queries: int, heads: int, dim: int, window: int = 0
) -> Layers:
    """Keys and values of plain attention, bf16; `window`: tokens it sees, 0 for all."""
    axes = (("head", heads), ("dim", dim))
    return Layers(
        name=name,
        retention=Retention("window", window) if window else Retention(),
        layers=layers,
        parts=(Part("keys", "bfloat16", axes), Part("values", "bfloat16", axes)),
        grid_tokens=None,
        attention=Attention(queries, dim, dim),
    )


def _recurrent(name: str, layers: int, state: tuple[tuple[str, int], ...], channels: int) -> Layers:
    """A recurrent state, float32, and the last inputs of a convolution over four, bf16."""
    return Layers(
        name=name,
        retention=Retention("state"),
        layers=layers,
        parts=(
            Part("recurrent", "float32", state),
            Part("conv", "bfloat16", (("channel", channels), ("step", 3))),
        ),
        grid_tokens=None,
    )


_LATENT = Layers(
    name="latent",
    retention=Retention(),
    layers=61,
    parts=(
        Part("latent", "bfloat16", (("dim", 512),)),
        Part("rope", "bfloat16", (("dim", 64),)),
    ),
    grid_tokens=None,
    attention=Attention(128, 576, 512),  # absorbed: keys and values are read as latents
)

# Source: the published configurations of these models.
PRESETS = MappingProxyType(
    {
        model.name: model
        for model in (
            Model("Llama-3.1-8B", (_attention("attention", 32, 32, 8, 128),), 8.03e9),
            Model("Llama-3.1-70B", (_attention("attention", 80, 64, 8, 128),), 70.6e9),
            Model(
                "Gemma-3-27B",
                (
                    _attention("attention", 10, 32, 16, 128),
                    _attention("sliding", 52, 32, 16, 128, window=1024),
                ),
                27e9,
            ),
            Model(
                "gpt-oss-120b",
                (
                    _attention("attention", 18, 64, 8, 64),
                    _attention("sliding", 18, 64, 8, 64, window=128),
                ),
                5.1e9,
            ),
            Model(
                "Qwen3-Next-80B-A3B",
                (
                    _attention("attention", 12, 16, 2, 256),
                    _recurrent("delta", 36, (("head", 32), ("key", 128), ("value", 128)), 8192),
                ),
                3.0e9,
            ),
            Model("DeepSeek-V3", (_LATENT,), 37e9),
            Model(
                "Jamba-v0.1",
                (
                    _attention("attention", 4, 32, 8, 128),
                    _recurrent("mamba", 28, (("channel", 8192), ("state", 16)), 8192),
                ),
                12e9,
            ),
        )
    }
)
