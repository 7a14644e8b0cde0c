"""What a service holds, republished as KV events: the events of every store of a domain are read
over one authenticated connection, and told on as one numbered stream. Keeps of I32 that nothing is
told as stored or removed twice, and that whoever replays the stream has what the service holds.

    service <-- WATCH, RESIDENT, EVENTS -- Bridge: an account of each store --> Stream: PUB, replay

An event that was missed, or another life of the service: all cleared, and then all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from radix.errors import ClosedError
from radix.service.calls import ServiceGoneError, StoredOrRemoved
from radix.service.kv_stream import Stream
from radix.service.kv_wire import (
    KINDS,
    MEDIA,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireEvent,
)
from radix.service.watching import Watch, WatchedGroup, WatchedStore

_MOST_BLOCKS = 1024  # of one event
_MOST_ROUNDS = 64  # of EVENTS in a step: the others are heard in the next


class Account:
    """What is said to lie in one store. ``apply`` takes its events and gives what changed by them
    as messages.
    """

    def __init__(self, store: WatchedStore, media: Mapping[str, tuple[str, str]]) -> None:
        """``ValueError`` for a tier that ``media`` does not have."""
        for tier in store.tiers:
            if tier not in media:
                raise ValueError(f"media has no tier {tier!r}, only {sorted(media)}")
        self.store = store
        self.following = store.following
        self._places = [media[tier] for tier in store.tiers]
        # By tier and group: the place of each block in its prompt, -1 where that is not known.
        self._there: dict[tuple[int, int], dict[bytes, int]] = {}

    def apply(self, events: Iterable[StoredOrRemoved]) -> list[WireEvent]:
        """Cost: their blocks."""
        told: list[WireEvent] = []
        for event in events:
            there = self._there.setdefault((event.tier, event.group), {})
            changed: dict[bytes, int] = {}
            for offset, row in enumerate(event.ids):
                name = row.tobytes()
                if event.stored and name not in there:
                    changed[name] = there[name] = event.first + offset if event.first >= 0 else -1
                elif not event.stored and there.pop(name, None) is not None:
                    changed[name] = -1
            told += self._told(event.stored, event.tier, event.group, changed)
        return told

    def everything(self) -> list[WireEvent]:
        """All that is there, what is known to come first in a prompt before what comes later."""
        told: list[WireEvent] = []
        for (tier, group), there in self._there.items():
            ordered = dict(sorted(there.items(), key=lambda item: item[1]))
            told += self._told(True, tier, group, ordered)
        return told

    def leave(self) -> list[WireEvent]:
        """Nothing of it is there any more."""
        told: list[WireEvent] = []
        for (tier, group), there in self._there.items():
            told += self._told(False, tier, group, there)
        self._there.clear()
        return told

    def forget(self) -> None:
        """What is there is not known: it is listed again."""
        self._there.clear()

    def _told(
        self, stored: bool, tier: int, group: int, blocks: Mapping[bytes, int]
    ) -> list[WireEvent]:
        """Messages of blocks of one place: of one namespace, with or without positions."""
        parts: dict[tuple[bytes, bool], list[bytes]] = {}
        for name, position in blocks.items():
            parts.setdefault((name[:16], position >= 0), []).append(name)
        medium, locality = self._places[tier]
        told: list[WireEvent] = []
        for (root, known), names in parts.items():
            for at in range(0, len(names), _MOST_BLOCKS):
                some = names[at : at + _MOST_BLOCKS]
                hashes = [self._hash(name) for name in some]
                if not stored:
                    told.append(BlockRemoved(hashes, medium, group, locality))
                    continue
                kind = self.store.groups[group]
                places = [blocks[name] * kind.block_tokens for name in some] if known else None
                told.append(_stored(hashes, kind, (medium, locality), root, places))
        return told

    def _hash(self, name: bytes) -> int | bytes:
        """Of pages of tokens as an embedded cache names them, of engines' keys all of it."""
        return int.from_bytes(name[16:24], "little") if self.store.page_tokens else name


def _stored(
    hashes: list[int | bytes],
    group: WatchedGroup,
    place: tuple[str, str],
    root: bytes,
    positions: list[int] | None,
) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None,
        token_ids=[],
        block_size=group.block_tokens,
        lora_id=None,
        medium=place[0],
        lora_name=None,
        extra_keys=[(root.hex(),)] * len(hashes),
        group_idx=group.number,
        kv_cache_spec_kind=KINDS.get(group.retention, "unknown"),
        kv_cache_spec_sliding_window=group.tokens if group.retention == "window" else None,
        locality=place[1],
        block_positions=positions,
    )


