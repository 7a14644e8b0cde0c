"""Random traffic for a scheduler: turns of conversations, branches, the same prompt twice at once,
chunks, namespaces, requests that are not to be shared, retractions and pressure. From a seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.sglang.scheduling import Run, Scheduler

MOST_RUNNING = 5
SPACES: tuple[tuple[str | None, str | None], ...] = (
    (None, None),
    ("adapter", None),
    (None, "tenant"),
    ("adapter", "tenant"),
)


# What requests say of their blocks, good and bad, most of them nothing.
SAID: tuple[object, ...] = (
    *(None,) * 6,
    {"ended": True},
    {"priority": 7},
    {"priority": -3},
    {"keep_for": 5.5},
    {"expects_return": 1},
    {"priority": 1000},
)


class Traffic:
    """Drives schedulers alike, which must agree about everything that ``alike`` compares.
    ``hinted``: some requests say what is known of their blocks.
    """

    def __init__(
        self, seed: int, schedulers: list[Scheduler], longest: int, *, hinted: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.saying = random.Random(seed)
        self.said = SAID if hinted else (None,)
        self.schedulers = schedulers
        self.longest = longest
        self.known: list[tuple[int, list[int]]] = [(0, [])]
        self.running: list[tuple[int, list[Run]]] = []

    def step(self) -> None:
        rng = self.rng
        acts: list[tuple[Callable[[], None], int]] = [
            (self.start, 6 if len(self.running) < MOST_RUNNING else 0),
            (self.go_on, 12),
            (self.share, 2),
            (self.finish, 4),
            (self.retract, 1),
            (self.evict, 2),
            (self.reset, 0 if self.running else 1),
        ]
        act = rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
        act()
        for scheduler in self.schedulers:
            scheduler.check()

    def _prompt(self) -> tuple[int, list[int]]:
        rng = self.rng
        if self.running and rng.random() < 0.25:  # what is being computed right now
            space, runs = rng.choice(self.running)
            base = list(runs[0].req.origin_input_ids)
        else:
            space, base = rng.choice(self.known)
        if rng.random() < 0.4:
            base = base[: rng.randint(0, len(base))]
        if rng.random() < 0.2:
            space = rng.randrange(len(SPACES))
        more = rng.randint(0 if base else 1, self.longest // 4)
        tokens = base + [rng.randrange(3) for _ in range(more)]
        return space, tokens[: self.longest] or [0]

    def start(self) -> None:
        space, tokens = self._prompt()
        chunk = self.rng.choice((None, 7, 16, 40))
        skip = self.rng.random() < 0.1
        hints = self.saying.choice(self.said)
        runs: list[Run | None] = []
        for scheduler in self.schedulers:
            req = scheduler.request(tokens, *SPACES[space], hints=hints)
            req.skip_radix_cache_insert = skip
            runs.append(scheduler.start(req, chunk))
        kept = [run for run in runs if run is not None]
        assert len(kept) in (0, len(runs)), "one found room and the other did not"
        if kept:
            self.running.append((space, kept))

    def _any(self) -> tuple[int, list[Run]] | None:
        return self.rng.choice(self.running) if self.running else None

    def go_on(self) -> None:
        """The next chunk of a prompt, or a few tokens."""
        if (found := self._any()) is None:
            return
        chunk, new = self.rng.choice((5, 16, 64)), self.rng.randint(1, 6)
        tokens = [self.rng.randrange(3) for _ in range(new)]
        done = [self._more(s, r, chunk, tokens) for s, r in self._each(found)]
        assert len(set(done)) == 1, "one found room and the other did not"
        if not done[0]:
            self._end(found, Scheduler.retract)

    def _more(self, scheduler: Scheduler, run: Run, chunk: int, tokens: list[int]) -> bool:
        if scheduler.unfinished(run):
            return scheduler.resume(run, chunk)
        if run.req.kv.kv_committed_len + len(tokens) >= self.longest * 2:
            return True
        for token in tokens:
            scheduler.sample(run, token)
            if not scheduler.decode(run):
                run.req.output_ids.pop()
                return False
        return True

    def _each(self, found: tuple[int, list[Run]]) -> list[tuple[Scheduler, Run]]:
        return list(zip(self.schedulers, found[1], strict=True))

    def share(self) -> None:
        if (found := self._any()) is not None:
            for scheduler, run in self._each(found):
                scheduler.share(run)

    def finish(self) -> None:
        if (found := self._any()) is None:
            return
        req = found[1][0].req
        self.known.append((found[0], list(req.origin_input_ids + req.output_ids)))
        del self.known[:-12]
        self._end(found, Scheduler.finish)

    def retract(self) -> None:
        if (found := self._any()) is not None:
            self._end(found, Scheduler.retract)

    def _end(self, found: tuple[int, list[Run]], how: Callable[[Scheduler, Run], None]) -> None:
        self.running.remove(found)
        for scheduler, run in self._each(found):
            how(scheduler, run)

    def evict(self) -> None:
        tokens = self.rng.choice((1, 16, 100, 10**9))
        if len(self.schedulers) > 1:  # a leaf here is a page there: alike only where all goes
            tokens = 10**9
        for scheduler in self.schedulers:
            scheduler.evict(tokens)

    def reset(self) -> None:
        for scheduler in self.schedulers:
            scheduler.reset()
