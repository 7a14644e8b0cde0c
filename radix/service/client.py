"""Client: a service's store as if it were in this process. The calls are those of the blocking
store and of prompts; bytes pass through memory that both sides map, or over TCP. A service that is
gone is a miss, in a microsecond, until it is back; nothing that a lease of before named is used
again.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import HASHED_BYTES, Mask
from radix.service.calls import Asking, Blocks, Explained, Hit, Told, usage_in
from radix.service.connected import Connected
from radix.service.held import Room, ServiceLease
from radix.service.link import Credentials
from radix.service.operations import WRITE_TIMEOUT_S, Terms
from radix.service.protocol import Op
from radix.tier import Slots, TierUsage


class Client(Connected):
    """A store of a service, for one set of groups. Thread-safe: one question at a time is asked.

    Ask: ``has``, ``valid_lengths``, ``lookup``, ``touch``. Read: ``lease``, ``release``, ``read``;
    ``load`` into rows of the engine's memory. Write: ``reserve`` with ``commit`` or ``abort``,
    ``write``; ``store`` from rows. Stay: ``keep``, ``unkeep``. Lose: ``forget``, ``reset``. Run:
    ``flush``, ``stat``, ``counters``, ``usage``, ``events``, ``close``. While the service is gone,
    what can miss does; the others raise ``ServiceGoneError``.
    """

    def __init__(
        self,
        address: str,
        groups: Sequence[Group],
        *,
        key_bytes: int = HASHED_BYTES,
        page_tokens: int = 0,
        memory: Sequence[Sequence[npt.NDArray[Any]]] | None = None,
        tenant: str = "",
        secret: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 5.0,
        pool_bytes: int = 0,
    ) -> None:
        """Connects at the first call.

        ``address``: the path of a UNIX socket, with a '/', or host:port. ``page_tokens``: for
        prompts; keys are those of its pages then, 16 bytes. ``memory``: arrays by group, dimension
        0 the row, which ``store`` and ``load`` name. ``tenant``, ``secret``, ``tls``: who this is.
        ``timeout_s``: for any answer; writes get 90 s. ``pool_bytes``: of a store that is new, 0
        for ``store_share`` of what its domain has left. Raises ``ValueError``, ``TypeError``.
        """
        super().__init__(
            *(address, groups, key_bytes, page_tokens, memory),
            who=Credentials(tenant, secret, tls),
            timeout_s=timeout_s,
            pool_bytes=pool_bytes,
        )

    def _asking(self, keys: object, tokens: object) -> Asking:
        return Asking.of(keys, tokens, self.does.key_bytes)[0]

    def has(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        seek: bool = False,
    ) -> Slots:
        """The first tier of the service that has each key, 0 its pool, -1 none. Counts as use.
        ``seek``: what services on other machines stored in a remote tier is asked for first.
        """
        return self._run(self.does.has(keys, group, namespace, positions, seek))

    def valid_lengths(
        self, runs: Sequence[object], group: int = 0, *, namespace: Namespace | None = None
    ) -> npt.NDArray[np.int64]:
        """How many keys of each run, from its start without a gap, some tier has."""
        return self._run(self.does.valid_lengths(runs, group, namespace))

    def lookup(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        namespace: Namespace | None = None,
        leave: int = 1,
        seek: bool = False,
    ) -> Hit:
        """How far a prompt is there; changes nothing. ``leave``: tokens (keys) at its end that
        never count. ``seek``: as of ``has``.
        """
        return self._run(self.does.lookup(tokens, keys, namespace, leave, seek))

    def explain(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        namespace: Namespace | None = None,
        leave: int = 1,
    ) -> Explained:
        """Why a prompt is there as far as ``lookup`` says, and no further; changes nothing."""
        return self._run(self.does.explain(tokens, keys, namespace, leave))

    def touch(
        self, keys: object, *, namespace: Namespace | None = None, positions: object = None
    ) -> None:
        """The keys count as used. Nothing while the service is gone."""
        self._run(self.does.touch(keys, namespace, positions))

    def lease(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        groups: Sequence[int] | None = None,
        namespace: Namespace | None = None,
        leave: int = 1,
        load: bool = True,
        timeout_s: float | None = None,
    ) -> ServiceLease:
        """Pins the pages of a prompt that are a hit, or the keys that are there, in the pool, where
        they can be read without a copy. ``load``: brings what lies below first, what services on
        other machines stored included. Over nothing while the service is gone. ``RequestError``
        over TCP: ``read`` carries bytes.
        """
        asked = self._asking(keys, tokens)
        left = leave if keys is None else 0
        steps = self.does.lease(asked, groups, namespace, left, load, timeout_s, self._let_go)
        return self._run(steps)

    def release(self, lease: ServiceLease) -> None:
        """Gives a lease back, as its own ``release`` does. Idempotent."""
        lease.release()

    def read(
        self,
        keys: object = None,
        group: int = 0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Mask, Blocks]:
        """Which blocks of a group are there, and the bytes of those that are, (n, block_bytes)
        uint8, the caller's; verified. Of tokens: all their full pages. Nothing is there while the
        service is gone. Cost: the bytes.
        """
        return self._run(self.does.read(self._asking(keys, tokens), group, namespace, timeout_s))

    def load(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        timeout_s: float | None = None,
    ) -> Mask:
        """Copies keys into rows of the engine's memory; which of them arrived. Rows of those that
        did not may hold anything. Cost: the bytes.
        """
        return self._run(self.does.load(keys, rows, group, namespace, timeout_s, self._let_go))

    def reserve(
        self,
        keys: object = None,
        group: int = 0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> Room:
        """Room for the keys, or the full pages of a prompt, that are neither there nor coming: all
        or none. Ends by ``commit`` or ``abort``, or with the connection.

        Raises ``CapacityError``, ``NeverFitsError``, ``ServiceGoneError``; ``RequestError`` over
        TCP.
        """
        return self._run(self.does.reserve(keys, tokens, group, namespace, positions))

    def commit(self, room: Room, good: object = None, *, durable: bool = True) -> Mask:
        """The room is written: which of all its keys are kept, those that were there or are coming
        among them. ``good``: which were written right; ``durable``: returns once they are on the
        service's disk, if it has one, and keys that are not and are not on their way there are not
        kept, whoever brings them. ``LeaseError`` if it ended before.
        """
        return self._run(self.does.commit(room, good, durable))

    def abort(self, room: Room) -> None:
        """The room will not be written. ``LeaseError`` if it ended before."""
        self._run(self.does.abort(room))

    def write(
        self,
        keys: object,
        blocks: npt.NDArray[Any],
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        durable: bool = True,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Mask:
        """Brings blocks, (n, block_bytes) uint8; which of the keys are kept, ``durable`` as of
        ``commit``. False for all that found no room, or while the service is gone or takes longer.
        Cost: the bytes.
        """
        return self._run(
            self.does.write(keys, blocks, group, Terms(namespace, positions, durable, timeout_s))
        )

    def store(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        durable: bool = True,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Mask:
        """Copies rows of the engine's memory down; which of the keys are kept: as ``write``."""
        return self._run(
            self.does.store(keys, rows, group, Terms(namespace, positions, durable, timeout_s))
        )

    def keep(
        self,
        keys: object = None,
        seconds: float = 60.0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
    ) -> tuple[int, int]:
        """Pins what is there of the keys for so long, also after this client has gone: the number
        to end it with, and how many keys. ``ServiceLimitError`` beyond half of the pool.
        """
        return self._run(self.does.keep(self._asking(keys, tokens), seconds, namespace))

    def unkeep(self, number: int, *, namespace: Namespace | None = None) -> None:
        """Ends a ``keep`` before its time. ``ProtocolError`` where there is none of this number."""
        self._run(self.does.unkeep(number, namespace))

    def forget(self, keys: object, group: int = 0, *, namespace: Namespace | None = None) -> None:
        """These blocks are wrong: no tier of the service has them from now on."""
        self._run(self.does.forget(keys, group, namespace))

    def reset(self, *, namespace: Namespace | None = None) -> None:
        """Nothing stored before, in any namespace of these groups, is found again."""
        self._run(self.does.plain(Op.RESET, namespace, WRITE_TIMEOUT_S))

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns once everything under way has ended and what was stored is durable."""
        self._run(self.does.plain(Op.FLUSH, None, timeout_s or WRITE_TIMEOUT_S))

    def stat(self, *, namespace: Namespace | None = None) -> Mapping[str, Any]:
        """What the service tells of this client's store: tiers, counters, leases, boot id."""
        return self._run(self.does.plain(Op.STAT, namespace, None))

    def counters(self) -> Mapping[str, int]:
        """Every counter of the store by its dotted name. Cost: a round trip."""
        counters: Mapping[str, int] = self.stat()["counters"]
        return counters

    def usage(self) -> dict[str, TierUsage]:
        """What each tier of the store takes, by its name. Cost: a round trip."""
        return usage_in(self.stat())

    def events(self, since: int, most: int = 0, *, namespace: Namespace | None = None) -> Told:
        """Blocks stored and removed from event ``since`` on, ``most`` at most (0: what fits)."""
        return self._run(self.does.events(since, most, namespace))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
