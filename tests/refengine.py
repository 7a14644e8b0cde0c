"""An engine in small that serves conversations through a PrefixCache: requests of several turns run
interleaved, over a device, a host tier smaller than what they touch, and a disk that is closed and
opened in between. Every logit that it computes and every token that it samples must be what the
model gives without any cache (I24); what served the hits is counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from radix.cache import PrefixCache
from radix.drafts import ROOT
from radix.errors import CapacityError
from radix.events import RequestState
from radix.request import Request
from radix.stages import Stage
from radix.tier import Slots
from tests.refmodel import VOCAB, Array, Paged, State
from tests.refworld import SEGMENT, Ask, Clients, Served, Talk, World, choose
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.faults import Call, Fault, FaultPlan, FaultyTier
from tiers.host import HostTier

PATIENCE = 400  # turns of the loop in which nothing moves
FAULTS: Mapping[Call, Mapping[Fault, float]] = {
    "store": {Fault.REFUSE: 0.04, Fault.FAIL: 0.02, Fault.PART: 0.02},
    "load": {Fault.REFUSE: 0.02, Fault.FAIL: 0.02, Fault.PART: 0.03, Fault.CORRUPT: 0.02},
}


class Retracted(Exception):
    """Thrown into a request that must give its room to an older one."""


class Engine:
    """The engine over one cache: ``start`` requests, ``turn`` until they are ``idle``."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.served = Served()
        self.rng = random.Random(world.seed + 1)
        self.forks: set[tuple[int, ...]] = set()  # where a branch left its checkpoint
        self.drafted: list[tuple[list[int], range]] = []  # sequences with accepted drafts
        self._step = self._quiet = self._ended = 0
        self._live: list[Iterator[bool]] = []
        self._holding: list[Iterator[bool]] = []  # of those the admitted, the oldest first
        self.open()

    def open(self) -> None:
        """Opens device, host and disk; what the disk kept is there again."""
        world = self.world
        tensors = {
            kind.name: kind.tensors(world.page, world.device_blocks[kind.name])
            for kind in world.model.kinds
        }
        self.paged = Paged(world.model, tensors)
        host = HostTier(world.host_bytes, segment_bytes=SEGMENT, verify=True)
        disk = DiskTier(
            self.folder / "disk",
            limit_bytes=4 << 20,
            payload=world.payload,
            segment_bytes=1 << 16,
        )
        rates = {
            call: {fault: rate * world.faults for fault, rate in faults.items()}
            for call, faults in FAULTS.items()
        }
        plan = FaultPlan(rates=rates, seed=world.seed, delay_polls=2, reorder=True)
        self.cache = PrefixCache(
            world.model.groups(),
            [
                DeviceTier(tensors, device="cpu"),
                FaultyTier(host, plan) if world.faults else host,
                FaultyTier(disk, plan) if world.faults else disk,
            ],
            page_tokens=world.page,
            checkpoints=world.checkpoints,
        )

    def close(self) -> None:
        """Makes durable what can be, and closes."""
        self.cache.flush()
        self.cache.check()
        for tier in self.cache.tiers:
            tokens = self.cache.metrics.get("match", "hit_tokens", tier.name)
            self.served.sources[tier.name] += tokens
        self.cache.close()

    # ------------------------------------------------------------ the loop
    @property
    def idle(self) -> int:
        """Requests that could run beside those that do."""
        return 3 - len(self._live)

    def start(self, talk: Talk, ask: Ask) -> None:
        """Begins to serve a request; its answer then belongs to the conversation."""
        talk.busy += 1
        box: list[Iterator[bool]] = []
        box.append(self._serve(talk, ask, box))
        self._live += box

    def turn(self) -> None:
        """Lets one request go on. Where none can it waits for the tiers, then retracts one: the
        last admitted, until another has ended (R7).
        """
        order = self.rng.sample(self._live, len(self._live))
        for one in order:
            if self._resume(one):
                self._quiet = 0
                self.cache.poll()
                return
        self._quiet += 1
        self.cache.wait(0.02)
        self.cache.poll()
        if self._quiet > PATIENCE:
            raise AssertionError("no request goes on")
        if self._quiet % 20 == 19 and len(self._holding) > 1:
            self.served.retracted += 1
            self._holding[-1].throw(Retracted())

    def _resume(self, one: Iterator[bool]) -> bool:
        try:
            return next(one)
        except StopIteration:
            self._live.remove(one)
            self._ended += 1
            self.cache.check()
            return True

    def serve(self, ask: Ask) -> int:
        """Serves one request alone; the tokens that it hit."""
        before = self.served.hit
        self.start(Talk([]), ask)
        self.drain()
        return self.served.hit - before

    def drain(self) -> None:
        """Serves what is live to its end, until every transfer and request is over."""
        while self._live:
            self.turn()
        self._pass()
        self.cache.flush()
        self.cache.check()

    def _pass(self) -> None:
        """The kernels of this step are done."""
        self.cache.passed(self._step)
        self._step += 1

    def _fence(self) -> int | None:
        return self._step if self.world.fences else None

    # ------------------------------------------------------------ one request
    def _serve(self, talk: Talk, ask: Ask, itself: list[Iterator[bool]]) -> Iterator[bool]:
        """Yields whether it went on."""
        self.served.requests += 1
        done = False
        while not done:
            while (request := self._admit(ask)) is None:
                yield False
            self._holding += itself
            try:
                yield from self._answer(request, ask)
                done = True
            except Retracted:
                request.abort()
            self._holding.remove(itself[0])
            ended = self._ended
            while not done and self._ended == ended and self._holding:
                yield False
        talk.busy -= 1
        talk.ends.append(ask.tokens)

    def _admit(self, ask: Ask) -> Request | None:
        try:
            return self.cache.admit(
                ask.prompt,
                new_tokens=ask.new,
                chunk_tokens=self.world.chunk if self.world.chunked else None,
                boundaries=(ask.system,) if self.world.boundaries else (),
                cacheable_upto=ask.cacheable,
            )
        except CapacityError:
            return None

    def _answer(self, request: Request, ask: Ask) -> Iterator[bool]:
        while request.state is RequestState.LOADING:
            yield False
        self._count(request, ask)
        position = request.hit_tokens
        while position < len(ask.tokens) - 1:
            if ask.aborted is not None and position >= ask.aborted:
                request.abort(fence=self._fence())
                self._pass()
                return
            count = max(1, min(self.world.chunk, len(ask.prompt) - position))
            while not self._prepared(request, count):
                yield False
            upto = self._speculate(request, ask, position)
            if upto is None:
                upto = self._compute(request, ask, position, count)
            position = upto
            if len(request) == position:  # sampled, as the logits were found equal
                request.append([ask.tokens[position]])
            yield True
        request.finish(fence=self._fence())
        self._pass()

    def _prepared(self, request: Request, count: int) -> bool:
        if not self.world.chunked:
            return True
        try:
            request.prepare(count)
        except CapacityError:
            return False
        return True

    def _compute(self, request: Request, ask: Ask, start: int, count: int) -> int:
        """One forward of ``count`` tokens, cut where the cache asks for it."""
        end, at = start + count, start
        for stop in request.cuts(count):
            assert at < stop <= end, f"cut {stop} of [{start}, {end})"
            self._forward(request, ask, at, stop)
            self._snapshot(request, stop)
            self._note(request, ask, stop)
            at = stop
        if at < end:
            self._forward(request, ask, at, end)
        request.computed(end, fence=self._fence(), reuse=self._fence())
        self._pass()
        return end

    def _forward(self, request: Request, ask: Ask, start: int, end: int) -> None:
        tokens = request.tokens()[start:end].tolist()
        before = int(request.tokens()[start - 1]) if start > request.hit_tokens else None
        tables, states = self._tables(request), self._states(request)
        logits = self.paged.forward(tokens, start, tables, states, before)
        self._compare(ask, start, logits)

    # ------------------------------------------------------------ drafts
    def _speculate(self, request: Request, ask: Ask, start: int) -> int | None:
        """One round of drafts behind the token at ``start``, sampled and not computed: how many
        tokens are computed then. None where there is none to guess, or no room.
        """
        right = ask.tokens[start + 1 : -1]
        if self.world.chunked:
            right = right[: self.world.chunk - 1]  # the token before them is of the same step
        guesses = self.world.drafts and start >= len(ask.prompt) and right
        if not guesses or self.rng.random() < 0.3:
            return None
        # What looks ahead of the token before is final, and forks copy it.
        self.paged.look(request.tokens()[start - 1 :].tolist(), start - 1, self._tables(request))
        stage, kept = request.stage(), self.rng.random() < 0.6
        try:
            self._draft(stage, right, kept)
        except CapacityError:
            if not len(stage):
                stage.rollback()
                return None
        logits, states = self._verify(request, stage, start)
        self._put(request, states[0])
        for stop in request.cuts(1):
            self._snapshot(request, stop)
        self._compare(ask, start, logits[:1])
        if self.rng.random() < 0.15:
            stage.rollback(fence=self._fence())
            path: list[int] = []
        else:
            path = self._right(stage, right)
            nodes = [node + 1 for node in path]
            if path:
                self._compare(ask, start + 1, logits[nodes])
                self.drafted.append((ask.tokens, range(start + 1, start + 1 + len(path))))
            self._accept(request, stage, path, ask.tokens[start + 1 + len(path)], states)
        end = start + 1 + len(path)
        self.paged.look(request.tokens()[start:end].tolist(), start, self._tables(request))
        request.computed(end, fence=self._fence(), reuse=self._fence())
        self._pass()
        return end

    def _draft(self, stage: Stage, right: list[int], states: bool) -> None:
        """Guesses a tree: a chain that is right for a while, and branches from anywhere in it."""
        rng = self.rng

        def guess(depth: int, count: int) -> list[int]:
            tokens = right[depth : depth + count]
            return [token if rng.random() < 0.8 else rng.randrange(VOCAB) for token in tokens]

        drafts = [ROOT, *stage.add(ROOT, guess(0, rng.randint(1, 5)), states=states)]
        base = int(stage.positions[0])
        for _ in range(rng.randint(0, 3)):
            parent = rng.choice(drafts)
            depth = 0 if parent == ROOT else int(stage.positions[parent]) + 1 - base
            if depth < len(right):
                drafts += stage.add(parent, guess(depth, rng.randint(1, 3)), states=states)

    def _verify(
        self, request: Request, stage: Stage, start: int
    ) -> tuple[Array, list[dict[str, list[State]]]]:
        """One forward of the token at ``start`` and all drafts, whose nodes follow it."""
        positions = np.concatenate(([start], stage.positions.astype(np.int64)))
        rows = self.paged.rows(self._tables(request), start + 1)
        history, fresh, twins = {}, {}, {}
        for number, kind in enumerate(self.world.model.kinds):
            if kind.rule == "state":
                continue
            history[kind.name] = rows[kind.name][:start]
            if kind.lookahead:
                continue
            block = kind.block_tokens(self.world.page)
            slots = stage.slots(number).astype(np.int64)
            fresh[kind.name] = np.concatenate(
                (rows[kind.name][start:], slots * block + positions[1:] % block)
            )
            nodes, places = (row.astype(np.int64) for row in stage.writes(number))
            twins[kind.name] = nodes + 1, places * block + positions[nodes + 1] % block
        tokens = [int(request.tokens()[start]), *stage.tokens.tolist()]
        parents = [-1, *(stage.parents + 1).tolist()]
        before = {name: self.paged.states(name, at) for name, at in self._states(request).items()}
        logits, states = self.paged.verify(tokens, parents, start, history, fresh, before, twins)
        for number, kind in enumerate(self.world.model.kinds):
            if kind.rule == "state":
                for node, slot in enumerate(stage.states(number).tolist(), 1):
                    if slot >= 0:
                        self.paged.put(kind.name, slot, states[node][kind.name])
        return logits, states

    @staticmethod
    def _right(stage: Stage, right: list[int]) -> list[int]:
        """The drafts that the model would have sampled, from the first on."""
        path, at = [], ROOT
        for token in right:
            follow = (stage.parents == at) & (stage.tokens == token)
            if not follow.any():
                break
            at = int(np.argmax(follow))
            path.append(at)
        return path

    def _accept(
        self,
        request: Request,
        stage: Stage,
        path: list[int],
        bonus: int,
        states: list[dict[str, list[State]]],
    ) -> None:
        """Accepts a path; where no draft has a slot for its state, brings the running one there."""
        base, kept = len(request), bool(path) and self._keeps(stage, path[-1])
        stage.accept(path, bonus, fence=self._fence())
        if not path or kept:
            return
        for stop in request.cuts(len(path) + 1):
            if stop > base:  # else it was tried before, and there was no room
                self._put(request, states[path[stop - base - 1] + 1])
                self._snapshot(request, stop)
        self._put(request, states[path[-1] + 1])

    def _keeps(self, stage: Stage, draft: int) -> bool:
        kinds = enumerate(self.world.model.kinds)
        return all(stage.states(n)[draft] >= 0 for n, kind in kinds if kind.rule == "state")

    def _put(self, request: Request, states: dict[str, list[State]]) -> None:
        for name, slot in self._states(request).items():
            self.paged.put(name, slot, states[name])

    # ------------------------------------------------------------ what must come out
    def _compare(self, ask: Ask, start: int, logits: Array) -> None:
        """The same logits, and so the same tokens, as without a cache."""
        end = start + len(logits)
        off = np.abs(logits - ask.logits[start:end]).max()
        assert off <= 1e-9, f"logits of tokens {start} to {end} are off by {off}"
        for position in range(max(start + 1, len(ask.prompt)), end + 1):
            token = choose(logits[position - 1 - start], ask.salt, position)
            assert token == ask.tokens[position], f"another token at {position}"

    def _snapshot(self, request: Request, stop: int) -> None:
        """Sets the running states aside: the cache copies them, or the engine does."""
        copy = self.rng.random() < 0.5
        running = self._states(request)
        for name, slot in request.snapshot(stop, copy=copy).items():
            if not copy:
                self.paged.put(name, slot, self.paged.states(name, running[name]))

    def _tables(self, request: Request) -> dict[str, Slots]:
        return {
            kind.name: request.slots(number)
            for number, kind in enumerate(self.world.model.kinds)
            if kind.rule != "state"
        }

    def _states(self, request: Request) -> dict[str, int]:
        return {
            kind.name: request.running(number)
            for number, kind in enumerate(self.world.model.kinds)
            if kind.rule == "state"
        }

    # ------------------------------------------------------------ what served
    def _note(self, request: Request, ask: Ask, stop: int) -> None:
        """Remembers a checkpoint that stands there because prompts part."""
        if 0 < stop <= request.branch_tokens < stop + self.world.grid:
            self.forks.add(tuple(ask.tokens[:stop]))

    def _count(self, request: Request, ask: Ask) -> None:
        served, hit = self.served, request.hit_tokens
        served.prompt += len(ask.prompt)
        served.hit += hit
        if tuple(ask.prompt[:hit]) in self.forks:
            served.sources["branch checkpoint"] += hit
        for number, kind in enumerate(self.world.model.kinds):
            blocks = request.slots(number)[: hit // kind.block_tokens(self.world.page)]
            if kind.rule == "window" and (blocks < 0).any():
                served.sources["window"] += hit
                break
        for tokens, span in self.drafted:
            if hit >= span.stop and ask.prompt[: span.stop] == tokens[: span.stop]:
                served.sources["accepted draft"] += len(span)


def run(seed: int, folder: Path, requests: int = 20) -> Served:
    """Serves the conversations of one seed, with a restart on the way; what served them."""
    world = World.draw(seed)
    clients = Clients(world, random.Random(seed + 2))
    engine = Engine(world, folder)
    for number in range(requests):
        talk, ask = clients.ask()
        engine.start(talk, ask)
        while not engine.idle:
            engine.turn()
        for _ in range(engine.rng.randint(0, 20)):
            if engine.idle < 3:
                engine.turn()
        if number == requests // 2:
            engine.drain()
            engine.close()
            engine.open()
    engine.drain()
    engine.close()
    engine.served.talks = len(clients.talks)
    return engine.served