class Bridge:
    """Follows a service. ``step`` hears what is new and publishes it; ``close``.

    ``stream``: what is published; ``connected``: whether the service answered last.
    """

    def __init__(
        self,
        connect: Callable[[], Watch],
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        rank: int | None = None,
        media: Mapping[str, tuple[str, str]] = MEDIA,
        kept_batches: int = 10_000,
        high_water: int = 100_000,
    ) -> None:
        """``connect``: makes a connection, again after each end of one; the others as of
        ``KvPublisher``.
        """
        self._connect = connect
        self._media = media
        self._watch: Watch | None = None
        self._accounts: dict[int, Account] = {}
        self.stream = Stream(
            self._everything,
            endpoint,
            replay_endpoint,
            topic=topic,
            rank=rank,
            kept_batches=kept_batches,
            high_water=high_water,
        )

    @property
    def connected(self) -> bool:
        """Whether the service answered last."""
        return self._watch is not None

    def _everything(self) -> list[WireEvent]:
        told: list[WireEvent] = [AllBlocksCleared()]
        for account in self._accounts.values():
            told += account.everything()
        return told

    def step(self) -> bool:
        """Publishes what happened since the last step, and answers who missed something; whether
        there may be more by now. Of a service that is gone: that nothing is held, once.

        Raises ``ServiceGoneError`` while nobody answers, ``DeniedError``, ``ProtocolError``. Cost:
        what happened; the first time, after a gap and after a restart all that is there.
        """
        self.stream.answer()
        try:
            more = self._follow()
        except (ServiceGoneError, ClosedError) as error:
            self._lose()
            raise ServiceGoneError(str(error)) from None
        self.stream.answer()
        return more

    def _lose(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        held = bool(self._accounts)
        self._accounts.clear()
        if held:
            self.stream.send([AllBlocksCleared()])

    def _follow(self) -> bool:
        again = self._watch is None
        watch = self._watch = self._watch or self._connect()
        stores = {store.number: store for store in watch.stores()}
        for number in [number for number in self._accounts if number not in stores]:
            self.stream.send(self._accounts.pop(number).leave())
        for number, store in stores.items():
            if number not in self._accounts:
                account = self._accounts[number] = Account(store, self._media)
                try:
                    self._list(watch, account)
                except ClosedError:  # it was closed meanwhile
                    del self._accounts[number]
                    continue
                if not again:
                    self.stream.send(account.everything())
        if again:
            self.stream.restate()
        more, gaps = False, False
        for account in list(self._accounts.values()):
            try:
                behind, gap = self._hear(watch, account)
            except ClosedError:  # this one alone, to make room for others
                del self._accounts[account.store.number]
                self.stream.send(account.leave())
                continue
            more, gaps = more or behind, gaps or gap
        if gaps:
            self.stream.restate()
        return more

    def _list(self, watch: Watch, account: Account) -> None:
        """All that lies in a store: what its events say, if they are all there, for they know where
        in a prompt a block stands, and then what is listed. What changes meanwhile is heard next;
        a service that stores faster than this reads is not waited for.
        """
        known, late = account.following, 0
        told = watch.events(account.store, 0)
        while not told.lost:
            account.apply(told.events)
            account.following = told.following
            late += told.following > known
            if not told.events or late > _MOST_ROUNDS:
                break
            told = watch.events(account.store, told.following)
        if told.lost:
            account.forget()
            account.following = known
        for piece in watch.resident(account.store):
            account.apply(piece)

    def _hear(self, watch: Watch, account: Account) -> tuple[bool, bool]:
        """Takes the events of a store: whether there are more, whether some were missed."""
        for _ in range(_MOST_ROUNDS):
            told = watch.events(account.store, account.following)
            if told.lost:
                # What is listed is there as of this number or later; its events say the rest. What
                # was told is kept until all is listed: if the store closes then, it is told gone.
                again = Account(self._newest(watch, account), self._media)
                self._list(watch, again)
                self._accounts[account.store.number] = again
                return True, True
            account.following = told.following
            if not told.events:
                return False, False
            self.stream.send(account.apply(told.events))
        return True, False

    def _newest(self, watch: Watch, account: Account) -> WatchedStore:
        for store in watch.stores():
            if store.number == account.store.number:
                return store
        raise ClosedError("the store was closed meanwhile")

    def close(self) -> None:
        """Ends the connection and unbinds. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.stream.close()
