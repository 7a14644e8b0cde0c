"""Stores and loads of the disk tier, step by step. Each step runs in a native thread or in the
committer; the owner's thread only starts the next one. Keeps I22 (one acknowledgement a transfer, a
failed one leaves no visible entry) and the reading half of I24: a block is good only if the
checksum of each run that was asked for held.

    store   [gather] -> write, sync -> commit -> done          (payload="slab")
            [gather] -> commit -> done                         (payload="lmdb")
    part    [gather] -> write, sync -> done; with the last one of a block -> commit -> done
    load    read, verify -> [scatter] -> done
    layers  read, verify -> [scatter] of each layer by itself, begun in order -> done
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.errors import CorruptBlockError, TierError, TierFullError
from radix.groups import Group
from radix.tier import Tier, Transfer, TransferDone
from tiers.committer import Committed, Committer, RemovalWork, StoreWork
from tiers.copies import STEP_NUMBERS, Mover, mover_of
from tiers.disk_ahead import ZeroAhead
from tiers.disk_health import DiskHealth
from tiers.disk_moves import Layered, Move, file_ops, file_order, make_move, settle_ops
from tiers.disk_open import DiskConfig, OpenDisk
from tiers.disk_records import DiskCounts, check_records, rows_of, whole_blocks
from tiers.lmdb_index import Additions
from tiers.pools import LoadedLayers
from tiers.transfer import TransferEngine, status_text
from tiers.views import Cut, run_sums

_LOG = logging.getLogger("tiers.disk")
QUEUE_JOBS = 1024
Indices = npt.NDArray[np.int64]
Step = Callable[[Move], bool]
Then = Callable[[Move, int, int], None]  # with status and bytes


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
        self.engine = TransferEngine(config.threads * len(config.paths), QUEUE_JOBS)
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
        self._movers: list[Mover] = []
        self._layered: dict[int, Layered] = {}
        self._numbers = {canonical: number for number, canonical in disk.namespaces.items()}
        self._durable = set(disk.namespaces)
        self._done: list[TransferDone] = []

    # ------------------------------------------------------------------ from outside

    def store(self, transfer: Transfer, upper: Tier, cut: Cut) -> None:
        """Starts a store of the runs of ``cut``. Raises ``TierFullError`` (retryable),
        ``ValueError``.
        """
        check_records(transfer, self._page_bytes)
        move = self._new_move(transfer, upper, cut, storing=True)
        move.epoch = self._disk.index.epoch
        self._begin(move, self._write if move.rows is None else self._gather)
        self.committer.send()
        if not cut.whole:
            slots = np.asarray(transfer.lower_slots)
            self._disk.books.arrivals.expect(transfer.group, slots)

    def load(self, transfer: Transfer, upper: Tier, cut: Cut, seen: LoadedLayers) -> None:
        """Starts a load of the runs of ``cut``; ``seen`` is kept up to date where it goes by layer.
        Raises ``TierFullError`` (retryable).
        """
        cuts = cut.by_layer() if transfer.by_layer else [cut]
        if len(cuts) == 1:
            self._begin(self._new_load(transfer, upper, cut), self._read)
            return
        some = [each for each in cuts if len(each.sizes)]
        moves = [self._new_load(transfer, upper, each) for each in some]
        layered = Layered(
            seen=seen,
            view=cut.view,
            left=len(moves),
            ended=[not len(each.sizes) for each in cuts],
            statuses=np.zeros(len(transfer.lower_slots), np.int32),
        )
        self._layered[transfer.job] = layered
        started = False
        try:
            for move in moves:
                move.layered = layered
            started = self._read(moves[0])
        finally:
            if not started:
                del self._layered[transfer.job]
                for move in moves:
                    move.release()
        if not started:
            raise TierFullError(self._name, "the queue of transfers is full", retryable=True)
        for move in moves[1:]:
            self._next(move, self._read)

    def _new_load(self, transfer: Transfer, upper: Tier, cut: Cut) -> Move:
        move = self._new_move(transfer, upper, cut, storing=False)
        slots = np.ascontiguousarray(transfer.lower_slots, np.int32)
        known = self._disk.books.has_record(transfer.group, slots)
        move.statuses[~known] = lib.RDX_ESHORT  # no record, no block
        kept = self._disk.books.sums(transfer.group, slots[known])
        move.sums[known] = kept[:, cut.chosen]
        return move

    def remove(self, work: RemovalWork) -> None:
        """Removes records with the next transaction that there is a reason for."""
        self.committer.remove(work)

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a transfer; it is acknowledged all the same."""
        if job in self._layered:
            self._layered[job].is_cancelled = True
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
        for mover in self._movers if self._mover_jobs else ():
            for moved in mover.moved():
                move, then = self._mover_jobs.pop(moved.job)
                then(move, moved.status, moved.nbytes)
        self._collect_reads()
        self.committer.send()
        self.collect()
        if not (self._moves or self._layered or self._in_values):
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
        told = select.poll()  # not select: a server's process has more files open than that takes
        told.register(self._event_fd, select.POLLIN)
        while self.committer.removing():
            if told.poll(1000):
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

    def _new_move(self, transfer: Transfer, upper: Tier, cut: Cut, *, storing: bool) -> Move:
        if not upper.capability.address_mapped:
            mover = mover_of(upper, self._name)
            if mover not in self._movers:
                self._movers.append(mover)
        direct = self._disk.files.direct
        return make_move(transfer, upper, cut, storing=storing, aligned=direct)

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
        if move.layered is not None and move.layered.is_cancelled:
            move.statuses[move.statuses == lib.RDX_OK] = lib.RDX_ECANCELED
            self._end_load(move)
        elif not step(move):
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
            number = transfer.job if move.layered is None else STEP_NUMBERS + self.engine.new_job()
            ends = (theirs, move.planes, ours)
            call(number, transfer.group, *ends, transfer.urgency, move.cut.ranges_above())
            self._mover_jobs[number] = (move, then)
            return True
        planes = move.cut.planes_above(upper.planes(transfer.group))
        mine, above = (move.planes, ours), (planes, theirs)
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
        order = file_order(fds, places, move.cut.nbytes)
        move.ops = file_ops(
            move, chosen[order], fds[order], places[order], aligned=self._disk.files.direct
        )
        return self._run(
            move,
            lambda job: self.engine.submit_ops(job, transfer.urgency, move.ops, sync=move.storing),
            then,
        )

    # ------------------------------------------------------------------ store

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
        move.sums[:] = run_sums(move.planes[0], move.places, move.cut.sizes, move.slots)
        move.statuses[:] = lib.RDX_OK
        move.nbytes = move.count * move.cut.nbytes
        self._publish(move)
        return True

    def _written(self, move: Move, status: int, nbytes: int) -> None:
        self.counts.written_bytes += settle_ops(move)
        self._publish(move)

    def _publish(self, move: Move) -> None:
        """The bytes are safe: the records of blocks that are whole go to the next transaction. What
        is not what the tier above committed rotted there, and gets no record.
        """
        transfer, cut = move.transfer, move.cut
        kept = move.upper.sums(transfer.group, transfer.upper_slots)
        if kept is not None:
            kept = kept.reshape(move.count, -1)[:, cut.chosen]
            rotten = (move.statuses == lib.RDX_OK) & (move.sums != kept).any(axis=1)
            move.statuses[rotten] = lib.RDX_ECORRUPT
        group = self._groups[transfer.group]
        good, sums, blocks = whole_blocks(
            move, self._disk.books.arrivals, group.layout, in_values=self._in_values
        )
        records = transfer.records
        if not len(good) or records is None:
            self._end_store(move, None)
            return
        number = self._disk.index.number_for(records.namespace, self._numbers)
        rows = rows_of(
            self._disk.dtype,
            transfer,
            records,
            good,
            sums,
            group,
            epoch=move.epoch,
            namespace=number,
        )
        self.committer.offer(
            StoreWork(
                job=transfer.job,
                additions=Additions(rows, blocks),
                namespaces={} if number in self._durable else {number: records.namespace},
                nbytes=move.nbytes,
            )
        )

    def _committed(self, result: Committed) -> None:
        move = self._moves[result.work.job]
        if result.error is None:
            rows = result.work.additions.records
            group, slots = move.transfer.group, np.ascontiguousarray(rows["slot"], np.int32)
            self._disk.books.recorded(group, slots, rows["id"], rows["checksums"])
            self._disk.books.arrivals.forget(group, slots)
            self._durable |= set(result.work.namespaces)
            move.recorded = len(rows)
        self._end_store(move, result.error)

    def _end_store(self, move: Move, error: TierError | None) -> None:
        good = move.statuses == lib.RDX_OK
        if error is not None:
            good[:] = False
            lost = np.asarray(move.transfer.lower_slots)
            self._disk.books.arrivals.take_back(move.transfer.group, lost, move.cut.chosen)
            if not error.retryable:
                self._health.stop_accepting(str(error))
        elif not good.all():
            error = self._health.store_failed(move)
        self.counts.stored += move.recorded
        self.counts.failed_stores += move.count - int(np.count_nonzero(good))
        self._end(move, good, np.zeros(move.count, np.bool_), 0, error)

    # ------------------------------------------------------------------ load

    def _read(self, move: Move) -> bool:
        chosen = np.flatnonzero(move.statuses == lib.RDX_ECANCELED)
        if not len(chosen):
            self._end_load(move)
            return True
        if self._readers is None:
            return self._move_files(move, chosen, self._was_read)
        planes, slots = move.planes, move.slots
        if move.upper.capability.address_mapped:
            planes = move.cut.planes_above(move.upper.planes(move.transfer.group))
            slots = np.ascontiguousarray(move.transfer.upper_slots, np.int32)
            move.release()
        ids = self._disk.books.record_ids(move.transfer.group, move.transfer.lower_slots)
        future = self._readers.submit(
            self._disk.index.copy_out,
            ids[chosen],
            move.sums[chosen],
            move.cut,
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
            if (error := future.exception()) is None:
                move.statuses[chosen] = future.result()
            else:  # whatever it was: the block is not there, and the owner goes on
                _LOG.warning("tier %r: job %d: %r", self._name, move.transfer.job, error)
                move.statuses[chosen] = lib.RDX_EIO
            move.nbytes = int(np.count_nonzero(move.statuses == lib.RDX_OK)) * move.cut.nbytes
            self._after_read(move)

    def _was_read(self, move: Move, status: int, nbytes: int) -> None:
        settle_ops(move)
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
        layered = move.layered
        if layered is not None:
            move.release()
            if not layered.take(move):
                return
            # The last layer to end stands for all of them.
            del self._layered[move.transfer.job]
            move.statuses, move.nbytes = layered.statuses, layered.nbytes
        good = move.statuses == lib.RDX_OK
        move.upper.arrived(
            move.transfer.group,
            np.asarray(move.transfer.upper_slots)[good],
            move.cut.view if layered is None else layered.view,
        )
        corrupt = (move.statuses == lib.RDX_ECORRUPT) | (move.statuses == lib.RDX_ESHORT)
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
        self._moves.pop(move.transfer.job, None)
        done = TransferDone(move.transfer.job, good, corrupt, move.nbytes, verified, error)
        self._done.append(done)
