"""The remote tier: blocks in a distributed backend that other caches, on other machines, write to
and read from as well. Its slots are a directory of what this cache believes to lie there; existence
is a hint, a value that is gone or does not verify is a miss. The owner's thread never waits for the
network: threads of the tier do, every call has a deadline, and a backend that does not answer is
not asked until it does again. Keeps the tier side of I7, I8, I22 and I24.

    store   memory above --> staging, sealed --put--> backend       both batch by batch,
    load    memory above <-- staging, verified <--get-- backend     in threads
    seek    chained keys behind a local hit --exists--> which of them other caches have stored
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from radix.errors import TierError, TierUnavailableError, UnsupportedError
from radix.groups import Group
from radix.pool import SlotPool
from radix.tier import (
    Capability,
    Found,
    Records,
    Seek,
    Slots,
    Tier,
    TierMode,
    Transfer,
    View,
)
from tiers.pools import PooledTier, blocks_of_groups, checked_count
from tiers.remote_backend import Backend, BackendError
from tiers.remote_directory import put_epoch
from tiers.remote_ends import RemoteCounts
from tiers.remote_lanes import CLOSE_S
from tiers.remote_transfers import RemoteConfig, RemoteTransfers
from tiers.remote_url import backend_of
from tiers.remote_values import DIGESTS, epoch_name
from tiers.views import views_of

__all__ = ["Backend", "RemoteCounts", "RemoteTier", "backend_of", "begin_epoch"]

_SHARED = Capability(
    persistent=False,
    shared=True,
    layer_wise=False,
    address_mapped=False,
    shares_bytes=False,
    holds_bytes=True,
    finds=True,
)


def begin_epoch(url: str, prefix: str, timeout_s: float) -> None:
    """Nothing stored under a prefix until now is found again, by whoever looks. Connects and
    blocks, ``timeout_s`` a call. ``TierUnavailableError`` where it could not be written.
    """
    backend = backend_of(url)
    try:
        backend.open(timeout_s)
        put_epoch(backend, epoch_name(prefix), (), timeout_s)
    except BackendError as error:
        raise TierUnavailableError("remote", f"no new epoch: {error}") from error
    finally:
        backend.close()


def _check_seconds(what: str, times: dict[str, float], waits: dict[str, float]) -> None:
    """Times are above 0, waits may be 0."""
    for key, value in {**times, **waits}.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{what} {key} must be a number, not {type(value).__name__}")
        if not value > 0 and (key in times or value):
            least = "above 0" if key in times else "0 or more"
            raise ValueError(f"{what} {key} must be {least}, not {value}")


class RemoteTier(PooledTier):
    """Blocks in a distributed backend, below memory that has addresses.

    Beside the protocol: ``counts``, ``url``; ``seek``, ``found``, ``claim`` for what other caches
    stored (``radix.tier.Finder``). Groups are told apart by number, which namespaces name too.
    """

    def __init__(
        self,
        backend: Backend | str,
        *,
        blocks: int | Sequence[int],
        name: str = "remote",
        prefix: str = "radix",
        digest: str = "xxh3",
        deadline_s: float = 2.0,
        epoch_s: float = 1.0,
        failures: int = 2,
        retry_s: float = 0.25,
        threads: int = 2,
        staging_bytes: int = 8 << 20,
        queue_jobs: int = 256,
        open_s: float | None = None,
        close_s: float = CLOSE_S,
        own_epochs: bool = False,
        views: View | Sequence[View | None] | None = None,
    ) -> None:
        """Touches nothing yet; ``attach`` does.

        ``backend``: one, or its URL (``backend_of``). ``blocks``: that the directory can name, for
        each group; the backend's own room is its own affair. ``prefix``: of all names; caches share
        what has one. ``digest``: "xxh3", or "sha256" where those who share do not trust each other
        (with ``PrefixCache(keys="sha256")``). ``deadline_s``: of each call; after ``failures`` in a
        row that fail or are late it is asked no more, and pinged after ``retry_s``, then ever
        later. ``epoch_s``: how old the knowledge of another cache's reset may be when blocks are
        sought. ``threads``: that read, and as many that write, each with ``staging_bytes`` or a
        block's. ``queue_jobs``: of each kind that may wait. ``open_s``: how long ``attach`` waits
        for the backend (None: two calls; 0: not at all, and the tier is off until it answers),
        ``close_s``: how long ``close`` waits for calls that are out. ``own_epochs``: of a backend
        that keeps epochs in this process, so that a reset needs no answer of it. ``views``: the
        part of each block that it holds (a rank's shards). Raises ``ValueError``, ``TypeError``,
        ``ImportError``.
        """
        super().__init__(name, _SHARED)
        what = f"tier {name!r}:"
        blocks_of_groups(blocks, None, f"{what} blocks")
        if digest not in DIGESTS:
            raise ValueError(f"{what} digest is {digest!r}, expected one of {', '.join(DIGESTS)}")
        if not prefix or not prefix.isascii() or any(c in prefix for c in "{} \r\n"):
            raise ValueError(f"{what} prefix must be ASCII without blanks or braces: {prefix!r}")
        times = {"deadline_s": deadline_s, "retry_s": retry_s, "epoch_s": epoch_s}
        waits = {"open_s": 0 if open_s is None else open_s, "close_s": close_s}
        _check_seconds(what, times, waits)
        self._blocks = blocks if isinstance(blocks, int) else tuple(blocks)
        self._config = RemoteConfig(
            name=name,
            prefix=prefix,
            digest=digest,
            deadline_s=deadline_s,
            epoch_s=epoch_s,
            failures=checked_count(failures, f"{what} failures"),
            retry_s=retry_s,
            threads=checked_count(threads, f"{what} threads"),
            staging_bytes=checked_count(staging_bytes, f"{what} staging_bytes"),
            queue_jobs=checked_count(queue_jobs, f"{what} queue_jobs"),
            open_s=2 * deadline_s if open_s is None else open_s,
            close_s=close_s,
            own_epochs=own_epochs,
        )
        self._backend = backend_of(backend) if isinstance(backend, str) else backend
        self._asked_views = [views] if isinstance(views, View) else views
        self._pid = os.getpid()
        self._wanted = TierMode.ON
        self._counts = RemoteCounts()
        self._transfers: RemoteTransfers | None = None

    @property
    def url(self) -> str:
        """Where the backend is; without a password."""
        return self._backend.url

    @property
    def counts(self) -> RemoteCounts:
        """What happened since the tier was attached."""
        if self._transfers is not None:
            self._counts.outages = self._transfers.outages
        return self._counts

    # ------------------------------------------------------------------ open and close
    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Connects. A backend that does not answer is no error: the tier is off until it does.

        Raises: ``UnsupportedError`` for a tier above without addresses, and for a view of some of
        the layers; ``ValueError``. Cost: two round trips, ``open_s`` at most.
        """
        if upper is not None and not upper.capability.address_mapped:
            raise UnsupportedError(
                f"tier {self.name!r}: tier {upper.name!r} above it has no addresses: it stands "
                "below the host"
            )
        super().attach(groups, page_bytes, upper)
        self._transfers = RemoteTransfers(
            self._config,
            self._backend,
            self._groups,
            self._views,
            [pool.capacity for pool in self._pools],
            page_bytes,
            self._arrivals,
            self._counts,
        )
        self._heed()

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        counts = blocks_of_groups(self._blocks, len(groups), f"tier {self.name!r}: blocks")
        views = views_of(self._asked_views, groups, self.name)
        for group, view in zip(groups, views, strict=True):
            if view is not None and view.layers != (0, group.layout.layers):
                raise UnsupportedError(
                    f"tier {self.name!r} group {group.name!r}: a value holds all layers of a shard "
                    f"piece, not layers {view.layers}; put a host tier of whole blocks above it"
                )
        self._views = views
        return [SlotPool(count) for count in counts]

    def _parts(self) -> RemoteTransfers:
        self._open_or_raise()
        if self._transfers is None:
            raise TierError(self.name, "is not attached to a cache")
        return self._transfers

    def close(self) -> None:
        """Gives up what runs and ends the threads. Idempotent; in a forked child it only forgets.

        Cost: at most as long as calls that are out take, within ``close_s``; what is out then ends
        by itself, and closes the connection: ``join`` waits for that.
        """
        if self._closed:
            return
        super().close()
        if self._transfers is not None:
            self._transfers.close(mine=os.getpid() == self._pid)

    def join(self, timeout_s: float) -> bool:
        """Of a tier that was closed: whether its calls have come back, at the latest by then."""
        return self._transfers is None or self._transfers.join(timeout_s)

    @property
    def tried(self) -> bool:
        """Whether it is known by now if the backend answers. Cost: O(1)."""
        return self._transfers is not None and self._transfers.tried

    def _open_or_raise(self) -> None:
        if os.getpid() != self._pid:
            raise TierUnavailableError(
                self.name,
                f"was opened in process {self._pid} and cannot be used in its forked child "
                f"{os.getpid()}: make another there",
            )
        super()._open_or_raise()

    # ------------------------------------------------------------------ modes
    @property
    def mode(self) -> TierMode:
        """What was asked for; off while the backend does not answer. Cost: O(1)."""
        self._heed()
        return self._mode

    def set_mode(self, mode: TierMode) -> None:
        """Switches it; on takes effect once the backend answers."""
        super().set_mode(mode)
        self._wanted = mode
        self._heed()

    def _heed(self) -> None:
        dead = self._transfers is not None and not self._transfers.alive
        self._mode = TierMode.OFF if dead else self._wanted

    def renew(self) -> None:
        """Begins a new epoch for all who share the prefix: what was stored before is not found any
        more, by others once they seek and their knowledge is ``epoch_s`` old. Blocks, unless
        ``begin_epoch`` did before. ``TierUnavailableError`` where it cannot be written: nothing
        has changed.
        """
        self._open_or_raise()
        if self._transfers is not None:
            self._transfers.renew()

    def begin_epoch(self) -> None:
        """The part of ``renew`` that waits for the backend, in any thread: a new epoch stands there
        when it returns, and this tier goes by it from its next ``renew`` on, which does not block.
        ``TierUnavailableError`` where it cannot be written.
        """
        self._parts().begin_epoch()

    # ------------------------------------------------------------------ slots
    def free_blocks(self, group: int) -> int:
        """Names that ``reserve`` could give now, none unless the tier is on. Cost: O(1)."""
        self._heed()
        return super().free_blocks(group)

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing. Raises ``TierFullError``, ``TierUnavailableError``."""
        self._heed()
        return super().reserve(group, count)

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back. The values stay: others may use them, and the backend drops
        what it has no room for. Cost: the slots.
        """
        super().free(group, slots)
        self._parts().forget(group, np.asarray(slots))

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """``TierError``: values are never changed in place."""
        self._check_clone(group, sources, targets)
        raise TierError(self.name, "clones no blocks: it has no addresses")

    # ------------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts putting blocks. Cost here: the slots.

        Raises: ``TierFullError`` (retryable; nothing was started), ``TierUnavailableError`` unless
        the tier is on, ``ValueError`` for records that do not fit the blocks, ``UnsupportedError``
        for parts of values in a tier that holds a view.
        """
        self._heed()
        cut = self._accept(transfer, upper, storing=True)
        self._parts().store(transfer, upper, cut)
        self._running[transfer.job] = transfer

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts reading and verifying blocks. Cost here: the slots. Raises as ``store``.

        What is gone or does not verify comes back as corrupt, what the backend cannot give now as
        not good.
        """
        self._heed()
        cut = self._accept(transfer, upper, storing=False)
        try:
            self._parts().load(transfer, upper, cut)
        except BaseException:
            del self._loads[transfer.job]
            raise
        self._running[transfer.job] = transfer

    def cancel(self, job: int) -> None:
        """Ends a transfer as far as it has come; the acknowledgement is the next poll's."""
        self._parts().cancel(job)

    def _progress(self) -> None:
        if self._transfers is None:
            return
        for done in self._transfers.progress():
            del self._running[done.job]
            self._done.append(done)
        self._heed()

    def pending(self) -> int:
        """Transfers and questions whose answer was not taken. Cost: O(1)."""
        asked = 0 if self._transfers is None else self._transfers.questions.open
        return super().pending() + asked

    def _wait_step(self, timeout_s: float) -> None:
        self._parts().sleep(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Returns once ``poll`` or ``found`` has something to give, nothing runs, or the time is
        over.
        """
        self._open_or_raise()
        deadline = time.monotonic() + timeout_s
        self._progress()
        while self.pending() and not self._done and not self._parts().questions.answered:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._wait_step(left)
            self._progress()

    def flush(self) -> None:
        """Returns once every store that was started is there or has failed."""
        self._open_or_raise()
        while self._running:
            self._wait_step(1.0)
            self._progress()

    # ------------------------------------------------------------------ what others stored
    def seek(self, seek: Seek) -> None:
        """Asks the backend for blocks; the answer comes with ``found``. Cost here: O(1).

        Raises ``TierFullError`` (retryable), ``TierUnavailableError`` while the tier is off.
        """
        parts = self._parts()
        self._heed()
        if self._mode is TierMode.OFF:
            self._refuse("finds nothing")
        parts.questions.ask(seek)

    def found(self) -> list[Found]:
        """Answers since the last call, each once. Never blocks."""
        answers = self._parts().questions.found()
        self._counts.found += sum(int(np.count_nonzero(answer.there)) for answer in answers)
        return answers

    def lose(self, group: int, records: Records) -> None:
        """The values of blocks that turned out to be wrong go, as far as the backend answers; what
        it does not hear of now stays. Cost here: the records.
        """
        self._parts().lose(group, records)

    def claim(self, group: int, slots: Slots, records: Records) -> None:
        """Reserved slots stand for blocks that were found; they can be committed. Cost: them."""
        self._parts().enter(group, np.asarray(slots), records)
