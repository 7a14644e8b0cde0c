"""The first tier: blocks in torch tensors, an engine's own or ours, on CUDA or on the CPU as the
device. On the CPU its blocks are addresses and native threads copy them; on CUDA they are gathered
and scattered on a side stream behind whatever the caller has queued. Keeps the tier side of I7, I8
and I22.

    tensor [blocks, 2, heads, dim], a view whose halves lie apart     two planes a block
    tensor [blocks, layer bytes] for each layer                       a plane a layer
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from radix._native import lib
from radix.errors import LayoutMismatchError, TierError, UnsupportedError
from radix.groups import Group
from radix.pool import FREE, USED, SlotPool
from radix.tier import Capability, Slots, Tier, Urgency, View
from tiers.copies import Moved, plane_array
from tiers.device_side import TorchSide, row_bytes
from tiers.placement import node_of_pci
from tiers.pools import PooledTier, blocks_of_groups
from tiers.staging import StagedMover
from tiers.transfer import Planes
from tiers.views import Offsets, view_bytes, views_of

MAX_PLANES = 4096
_CUDA: Any = torch.cuda  # much of it is untyped

Tensors = Sequence[torch.Tensor] | Mapping[str, Sequence[torch.Tensor]]


class DeviceTier(PooledTier):
    """Blocks in torch tensors: block i of a group is row i of each of its tensors, in order.

    Of a rank or a pipeline stage, the runs of its ``views`` one after the other. Beside the
    protocol: ``owned``, ``device``, ``tensors``; ``adopt`` for slots that an engine gave out;
    ``after`` for work that copies must wait for; and, where the tensors have no addresses,
    ``copy_out``, ``copy_in``, ``moved``, ``register``, ``unregister`` for the tier below.
    """

    def __init__(
        self,
        tensors: Tensors | None = None,
        *,
        blocks: int | Sequence[int] | None = None,
        device: str | torch.device = "auto",
        name: str = "device",
        owned: bool = True,
        staged: bool | None = None,
        views: View | Sequence[View | None] | None = None,
    ) -> None:
        """Either adopts ``tensors`` or allocates ``blocks`` a group at ``attach``.

        ``tensors``: those of the one group, or group name -> tensors; dimension 0 is the block, any
        strides; held as long as the tier lives, their bytes are the engine's. ``device``: "auto" is
        CUDA where there is one, for tensors it is theirs. ``owned`` False: the engine gives out the
        slots, ``reserve`` refuses and ``adopt`` takes them over. ``staged``: copies go through the
        device's own stream and buffers; by default only where it has no addresses. ``views``: the
        part of each block that it holds, one a group or one for the only group; None: all.
        Raises: ``ValueError`` unless exactly one of tensors and blocks is given, or below 1 block.
        """
        if (tensors is None) == (blocks is None):
            raise ValueError("give either tensors or blocks")
        if blocks is not None:
            blocks_of_groups(blocks, None, f"tier {name!r}: blocks")
        self._given = tensors
        self._blocks = blocks if blocks is None or isinstance(blocks, int) else tuple(blocks)
        self._asked_views = [views] if isinstance(views, View) else views
        self.owned = owned
        self.device = _device_of(tensors, device)
        mapped = self.device.type == "cpu" and not staged
        super().__init__(
            name,
            Capability(
                persistent=False,
                shared=False,
                layer_wise=False,
                address_mapped=mapped,
                shares_bytes=False,
                holds_bytes=True,
                finds=False,
            ),
        )
        self.tensors: tuple[tuple[torch.Tensor, ...], ...] = ()
        self._planes: list[Planes] = []
        self._side: TorchSide | None = None
        self._mover: StagedMover | None = None

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        if upper is not None:
            raise UnsupportedError(f"tier {self.name!r} must be the first tier of a cache")
        views = views_of(self._asked_views, groups, self.name)
        sizes = [view_bytes(group.layout, view) for group, view in zip(groups, views, strict=True)]
        if self._given is None:
            counts = blocks_of_groups(self._blocks or 0, len(groups), f"tier {self.name!r}: blocks")
            chosen: list[tuple[torch.Tensor, ...]] = [
                (_allocate(count, size, self.device),)
                for size, count in zip(sizes, counts, strict=True)
            ]
        else:
            chosen = _by_group(self._given, groups, self.name)
        for group, size, tensors in zip(groups, sizes, chosen, strict=True):
            _check_rows(group, size, tensors, self.name)
        self._views = views
        self.tensors = tuple(chosen)
        if self.capability.address_mapped:
            self._planes = [planes_of(tensors) for tensors in self.tensors]
        else:
            self._side = TorchSide(self.tensors, self.device)
            self._mover = StagedMover(self.name, self._side, max(sizes))
        return [SlotPool(len(tensors[0])) for tensors in self.tensors]

    @property
    def numa_node(self) -> int | None:
        """The NUMA node next to the device, for memory that it copies with; None: not known."""
        if self.device.type != "cuda":
            return None
        found = _CUDA.get_device_properties(self.device)
        if not hasattr(found, "pci_bus_id"):  # torch before 2.7
            return None
        return node_of_pci(found.pci_domain_id, found.pci_bus_id, found.pci_device_id)

    def planes(self, group: int) -> Planes:
        """Where the blocks lie in memory. ``TierError`` where copies are staged."""
        self._open_or_raise()
        if not self.capability.address_mapped:
            raise TierError(self.name, f"group {group} is not mapped into addresses")
        return self._planes[group]

    # ------------------------------------------------------------------ slots
    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing; refused where the engine gives them out. Cost: count."""
        self._may_reserve()
        if not self.owned:
            raise UnsupportedError(f"the slots of tier {self.name!r} are given out by the engine")
        return super().reserve(group, count)

    def adopt(self, group: int, slots: Slots) -> None:
        """Slots that the engine gave out now hold blocks of the cache; ``free`` gives them back.

        Cost: the slots. Raises: ``TierError`` for one that is the cache's already (none changes),
        ``UnsupportedError`` where the tier owns its slots.
        """
        if self.owned:
            raise UnsupportedError(f"the slots of tier {self.name!r} are its own: reserve them")
        self._move(group, slots, FREE, USED)

    # ------------------------------------------------------------------ copies for the tier below
    def after(self, event: Any) -> None:
        """Copies started from now on wait for ``event`` (a ``torch.cuda.Event`` recorded behind
        the kernels that write or read their slots). On the CPU there is no queue to wait for.
        """
        self._staged()
        if self._side is not None:
            self._side.after(event)

    def copy_out(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying ``slots`` to rows ``lower`` of ``planes``, behind what is queued on the
        current stream; of ``ranges`` only these bytes. Cost here: the slots. Raises
        ``TierFullError`` (retryable).
        """
        self._staged().submit(job, group, slots, planes, lower, urgency, ranges, outward=True)

    def copy_in(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying rows ``lower`` of ``planes`` to ``slots``; as ``copy_out``."""
        self._staged().submit(job, group, slots, planes, lower, urgency, ranges, outward=False)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Copies blocks inside the tier: on the CPU at once, on CUDA on the current stream, so
        before every copy that is started later. ``TierError`` where the device refuses it.

        Cost: the bytes, on the device.
        """
        if self.capability.address_mapped:
            super().clone(group, sources, targets)
            return
        self._check_clone(group, sources, targets)
        if self._side is not None and len(sources):
            try:
                self._side.clone(group, sources, targets)
            except RuntimeError as error:
                raise TierError(self.name, f"clone: {error}", retryable=True) from error

    def moved(self) -> list[Moved]:
        """Copies that have ended since the last call, each once. Never blocks."""
        return self._staged().moved()

    def register(self, address: int, nbytes: int) -> bool:
        """Page-locks memory of the tier below for direct copies; False where CUDA refuses."""
        return self._staged().register(address, nbytes)

    def unregister(self, address: int) -> None:
        """Takes that back; ``close`` has done so already."""
        if not self._closed:
            self._staged().unregister(address)

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a copy; it still ends once."""
        self._open_or_raise()
        if self._mover is not None:
            self._mover.cancel(job)

    def close(self) -> None:
        """Waits for copies that have begun. Idempotent. The tensors live on with the tier."""
        if self._mover is not None and not self._closed:
            self._mover.close()
        super().close()

    def _staged(self) -> StagedMover:
        self._open_or_raise()
        if self._mover is None:
            raise UnsupportedError(f"tier {self.name!r} is mapped: the tier below copies it")
        return self._mover


# ---------------------------------------------------------------------- tensors
def planes_of(tensors: Sequence[torch.Tensor]) -> Planes:
    """The planes of blocks whose rows are ``tensors[.][i]``, in the order of their indices.

    A row that is not contiguous becomes a plane for each contiguous run.
    Raises: ``ValueError`` for more than 4,096 planes. Cost: the planes.
    """
    planes: list[tuple[int, int, int]] = []
    for tensor in tensors:
        size = tensor.element_size()
        run, split = 1, tensor.dim()
        while split > 1 and tensor.stride(split - 1) in (run, _any_if_single(tensor, split - 1)):
            split -= 1
            run *= tensor.size(split)
        outer = [range(tensor.size(d)) for d in range(1, split)]
        if math.prod(len(o) for o in outer) > MAX_PLANES - len(planes):
            raise ValueError(f"a block in more than {MAX_PLANES} pieces: {tuple(tensor.shape)}")
        for index in itertools.product(*outer):
            offset = sum(i * tensor.stride(d) for d, i in enumerate(index, 1))
            base = tensor.data_ptr() + offset * size
            planes.append((base, tensor.stride(0) * size, run * size))
    return plane_array(planes)


def _any_if_single(tensor: torch.Tensor, dim: int) -> int:
    """The stride of a dimension of one entry is never used, so it may be anything."""
    return tensor.stride(dim) if tensor.size(dim) == 1 else -1


def _device_of(tensors: Tensors | None, device: str | torch.device) -> torch.device:
    if tensors is None:
        if device != "auto":
            return torch.device(device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lists = tensors.values() if isinstance(tensors, Mapping) else [tensors]
    every = [tensor for some in lists for tensor in some]
    for tensor in every:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors must hold torch.Tensor, not {type(tensor).__name__}")
    places = {tensor.device for tensor in every}
    if len(places) != 1:
        raise ValueError(f"tensors must lie on one device, not {sorted(map(str, places))}")
    place = places.pop()
    if device != "auto" and torch.device(device).type != place.type:
        raise ValueError(f"the tensors lie on {place}, device is {device!r}")
    return place


def _by_group(
    tensors: Tensors, groups: tuple[Group, ...], name: str
) -> list[tuple[torch.Tensor, ...]]:
    names = [group.name for group in groups]
    if not isinstance(tensors, Mapping):
        if len(groups) != 1:
            raise ValueError(f"tier {name!r}: give tensors by group name, there are {names}")
        return [tuple(tensors)]
    if set(tensors) != set(names):
        raise ValueError(f"tier {name!r}: tensors for {sorted(tensors)}, the groups are {names}")
    return [tuple(tensors[group]) for group in names]


def _check_rows(group: Group, size: int, tensors: Sequence[torch.Tensor], name: str) -> None:
    what = f"tier {name!r} group {group.name!r}"
    counts = {tensor.size(0) if tensor.dim() else 0 for tensor in tensors}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"{what}: tensors must have one count of blocks >= 1, not {counts}")
    total = sum(row_bytes(tensor) for tensor in tensors)
    if total != size:
        raise LayoutMismatchError(f"{what}: rows of {total} bytes, its layout says {size}")
    for tensor in tensors:
        if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError(f"{what}: blocks of an expanded tensor share their bytes")


def _allocate(blocks: int, block_bytes: int, device: torch.device) -> torch.Tensor:
    tensor = torch.empty((blocks, block_bytes), dtype=torch.uint8, device=device)
    if device.type == "cpu":
        lib.rdx_prefault(tensor.data_ptr(), tensor.numel(), 2)
    return tensor
