"""Purging a service that runs: what is meant leaves every store that is open, and every directory
of a store that is not. Called by a thread of its own; the loop is asked for a piece at a time, so
that nobody waits long.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from radix.errors import StaleError, TierUnavailableError
from radix.service.choosing import Chosen
from radix.service.hosting import Hosted, digest_of
from radix.service.remote import prefix_of
from radix.service.server import Server
from tiers.inspection import directories_in
from tiers.purging import purge_disk
from tiers.remote import begin_epoch

_PIECE = 1024
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ServicePurged:
    """What went: ``keys`` of open stores in ``namespaces``, ``entries`` of ``directories`` of
    stores that nobody has open; stores of which nothing is found in the remote tier any more.
    """

    namespaces: int
    keys: int
    directories: int
    entries: int
    remotes: int


def purge_service(server: Server, chosen: Chosen) -> ServicePurged:
    """Durable when it returns: not even kill -9 brings anything back. What is stored under these
    names after it began may stay. Names in a remote tier tell nobody what they are of: of a store
    that may have some of it there, nothing is found again.

    Raises what ``Server.ask`` raises, ``TierError`` of a disk that cannot make it durable, or of a
    remote tier that does not answer, after all else has gone. Cost: in the loop the keys that go, a
    piece at a time; here the indexes of directories, and a call to the backend for each store.
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
    remotes = _purge_remotes(server, chosen)
    return ServicePurged(namespaces, keys, directories, entries, remotes)


def _purge_remotes(server: Server, chosen: Chosen) -> int:
    """A new epoch in the backend for each store that is meant, open or known from its directory."""
    config, meant = server.config, set(server.context.domains)
    if config.remote is None:
        return 0
    if chosen.tenant is not None:
        named = {t.domain for t in config.tenants if chosen.tenant in (t.name, t.domain)}
        meant &= {chosen.tenant, *named}
    hosted: list[Hosted] = server.ask(server.context.stores, _TIMEOUT_S)
    mine = [store for store in hosted if store.domain in meant and store.remote is not None]
    known = {(store.domain, digest_of(store.signature)) for store in mine}
    for store in mine:
        _reset_remote(server, store)
    data = config.data
    for directory in directories_in(data) if data is not None and data.is_dir() else ():
        domain, digest = directory.parts[-3:-1]
        if domain in meant and (domain, digest) not in known:
            begin_epoch(config.remote, prefix_of(domain, digest), config.limits.remote_s)
            known.add((domain, digest))
    return len(known)


def _reset_remote(server: Server, store: Hosted) -> None:
    """A new epoch of its remote tier, begun where a RESET begins one, and with it if one is under
    way: of a store no two threads do so at once.
    """
    ended: Future[None] = Future()

    def tell(failure: Exception | None) -> None:
        if failure is None:
            ended.set_result(None)
        else:
            ended.set_exception(failure)

    def begin() -> None:
        store.reset(tell, whole=False)
        if store.busy:
            server.context.active.add(store)

    server.ask(begin, _TIMEOUT_S)
    ended.result(_TIMEOUT_S + server.config.limits.remote_s)


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
