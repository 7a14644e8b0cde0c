"""What a client holds of a service: a lease on blocks that lie in the pool, room to write blocks
into, and the engine's memory that bytes go to and come from. A view is only as good as its lease,
and a lease only as its connection: the service closes the connection before it gives a slot to
another, so that bytes read while the connection is still open are the bytes that were leased.

    read   leased --> bytes copied --> is the connection open still?  yes: they are right
                                                                      no:  a miss
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from radix.errors import LeaseError
from radix.groups import Group
from radix.keysets import Mask
from radix.service.calls import Blocks, Offsets, ServiceGoneError
from radix.service.protocol import Frame, parse_text
from radix.service.sharing import SharedView
from tiers.host import AdoptedTier
from tiers.slab import stride_bytes
from tiers.transfer import PLANE, Planes
from tiers.views import copy_blocks


class Wire(Protocol):
    """A connection, as far as what is held depends on it."""

    local: bool
    most_bytes: int

    def alive(self) -> bool:
        """Whether the service has not closed it."""
        ...


class Views:
    """Mappings of files that the service gave, one a file however often it comes."""

    def __init__(self) -> None:
        self._views: dict[int, SharedView] = {}

    def of(self, descriptor: int, *, writable: bool) -> SharedView:
        """The mapping; the descriptor is closed."""
        number = os.fstat(descriptor).st_ino
        found = self._views.get(number)
        if found is None:
            found = self._views[number] = SharedView(descriptor, writable=writable)
        else:
            os.close(descriptor)
        return found


def opened_store(link: Wire, frame: Frame, files: list[int], views: Views) -> OpenedStore:
    """What the answer of OPEN gives, with the descriptors that came with it."""
    told = parse_text(frame.keys)
    pool = staging = None
    if link.local:
        if len(files) != 2:
            for descriptor in files:
                os.close(descriptor)
            raise ServiceGoneError(f"{len(files)} descriptors came with a store, not 2")
        pool = views.of(files[0], writable=False)
        staging = views.of(files[1], writable=True)
    strides = tuple(int(stride) for stride in told["strides"])
    return OpenedStore(link, frame.number, pool, staging, strides, bool(told["persistent"]))


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """What OPEN gave: the ``number`` of the store in this connection, the memory that both sides
    map (None over TCP), by group the unit in which slots of the pool are counted, in bytes (no
    block's own size: several kinds share a pool), whether there is a disk.
    """

    link: Wire
    number: int
    pool: SharedView | None
    staging: SharedView | None
    strides: tuple[int, ...]
    persistent: bool


class ServiceLease:
    """Blocks that stay where they are until ``release``, or until the connection ends.

    ``pages``: of tokens, how many are a hit; of keys, how many were asked for. ``offsets[g][i]``:
    where block i of group g lies in the pool, -1 where it is not leased there. ``block`` and
    ``blocks`` show bytes without a copy; ``intact`` says, after they were used, whether what was
    read is what was leased. A context manager releases it.
    """

    def __init__(
        self,
        store: OpenedStore | None,
        number: int,
        pages: int,
        offsets: dict[int, Offsets],
        groups: Sequence[Group],
        release: Callable[[ServiceLease], None],
    ) -> None:
        """``store`` None: of a service that is gone, over nothing."""
        self.store = store
        self.number = number
        self.pages = pages
        self.offsets = offsets
        self._groups = groups
        self._release = release
        self.released = False

    def held(self, group: int = 0) -> Mask:
        """Which blocks of a group lie in the pool."""
        mask: Mask = self.offsets[group] >= 0
        return mask

    def block(self, index: int, group: int = 0) -> Blocks:
        """The bytes of a block, (block_bytes,) uint8, read-only and not copied: valid until the
        release. ``LeaseError`` where it is not held, or the lease was released.
        """
        offset = int(self.offsets[group][index])
        if self.released or offset < 0 or self.store is None or self.store.pool is None:
            raise LeaseError(f"block {index} of group {group} is not held by this lease")
        return self.store.pool.array[offset : offset + self._groups[group].block_bytes]

    def blocks(self, group: int = 0) -> list[Blocks | None]:
        """Every block of a group as ``block`` shows it, None where it is not held."""
        held = self.held(group).tolist()
        return [self.block(i, group) if there else None for i, there in enumerate(held)]

    def copy_to(self, group: int, target: Planes, rows: npt.NDArray[np.int32]) -> Mask:
        """Copies block i to row ``rows[i]`` of memory; which of them arrived and are right."""
        held = self.held(group)
        if self.store is None or self.store.pool is None or not held.any():
            return np.zeros(len(held), np.bool_)
        stride = self.store.strides[group]
        size = self._groups[group].block_bytes
        source = np.array([(self.store.pool.address, stride, size)], PLANE)
        slots = (self.offsets[group][held] // stride).astype(np.int32)
        well = copy_blocks(target, rows[held], source, slots) == 0
        return held if well and self.intact() else np.zeros(len(held), np.bool_)

    def intact(self) -> bool:
        """Whether all that was read until now is what was leased. Cost: one call of the kernel."""
        return not self.released and self.store is not None and self.store.link.alive()

    def release(self) -> None:
        """Gives it back; views of it must not be used any more. Idempotent."""
        if not self.released:
            self.released = True
            self._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Room:
    """Staging memory for keys that are new, to be written and then given to ``commit``, or to
    ``abort``. ``granted``: which keys have room; ``there``: which are kept already, ``coming``:
    which somebody else brings.
    """

    def __init__(
        self, store: OpenedStore, number: int, group: Group, where: int, offsets: Offsets
    ) -> None:
        """``where``: the number of the group; ``offsets``: as RESERVE answers them."""
        self.store = store
        self.number = number
        self.group = where
        self.block_bytes = group.block_bytes
        self.offsets = offsets
        self.granted: Mask = offsets >= 0
        self.there: Mask = offsets == -1
        self.coming: Mask = offsets == -2

    def block(self, index: int) -> Blocks:
        """Where the bytes of key ``index`` go, (block_bytes,) uint8, writable."""
        offset = int(self.offsets[index])
        if offset < 0 or self.store.staging is None:
            raise LeaseError(f"key {index} has no room: it is there, or coming")
        return self.store.staging.array[offset : offset + self.block_bytes]

    def fill(self, source: Planes, rows: npt.NDArray[np.int32]) -> bool:
        """Copies row ``rows[i]`` of memory to the room of key i; whether that went well."""
        if self.store.staging is None or not self.granted.any():
            return bool(not self.granted.any())
        stride = stride_bytes(self.block_bytes)
        target = np.array([(self.store.staging.address, stride, self.block_bytes)], PLANE)
        # An extent begins at a whole page, not at a whole stride; its blocks follow each other.
        first = int(self.offsets[self.granted][0])
        target["base"] += np.uint64(first)
        slots = np.arange(int(self.granted.sum()), dtype=np.int32)
        return copy_blocks(target, slots, source, rows[self.granted]) == 0


def memory_planes(
    memory: Sequence[Sequence[npt.NDArray[Any]]], groups: Sequence[Group]
) -> list[Planes]:
    """Planes of the engine's memory, as ``AdoptedTier`` takes it: arrays by group, dimension 0 the
    row. ``ValueError`` where its rows are not the blocks of the groups.
    """
    tier = AdoptedTier(memory, "memory")
    tier.attach(tuple(groups), 1, None)
    return [tier.planes(group) for group in range(len(groups))]


def rows_planes(blocks: npt.NDArray[Any]) -> Planes:
    """One plane of rows that lie one after the other; they must outlive its use."""
    size = blocks[0].nbytes if len(blocks) else 0
    return np.array([(blocks.ctypes.data, size, size)], PLANE)
