"""What the bytes of a chunk are: told by a worker, which alone sees the tensors, to the scheduler,
which alone gives out slots. Rank 0 publishes it beside the host pool; every other rank compares its
own with it, so that no two processes ever number the same memory differently. Keeps no invariant of
its own; I24 (same layout, same bytes) leans on it.

    a slot of group g    | rank 0                     | rank 1                     | ...
                         | block 0 | block 1 | ..     | block 0 | block 1 | ..     |
    a block of a rank    [page of reference 0][page of reference 1] ..     without their padding
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radix.engines.vllm.options import Options
from radix.errors import LayoutMismatchError, TierUnavailableError
from radix.groups import Group
from radix.layout import Layout, Part
from tiers.host import HostTier
from tiers.memory import SHARED_FOLDER, is_at

PREFIX = "radix-vllm-"
PUBLISHED_WAIT_S = 120.0
_LOOK_AGAIN_S = 0.02
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Geometry:
    """The bytes of one chunk, group by group, the same on every rank.

    ``world``: workers, each of which keeps a piece of its own of every chunk; ``blocks_per_chunk``:
    the engine's blocks that go under one key; ``group_ids``: the engine's numbers of the groups,
    in the order in which they are ours; ``pages``: for each group the bytes of the page of each of
    its references, without padding; ``facts``: what else decides what the bytes mean, as the worker
    sees it (name, value), sorted.
    """

    world: int
    blocks_per_chunk: int
    group_ids: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    facts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("world", "blocks_per_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.pages or len(self.pages) != len(self.group_ids):
            raise LayoutMismatchError(
                f"the configuration has {len(self.group_ids)} cache groups, the tensors "
                f"{len(self.pages)}"
            )
        if any(not pages or min(pages) < 1 for pages in self.pages):
            raise LayoutMismatchError(f"a cache group without bytes: pages of {self.pages}")

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of one of the engine's blocks of each group on one worker."""
        return tuple(sum(pages) for pages in self.pages)

    @property
    def chunk_bytes(self) -> tuple[int, ...]:
        """Bytes of one chunk of each group on one worker: its piece of a slot."""
        return tuple(size * self.blocks_per_chunk for size in self.block_bytes)

    def groups(self) -> tuple[Group, ...]:
        """A group of the flat store for each cache group: a block is a chunk, cut into one piece a
        worker, each with a checksum of its own.
        """
        return tuple(
            Group(f"group-{number}", self._layout(size))
            for number, size in zip(self.group_ids, self.chunk_bytes, strict=True)
        )

    def _layout(self, chunk_bytes: int) -> Layout:
        axes = (("worker", self.world), ("byte", chunk_bytes))
        return Layout((Part("bytes", "uint8", axes, "worker", self.world),), self.world)

    def host(self, options: Options, engine_id: str, *, verify: bool = False) -> HostTier:
        """The host tier of this engine, not attached: in every process the same slab, so that a
        slot number means the same bytes everywhere. ``verify`` is the business of the process that
        gives out slots alone.
        """
        name = shared_name(engine_id, "pool")
        return HostTier(options.host_bytes, file_name=name, verify=verify)

    def require_same(self, other: Geometry, whose: str, other_whose: str) -> None:
        """Raises ``LayoutMismatchError`` naming the first field that differs."""
        for name, mine in asdict(self).items():
            theirs = getattr(other, name)
            if mine != theirs:
                raise LayoutMismatchError(
                    f"{name} is {mine} on {whose} and {theirs} on {other_whose}: all workers of "
                    "an engine must keep blocks of one layout"
                )

    def to_json(self) -> str:
        """As text that :meth:`of_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_json(cls, text: str) -> Geometry:
        """The inverse of :meth:`to_json`. ``ValueError`` for other text."""
        found: Mapping[str, Any] = json.loads(text)
        try:
            return cls(
                found["world"],
                found["blocks_per_chunk"],
                tuple(found["group_ids"]),
                tuple(tuple(pages) for pages in found["pages"]),
                tuple((name, value) for name, value in found["facts"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no geometry of a worker: {error!r} in {text[:200]}") from error


def shared_name(engine_id: str, what: str) -> str:
    """The plain name in shared memory of something that belongs to one engine."""
    return f"{PREFIX}{hashlib.sha256(engine_id.encode()).hexdigest()[:16]}-{what}"


class Published:
    """The geometry of an engine in shared memory, as long as this object lives.

    It lies complete under its name or not at all, and is held by a shared lock, by which a later
    start tells what a dead process left. A process that ends without ``close`` takes this name and
    that of the pool away at its end: engines may exit without a word, and whoever has mapped the
    pool by then keeps it.
    """

    def __init__(self, geometry: Geometry, engine_id: str, folder: Path = SHARED_FOLDER) -> None:
        """Raises ``TierUnavailableError`` where another live engine has this ``engine_id``."""
        self._path = folder / shared_name(engine_id, "geometry")
        self._refuse_live(engine_id)
        unfinished = folder / f"{self._path.name}-{os.getpid()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = -1
        while self._descriptor < 0:
            descriptor = os.open(unfinished, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.write(descriptor, geometry.to_json().encode())
                unfinished.rename(self._path)
            except FileNotFoundError:  # swept away before it was locked
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            else:
                self._descriptor = descriptor
        # The pool's first: as long as the other stands, nobody begins anew under this id.
        names = (folder / shared_name(engine_id, "pool"), self._path)
        self._end = weakref.finalize(self, _forget, os.getpid(), names)

    def _refuse_live(self, engine_id: str) -> None:
        for _ in range(_LOOKS):  # a rank that looks whether the file is abandoned holds it, shortly
            if not self._path.exists() or _abandoned(self._path):
                return
            time.sleep(_LOOK_AGAIN_S)
        if self._path.exists():
            raise TierUnavailableError(
                "host", f"engine_id {engine_id!r} is in use by another engine on this machine"
            )

    def close(self) -> None:
        """Takes the name away. Idempotent."""
        if self._descriptor >= 0:
            self._end.detach()
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _forget(process: int, names: tuple[Path, ...]) -> None:
    """Not in a child that was forked: the names are its parent's."""
    if os.getpid() == process:
        for name in names:
            name.unlink(missing_ok=True)


