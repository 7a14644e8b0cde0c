"""A canary: a share of hits is answered as missing, so that the engine computes those blocks again;
what it then offers goes into scratch slots and is compared with what was kept. A kept block that
differs was wrong all along, or would have been: it is dropped from every tier and counted. Which
hits is decided by the key alone, so that a run repeats; each is compared once.

    lookup: kept, and chosen --> answered as missing, for this request
    store:  offered again ----> scratch slot --> complete: compared, given back
            kept: leased from the offer to the comparison
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radix._native import ffi
from radix.engines.vllm.blocks import HOST, Blocks
from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.lives import Life
from radix.errors import CapacityError, NeverFitsError
from radix.keys import Namespace
from radix.keysets import FlatLease, Reservation
from radix.metrics import Metrics
from radix.tier import Keys

Bytes = npt.NDArray[np.uint8]
SCRATCH = Namespace(content=b"radix canary: blocks under comparison, never kept")
MOST_REMEMBERED = 1 << 18
TRIES = 3  # how often a block is answered as missing that is never offered again
_TYPES = {
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "float8_e5m2": torch.float8_e5m2,
}


def types_of(config: Any, geometry: Geometry) -> tuple[torch.dtype, ...]:
    """As what the bytes of a block may be read. A recurrent group keeps parts of several types in
    one block, and nothing says where: with several groups float32 is one of them.

    Empty where the engine's name of the type is unknown: blocks must be equal byte for byte then.
    """
    facts = dict(geometry.facts)
    said = str(config.model.dtype).removeprefix("torch.")
    if said == "auto":
        said = facts.get("model_dtype", "").removeprefix("torch.")
    own = _TYPES.get(said)
    if own is None:
        return ()
    if len(geometry.group_ids) > 1 and own is not torch.float32:
        return (own, torch.float32)
    return (own,)


def alike(kept: Bytes, again: Bytes, types: Sequence[torch.dtype], tolerance: float) -> bool:
    """Whether two blocks hold the same values, as one of the types in every four bytes: they differ
    by ``tolerance`` times the largest value of a block at most. Of the blocks, and of the types,
    the least counts: one wrong value, or bytes read as what they are not, would excuse everything.
    Cost: the bytes.
    """
    if np.array_equal(kept, again):
        return True
    whole = len(kept) // 4 * 4
    if not whole or not types or not np.array_equal(kept[whole:], again[whole:]):
        return False
    read = [(_values(kept[:whole], kind), _values(again[:whole], kind)) for kind in types]
    largest = min(_largest(values) for pair in read for values in pair)
    fine = np.zeros(whole // 4, np.bool_)
    for kind, (one, other) in zip(types, read, strict=True):
        close = (one - other).abs() <= tolerance * largest
        same = _raw(kept[:whole], kind) == _raw(again[:whole], kind)
        fine |= (close | same).numpy().reshape(whole // 4, -1).all(axis=1)
    return bool(fine.all())


def _largest(values: torch.Tensor) -> float:
    return float(torch.nan_to_num(values.abs(), 0.0, 0.0).max())


def _raw(data: Bytes, kind: torch.dtype) -> torch.Tensor:
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.itemsize]
    return torch.from_numpy(data.copy()).view(whole)


def _values(data: Bytes, kind: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(data.copy()).view(kind).to(torch.float32)


@dataclass(slots=True, eq=False)
class Comparison:
    """Kept blocks of one key and one group, and the scratch slot that the same is written to.
    ``good``: the workers have filled it.
    """

    canary: Canary
    key: bytes
    names: Keys
    group: int
    kept: FlatLease
    scratch: Reservation
    good: bool = False

    def end(self) -> None:
        """Compares, and gives the scratch slot back."""
        if self.good:
            self.canary.compare(self)
        self.give_up()

    def give_up(self) -> None:
        """Gives the scratch slot back, nothing was compared."""
        self.canary.blocks.store.abort(self.scratch)
        self.kept.release()


class Canary:
    """Ask: ``refuses``, in a lookup; ``scratch``, in a store. End: ``Comparison.end``."""

    def __init__(
        self,
        blocks: Blocks,
        metrics: Metrics,
        share: float,
        tolerance: float,
        types: Sequence[torch.dtype],
        *,
        seed: int = 0,
    ) -> None:
        """``share`` of the hits; 0: never, and every question costs nothing."""
        self.blocks = blocks
        self._metrics = metrics
        self.share = share
        self._tolerance = tolerance
        self._types = tuple(types)
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._below = int(share * (1 << 64))
        self._tries: OrderedDict[bytes, int] = OrderedDict()  # TRIES: not again

    def picks(self, key: bytes) -> bool:
        """Whether a key is one of the share. Cost: a hash of it."""
        digest = hashlib.blake2b(key, digest_size=8, key=self._seed).digest()
        return int.from_bytes(digest, "little") < self._below

    def refuses(self, life: Life, key: bytes, group: int, context: Any) -> bool:
        """Whether a hit is to be answered as missing; always alike for one request."""
        if key in life.refused:
            return True
        if not self._open(key, group, context):
            return False
        self._remember(key, self._tries.get(key, 0) + 1)
        life.refused.add(key)
        self._metrics.add(("canary", "refused"))
        return True

    def _open(self, key: bytes, group: int, context: Any) -> bool:
        return (
            self.picks(key)
            and self._tries.get(key, 0) < TRIES
            and self.blocks.whole(key, group, context)
        )

    def _remember(self, key: bytes, tries: int) -> None:
        self._tries[key] = tries
        self._tries.move_to_end(key)
        if len(self._tries) > MOST_REMEMBERED:
            self._tries.popitem(last=False)

    def wants(self, life: Life, key: bytes, group: int, context: Any) -> bool:
        """Whether a kept block that is offered is to be compared: the request was refused one, so
        that what it offers was computed.
        """
        return bool(life.refused) and (key in life.refused or self._open(key, group, context))

    def scratch(self, key: bytes, names: Keys, group: int) -> Comparison | None:
        """A slot for what the engine computed again; None where there is no room."""
        store = self.blocks.store
        kept = self.blocks.lease(names, np.full(len(names), -1, np.int64))
        try:
            slot = store.reserve(names, group, namespace=SCRATCH)
        except (CapacityError, NeverFitsError):
            kept.release()
            self._metrics.add(("canary", "no room"))
            return None
        if not len(slot):  # a comparison of another request holds it
            store.abort(slot)
            kept.release()
            return None
        return Comparison(self, key, names, group, kept, slot)

    def compare(self, check: Comparison) -> None:
        """Compares what was kept with what was computed again. Cost: the bytes."""
        store, space = self.blocks.store, self.blocks.space
        kept = int(store.slots(check.names, check.group, namespace=space)[0])
        if kept < 0:
            return  # dropped meanwhile
        self._remember(check.key, TRIES)
        self._metrics.add(("canary", "compared"))
        one = self._bytes(check.group, kept)
        other = self._bytes(check.group, int(check.scratch.slots[0]))
        if not alike(one, other, self._types, self._tolerance):
            self._metrics.add(("canary", "mismatched"))
            store.forget(check.names, check.group, namespace=space)
            self._tries.pop(check.key)

    def _bytes(self, group: int, slot: int) -> Bytes:
        """The bytes of a host slot as they lie there: a view."""
        plane = self.blocks.store.tiers[HOST].planes(group)[0]
        place = int(plane["base"]) + slot * int(plane["stride"])
        size = int(plane["bytes"])
        return np.frombuffer(ffi.buffer(ffi.cast("char *", place), size), np.uint8)

    def reset(self) -> None:
        """What was compared is gone."""
        self._tries.clear()
