"""Mistakes in the order of a commit that a test makes on purpose, in the process that is recorded:
power loss tests that cannot fail would prove nothing. Each is a context in which a part of the disk
tier is replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import lmdb
import numpy as np

from radix.tier import Slots
from tiers import disk_open, slab_files
from tiers.committer import RemovalWork
from tiers.disk_books import DiskBooks
from tiers.disk_transfers import DiskTransfers
from tiers.transfer import TransferEngine


@contextlib.contextmanager
def _replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Replaces attributes, and puts them back."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _submit_without_sync(*args: Any, **options: Any) -> int:
    return _SUBMIT(*args, **{**options, "sync": False})


_SUBMIT = TransferEngine.submit_ops
_COMMITTED = DiskTransfers._committed
_OPEN = lmdb.open


def _payload_is_not_synced() -> AbstractContextManager[None]:
    return _replaced((TransferEngine, "submit_ops", _submit_without_sync))


def _record_before_payload() -> AbstractContextManager[None]:
    """The payload is durable before the acknowledgement, but after its record."""

    def committed(self: Any, result: Any) -> None:
        for descriptor in self._disk.files._open.values():
            os.fdatasync(descriptor)
        _COMMITTED(self, result)

    return _replaced(
        (TransferEngine, "submit_ops", _submit_without_sync),
        (DiskTransfers, "_committed", committed),
    )


def _slot_reused_at_once() -> AbstractContextManager[None]:
    """Slots are free as soon as their records are to be removed."""

    def leave(self: DiskBooks, group: int, slots: Slots) -> RemovalWork | None:
        slots = np.array(slots, np.int32)
        going = slots[self.has_record(group, slots)]
        table = self._tables[group]
        ids = table.ids[going]
        table.ids[going] = 0
        self.slab.lift(group, slots)
        return RemovalWork(group, going, ids) if len(going) else None

    def removed(self: DiskBooks, work: RemovalWork) -> None:
        return None

    return _replaced((DiskBooks, "_leave", leave), (DiskBooks, "removed", removed))


def _index_is_not_synced() -> AbstractContextManager[None]:
    return _replaced((lmdb, "open", lambda *args, **opts: _OPEN(*args, **{**opts, "sync": False})))


def _root_is_not_synced() -> AbstractContextManager[None]:
    """The pages of a transaction are synced, the page that makes it the newest is not."""
    return _replaced(
        (lmdb, "open", lambda *args, **opts: _OPEN(*args, **{**opts, "metasync": False}))
    )


def _names_are_not_synced() -> AbstractContextManager[None]:
    return _replaced(
        (slab_files, "sync_directory", lambda folder: None),
        (disk_open, "sync_directory", lambda folder: None),
    )


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "none": contextlib.nullcontext,
    "record before payload": _record_before_payload,
    "payload not synced": _payload_is_not_synced,
    "slot reused at once": _slot_reused_at_once,
    "index not synced": _index_is_not_synced,
    "root not synced": _root_is_not_synced,
    "names not synced": _names_are_not_synced,
}
