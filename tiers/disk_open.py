"""Opening the disk tier: takes the directories, reads the index once, decides what of it still
holds, and brings the bytes on the disk below the limit before the first block is stored. What it
cannot use is dropped durably first, so that no slot is written while a record names it. Keeps I25
at every reopening, and leaves nothing behind where it fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt

from radix.errors import TierUnavailableError
from radix.groups import Group
from radix.tier import Records, Restored
from tiers.description import write_description
from tiers.disk_books import DiskBooks, headroom_blocks
from tiers.disk_directories import take_directories, write_formats
from tiers.disk_survivors import columns_of, newest_alone, sound, within_limit
from tiers.format import (
    HAS_PAGES,
    LEAST_MAP_BYTES,
    DirectoryLock,
    Geometry,
    SpacePlan,
    fingerprint,
    plan_space,
    read_format,
    record_dtype,
    stored_bytes,
    sync_directory,
    sync_file,
    write_format,
)
from tiers.index_pages import damage_of
from tiers.lmdb_index import DAMAGED, UNREADABLE, LmdbIndex
from tiers.lmdb_index import Records as Rows
from tiers.slab import ALIGNMENT_BYTES, SEGMENT_BYTES, SlabAllocator, stride_bytes
from tiers.slab_files import SlabFiles, has_direct_io
from tiers.views import runs_of

_LOG = logging.getLogger("tiers.disk")
REMOVE_CHUNK = 4096
MOST_PIECES = 32  # bits of ``present`` in a record


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """What the caller asked for."""

    name: str
    paths: tuple[Path, ...]
    limit_bytes: int
    payload: str
    segment_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class OpenDisk:
    """A disk tier that is open. ``dropped``: entries found that could not be kept."""

    dtype: np.dtype[np.void]
    geometry: Geometry
    plan: SpacePlan
    locks: tuple[DirectoryLock, ...]
    index: LmdbIndex
    files: SlabFiles
    books: DiskBooks
    namespaces: dict[int, bytes]
    restored: tuple[Restored, ...]
    next_id: int
    dropped: int

    def say_epoch(self, config: DiskConfig) -> None:
        """Says in each path which epoch is in force; one that does not take it is passed over."""
        for number, directory in enumerate(config.paths):
            if number not in self.files.failed:
                try:
                    write_format(directory, self.geometry, number, self.index.epoch)
                except OSError as error:
                    _LOG.warning("tier %r: path %s: %s", config.name, directory, error)

    def close(self) -> None:
        """Closes files and index, then gives the directories back. Nothing may run."""
        self.index.close()
        self.files.close()
        for lock in self.locks:
            lock.release()


def most_runs(groups: Sequence[Group]) -> int:
    """Checksums a record must hold. ``ValueError`` where a block has more pieces than a record has
    bits for.
    """
    for group in groups:
        if group.layout.pieces > MOST_PIECES:
            raise ValueError(
                f"group {group.name!r}: a block in {group.layout.pieces} shard pieces, a disk tier "
                f"takes at most {MOST_PIECES}"
            )
    return max(runs_of(group.layout) for group in groups)


def _takes_whole_pages(group: Group) -> bool:
    """Whether its runs can be moved by O_DIRECT: one alone, or each of whole 4 KiB."""
    runs = group.layout.runs[group.layout.runs[:, :, 1] > 0]
    return len(runs) == 1 or not (runs % ALIGNMENT_BYTES).any()


def limit_for(
    groups: Sequence[Group],
    blocks: int,
    page_bytes: int,
    *,
    payload: str = "slab",
    segment_bytes: int = SEGMENT_BYTES,
) -> int:
    """A ``limit_bytes`` under which a disk tier holds at least ``blocks`` blocks of every group at
    once, and few more. Raises ``ValueError`` for blocks below 1.
    """
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, not {blocks}")
    dtype = record_dtype(page_bytes, most_runs(groups))
    sizes = [group.block_bytes for group in groups]
    kept = [stored_bytes(size, payload) for size in sizes]
    limit = LEAST_MAP_BYTES + blocks * sum(stride_bytes(size) for size in kept)
    while True:
        with contextlib.suppress(ValueError):
            plan = plan_space(
                limit, sizes, dtype.itemsize, payload, segment_bytes, fixed_segment=False
            )
            slab = SlabAllocator(
                kept,
                limit_bytes=plan.segments * plan.segment_bytes,
                segment_bytes=plan.segment_bytes,
            )
            # What every class can have together with all the others, not what one could alone.
            share = plan.segments // len(groups)
            held = [share * kind.per_segment for kind in slab.classes]
            if all(
                count - headroom_blocks(slab.capacity(cls)) >= blocks
                for cls, count in enumerate(held)
            ):
                return limit
        limit += max(ALIGNMENT_BYTES, limit // 64) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def open_disk(config: DiskConfig, groups: tuple[Group, ...], page_bytes: int) -> OpenDisk:
    """Opens or creates the tier.

    Raises: ``TierUnavailableError`` (held, of a newer format, cannot be written), ``ValueError``
    for a limit too small. Cost: one scan of the index.
    """
    dtype = record_dtype(page_bytes, most_runs(groups))
    geometry, plan, fresh = _plan(config, groups, dtype)
    with contextlib.ExitStack() as undo:
        try:
            locks, failed = take_directories(config.name, config.paths, geometry, undo, fresh)
            # Between the first look and the lock another owner may have written it.
            geometry, plan, fresh = _plan(config, groups, dtype)
            epoch = write_formats(config.paths, geometry, failed)
            aligned = all(_takes_whole_pages(group) for group in groups)
            used = [path for number, path in enumerate(config.paths) if number not in failed]
            direct = config.payload == "slab" and aligned and all(map(has_direct_io, used))
            files = SlabFiles(config.paths, plan.segment_bytes, direct=direct)
            files.failed |= failed
            undo.callback(files.close)
            mark = fingerprint(groups, page_bytes, geometry)
            opening = _Opening(
                config, groups, page_bytes, dtype, geometry, plan, mark, files, locks, epoch
            )
            opened = _read_or_start_cold(opening)
            undo.callback(opened.index.close)
            opened.say_epoch(config)
            # Syncing a file does not make its name durable; these may be of a process that died.
            for directory in used:
                sync_directory(directory)
        except (lmdb.Error, OSError) as error:
            raise TierUnavailableError(config.name, f"{config.paths[0]}: {error}") from error
        undo.pop_all()
        return opened


# ---------------------------------------------------------------------- directories


def _plan(
    config: DiskConfig, groups: tuple[Group, ...], dtype: np.dtype[np.void]
) -> tuple[Geometry, SpacePlan, bool]:
    """The geometry to use: what stands there if blocks can stay in it, else a new one."""
    sizes = [group.block_bytes for group in groups]
    found = read_format(config.paths[0], config.name)
    arguments = (config.limit_bytes, sizes, dtype.itemsize, config.payload)
    if found and (found.payload, found.paths) == (config.payload, len(config.paths)):
        with contextlib.suppress(ValueError):
            plan = plan_space(*arguments, found.segment_bytes, fixed_segment=True)
            return found, plan, False
    plan = plan_space(*arguments, config.segment_bytes, fixed_segment=False)
    tier_id = found.tier_id if found else os.urandom(8).hex()
    geometry = Geometry(tier_id, config.payload, len(config.paths), plan.segment_bytes)
    return geometry, plan, found is None


# ---------------------------------------------------------------------- index


@dataclass(frozen=True, slots=True)
class _Opening:
    """What is settled before the index is read. ``epoch``: the newest that any path says."""

    config: DiskConfig
    groups: tuple[Group, ...]
    page_bytes: int
    dtype: np.dtype[np.void]
    geometry: Geometry
    plan: SpacePlan
    mark: bytes
    files: SlabFiles
    locks: tuple[DirectoryLock, ...]
    epoch: int


def _read_or_start_cold(opening: _Opening) -> OpenDisk:
    """What the index holds; one whose pages do not hold together, or that LMDB itself cannot read,
    is removed: this is a cache.
    """
    home = opening.config.paths[0]
    why: object = damage_of(home / "data.mdb")
    if (home / DAMAGED).exists():
        why = why or "LMDB found it damaged when it wrote to it"
    if not why:
        try:
            return _read_index(opening)
        except UNREADABLE as error:
            why = error
    _LOG.warning(
        "tier %r: the index in %s cannot be read and starts cold: %s",
        opening.config.name,
        home,
        why,
    )
    for name in ("data.mdb", "lock.mdb", DAMAGED):
        (home / name).unlink(missing_ok=True)
    return _read_index(opening)


def _read_index(opening: _Opening) -> OpenDisk:
    index = _open_index(opening)
    try:
        if index.epoch < opening.epoch:  # it is of before a reset that other paths have heard of
            index.renew(opening.epoch)
        opened = _fill(opening, index)
        if index.file_bytes() > opening.plan.map_bytes:
            index.close()
            _compact(opening)
            index = _open_index(opening)
            opened = replace(opened, index=index)
        with contextlib.suppress(lmdb.Error):  # the blocks matter more
            index.describe(
                write_description(
                    opening.mark, opening.groups, opening.page_bytes, opening.config.limit_bytes
                )
            )
    except BaseException:
        index.close()
        raise
    return opened


def _open_index(opening: _Opening) -> LmdbIndex:
    config, plan = opening.config, opening.plan
    try:
        have = (config.paths[0] / "data.mdb").stat().st_size
    except FileNotFoundError:
        have = 0
    # An index that an earlier limit let grow needs room to shrink in.
    map_bytes = plan.map_bytes if have <= plan.map_bytes else 2 * have + (1 << 20)
    return LmdbIndex(
        config.paths[0],
        map_bytes=map_bytes,
        fingerprint=opening.mark,
        dtype=opening.dtype,
        keeps_blocks=config.payload == "lmdb",
        readers=max(16, 2 * config.threads + 8),
    )


def _compact(opening: _Opening) -> None:
    """Rewrites the index without its free pages: LMDB never gives space back by itself."""
    home = opening.config.paths[0]
    fresh = home / "compact.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        index = _open_index(opening)
        try:
            index.compact_into(fresh)
        finally:
            index.close()
        sync_file(fresh / "data.mdb")  # LMDB leaves a copy to the file system
        os.replace(fresh / "data.mdb", home / "data.mdb")
        sync_directory(home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _fill(opening: _Opening, index: LmdbIndex) -> OpenDisk:
    """Reads the index, drops durably what does not hold, and frees its bytes."""
    config, groups = opening.config, opening.groups
    plan, files = opening.plan, opening.files
    sizes = [stored_bytes(group.block_bytes, config.payload) for group in groups]
    slab = SlabAllocator(
        sizes,
        limit_bytes=plan.segments * plan.segment_bytes,
        segment_bytes=plan.segment_bytes,
        stripe=len(config.paths),
    )
    books = DiskBooks(slab, [group.layout for group in groups])
    found = index.scan()
    index.drop_unsound()
    names = index.namespaces()
    columns = columns_of(found, slab)
    keep = sound(found, groups, index.epoch, names)
    if files.failed:
        keep &= ~np.isin(columns.segments % len(config.paths), list(files.failed))
    keep = newest_alone(found, keep, columns)
    keep = within_limit(keep, columns, slab)
    ids, rows = columns.ids[~keep], found
    if len(ids):
        rows, columns = found[keep], columns_of(found[keep], slab)
    live = np.flatnonzero(np.bincount(columns.segments))
    owners = np.zeros(int(live.max(initial=-1)) + 1, np.int64)
    owners[columns.segments] = columns.groups
    stay = live.tolist() if config.payload == "slab" else ()
    try:
        _drop(index, ids, everything=not len(rows))
    except lmdb.DiskError:  # removing takes space, too: first the bytes go, which nobody reads
        files.keep_only(stay)
        _drop(index, ids, everything=not len(rows))
    files.keep_only(stay)
    shutil.rmtree(config.paths[0] / "compact.new", ignore_errors=True)
    for segment in range(max(plan.segments, int(live.max(initial=-1)) + 1)):
        if files.path_of(segment) in files.failed:
            slab.ban(segment)
    for group in range(len(groups)):
        slab.adopt(group, *live[owners[live] == group].tolist())
        mine = columns.groups == group
        slots = columns.slots[mine].astype(np.int32)
        slab.claim(group, slots)
        books.recorded(group, slots, columns.ids[mine], rows["checksums"][mine])
    slab.changes()
    used = {int(number) for number in np.unique(rows["namespace"])}
    if used != set(names):
        index.forget_namespaces(used)
    return OpenDisk(
        dtype=opening.dtype,
        geometry=opening.geometry,
        plan=plan,
        locks=opening.locks,
        index=index,
        files=files,
        books=books,
        namespaces={number: names[number] for number in used},
        restored=tuple(_restored(rows, names)),
        next_id=max(int(found["id"].max(initial=0)), index.last_id()) + 1,
        dropped=index.reclaimed + index.unsound + len(found) - len(rows),
    )


def _drop(index: LmdbIndex, ids: npt.NDArray[np.uint64], *, everything: bool) -> None:
    """Removes records durably, in steps that a nearly full map has room for; ``everything``: they
    are all that there are.
    """
    if len(ids) and everything:
        index.clear()
        return
    step = REMOVE_CHUNK
    while len(ids):
        try:
            index.commit([], ids[:step], {})
        except lmdb.MapFullError:
            if step == 1:
                raise
            step = max(1, step // 8)
            continue
        ids = ids[step:]


def _restored(rows: Rows, names: dict[int, bytes]) -> Iterator[Restored]:
    """Rows by namespace, group and shape of key, oldest first within each."""
    if not len(rows):
        return
    code = rows["namespace"].astype(np.int64) << 32 | rows["group"].astype(np.int64) << 16
    code |= rows["key_bytes"].astype(np.int64) << 8 | rows["flags"]
    kinds = np.unique(code) if code.min() != code.max() else code[:1]
    for kind in kinds:
        part = rows if len(kinds) == 1 else rows[code == kind]
        width = int(part["key_bytes"][0])
        has_pages = bool(part["flags"][0] & HAS_PAGES)
        yield Restored(
            group=int(part["group"][0]),
            records=Records(
                namespace=names[int(part["namespace"][0])],
                keys=np.ascontiguousarray(part["key"][:, :width]),
                parents=np.ascontiguousarray(part["parent"]),
                pages=np.ascontiguousarray(part["page"]) if has_pages else None,
                positions=np.ascontiguousarray(part["position"]),
            ),
            slots=np.ascontiguousarray(part["slot"], np.int32),
        )