def published(
    engine_id: str, timeout_s: float = PUBLISHED_WAIT_S, folder: Path = SHARED_FOLDER
) -> Geometry:
    """What rank 0 of this engine has published; waits for it.

    Raises: ``TierUnavailableError`` naming the file after ``timeout_s``, ``ValueError`` for a file
    of another kind.
    """
    path = folder / shared_name(engine_id, "geometry")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if not _abandoned(path):  # of an engine that died, whose id this one has again
                return Geometry.of_json(path.read_text())
        except FileNotFoundError:
            pass
        if time.monotonic() >= deadline:
            raise TierUnavailableError(
                "host",
                f"no worker has published {path} within {timeout_s:g} s: the scheduler and its "
                "workers must run on one machine",
            )
        time.sleep(_LOOK_AGAIN_S)


def sweep(folder: Path = SHARED_FOLDER) -> int:
    """Removes what engines that died left in shared memory; how many files. Files of a live engine
    are held by a lock and stay. Cost: the files of that folder.
    """
    removed = 0
    for path in folder.glob(f"{PREFIX}*"):
        # Under the lock: who is just about to take the file waits, and finds that it has gone.
        with _alone(path) as abandoned:
            if abandoned:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _abandoned(path: Path) -> bool:
    """Whether nobody holds this file."""
    with _alone(path) as abandoned:
        return abandoned


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody holds this file; nobody takes it meanwhile. One that is not ours to open, or
    is gone, is left alone.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield is_at(path, os.fstat(descriptor))  # else it is another's by now
    finally:
        os.close(descriptor)
