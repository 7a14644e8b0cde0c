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
