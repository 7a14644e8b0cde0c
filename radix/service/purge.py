"""Purging a service that runs: what is meant leaves every store that is open, and every directory
of a store that is not. Called by a thread of its own; the loop is asked for a piece at a time, so
that nobody waits long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from radix.errors import StaleError, TierUnavailableError
from radix.service.choosing import Chosen
from radix.service.hosting import Hosted
from radix.service.server import Server
from tiers.inspection import directories_in
from tiers.purging import purge_disk

_PIECE = 1024
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ServicePurged:
    """What went: ``keys`` of open stores in ``namespaces``, ``entries`` of ``directories`` of
    stores that nobody has open.
    """

    namespaces: int
    keys: int
    directories: int
    entries: int


def purge_service(server: Server, chosen: Chosen) -> ServicePurged:
    """Durable when it returns: not even kill -9 brings anything back. What is stored under these
    names after it began may stay.

    Raises what ``Server.ask`` raises, ``TierError`` of a disk that cannot make it durable. Cost: in
    the loop the keys that go, a piece at a time; here the indexes of directories.
    """
    directories, entries = _closed(server.config.data, chosen)
    namespaces = keys = 0
    hosted: list[Hosted] = server.ask(server.context.stores, _TIMEOUT_S)
    for store in hosted:
        found: dict[int, bytes] = server.ask(store.flat.namespaces, _TIMEOUT_S)
        for root, canonical in found.items():
            if chosen.means(canonical):
                namespaces += 1
                keys += _purge_root(server, store, root)
        server.ask(partial(_flush, store), _TIMEOUT_S)
    return ServicePurged(namespaces, keys, directories, entries)


def _closed(data: Path | None, chosen: Chosen) -> tuple[int, int]:
    """Directories of stores that are not open, and entries that went from them."""
    directories = entries = 0
    for directory in directories_in(data) if data is not None and data.is_dir() else ():
        try:
            went = purge_disk([directory], chosen.means)
        except TierUnavailableError:  # it is open, or was opened just now: its store is asked
            continue
        directories += bool(went.namespaces)
        entries += went.entries
    return directories, entries


def _purge_root(server: Server, store: Hosted, root: int) -> int:
    keys, after = 0, 0
    while True:
        try:
            piece = partial(store.flat.purge, root, after, _PIECE)
            went, following = server.ask(piece, _TIMEOUT_S)
        except StaleError:  # where it was to go on has gone meanwhile
            after = 0
            continue
        keys += int(went)
        if following is None:
            return keys
        after = int(following)


def _flush(store: Hosted) -> None:
    store.make_durable()
