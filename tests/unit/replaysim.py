"""A replay of a model in a few dozen lines of dictionaries, to compare the real one with.

It shares no code with it: a path is a tuple of ids, a joint hit is found by trying every length
from the longest down, and what a group needs for one is written down again from its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Path = tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A group of the simulation, in pages: `rule` is full, window or state."""

    rule: str
    block_bytes: int
    reach: int = 0

    def needs(self, length: int) -> range:
        """The pages whose blocks a hit of `length` pages needs."""
        if self.rule == "full":
            return range(length)
        if self.rule == "window":
            return range(max(0, length - self.reach), length)
        return range(max(0, length - 1), length)


@dataclass
class Simulated:
    """A cache without a limit; the last entry of a path names the block that ends with it."""

    groups: Sequence[Kept]
    held: list[dict[Path, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held = [{} for _ in self.groups]

    def valid(self, path: Path, length: int) -> bool:
        return all(
            path[: page + 1] in held
            for group, held in zip(self.groups, self.held, strict=True)
            for page in group.needs(length)
        )

    def joint(self, path: Path, limit: int) -> int:
        return next(length for length in range(limit, -1, -1) if self.valid(path, length))

    def known(self, path: Path, limit: int) -> int:
        known = {entry[:end] for held in self.held for entry in held for end in range(len(entry))}
        known.update(entry for held in self.held for entry in held)
        return next(length for length in range(limit, -1, -1) if path[:length] in known | {()})

    def insert(self, path: Path, hit: int, places: Sequence[int]) -> None:
        for group, held in zip(self.groups, self.held, strict=True):
            for page in self.brought(group, len(path), places):
                if page >= hit:
                    held[path[: page + 1]] = 0

    @staticmethod
    def brought(group: Kept, end: int, places: Sequence[int]) -> Iterator[int]:
        """The pages whose blocks of a group an insert of a path brings."""
        if group.rule == "state":
            yield from (place - 1 for place in places)
        else:
            yield from sorted({page for place in [*places, end] for page in group.needs(place)})

    def bytes(self) -> int:
        return sum(
            group.block_bytes * len(held)
            for group, held in zip(self.groups, self.held, strict=True)
        )


@dataclass
class Limited(Simulated):
    """The same under one budget of bytes: what was used longest ago goes first, over all groups,
    and before it what no hit can use. By the page, where the real order goes by the edge.
    """

    budget_bytes: int = 0
    clock: int = 0

    def dead(self, number: int, entry: Path) -> bool:
        """Whether no hit can use it as things are."""
        full, others = self.held[0], self.held[1:]
        if number > 0:
            return entry not in full
        return any(
            entry not in held
            for group, held in zip(self.groups[1:], others, strict=True)
            if group.rule == "state" or group.reach
        )

    def oldest(self, pinned: set[tuple[int, Path]]) -> tuple[int, Path] | None:
        """The block that goes next; of one age a deeper one of a group that keeps everything."""
        parents = {entry[:-1] for entry in self.held[0]}
        ages = [
            (0 if self.dead(number, entry) else stamp, number, 0 if number else -len(entry), entry)
            for number, held in enumerate(self.held)
            for entry, stamp in held.items()
            if (number, entry) not in pinned and (number or entry not in parents)
        ]
        return min(ages)[1::2] if ages else None

    def use(self, path: Path, end: int) -> None:
        self.clock += 1
        for group, held in zip(self.groups, self.held, strict=True):
            for page in group.needs(end):
                if path[: page + 1] in held:
                    held[path[: page + 1]] = self.clock

    def pins(self, path: Path, hit: int, known: int) -> set[tuple[int, Path]]:
        return {
            (number, path[: page + 1])
            for number, group in enumerate(self.groups)
            for page in group.needs(known if number == 0 else hit)
        }

    def brings(self, path: Path, hit: int, places: Sequence[int], pins: int) -> int:
        """Bytes that an insert adds to what is pinned."""
        return pins + sum(
            group.block_bytes
            for number, group in enumerate(self.groups)
            for page in self.brought(group, len(path), places)
            if page >= hit and (number or path[: page + 1] not in self.held[0])
        )

    def insert(self, path: Path, hit: int, places: Sequence[int]) -> None:
        known = self.known(path, len(path))
        pinned = self.pins(path, hit, known)
        held_bytes = sum(self.groups[number].block_bytes for number, _ in pinned)
        places = list(places)
        while len(places) > 1 and self.brings(path, hit, places, held_bytes) > self.budget_bytes:
            del places[0]
        while path[hit:] and self.brings(path, hit, places, held_bytes) > self.budget_bytes:
            path = path[:-1]
            places = [min(place, len(path)) for place in places if min(place, len(path)) > hit]
        new = [
            (number, path[: page + 1])
            for number, group in enumerate(self.groups)
            for page in self.brought(group, len(path), places)
            if page >= hit
        ]
        fresh = [(n, entry) for n, entry in new if entry not in self.held[n]]
        needed = sum(self.groups[number].block_bytes for number, _ in fresh)
        while self.bytes() + needed > self.budget_bytes:
            victim = self.oldest(pinned | set(new))
            if victim is None:
                break
            del self.held[victim[0]][victim[1]]
        if hit:
            self.use(path, hit)
        self.clock += 1
        for number, entry in new:
            self.held[number].setdefault(entry, self.clock)
        self.use(path, len(path))


Places = Callable[[int, int, int], list[int]]


def branch_and_turn(hit: int, known: int, end: int) -> list[int]:
    return sorted({place for place in (known, end) if place > hit})


def dense(hit: int, known: int, end: int) -> list[int]:
    return list(range(hit + 1, end + 1))


def every(pages: int) -> Places:
    return lambda hit, known, end: [n for n in range(hit + 1, end + 1) if n % pages == 0]


def replayed(cache: Simulated, prompts: Sequence[Sequence[int]], places: Places) -> list[int]:
    """Pages of the joint hit of each prompt; the last page of a prompt never hits."""
    hits = []
    for prompt in prompts:
        path, limit = tuple(prompt), max(0, len(prompt) - 1)
        hit = cache.joint(path, limit)
        hits.append(hit)
        cache.insert(path, hit, places(hit, cache.known(path, limit), len(path)))
    return hits
