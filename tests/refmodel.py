"""A tiny language model of random weights whose layers really compute what a cache keeps: full,
windowed and chunked attention over paged keys and values, and a gated linear recurrence behind a
short convolution. ``Model.forward`` reads the past through page tables alone; ``Model.reference``
is the same arithmetic in one plain loop that knows no page. Both add up each token in one order,
so a chunk's length changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from radix.groups import Group, Retention
from radix.layout import Layout, Part

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Tables = Mapping[str, npt.NDArray[np.int32]]

VOCAB = 32
WIDTH = 12
HEAD = 6
TAPS = 3  # tokens that the convolution sees


@dataclass(frozen=True)
class Kind:
    """A group of layers of one kind: ``tokens`` of a window or chunk, ``grid`` tokens a block.

    ``lookahead``: the entry of a token depends on the next one too, so a token sees the entries
    before its own, and the last entry can be written only when the next token is known.
    """

    name: str
    rule: str = "full"
    tokens: int = 0
    layers: int = 1
    grid: int | None = None
    lookahead: bool = False

    def sees_from(self, position: int) -> int:
        """The first position that the token at ``position`` attends to."""
        if self.rule == "window":
            return max(0, position - self.tokens + 1)
        if self.rule == "chunked":
            return position // self.tokens * self.tokens
        return 0

    def block_tokens(self, page_tokens: int) -> int:
        """Tokens whose keys and values lie in one block."""
        return self.grid or page_tokens

    def group(self, page_tokens: int) -> Group:
        """The same as the cache takes it."""
        if self.rule == "state":
            parts = (
                Part("conv", "float32", (("layer", self.layers), ("tap", TAPS - 1), ("u", WIDTH))),
                Part("memory", "float64", (("layer", self.layers), ("key", HEAD), ("value", HEAD))),
            )
        else:
            axes = (("layer", self.layers), ("token", self.block_tokens(page_tokens)))
            parts = (
                Part("key", "float32", (*axes, ("dim", HEAD))),
                Part("value", "float64", (*axes, ("dim", HEAD))),
            )
        return Group(
            self.name,
            Layout(parts),
            Retention(self.rule, self.tokens if self.rule in ("window", "chunked") else 0),
            grid_tokens=self.grid,
            per_sequence=self.rule == "state",
            lookahead=int(self.lookahead),
        )

    def tensors(self, page_tokens: int, slots: int) -> list[torch.Tensor]:
        """Memory for ``slots`` blocks, layer by layer, filled with what no model may read."""
        if self.rule == "state":
            one = [((TAPS - 1, WIDTH), torch.float32), ((HEAD, HEAD), torch.float64)]
        else:
            block = self.block_tokens(page_tokens)
            one = [((block, HEAD), torch.float32), ((block, HEAD), torch.float64)]
        return [
            torch.full((slots, *shape), torch.nan, dtype=dtype)
            for _ in range(self.layers)
            for shape, dtype in one
        ]


def _norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _times(x: Array, weight: Array) -> Array:
    """A product whose sums have one order, however many rows there are."""
    return np.asarray((x[..., :, None] * weight).sum(-2))


def _single(x: Array) -> npt.NDArray[np.float32]:
    return x.astype(np.float32)


def _attention(query: Array, keys: Array, values: Array) -> Array:
    """What one token reads from the keys and values that it sees, oldest first."""
    if not len(keys):
        return np.zeros(HEAD)
    ages = np.arange(len(keys) - 1, -1, -1)
    scores = (keys * query).sum(-1) - 0.05 * ages
    weights = np.exp(scores - scores.max())
    return np.asarray((weights[:, None] * values).sum(0) / weights.sum())


Entries = tuple[npt.NDArray[np.float32], Array]


@dataclass(frozen=True)
class State:
    """What a recurrence holds behind one token: its last convolution inputs, and its memory."""

    conv: npt.NDArray[np.float32]
    memory: Array

    @classmethod
    def empty(cls) -> State:
        """Before the first token."""
        return cls(np.zeros((TAPS - 1, WIDTH), np.float32), np.zeros((HEAD, HEAD)))


Layer = dict[str, Array]


def _recur(layer: Layer, h: Array, state: State) -> tuple[Array, State]:
    """One token through the recurrence: its output, and the state behind it."""
    u = _single(_times(h, layer["input"]))
    seen = np.concatenate((state.conv, u[None]))
    mixed = np.tanh((seen * layer["taps"]).sum(0))
    gate = 1 / (1 + np.exp(-_times(h, layer["gate"]) - 1))
    key, value = _times(mixed, layer["key"]), _times(mixed, layer["value"])
    memory = gate[:, None] * state.memory + key[:, None] * value[None]
    query = _times(h, layer["query"])
    return (query[:, None] * memory).sum(0), State(seen[1:], memory)


@dataclass(frozen=True)
class Model:
    """Random weights of ``seed`` for these kinds of layers; ``order`` interleaves them."""

    kinds: tuple[Kind, ...]
    page_tokens: int
    seed: int = 0
    weights: list[Layer] = field(init=False, repr=False)
    order: list[tuple[int, int]] = field(init=False)
    embedding: Array = field(init=False, repr=False)
    output: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def matrix(rows: int, columns: int, scale: float = 1.0) -> Array:
            return rng.standard_normal((rows, columns)) * scale / np.sqrt(rows)

        depth = max(kind.layers for kind in self.kinds)
        order = [
            (number, layer)
            for layer in range(depth)
            for number, kind in enumerate(self.kinds)
            if layer < kind.layers
        ]
        weights: list[Layer] = []
        for number, _ in order:
            names = ["query", "key", "value"]
            layer = {name: matrix(WIDTH, HEAD, 1.5) for name in names}
            layer["out"] = matrix(HEAD, WIDTH, 2.0)
            if self.kinds[number].rule == "state":
                layer["input"] = matrix(WIDTH, WIDTH)
                layer["taps"] = matrix(TAPS, WIDTH)
                layer["gate"] = matrix(WIDTH, HEAD)
            weights.append(layer)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "embedding", rng.standard_normal((VOCAB, WIDTH)))
        object.__setattr__(self, "output", matrix(WIDTH, VOCAB, 3.0))

    def groups(self) -> tuple[Group, ...]:
        """The groups that a cache of this model has, in the order of ``kinds``."""
        return tuple(kind.group(self.page_tokens) for kind in self.kinds)

    def _enter(self, tokens: Sequence[int], positions: Sequence[int]) -> Array:
        place = np.array(positions, np.float64)[:, None] * (0.7 ** np.arange(1, WIDTH + 1))
        return self.embedding[list(tokens)] + 0.3 * np.sin(place)

    def pairs(self, weights: Layer, tokens: Sequence[int]) -> Entries:
        """Keys and values of all ``tokens`` but the last, each of a token and the one behind it."""
        each = self.embedding[list(tokens)]
        mixed = each[:-1] + 0.5 * each[1:]
        return _single(_times(mixed, weights["key"])), _times(mixed, weights["value"])

    def plain(self) -> Plain:
        """The model before its first token, without pages or a cache."""
        return Plain(self)

    def reference(self, tokens: Sequence[int]) -> Array:
        """Logits behind every token, from nothing but the tokens."""
        plain = self.plain()
        return np.array([plain.feed(token) for token in tokens])


class Plain:
    """The model a token at a time over plain lists: what every other way to compute must equal."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.count = 0
        self._before: list[int] = []  # the last token
        self._past = [(np.empty((0, HEAD)), np.empty((0, HEAD))) for _ in model.order]
        self._states = [State.empty() for _ in model.order]

    def feed(self, token: int) -> Array:
        """Logits behind one more token."""
        model, position = self.model, self.count
        x = model._enter([token], [position])[0]
        for depth, (number, _) in enumerate(model.order):
            layer, kind = model.weights[depth], model.kinds[number]
            h = _norm(x)
            if kind.rule == "state":
                out, self._states[depth] = _recur(layer, h, self._states[depth])
            else:
                keys, values = self._past[depth]
                if kind.lookahead:
                    key, value = model.pairs(layer, [*self._before, token])
                else:
                    key, value = _single(_times(h, layer["key"])), _times(h, layer["value"])
                keys, values = np.vstack((keys, key)), np.vstack((values, value))
                self._past[depth] = keys, values
                first = kind.sees_from(position)
                out = _attention(_times(h, layer["query"]), keys[first:], values[first:])
            x = x + _times(out, layer["out"])
        self.count += 1
        self._before = [token]
        return _times(_norm(x), model.output)


