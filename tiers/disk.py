"""The disk tier: blocks in slab files or in LMDB values, found again after a restart by one LMDB
record each. A store is acknowledged once its bytes and then its record are durable; a load is
acknowledged good only if its checksum held. One process owns a directory. Keeps I7, I22, I24 and
I25 for the disk: what a medium does to the bytes costs hits and is counted, never wrong bytes.

    store   memory --threads--> slab file, fdatasync --> committer: LMDB --> acknowledged
    load    memory <--threads-- slab file, checksum  ----------------------> acknowledged
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from radix.errors import InvariantError, TierError, TierUnavailableError
from radix.groups import Group, check_groups
from radix.pool import SlotError
from radix.tier import (
    Capability,
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
    Transfer,
    TransferDone,
    Written,
)
from tiers.committer import RemovalWork
from tiers.disk_books import DiskBooks
from tiers.disk_health import DiskHealth
from tiers.disk_open import DiskConfig, OpenDisk, open_disk
from tiers.disk_records import DiskCounts
from tiers.disk_transfers import DiskTransfers
from tiers.format import PAYLOADS
from tiers.pools import PooledTier, checked_count
from tiers.slab import SEGMENT_BYTES

_ANY_SLOT = 1 << 31
_PERSISTENT = Capability(
    persistent=True,
    shared=False,
    layer_wise=True,
    address_mapped=False,
    shares_bytes=False,
    holds_bytes=True,
    finds=False,
)


@dataclass(frozen=True, slots=True)
class _Attached:
    """What a tier has from ``attach`` to ``close``."""

    disk: OpenDisk
    health: DiskHealth
    transfers: DiskTransfers


class DiskTier(PooledTier):
    """Blocks on one or more drives, within a byte limit, over restarts.

    Beside the protocol: ``counts``, ``limit_bytes``.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        limit_bytes: int,
        payload: str = "slab",
        name: str = "disk",
        segment_bytes: int = SEGMENT_BYTES,
        threads: int = 2,
    ) -> None:
        """Touches nothing yet; ``attach`` does.

        ``paths``: a directory, or several, the first of which holds the index. ``limit_bytes``:
        index and blocks together. ``payload``: "slab" or "lmdb". ``threads``: that read and write,
        for each path. Raises ``ValueError``, ``TypeError``.
        """
        super().__init__(name, _PERSISTENT)
        listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not listed:
            raise ValueError(f"tier {name!r}: paths must not be empty")
        if payload not in PAYLOADS:
            raise ValueError(f"payload must be one of {', '.join(PAYLOADS)}, not {payload!r}")
        if payload == "lmdb" and len(listed) > 1:
            raise ValueError("payload 'lmdb' keeps all bytes in one path")
        resolved = tuple(Path(path).absolute() for path in listed)
        if len(set(resolved)) != len(resolved):
            raise ValueError(f"tier {name!r}: a path is named twice")
        self.limit_bytes = checked_count(limit_bytes, f"tier {name!r}: limit_bytes")
        checked_count(segment_bytes, f"tier {name!r}: segment_bytes")
        checked_count(threads, f"tier {name!r}: threads")
        self._config = DiskConfig(name, resolved, limit_bytes, payload, segment_bytes, threads)
        self._pid = os.getpid()
        self._restored: tuple[Restored, ...] = ()
        self._attached: _Attached | None = None

    @property
    def counts(self) -> DiskCounts:
        """What happened since the tier was opened, in blocks."""
        return self._transfers.counts

    # ------------------------------------------------------------------ open and close

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Opens or creates the directories; what was durable can then be had from ``restore``.

        Raises: ``TierUnavailableError`` where another process holds a directory, its format is
        newer, or it cannot be written (nothing was touched); ``ValueError``. Cost: one scan of
        the index.
        """
        self._open_or_raise()
        if self._groups:
            raise TierError(self.name, "is attached to a cache already")
        checked = check_groups(groups)
        if page_bytes < 1:
            raise ValueError(f"page_bytes must be at least 1, not {page_bytes}")
        opened = open_disk(self._config, checked, page_bytes)
        try:
            health = DiskHealth(self._config, opened)
            transfers = DiskTransfers(self._config, checked, page_bytes, opened, health)
        except BaseException:
            opened.close()
            raise
        self._attached = _Attached(opened, health, transfers)
        self._take_up(checked)
        self._restored = opened.restored

    def _parts(self) -> _Attached:
        if self._attached is None:
            raise TierError(self.name, "is not attached to a cache")
        return self._attached

    @property
    def _disk(self) -> OpenDisk:
        return self._parts().disk

    @property
    def _books(self) -> DiskBooks:
        return self._parts().disk.books

    @property
    def _transfers(self) -> DiskTransfers:
        return self._parts().transfers

    def restore(self) -> Sequence[Restored]:
        """What was found at opening, oldest first within a namespace and group; once."""
        self._open_or_raise()
        restored, self._restored = self._restored, ()
        return restored

    def close(self) -> None:
        """Finishes what runs, commits what is to be durable, gives the directories back.

        Idempotent; in a forked child it only forgets them.
        """
        if self._closed:
            return
        if self._groups and os.getpid() == self._pid:
            self._transfers.drain()
            self._transfers.close()
            self._disk.close()
        super().close()

    def renew(self) -> None:
        """Begins a new epoch, durable when this returns: what was stored before, or is still under
        way, is not found at the next opening. ``TierUnavailableError`` where it cannot be written:
        nothing has changed.
        """
        self._open_or_raise()
        if self._groups:
            try:
                self._disk.index.renew(self._disk.index.epoch + 1)
            except (lmdb.Error, OSError) as error:
                raise TierUnavailableError(self.name, f"no new epoch: {error}") from error
            self._disk.say_epoch(self._config)

    def flush(self) -> None:
        """Returns once every store and removal that was started is durable or has failed."""
        self._open_or_raise()
        if self._groups:
            self._acknowledge(self._transfers.drain())
            self._heed()

    def _open_or_raise(self) -> None:
        if os.getpid() != self._pid:
            raise TierUnavailableError(
                self.name,
                f"was opened in process {self._pid} and cannot be used in its forked child "
                f"{os.getpid()}: open it there under a directory of its own",
            )
        super()._open_or_raise()

    # ------------------------------------------------------------------ slots

    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """Blocks of the group, of the segments that others leave it; headroom for slots that rest
        until a commit left out. Cost: the groups.
        """
        return self._books.capacity(group, beside)

    def free_blocks(self, group: int) -> int:
        """Blocks that ``reserve`` would give. Cost: O(1); see ``SlabAllocator.available``."""
        return self._books.allowed(group) if self._mode is TierMode.ON else 0

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing. Cost: count, and a new segment where one is needed.

        Blocks were freed to make room, and theirs may be used only once their removal is durable.
        There is headroom for that; where more than it was freed since the last commit, this waits
        for the next one, because a store that is refused is a block that is lost.

        Raises: ``TierFullError`` (retryable), ``TierUnavailableError`` unless the tier is on.
        """
        self._open_or_raise()
        self._may_reserve()
        self._transfers.collect()
        slots = self._books.reserve(group, count) if count >= 0 else None
        if slots is None and 0 <= count <= self._books.allowed(group):
            self._transfers.await_removals()
            self._heed()
            slots = self._books.reserve(group, count)
        if slots is None:
            raise self._shortage(group, count)
        lent, _ = self._books.slab.changes()
        if self._config.payload == "slab":
            self._extend(group, slots, lent)
        return slots

    def _extend(self, group: int, slots: Slots, segments: list[int]) -> None:
        for segment in segments:
            try:
                self._disk.files.extend(segment)
            except OSError as error:
                self._books.abort(group, slots)
                self._parts().health.path_failed(self._disk.files.path_of(segment), str(error))
                self._heed()
                raise TierUnavailableError(self.name, f"segment {segment}: {error}") from error

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes. Cost: the slots."""
        self._change(lambda: self._books.commit(group, slots))

    def abort(self, group: int, slots: Slots) -> None:
        """Gives reserved slots back. Cost: the slots."""
        self._leave(group, lambda: self._books.abort(group, slots))

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back; they are reused once their removal is durable."""
        self._leave(group, lambda: self._books.free(group, slots))

    def fence(self, group: int, slots: Slots) -> None:
        """Slots, all committed or all reserved, are given up but not reused. Cost: the slots."""
        self._change(lambda: self._books.fence(group, slots))

    def lift(self, group: int, slots: Slots) -> None:
        """The fence of these slots has passed: they are freed. Cost: the slots."""
        self._leave(group, lambda: self._books.lift(group, slots))

    def _change(self, call: Callable[[], None]) -> None:
        self._open_or_raise()
        try:
            call()
        except SlotError as error:
            raise TierError(self.name, str(error)) from None

    def _leave(self, group: int, call: Callable[[], RemovalWork | None]) -> None:
        def remove() -> None:
            work = call()
            if work is not None:
                self._transfers.remove(work)

        self._change(remove)
        # Removals go with the next store; only a shortage of slots makes them go alone.
        if 2 * self._books.leaving(group) >= self._books.headroom(group):
            self._transfers.committer.urge()

    # ------------------------------------------------------------------ transfers

    def set_mode(self, mode: TierMode) -> None:
        """Switches it at run time; on again also after the medium has failed."""
        super().set_mode(mode)
        if self._groups:
            self._parts().health.forgive()
            if mode is TierMode.ON:
                self._transfers.committer.revive()

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts writing blocks and their records. Cost here: the slots.

        Raises: ``TierFullError`` (retryable; nothing was started), ``TierUnavailableError``
        unless the tier is on, ``ValueError`` for records that do not fit the blocks.
        """
        cut = self._accept(transfer, upper, storing=True)
        self._transfers.store(transfer, upper, cut)
        self._running[transfer.job] = transfer

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts reading and verifying blocks. Cost here: the slots.

        What has no record, is damaged or cut off comes back as corrupt, what the medium refuses
        as not good. Raises as ``store``.
        """
        cut = self._accept(transfer, upper, storing=False)
        try:
            self._transfers.load(transfer, upper, cut, self._loads[transfer.job])
        except BaseException:
            del self._loads[transfer.job]
            raise
        self._running[transfer.job] = transfer

    def cancel(self, job: int) -> None:
        """Skips what has not begun; the acknowledgement still comes."""
        self._open_or_raise()
        self._transfers.cancel(job)

    def _progress(self) -> None:
        if self._groups:
            self._acknowledge(self._transfers.progress())
            self._heed()

    def _acknowledge(self, done: Sequence[TransferDone]) -> None:
        for item in done:
            del self._running[item.job]
            self._done.append(item)

    def _heed(self) -> None:
        """Goes to the mode that the medium allows, where that is less than the present one."""
        order = (TierMode.ON, TierMode.READ_ONLY, TierMode.OFF)
        if order.index(self._parts().health.verdict) > order.index(self._mode):
            self._mode = self._parts().health.verdict

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """``TierError``: blocks on a disk are never changed in place."""
        self._check_clone(group, sources, targets)
        raise TierError(self.name, "clones no blocks: it has no addresses")

    def _slot_limit(self, group: int) -> int:
        return _ANY_SLOT

    def _wait_step(self, timeout_s: float) -> None:
        self._transfers.sleep(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Returns once ``poll`` has something to give, nothing runs, or the time is over."""
        self._open_or_raise()
        deadline = time.monotonic() + timeout_s
        self._progress()
        while self._running and not self._done:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._wait_step(left)
            self._progress()

    # ------------------------------------------------------------------ books

    def usage(self) -> TierUsage:
        """Bytes of lent segments and of the index; slots that wait for their removal to be durable
        count as bytes, not as blocks. Cost: the groups.
        """
        groups = range(len(self._groups))
        used = self._disk.index.file_bytes() if self._groups else 0
        if self._groups and self._config.payload == "slab":
            used += self._books.slab.lent_bytes + self._transfers.ahead.ready_bytes
        return TierUsage(
            used, self.limit_bytes, tuple(self._books.resident(group) for group in groups)
        )

    def written(self) -> Written | None:
        """What the drives were given to write: blocks with their padding, what LMDB wrote (all of
        it under ``payload="lmdb"``), and zeros ahead of the blocks. Cost: O(1).
        """
        if not self._groups:
            return Written(0, 0, 0, 0)
        payload, index = self.counts.written_bytes, self._transfers.committer.written_bytes
        ahead = self._transfers.ahead.written_bytes
        return Written(payload, index, ahead, payload + index + ahead)

    def check(self) -> None:
        """Raises ``InvariantError`` where the books disagree, or the files pass the limit (I7, I8,
        I25). Cost: all slots.
        """
        if not self._groups:
            return
        self._books.check()
        taken = self._disk.index.file_bytes() + self._disk.files.bytes_on_disk()
        if taken > self.limit_bytes:
            raise InvariantError(
                "I25", f"tier {self.name!r} takes {taken} bytes, its limit is {self.limit_bytes}"
            )
