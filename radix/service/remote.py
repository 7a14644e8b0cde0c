"""The remote tier of one store of a service: a backend that services on other machines write to and
read from as well. The loop never waits for it: it connects in a thread, keys are sought and epochs
begun in threads, and whoever waits for one of these is told when it has come, or that it will not.
Domains are kept apart by the prefix of all names, and so are kinds of store: a RESET of one is no
other's.

    radix:DOMAIN:DIGEST OF THE STORE:{digest of the block}:piece
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from radix.errors import TierError
from radix.service.config import ServiceConfig
from tiers.remote import RemoteTier

Told = Callable[[Exception | None], None]


def prefix_of(domain: str, digest: str) -> str:
    """With what the names of a store's values begin. ``digest``: of its kind."""
    return f"radix:{domain}:{digest}"


class StoreRemote:
    """The remote tier of a store. ``tier``; ``patience_s``: how long anybody waits for its answer.
    ``when_tried``, ``begin_epoch`` tell later, from ``run``, once a turn of the loop.
    """

    def __init__(self, config: ServiceConfig, domain: str, digest: str) -> None:
        """Connects to nothing yet. Raises what ``RemoteTier`` raises."""
        assert config.remote is not None  # else the store has none
        self.patience_s = config.limits.remote_s
        self.tier = RemoteTier(
            config.remote,
            blocks=config.remote_blocks,
            prefix=prefix_of(domain, digest),
            digest="sha256",  # whoever shares a backend need not trust each other
            deadline_s=self.patience_s,
            open_s=0.0,
            close_s=0.0,
        )
        self._until = time.monotonic() + self.patience_s
        self._trying: list[Callable[[], None]] = []
        self._begun: Told | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether ``run`` has something to see to."""
        return bool(self._trying) or self._begun is not None or self.tier.pending() > 0

    def counters(self) -> dict[str, int]:
        """What the tier counted beside what every tier does, by dotted names."""
        return {f"remote.{key}": count for key, count in asdict(self.tier.counts).items()}

    def when_tried(self, tell: Callable[[], None]) -> None:
        """``tell`` is called once it is known if the backend answers, at once if it is now."""
        if self._is_tried():
            tell()
        else:
            self._trying.append(tell)

    def _is_tried(self) -> bool:
        return self.tier.tried or time.monotonic() >= self._until

    def begin_epoch(self, tell: Told) -> None:
        """Writes a new epoch to the backend, in a thread; one at a time. ``tell`` is called once:
        with None when it stands there, and the one next ``renew`` of the tier goes by it without
        asking the backend; else with the error that kept it away.
        """
        assert self._begun is None  # who asks meanwhile shares it: ``Hosted.reset``
        self._begun, self._failure = tell, None
        self._thread = threading.Thread(target=self._begin, name="radix-epoch", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        try:
            self.tier.begin_epoch()
        except Exception as error:  # outermost: of this thread; who waits is told
            self._failure = error

    def run(self) -> None:
        """Tells who waits. Never blocks."""
        if self._trying and self._is_tried():
            trying, self._trying = self._trying, []
            for each in trying:
                each()
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._tell_begun(self._failure)

    def _tell_begun(self, failure: Exception | None) -> None:
        tell, self._begun = self._begun, None
        if tell is not None:
            tell(failure)

    def close(self) -> None:
        """Whoever waits is told that nothing comes any more."""
        trying, self._trying = self._trying, []
        for each in trying:
            each()
        self._tell_begun(TierError(self.tier.name, "no new epoch: the store was closed"))
