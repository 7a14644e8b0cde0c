"""The one tree of errors. Every native status maps to one class here; bad arguments at the
boundary are plain ``ValueError`` and ``TypeError`` that name the argument and what was expected.
"""

from __future__ import annotations


class CacheError(Exception):
    """Base of everything that the library raises on its own account."""


class CapacityError(CacheError):
    """A budget is short now; waiting or evicting may help.

    Blocks: ``needed`` were asked for, ``free`` are free, ``evictable`` may go, of which ``clean``
    at once and ``dirty`` only once a copy below is acknowledged; ``leased`` are protected by
    leases, ``kept`` of them by keeps, which do not give way where that would not be enough.
    """

    def __init__(
        self,
        what: str,
        *,
        needed: int,
        free: int,
        evictable: int,
        leased: int,
        dirty: int,
        kept: int = 0,
    ) -> None:
        may_go = f"evictable {evictable}" + (f" ({dirty} of them dirty)" if dirty else "")
        pinned = f"leased {leased}" + (f" ({kept} of them by keeps)" if kept else "")
        super().__init__(f"{what}: needed {needed} blocks, free {free}, {may_go}, {pinned}")
        self.kept = kept
        self.needed = needed
        self.free = free
        self.evictable = evictable
        self.dirty = dirty
        self.clean = evictable - dirty
        self.leased = leased


class NeverFitsError(CacheError):
    """The request is larger than the pool: no amount of waiting helps."""

    def __init__(self, what: str, *, needed: int, capacity: int) -> None:
        super().__init__(f"{what}: needs {needed} blocks, the pool holds {capacity}")
        self.needed = needed
        self.capacity = capacity


class LeaseError(CacheError):
    """A lease was released twice, was never given, or belongs to another cache."""


class StaleError(CacheError):
    """A handle names something that is gone; match again."""


class SlotError(CacheError):
    """A slot is not in the state that the call needs: freed twice, foreign, or out of range."""


class RequestError(CacheError):
    """A call that the state of the request does not allow; it names both."""


class LayoutMismatchError(CacheError):
    """Two sides do not describe the same bytes."""


class UnsupportedError(CacheError):
    """What was asked for is part of the contract, but this version refuses it by name."""


class ClosedError(CacheError):
    """The object was closed."""


class BusyError(CacheError):
    """A call came while another thread's call on the same cache was running."""


class TimedOutError(CacheError):
    """A call that blocks was given up; what it began goes on under ``number``."""

    def __init__(self, what: str, *, number: int) -> None:
        super().__init__(what)
        self.number = number


class InvariantError(CacheError):
    """A check found a broken invariant; ``name`` is its number (I1..I35)."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class TierError(CacheError):
    """A tier could not do what it was asked. ``retryable``: the same call may work later."""

    def __init__(self, tier: str, what: str, *, retryable: bool = False) -> None:
        super().__init__(f"tier {tier!r}: {what}")
        self.tier = tier
        self.retryable = retryable


class TierFullError(TierError):
    """No free slots (``retryable``), or the medium itself is full."""


class CorruptBlockError(TierError):
    """Bytes were read that are not the bytes that were written."""


class TierUnavailableError(TierError):
    """The tier is off, closed, read-only, held by another process or in a foreign format."""


# The class that stands for each native status (native/include/rdx.h); RDX_OK has none.
STATUS_CLASSES: dict[str, type[Exception]] = {
    "RDX_ENOMEM": MemoryError,
    "RDX_EARG": ValueError,
    "RDX_ETOKEN": ValueError,
    "RDX_ESTALE": StaleError,
    "RDX_ELEASE": LeaseError,
    "RDX_EFULL": TierFullError,
    "RDX_ESLOT": SlotError,
    "RDX_EINVARIANT": InvariantError,
    "RDX_EIO": TierUnavailableError,
    "RDX_ECORRUPT": CorruptBlockError,
    "RDX_ESHORT": CorruptBlockError,
    "RDX_ECANCELED": TierError,
    "RDX_ECLOSED": ClosedError,
    "RDX_EBUSY": BusyError,
    "RDX_ENOSPC": TierFullError,
    "RDX_EROFS": TierUnavailableError,
    "RDX_EPINNED": LeaseError,
}
