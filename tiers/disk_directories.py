"""The directories of a disk tier as its opening takes them: locked, each the path of this tier that
it is given as, durable with all folders above it; one that the medium refuses is left out. Leaves
nothing behind where it fails. Keeps the half of I24 that is about which directory is meant: blocks
of another tier, path or epoch are not found.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from radix.errors import TierUnavailableError
from tiers.format import (
    DirectoryLock,
    Geometry,
    epoch_said,
    path_number,
    read_format,
    sync_directory,
    write_format,
)
from tiers.slab_files import has_direct_io

_LOG = logging.getLogger("tiers.disk")


def take_directories(
    tier: str, paths: Sequence[Path], geometry: Geometry, undo: contextlib.ExitStack, fresh: bool
) -> tuple[tuple[DirectoryLock, ...], set[int]]:
    """Locks of all paths, and the numbers of paths that cannot be used. The first must be good.
    What is made is unmade by ``undo``; ``fresh``: the first path is no tier's yet.

    Raises ``TierUnavailableError``: held, of another tier, given as another path than it is.
    """
    locks: list[DirectoryLock] = []
    failed: set[int] = set()
    for number, directory in enumerate(paths):
        try:
            locks.append(_take_directory(tier, paths, number, geometry, undo, fresh))
        except (TierUnavailableError, OSError) as error:
            # A refusal is for the caller to see; a medium that fails costs only its blocks.
            if isinstance(error, TierUnavailableError) and not isinstance(error.__cause__, OSError):
                raise
            if number == 0:
                raise TierUnavailableError(tier, f"{directory}: {error}") from error
            _LOG.warning("tier %r: path %s is out: %s", tier, directory, error)
            failed.add(number)
    return tuple(locks), failed


def _take_directory(
    tier: str,
    paths: Sequence[Path],
    number: int,
    geometry: Geometry,
    undo: contextlib.ExitStack,
    fresh: bool,
) -> DirectoryLock:
    directory = paths[number]
    found = read_format(directory, tier)
    if number and found and (fresh or found.tier_id != geometry.tier_id):
        raise TierUnavailableError(tier, f"{directory} belongs to another tier than {paths[0]}")
    if found and found.paths == geometry.paths and path_number(directory) != number:
        raise TierUnavailableError(
            tier,
            f"{directory} is path {path_number(directory)} of its tier and is given as path "
            f"{number}: give the paths in the order in which they were given first",
        )
    made = not directory.exists()
    named_in = _folders_that_get_names(directory, is_new=found is None)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if made:
        undo.callback(_remove_quietly, directory, everything=True)
    for folder in named_in:
        sync_directory(folder)
    if found is None:
        _sync_folders_above(directory.parent)
    if number:
        has_direct_io(directory)  # an OSError here: nothing can be written
    had_lock = (directory / "lock").exists()
    lock = DirectoryLock(directory, tier)
    undo.callback(lock.release)
    if found is None and not made:
        undo.callback(_remove_quietly, directory, everything=False, keep_lock=had_lock)
    directory.chmod(0o700)
    return lock


def _folders_that_get_names(directory: Path, *, is_new: bool) -> list[Path]:
    """The folders, outermost first, that get a new name where ``directory`` is made; of a new tier
    in any case the one above.
    """
    above = itertools.takewhile(lambda folder: not folder.exists(), (directory, *directory.parents))
    return [folder.parent for folder in above][::-1] or [directory.parent] * is_new


def _sync_folders_above(directory: Path) -> None:
    """Makes the names of ``directory`` and of all folders above it durable, up to where the file
    system is mounted: who made them may have died before it synced them, or never meant to. One
    that may not be opened was not made by us.
    """
    below = directory.resolve()  # the folders that hold the names, whatever links lead there
    device = below.stat().st_dev
    for folder in below.parents:
        try:
            if folder.stat().st_dev != device:
                return
            sync_directory(folder)
        except OSError as error:
            _LOG.debug("the names in %s are as durable as they are: %s", folder, error)


def _remove_quietly(directory: Path, *, everything: bool, keep_lock: bool = False) -> None:
    """Undoes a creation that failed; the first error is the one to report, not this one's."""
    with contextlib.suppress(OSError):
        if everything:
            shutil.rmtree(directory)
            return
        for path in directory.iterdir():
            if path.name != "lost+found" and not (keep_lock and path.name == "lock"):
                path.unlink()


def write_formats(paths: Sequence[Path], geometry: Geometry, failed: set[int]) -> int:
    """Makes every path that is not ``failed`` say what it is; the newest epoch that any knows of.
    Raises ``OSError``.
    """
    epoch = 0
    for number, directory in enumerate(paths):
        if number not in failed:
            said = epoch_said(directory) if (directory / "format").exists() else 0
            write_format(directory, geometry, number, said)
            epoch = max(epoch, said)
    return epoch