class Paged:
    """The model over memory given from outside: ``tensors`` by group name, row i is slot i."""

    def __init__(self, model: Model, tensors: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self.model = model
        self._memory: dict[str, list[npt.NDArray[np.generic]]] = {}
        for kind in model.kinds:
            views = [tensor.numpy() for tensor in tensors[kind.name]]
            if kind.rule != "state":
                views = [view.reshape(-1, HEAD) for view in views]  # a row a token
            self._memory[kind.name] = views

    def _parts(self, kind: Kind, layer: int) -> list[npt.NDArray[np.generic]]:
        return self._memory[kind.name][2 * layer : 2 * layer + 2]

    def states(self, name: str, slot: int) -> list[State]:
        """A copy of what a state's slot holds, layer by layer."""
        views = self._memory[name]
        return [
            State(conv[slot].astype(np.float32), memory[slot].astype(np.float64))
            for conv, memory in zip(views[::2], views[1::2], strict=True)
        ]

    def put(self, name: str, slot: int, states: Sequence[State]) -> None:
        """Writes a state into a slot."""
        for layer, state in enumerate(states):
            for view, part in zip(
                self._memory[name][2 * layer : 2 * layer + 2],
                (state.conv, state.memory),
                strict=True,
            ):
                view[slot] = part

    def rows(self, tables: Tables, upto: int) -> dict[str, Rows]:
        """By group of keys and values, the row of each of the first ``upto`` positions; a negative
        one where the table has no slot.
        """
        found: dict[str, Rows] = {}
        for kind in self.model.kinds:
            if kind.rule != "state":
                block = kind.block_tokens(self.model.page_tokens)
                slots = np.repeat(tables[kind.name].astype(np.int64), block)[:upto]
                assert len(slots) == upto, f"{kind.name}: a table of {len(slots)} of {upto} tokens"
                inner = np.arange(upto) % block
                found[kind.name] = np.where(slots < 0, -1, slots * block + inner)
        return found

    def look(self, tokens: Sequence[int], start: int, tables: Tables) -> None:
        """Writes the entries that look ahead of all ``tokens``, from ``start`` on, but the last."""
        rows = self.rows(tables, start + len(tokens) - 1)
        for (number, layer), weights in zip(self.model.order, self.model.weights, strict=True):
            kind = self.model.kinds[number]
            if kind.lookahead:
                place = rows[kind.name][start:]
                assert (place >= 0).all(), f"{kind.name}: no slot to write to, from {start}"
                parts = self._parts(kind, layer)
                parts[0][place], parts[1][place] = self.model.pairs(weights, tokens)

    def forward(
        self,
        tokens: Sequence[int],
        start: int,
        tables: Tables,
        slots: Mapping[str, int],
        before_it: int | None = None,
    ) -> Array:
        """Logits behind each of ``tokens``, which stand at ``start`` and after. Keys and values go
        where ``tables`` say; the running states in ``slots`` are read and replaced. ``before_it``:
        the token before, if its entry that looks ahead was not written yet.
        """
        count = len(tokens)
        known = [] if before_it is None else [before_it]
        self.look([*known, *tokens], start - len(known), tables)
        rows = self.rows(tables, start + count)
        before = {
            name: self.states(name, slot) if start else [State.empty()] * self._kind(name).layers
            for name, slot in slots.items()
        }
        history = {name: every[:start] for name, every in rows.items()}
        fresh = {name: every[start:] for name, every in rows.items()}
        logits, states = self.verify(
            tokens, [i - 1 for i in range(count)], start, history, fresh, before
        )
        for name, slot in slots.items():
            self.put(name, slot, states[-1][name])
        return logits

    def _kind(self, name: str) -> Kind:
        return next(kind for kind in self.model.kinds if kind.name == name)

    def verify(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        start: int,
        history: Mapping[str, Rows],
        fresh: Mapping[str, Rows],
        before: Mapping[str, Sequence[State]],
        twins: Mapping[str, tuple[Rows, Rows]] | None = None,
    ) -> tuple[Array, list[dict[str, list[State]]]]:
        """A tree of tokens behind position ``start``: logits and states behind each of them.

        ``parents[i]`` < i: the token before token i, -1 the last of the history. ``history``: the
        rows of the positions before ``start``; ``fresh``: the rows that the tokens' own keys and
        values are written to; ``twins``: tokens, and more rows that theirs are written to as well;
        ``before``: the states at ``start``, which stay as they are.
        """
        model, paths = self.model, _paths(parents)
        positions = [start + len(path) - 1 for path in paths]
        x = model._enter(tokens, positions)
        after: list[dict[str, list[State]]] = [{name: [] for name in before} for _ in tokens]
        for depth, (number, layer) in enumerate(model.order):
            kind, weights = model.kinds[number], model.weights[depth]
            h = _norm(x)
            if kind.rule == "state":
                outs = np.empty((len(tokens), HEAD))
                for i, parent in enumerate(parents):
                    states = before[kind.name] if parent < 0 else after[parent][kind.name]
                    outs[i], state = _recur(weights, h[i], states[layer])
                    after[i][kind.name].append(state)
            elif kind.lookahead:
                outs = self._attend_before(
                    kind, layer, weights, h, history[kind.name], tokens, paths
                )
            else:
                nodes, more = (twins or {}).get(kind.name, (_NONE, _NONE))
                place = _Place(history[kind.name], fresh[kind.name], nodes, more, start)
                outs = self._attend(kind, layer, weights, h, place, paths)
            x = x + _times(outs, weights["out"])
        return _times(_norm(x), model.output), after

    def _attend(
        self,
        kind: Kind,
        layer: int,
        weights: Layer,
        h: Array,
        place: _Place,
        paths: Sequence[list[int]],
    ) -> Array:
        history, fresh, start = place.history, place.fresh, place.start
        keys, values = self._parts(kind, layer)
        assert (fresh >= 0).all(), f"{kind.name}: no slot to write to, from position {start}"
        key, value = _single(_times(h, weights["key"])), _times(h, weights["value"])
        keys[fresh], values[fresh] = key, value
        keys[place.twin_rows], values[place.twin_rows] = key[place.twins], value[place.twins]
        outs = np.empty((len(h), HEAD))
        for i, path in enumerate(paths):
            position = start + len(path) - 1
            first = kind.sees_from(position)
            seen = np.concatenate((history[first:], fresh[path][max(0, first - start) :]))
            assert (seen >= 0).all(), (
                f"{kind.name}: position {position} sees from {first}, whose slots are gone"
            )
            outs[i] = _attention(
                _times(h[i], weights["query"]),
                keys[seen].astype(np.float64),
                values[seen].astype(np.float64),
            )
        return outs

    def _attend_before(
        self,
        kind: Kind,
        layer: int,
        weights: Layer,
        h: Array,
        history: Rows,
        tokens: Sequence[int],
        paths: Sequence[list[int]],
    ) -> Array:
        """As ``_attend`` where entries look ahead: those between new tokens differ from path to
        path, so they are computed here and written by ``look`` when the path is known.
        """
        outs = np.empty((len(h), HEAD))
        start = len(history)
        for i, path in enumerate(paths):
            first = kind.sees_from(start + len(path) - 1)
            seen = history[first:]
            assert (seen >= 0).all(), f"{kind.name}: the slots from position {first} are gone"
            keys, values = (part[seen].astype(np.float64) for part in self._parts(kind, layer))
            key, value = self.model.pairs(weights, [tokens[node] for node in path])
            skip = max(0, first - start)
            outs[i] = _attention(
                _times(h[i], weights["query"]),
                np.concatenate((keys, key[skip:].astype(np.float64))),
                np.concatenate((values, value[skip:])),
            )
        return outs


@dataclass(frozen=True)
class _Place:
    """Rows of one group: of what stands before ``start``, of new tokens, of twins of some."""

    history: Rows
    fresh: Rows
    twins: Rows
    twin_rows: Rows
    start: int


_NONE = np.empty(0, np.int64)


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """For each token of a tree the tokens from its root down to itself."""
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), i])
    return paths
