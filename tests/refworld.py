"""What one seed decides for the reference engine: a model, the sizes of the tiers, and
conversations that go on, branch inside a turn or between turns, and ask again. Each request carries
what the model answers without a cache.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from math import lcm

import numpy as np

from radix.policy.checkpoint import Checkpoints
from tests.refmodel import VOCAB, Array, Kind, Model

SEGMENT = 4096


@dataclass(frozen=True)
class World:
    """What one seed decides before the first request."""

    seed: int
    model: Model
    device_blocks: dict[str, int]
    host_bytes: int
    payload: str
    chunk: int  # tokens that one forward computes at most
    chunked: bool  # whether requests reserve chunk by chunk
    boundaries: bool
    drafts: bool
    fences: bool
    faults: int  # how often the tiers below fail; if ever, they are late and out of order
    checkpoints: Checkpoints

    @classmethod
    def draw(cls, seed: int) -> World:
        """The world of a seed."""
        rng = random.Random(seed)
        page = (1, 2, 4)[seed % 3]
        near, far = rng.sample((1, page, page + 1, 2 * page + 1, 3 * page, 5 * page), 2)
        grid = rng.choice((page, 2 * page, 3, 5 if page < 4 else 3))
        kinds = [
            Kind("full", layers=rng.randint(1, 2), grid=rng.choice((None, None, 2 * page))),
            Kind("near", "window", near),
            Kind("memory", "state", grid=grid),
            Kind("far", "window", far, grid=rng.choice((None, None, 2 * page))),
        ]
        if rng.random() < 0.3:
            kinds.append(Kind("local", "chunked", 3 * page))
        if rng.random() < 0.3:
            kinds.append(Kind("slow", "state", grid=rng.choice((page, grid))))
        if rng.random() < 0.4:
            rule = rng.choice((("full", 0), ("window", 2 * page + 1)))
            kinds.append(Kind("ahead", *rule, lookahead=True))
        pages = {1: rng.randint(52, 64), 2: rng.randint(36, 48), 4: rng.randint(24, 30)}[page]
        blocks = {
            kind.name: rng.randint(10, 16)
            if kind.rule == "state"
            else pages * page // kind.block_tokens(page) + 1
            for kind in kinds
        }
        return cls(
            seed=seed,
            model=Model(tuple(kinds), page, seed),
            device_blocks=blocks,
            host_bytes=rng.randint(24, 64) * SEGMENT,
            payload=rng.choice(("slab", "lmdb")),
            chunk=rng.randint(page, 4 * page + 3),
            chunked=rng.random() < 0.5,
            boundaries=rng.random() < 0.5,
            drafts=rng.random() < 0.6,
            fences=rng.random() < 0.5,
            faults=rng.choices((0, 1, 4), (65, 30, 5))[0],
            checkpoints=Checkpoints(rng.choice((0, 0, 0, 7)), rng.choice((None, None, None, 2))),
        )

    def roomy(self) -> World:
        """The same model where nothing is evicted, fails or is limited."""
        return replace(
            self,
            device_blocks={name: 8 * blocks for name, blocks in self.device_blocks.items()},
            host_bytes=400 * SEGMENT,
            faults=0,
            checkpoints=Checkpoints(),
        )

    def reach(self, tokens: int) -> int:
        """The longest hit that a prompt may have that has ``tokens`` in common with another."""
        ahead = any(kind.lookahead for kind in self.model.kinds)
        return max(0, tokens // self.page - ahead) * self.page // self.grid * self.grid

    @property
    def page(self) -> int:
        """Tokens a page."""
        return self.model.page_tokens

    @property
    def grid(self) -> int:
        """Tokens between two places where all groups can be hit."""
        return lcm(self.page, *(kind.block_tokens(self.page) for kind in self.model.kinds))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits the device alone."""
        return (self.device_blocks["full"] - 1) * self._kind("full").block_tokens(self.page)

    def _kind(self, name: str) -> Kind:
        return next(kind for kind in self.model.kinds if kind.name == name)


@dataclass
class Served:
    """What a run counted, in tokens: of prompts, of hits by what they came from."""

    requests: int = 0
    retracted: int = 0
    talks: int = 0
    prompt: int = 0
    hit: int = 0
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, other: Served) -> None:
        """Takes another run's counts too."""
        self.requests += other.requests
        self.retracted += other.retracted
        self.talks += other.talks
        self.prompt += other.prompt
        self.hit += other.hit
        self.sources += other.sources


def choose(logits: Array, salt: int, position: int) -> int:
    """The token sampled at ``position``: the same wherever the same logits are."""
    noise = np.random.default_rng((salt, position)).gumbel(size=VOCAB)
    return int(np.argmax(logits + noise))


@dataclass(frozen=True)
class Ask:
    """One request as its client sends it, and what the model answers without a cache."""

    prompt: list[int]
    new: int
    salt: int
    system: int  # tokens of the system prompt
    tokens: list[int]  # prompt and answer
    logits: Array  # behind each of them but the last
    cacheable: int | None = None  # tokens whose state may be kept
    aborted: int | None = None  # computed tokens at which its client goes away

    @classmethod
    def of(cls, model: Model, prompt: list[int], new: int, salt: int, system: int) -> Ask:
        """Runs the model without a cache."""
        plain, logits, tokens = model.plain(), [], list(prompt)
        for token in prompt:
            logits.append(plain.feed(token))
        for count in range(new):
            tokens.append(choose(logits[-1], salt, len(tokens)))
            if count < new - 1:
                logits.append(plain.feed(tokens[-1]))
        return cls(prompt, new, salt, system, tokens, np.array(logits))


@dataclass
class Talk:
    """A conversation: its system prompt, and every sequence that ended in an answer."""

    system: list[int]
    ends: list[list[int]] = field(default_factory=list)
    busy: int = 0  # requests that are not answered yet


class Clients:
    """Conversations of one seed: they go on, branch, ask again."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.talks: list[Talk] = []

    def _some(self, low: int, high: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(low, high))]

    def _begin(self) -> Talk:
        world, rng = self.world, self.rng
        if self.talks and rng.random() < 0.6:
            system = rng.choice(self.talks).system
        else:
            most = max(2, world.longest // 3)
            system = self._some(min(most, world.grid), min(most, 2 * world.grid + world.page))
        self.talks.append(Talk(system))
        return self.talks[-1]

    def ask(self) -> tuple[Talk, Ask]:
        """The next request, and the conversation that its answer belongs to."""
        world, rng, page = self.world, self.rng, self.world.page
        if len(self.talks) < 3 or rng.random() < 0.08:
            talk = self._begin()
        else:
            talk = min(self.talks[-4:], key=lambda one: (one.busy, rng.random()))
        more, new = self._some(2, 3 * page + 5), rng.randint(4, 12)
        past = talk.system
        if talk.ends:
            kind = rng.choices(("go on", "branch", "inside", "again"), (60, 20, 10, 10))[0]
            past = talk.ends[-1] if kind == "go on" else rng.choice(talk.ends)
            if kind == "inside":
                past = past[: rng.randint(len(talk.system), len(past))]
            elif kind == "again":
                past, more = past[: -rng.randint(1, 4)], []
        if len(past) + len(more) + new > world.longest:
            past = talk.system
            more = more or [1]
        ask = Ask.of(world.model, [*past, *more], new, rng.randrange(1 << 16), len(talk.system))
        if rng.random() < 0.1:
            ask = replace(ask, cacheable=rng.randint(len(past), len(ask.tokens)))
        if rng.random() < 0.1:
            ask = replace(ask, aborted=rng.randrange(len(ask.tokens)))
        return talk, ask
