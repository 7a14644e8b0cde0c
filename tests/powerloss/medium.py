"""The fault model: what a storage device and its file system may have kept when the power goes.

What may happen
- A write that no barrier covers is kept, lost, or torn: of each 512 bytes sector that it touches
  either the old or the new content is there, in any combination. Writes are lost independently of
  each other and of their order, also those of one file.
- A size (ftruncate, fallocate, a write behind the end) is metadata of its own: it may be kept
  without the bytes, which then read as zero, or lost although the bytes were kept. A hole that was
  punched may be there or not.
- A name (create, rename, unlink, mkdir, rmdir) may be kept or lost, independently of the others and
  of the bytes of the file; a rename is kept or lost as a whole. A file whose name is lost is gone
  with all that it holds.
- What stands in ``lock`` and ``lock.mdb`` is arbitrary: LMDB writes its table of readers through a
  mapping, which is not recorded, and neither may matter after a restart.

What is assumed
- fsync and fdatasync are honest: of this file, all bytes written before, and its size, are kept
  from then on. They say nothing of the name of the file, nor of any other file. A write through a
  descriptor with O_DSYNC is durable when it returns, by itself: it says nothing of earlier ones.
- fsync of a folder keeps the names that were changed in it. sync_file_range is no barrier.
- A file that was made and removed between two barriers is not found behind the second one.
- A sector of 512 bytes is written as a whole; what is durable does not rot; what was never written
  reads as zero, not as what some other file once held there.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.powerloss.recording import Kind, Operation, Recording

SECTOR_BYTES = 512
PAGE_BYTES = 4096
ARBITRARY = ("lock", "lock.mdb")


@dataclass(slots=True, eq=False)
class Inode:
    """A file or folder: what of it is durable. ``bytes`` may be longer than ``size``."""

    is_folder: bool
    size: int = 0
    bytes: bytearray = field(default_factory=bytearray)
    names: dict[str, Inode] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A change that is kept or lost by itself. ``at``: its operation. Of a file it has ``data`` to
    stand at ``offset``, ``zeros`` there, or a ``size``; of folders the ``names`` that they get.
    """

    at: int
    inode: Inode
    offset: int = 0
    data: bytes = b""
    zeros: int = 0
    size: int | None = None
    names: tuple[tuple[Inode, str, Inode | None], ...] = ()


Torn = dict[int, frozenset[int]]  # index of an element: which of its sectors are kept


@dataclass(slots=True)
class Image:
    """A file as it is found after a power loss."""

    size: int
    bytes: bytearray


