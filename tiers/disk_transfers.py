"""Stores and loads of the disk tier, step by step. Each step runs in a native thread or in the
committer; the owner's thread only starts the next one. Keeps I22 (one acknowledgement a transfer, a
failed one leaves no visible entry) and the reading half of I24: a block is good only if its
checksum held.

    store   [gather] -> write, sync -> commit -> done          (payload="slab")
            [gather] -> commit -> done                         (payload="lmdb")
    load    read, verify -> [scatter] -> done
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import lmdb
import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.errors import CorruptBlockError, TierError, TierFullError
from radix.groups import Group
from radix.tier import Tier, Transfer, TransferDone
from tiers.committer import Committed, Committer, RemovalWork, StoreWork
from tiers.copies import Mover, checksums, mover_of, plane_array
from tiers.disk_ahead import ZeroAhead
from tiers.disk_health import DiskHealth
from tiers.disk_moves import Move, file_ops, make_move, settle_ops, views_of
from tiers.disk_open import DiskConfig, OpenDisk
from tiers.format import HAS_PAGES
from tiers.lmdb_index import Additions
from tiers.transfer import TransferEngine, status_text

_LOG = logging.getLogger("tiers.disk")
QUEUE_JOBS = 1024
Indices = npt.NDArray[np.int64]
Step = Callable[[Move], bool]
Then = Callable[[Move, int, int], None]  # with status and bytes


@dataclass(slots=True)
class DiskCounts:
    """What happened since the tier was opened, in blocks. ``dropped``: found at opening and not
    kept (of another layout, beyond the limit, damaged).
    """

    stored: int = 0
    loaded: int = 0
    corrupt: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    dropped: int = 0


class DiskTransfers:
    """Start: ``store``, ``load``, ``remove``, ``urge``. Go on: ``progress``, ``sleep``, ``cancel``.
    End: ``drain``, ``close``.
    """

    def __init__(
        self,
        config: DiskConfig,
        groups: tuple[Group, ...],
        page_bytes: int,
        disk: OpenDisk,
        health: DiskHealth,
    ) -> None:
        self.counts = DiskCounts(dropped=disk.dropped)
        self.engine = TransferEngine(config.threads, QUEUE_JOBS)
        self._health = health
        self._name = config.name
        self.ahead = ZeroAhead(self.engine, disk.files, disk.books.slab, config.name)
        self._in_values = config.payload == "lmdb"
        self._groups, self._page_bytes, self._disk = groups, page_bytes, disk
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.committer = Committer(disk.index, config.name, disk.next_id, self._event_fd)
        self._readers = ThreadPoolExecutor(config.threads) if self._in_values else None
        self._poller = select.poll()
        self._poller.register(self.engine.event_fd, select.POLLIN)
        self._poller.register(self._event_fd, select.POLLIN)
        self._moves: dict[int, Move] = {}
        self._jobs: dict[int, tuple[Move, Then]] = {}
        self._mover_jobs: dict[int, tuple[Move, Then]] = {}
        self._reading: list[tuple[Move, Future[npt.NDArray[np.int32]]]] = []
        self._stalled: list[tuple[Move, Step]] = []
        self._mover: Mover | None = None
        self._numbers = {canonical: number for number, canonical in disk.namespaces.items()}
        self._durable = set(disk.namespaces)
        self._done: list[TransferDone] = []

    # ------------------------------------------------------------------ from outside

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts a store. Raises ``TierFullError`` (retryable), ``ValueError``."""
        self._check_records(transfer)
        move = self._new_move(transfer, upper, storing=True)
        self._begin(move, self._write if move.rows is None else self._gather)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts a load. Raises ``TierFullError`` (retryable)."""
        move = self._new_move(transfer, upper, storing=False)
        slots = np.ascontiguousarray(transfer.lower_slots, np.int32)
        known = self._disk.books.has_record(transfer.group, slots)
        move.statuses[~known] = lib.RDX_ESHORT  # no record, no block
        move.sums[known] = self._disk.books.sums(transfer.group, slots[known])
        self._begin(move, self._read)

    def remove(self, work: RemovalWork) -> None:
        """Removes records with the next transaction that there is a reason for."""
        self.committer.remove(work)

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a transfer; it is acknowledged all the same."""
        for number, (move, _) in self._jobs.items():
            if move.transfer.job == job:
                self.engine.cancel(number)

    def progress(self) -> list[TransferDone]:
        """Starts every step that can go on; what has ended, each once. Never blocks."""
        stalled, self._stalled = self._stalled, []
        for move, step in stalled:
            self._next(move, step)
        for ended in self.engine.poll():
            if ended.job == self.ahead.job:
                self.ahead.ended(ended.status)
                continue
            move, then = self._jobs.pop(ended.job)
            then(move, ended.status, ended.nbytes)
        if self._mover_jobs and self._mover is not None:
            for moved in self._mover.moved():
                move, then = self._mover_jobs.pop(moved.job)
                then(move, moved.status, moved.nbytes)
        self._collect_reads()
        self.collect()
        if not self._moves and not self._in_values:
            self.ahead.step()
        done, self._done = self._done, []
        return done

    def collect(self) -> None:
        """Takes what the committer has settled; removed slots can then be given out."""
        if not self.committer.has_results:
            return
        for result in self.committer.collect():
            if isinstance(result, Committed):
                self._committed(result)
            else:
                self._disk.books.removed(result.work)

    def await_removals(self) -> None:
        """Blocks until the removals that were asked for are durable or were refused."""
        self.committer.urge()
        while self.committer.removing():
            if select.select([self._event_fd], [], [], 1.0)[0]:
                os.eventfd_read(self._event_fd)
            self.collect()

    def sleep(self, timeout_s: float) -> None:
        """Waits until ``progress`` may have something to do, or the time is over."""
        if self._mover_jobs or self._stalled or self._reading:
            timeout_s = min(timeout_s, 0.001)  # these have no descriptor to wait for
        for descriptor, _ in self._poller.poll(max(0.0, timeout_s * 1000)):
            if descriptor == self._event_fd:
                os.eventfd_read(self._event_fd)

    def drain(self) -> list[TransferDone]:
        """Blocks until everything that was started has ended; a removal is tried once."""
        done: list[TransferDone] = []
        self.committer.urge()
        done += self.progress()
        # Asks what runs, not what was begun: an interrupt may have lost the end of a step.
        while self._is_under_way():
            self.sleep(1.0)
            done += self.progress()
        return done

    def _is_under_way(self) -> bool:
        steps = (self._jobs and self.engine.pending) or self._mover_jobs
        return bool(steps or self._reading or self._stalled) or not self.committer.idle()

    def close(self) -> None:
        """Ends the threads. Everything must have ended."""
        self.committer.close()
        self.engine.close()
        self.ahead.close()
        if self._readers is not None:
            self._readers.shutdown()
        os.close(self._event_fd)

    # ------------------------------------------------------------------ steps

    def _new_move(self, transfer: Transfer, upper: Tier, *, storing: bool) -> Move:
        group = self._groups[transfer.group]
        if not upper.capability.address_mapped:
            self._mover = mover_of(upper, self._name)
        return make_move(
            transfer,
            upper,
            group.block_bytes,
            group.layout.store_shards,
            storing=storing,
            aligned=self._disk.files.direct,
        )

    def _begin(self, move: Move, first: Step) -> None:
        job = move.transfer.job
        self._moves[job] = move
        started = False
        try:
            started = first(move)
        finally:
            if not started:
                self._moves.pop(job, None)
                move.release()
        if not started:
            raise TierFullError(self._name, "the queue of transfers is full", retryable=True)

    def _next(self, move: Move, step: Step) -> None:
        """A later step: a full queue only makes it wait."""
        if not step(move):
            self._stalled.append((move, step))

    def _run(self, move: Move, start: Callable[[int], int], then: Then) -> bool:
        """Starts a job of the lane; False where its queue is full."""
        job = self.engine.new_job()
        status = start(job)
        if status == lib.RDX_EBUSY:
            return False
        if status != lib.RDX_OK:
            raise TierError(self._name, f"job {move.transfer.job}: {status_text(status)}")
        self._jobs[job] = (move, then)
        return True

    def _copy(self, move: Move, chosen: Indices, then: Then) -> bool:
        """Copies the blocks ``chosen`` between our rows and the tier above."""
        transfer, upper = move.transfer, move.upper
        ours, theirs = move.slots[chosen], np.asarray(transfer.upper_slots)[chosen]
        if not upper.capability.address_mapped:
            mover = mover_of(upper, self._name)
            call = mover.copy_out if move.storing else mover.copy_in
            call(transfer.job, transfer.group, theirs, move.planes, ours, transfer.urgency)
            self._mover_jobs[transfer.job] = (move, then)
            return True
        mine, above = (move.planes, ours), (upper.planes(transfer.group), theirs)
        target, source = (mine, above) if move.storing else (above, mine)
        return self._run(
            move, lambda job: self.engine.submit_copy(job, transfer.urgency, *target, *source), then
        )

    def _move_files(self, move: Move, chosen: Indices, then: Then) -> bool:
        """Moves the blocks ``chosen`` between memory and their slots on the disk."""
        transfer, books = move.transfer, self._disk.books
        slots = np.asarray(transfer.lower_slots)[chosen]
        segments, offsets = books.slab.place(transfer.group, slots)
        try:
            fds, starts = self._disk.files.descriptors(segments)
        except OSError as error:
            _LOG.warning("tier %r: job %d: %s", self._name, transfer.job, error)
            move.statuses[chosen] = lib.RDX_EIO
            then(move, lib.RDX_EIO, 0)
            return True
        places = starts + offsets.astype(np.uint64)
        # In the order of the file: what lies side by side is moved as one piece.
        order = np.lexsort((places, fds))
        move.ops = file_ops(
            move, chosen[order], fds[order], places[order], aligned=self._disk.files.direct
        )
        return self._run(
            move,
            lambda job: self.engine.submit_ops(job, transfer.urgency, move.ops, sync=move.storing),
            then,
        )

    # ------------------------------------------------------------------ store

    def _check_records(self, transfer: Transfer) -> None:
        records, count = transfer.records, len(transfer.lower_slots)
        if records is None:
            raise ValueError(f"job {transfer.job}: a persistent tier needs records")
        keys, pages = records.keys, records.pages
        if keys.ndim != 2 or len(keys) != count or not 1 <= keys.shape[1] <= 32:
            raise ValueError(f"records.keys must be ({count}, 1 to 32), not {keys.shape}")
        if records.parents.shape != (count, 16):
            raise ValueError(f"records.parents must be ({count}, 16), not {records.parents.shape}")
        if pages is not None and pages.shape != (count, self._page_bytes):
            raise ValueError(
                f"records.pages must be ({count}, {self._page_bytes}), not {pages.shape}"
            )
        if records.positions.shape != (count,):
            raise ValueError(f"records.positions must be ({count},), not {records.positions.shape}")

    def _gather(self, move: Move) -> bool:
        return self._copy(move, np.arange(move.count), self._gathered)

    def _gathered(self, move: Move, status: int, nbytes: int) -> None:
        if status == lib.RDX_OK:
            self._next(move, self._write)
            return
        move.statuses[:] = status
        self._end_store(move, None)

    def _write(self, move: Move) -> bool:
        if not self._in_values:
            return self._move_files(move, np.arange(move.count), self._written)
        pieces = move.sums.shape[1]
        base, stride, size = (int(value) for value in move.planes[0])
        for piece in range(pieces):
            piece_bytes = size // pieces
            plane = plane_array([(base + piece * piece_bytes, stride, piece_bytes)])
            move.sums[:, piece] = checksums(plane, move.slots)
        move.statuses[:] = lib.RDX_OK
        move.nbytes = move.count * size
        self._publish(move)
        return True

    def _written(self, move: Move, status: int, nbytes: int) -> None:
        settle_ops(move)
        move.nbytes = nbytes
        self._publish(move)

    def _publish(self, move: Move) -> None:
        """The bytes are safe: their records go to the next transaction. What is not what the tier
        above committed rotted there, and gets no record.
        """
        group, above = move.transfer.group, move.transfer.upper_slots
        kept = move.upper.sums(group, above) if move.sums.shape[1] == 1 else None
        if kept is not None:
            rotten = (move.statuses == lib.RDX_OK) & (move.sums[:, 0] != kept)
            move.statuses[rotten] = lib.RDX_ECORRUPT
        good = np.flatnonzero(move.statuses == lib.RDX_OK)
        transfer, records = move.transfer, move.transfer.records
        if not len(good) or records is None:
            self._end_store(move, None)
            return
        fresh = max(self._numbers.values(), default=0) + 1
        number = self._numbers.setdefault(records.namespace, fresh)
        width, pieces = records.keys.shape[1], move.sums.shape[1]
        rows = np.zeros(len(good), self._disk.dtype)
        rows["position"] = records.positions[good]
        rows["epoch"] = self._disk.index.epoch
        rows["slot"] = np.asarray(transfer.lower_slots)[good]
        rows["namespace"] = number
        rows["length"] = self._groups[transfer.group].block_bytes
        rows["present"] = (1 << pieces) - 1
        rows["group"] = transfer.group
        rows["key_bytes"] = width
        rows["key"][:, :width] = records.keys[good]
        rows["parent"] = records.parents[good]
        rows["checksums"][:, :pieces] = move.sums[good]
        if records.pages is not None:
            rows["flags"] = HAS_PAGES
            rows["page"] = records.pages[good]
        self.committer.offer(
            StoreWork(
                job=transfer.job,
                additions=Additions(rows, views_of(move, good) if self._in_values else ()),
                namespaces={} if number in self._durable else {number: records.namespace},
                nbytes=move.nbytes,
            )
        )

    def _committed(self, result: Committed) -> None:
        move = self._moves[result.work.job]
        if result.error is None:
            rows = result.work.additions.records
            good = move.statuses == lib.RDX_OK
            slots = np.ascontiguousarray(rows["slot"], np.int32)
            self._disk.books.recorded(move.transfer.group, slots, rows["id"], move.sums[good])
            self._durable |= set(result.work.namespaces)
        self._end_store(move, result.error)

    def _end_store(self, move: Move, error: TierError | None) -> None:
        good = move.statuses == lib.RDX_OK
        if error is not None:
            good[:] = False
            if not error.retryable:
                self._health.stop_accepting(str(error))
        elif not good.all():
            error = self._health.store_failed(move)
        stored = int(np.count_nonzero(good))
        self.counts.stored += stored
        self.counts.failed_stores += move.count - stored
        self._end(move, good, np.zeros(move.count, np.bool_), 0, error)

    # ------------------------------------------------------------------ load

    def _read(self, move: Move) -> bool:
        chosen = np.flatnonzero(move.statuses == lib.RDX_ECANCELED)
        if not len(chosen):
            self._end_load(move)
            return True
        if self._readers is None:
            return self._move_files(move, chosen, self._was_read)
        group = self._groups[move.transfer.group]
        planes, slots = move.planes, move.slots
        if move.upper.capability.address_mapped:
            planes = move.upper.planes(move.transfer.group)
            slots = np.ascontiguousarray(move.transfer.upper_slots, np.int32)
            move.release()
        ids = self._disk.books.record_ids(move.transfer.group, move.transfer.lower_slots)
        future = self._readers.submit(
            self._disk.index.copy_out,
            ids[chosen],
            move.sums[chosen],
            group.block_bytes // move.sums.shape[1],
            planes,
            slots[chosen],
        )
        self._reading.append((move, future))
        return True

    def _collect_reads(self) -> None:
        waiting = self._reading
        self._reading = []
        for move, future in waiting:
            if not future.done():
                self._reading.append((move, future))
                continue
            chosen = np.flatnonzero(move.statuses == lib.RDX_ECANCELED)
            try:
                move.statuses[chosen] = future.result()
            except (lmdb.Error, OSError) as error:
                _LOG.warning("tier %r: job %d: %s", self._name, move.transfer.job, error)
                move.statuses[chosen] = lib.RDX_EIO
            move.nbytes = int(np.count_nonzero(move.statuses == lib.RDX_OK)) * int(
                self._groups[move.transfer.group].block_bytes
            )
            self._after_read(move)

    def _was_read(self, move: Move, status: int, nbytes: int) -> None:
        settle_ops(move)
        move.nbytes = nbytes
        self._after_read(move)

    def _after_read(self, move: Move) -> None:
        good = np.flatnonzero(move.statuses == lib.RDX_OK)
        if move.rows is None or not len(good):
            self._end_load(move)
            return
        self._next(move, lambda again: self._copy(again, good, self._scattered))

    def _scattered(self, move: Move, status: int, nbytes: int) -> None:
        if status != lib.RDX_OK:
            move.statuses[move.statuses == lib.RDX_OK] = status
        self._end_load(move)

    def _end_load(self, move: Move) -> None:
        good = move.statuses == lib.RDX_OK
        corrupt = np.isin(move.statuses, (lib.RDX_ECORRUPT, lib.RDX_ESHORT))
        corrupt |= self._health.refused_reads(move)
        loaded, wrong = int(np.count_nonzero(good)), int(np.count_nonzero(corrupt))
        self.counts.loaded += loaded
        self.counts.corrupt += wrong
        self.counts.failed_loads += move.count - loaded
        error: TierError | None = None
        if wrong:
            error = CorruptBlockError(self._name, f"{wrong} blocks are damaged or gone")
        elif loaded < move.count:
            status = int(move.statuses[~good][0])
            error = TierError(self._name, f"load: {status_text(status)}", retryable=True)
        self._end(move, good, corrupt, loaded, error)

    def _end(
        self,
        move: Move,
        good: npt.NDArray[np.bool_],
        corrupt: npt.NDArray[np.bool_],
        verified: int,
        error: TierError | None,
    ) -> None:
        move.release()
        del self._moves[move.transfer.job]
        done = TransferDone(move.transfer.job, good, corrupt, move.nbytes, verified, error)
        self._done.append(done)