class Medium:
    """Storage below a root: what is durable, and the changes (``pending``) that are not yet, in
    their order. ``apply`` goes on by one operation.
    """

    def __init__(self, recording: Recording) -> None:
        self.root = Inode(True)
        self.pending: list[Element] = []
        self._known: dict[int, Inode] = {}  # by the number that the file system gave
        self._paths: dict[str, Inode] = {"": self.root}  # as the process sees them
        self._sizes: dict[Inode, int] = {}
        self._digests: dict[tuple[int, int, tuple[int, ...]], bytes] = {}
        for entry in recording.before:
            inode = Inode(entry.data is None) if entry.path else self.root
            if entry.data is not None:
                inode.size, inode.bytes = len(entry.data), bytearray(entry.data)
            self._known[entry.inode] = self._paths[entry.path] = inode
            self._sizes[inode] = inode.size
            if entry.path:
                folder, name = self._split(entry.path)
                folder.names[name] = inode

    # ------------------------------------------------------------------ what the process does

    def _split(self, path: str) -> tuple[Inode, str]:
        above, _, name = path.rpartition("/")
        return self._paths[above], name

    def apply(self, at: int, operation: Operation) -> None:
        """The process did this; barriers and synchronous writes are for ``settle``."""
        match operation.kind:
            case Kind.CREATE | Kind.MKDIR:
                inode = Inode(operation.kind is Kind.MKDIR)
                self._known[operation.inode] = self._paths[operation.text] = inode
                self._sizes[inode] = 0
                folder, name = self._split(operation.text)
                self.pending.append(Element(at, folder, names=((folder, name, inode),)))
            case Kind.UNLINK:
                folder, name = self._split(operation.text)
                self._paths.pop(operation.text)
                self.pending.append(Element(at, folder, names=((folder, name, None),)))
            case Kind.RENAME:
                self._rename(at, operation)
            case Kind.WRITE | Kind.SIZE | Kind.ZERO:
                self._change(at, operation)
            case Kind.UNKNOWN:
                raise AssertionError(f"the recorder does not know {operation.text!r}")

    def _rename(self, at: int, operation: Operation) -> None:
        folder, name = self._split(operation.text)
        target, new_name = self._split(operation.other)
        inode = self._paths.pop(operation.text)
        assert not inode.is_folder, "a folder was renamed"
        self._paths[operation.other] = inode
        names = ((folder, name, None), (target, new_name, inode))
        self.pending.append(Element(at, target, names=names))

    def _change(self, at: int, operation: Operation) -> None:
        inode = self._known[operation.inode]
        add = self.pending.append
        if operation.kind is Kind.SIZE:
            self._sizes[inode] = operation.offset
            add(Element(at, inode, size=operation.offset))
        elif operation.kind is Kind.ZERO:
            add(Element(at, inode, operation.offset, zeros=operation.number))
        else:
            end = operation.offset + len(operation.data)
            if end > self._sizes[inode]:
                self._sizes[inode] = end
                add(Element(at, inode, size=end))
            add(Element(at, inode, operation.offset, operation.data))

    def barrier(self, operation: Operation) -> Inode | None:
        """The file or folder that an operation makes durable, by whole or, if it is a write, by
        that write alone; None: it is no barrier.
        """
        is_synced = operation.kind is Kind.WRITE and operation.number
        if operation.kind is Kind.SYNC or is_synced:
            return self._known[operation.inode]
        return None

    def settle(self, at: int, operation: Operation) -> None:
        """A barrier has been passed."""
        inode = self.barrier(operation)
        assert inode is not None
        left = []
        for element in self.pending:
            is_covered = (
                any(folder is inode for folder, _, _ in element.names)
                if element.names
                else element.inode is inode
            )
            if operation.kind is Kind.WRITE:
                is_covered = element.at == at
            if is_covered:
                _keep(element)
            else:
                left.append(element)
        self.pending = _without_passing(left)

    # ------------------------------------------------------------------ what may be found

    def relevant(self) -> list[Element]:
        """Pending changes that can be seen: of files that have a name or may get one."""
        alive: set[int] = set()
        queue = [self.root]
        while queue:
            inode = queue.pop()
            if id(inode) in alive:
                continue
            alive.add(id(inode))
            queue += inode.names.values()
            queue += [
                child
                for element in self.pending
                for folder, _, child in element.names
                if folder is inode and child is not None
            ]
        self.pending = [element for element in self.pending if id(element.inode) in alive]
        skipped = {
            id(inode) for path, inode in self._paths.items() if path.rpartition("/")[2] in ARBITRARY
        }
        return [element for element in self.pending if id(element.inode) not in skipped]

    def files(self, kept: Sequence[Element]) -> Iterator[tuple[str, Inode]]:
        """Paths and inodes that are there if just these changes were kept, folders first."""
        names: dict[int, dict[str, Inode]] = {}
        for element in kept:
            for folder, name, child in element.names:
                mine = names.setdefault(id(folder), dict(folder.names))
                if child is None:
                    mine.pop(name, None)
                else:
                    mine[name] = child
        queue = [("", self.root)]
        while queue:
            path, inode = queue.pop(0)
            if path:
                yield path, inode
            if inode.is_folder:
                there = names.get(id(inode), inode.names)
                queue += [(f"{path}/{name}".lstrip("/"), there[name]) for name in sorted(there)]

    def image(self, inode: Inode, kept: Sequence[Element], torn: Torn) -> Image:
        """A file if just these of its changes were kept."""
        image = Image(inode.size, inode.bytes)
        mine = [(i, element) for i, element in enumerate(kept) if element.inode is inode]
        if mine:
            image.bytes = bytearray(image.bytes)
        for i, element in mine:
            if i in torn:
                for sector in torn[i]:
                    _change_image(image, *_sector(element, sector))
            else:
                _change_image(image, element.offset, element.data, element)
        return image

    def digest(self, kept: Sequence[Element], torn: Torn) -> bytes:
        """The same for states in which the same is found."""
        total = hashlib.blake2b(digest_size=16)
        for path, inode in self.files(kept):
            total.update(path.encode() + b"\0")
            if inode.is_folder or path.rpartition("/")[2] in ARBITRARY:
                continue
            mine = [i for i, element in enumerate(kept) if element.inode is inode]
            key = (id(inode), inode.version, tuple(id(kept[i]) for i in mine))
            if any(i in torn for i in mine) or key not in self._digests:
                image = self.image(inode, kept, torn)
                found = hashlib.blake2b(image.bytes[: image.size], digest_size=16)
                found.update(image.size.to_bytes(8, "little"))
                if any(i in torn for i in mine):
                    total.update(found.digest())
                    continue
                self._digests[key] = found.digest()
            total.update(self._digests[key])
        return total.digest()

    def forget_digests(self) -> None:
        """Digests hold for the changes that pend now."""
        self._digests.clear()

    def write(self, root: Path, kept: Sequence[Element], torn: Torn, rng: random.Random) -> None:
        """Makes the state below ``root``, an empty folder."""
        for path, inode in self.files(kept):
            place = root / path
            if inode.is_folder:
                place.mkdir(mode=0o700)
            elif place.name in ARBITRARY:
                place.write_bytes(rng.randbytes(rng.choice((0, 30, 8192))))
            else:
                image = self.image(inode, kept, torn)
                with place.open("wb", buffering=0) as file:
                    file.write(memoryview(image.bytes)[: image.size])
                    file.truncate(image.size)


def _without_passing(pending: list[Element]) -> list[Element]:
    """Leaves out files that were made and removed again, as a probe is: that their names are found
    is tried at one barrier, not at all that follow.
    """
    made = {id(child): i for i, e in enumerate(pending) for _, _, child in e.names if child}
    names = {i: pending[i].names[0][:2] for i in made.values() if len(pending[i].names) == 1}
    passing: set[int] = set()
    for i, element in enumerate(pending):
        for j, name in names.items():
            if j < i and element.names == ((*name, None),) and j not in passing:
                passing |= {i, j}
                break
    return [element for i, element in enumerate(pending) if i not in passing]


def _keep(element: Element) -> None:
    """A change becomes durable."""
    for folder, name, child in element.names:
        folder.version += 1
        if child is None:
            folder.names.pop(name, None)
        else:
            folder.names[name] = child
    inode = element.inode
    inode.version += 1
    image = Image(inode.size, inode.bytes)
    _change_image(image, element.offset, element.data, element)
    inode.size = image.size


def _change_image(image: Image, offset: int, data: bytes, element: Element | None = None) -> None:
    if element is not None and element.size is not None:
        # What lies behind a size that shrinks is gone; a write may have come before its own size.
        if element.size < image.size:
            del image.bytes[element.size :]
        image.size = element.size
    if element is not None and element.zeros:
        data = bytes(element.zeros)
    if data:
        missing = offset + len(data) - len(image.bytes)
        if missing > 0:
            image.bytes.extend(bytes(missing))
        image.bytes[offset : offset + len(data)] = data


def sectors(element: Element) -> range:
    """Numbers of the sectors that a write touches, in the file."""
    end = element.offset + len(element.data)
    return range(element.offset // SECTOR_BYTES, -(-end // SECTOR_BYTES))


def _sector(element: Element, sector: int) -> tuple[int, bytes]:
    """Place and bytes of what a write puts into a sector."""
    first = max(sector * SECTOR_BYTES, element.offset)
    last = (sector + 1) * SECTOR_BYTES
    return first, element.data[first - element.offset : last - element.offset]


def tear(kept: Sequence[Element], rng: random.Random) -> Torn:
    """Tears some of the writes: of each page all, nothing, a beginning or any sectors are kept."""
    writes = [i for i, element in enumerate(kept) if len(sectors(element)) > 1]
    if not writes:
        return {}
    torn: Torn = {}
    for i in rng.sample(writes, rng.randint(1, len(writes))):
        chosen: set[int] = set()
        touched = sectors(kept[i])
        per_page = PAGE_BYTES // SECTOR_BYTES
        for page in range(touched[0] // per_page, touched[-1] // per_page + 1):
            whole = [s for s in range(page * per_page, (page + 1) * per_page) if s in touched]
            chosen.update(_some_of(whole, rng))
        torn[i] = frozenset(chosen)
    return torn


def _some_of(whole: list[int], rng: random.Random) -> Iterable[int]:
    match rng.randrange(5):
        case 0:
            return ()
        case 1 | 2:
            return whole
        case 3:
            return whole[: rng.randrange(len(whole) + 1)]
        case _:
            return [sector for sector in whole if rng.random() < 0.5]
