"""The requests of the engine, as far as blocks move for them, and the three events of each one's
end, in order and once (I30): the engine tells the first two at once, because nothing is offered
behind its word that a request has finished.

    RUNNING -> GENERATION_DONE -> FINALIZED -> RELEASED
               on_request_finished             every copy between device and host, and every
                                               promotion that was begun for it, has ended
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radix.events import RequestState
from radix.hints import Hints
from radix.keysets import FlatLease
from radix.metrics import Metrics

Watch = Callable[[str, RequestState], None]


@dataclass(slots=True, eq=False)
class Life:
    """One request. ``under_way``: jobs and promotions that have not ended.

    ``tried``: keys that were promoted for it, or could not be: each once, so that it never waits
    for ever. ``deep``: keys that came from below the host for it. ``pins`` hold what was promoted
    until it has asked again; ``due``: the step in which they go whether it has or not.
    ``far``: those of them that another engine had stored. ``sought``: keys that were asked for
    where several store, and when; ``since``: the first. ``refused``: keys that the canary answered
    as missing. ``hints``: what it says; ``used``: the blocks that it is said of, where each stands.
    """

    name: str
    state: RequestState = RequestState.RUNNING
    under_way: int = 0
    promoting: int = 0
    tried: set[bytes] = field(default_factory=set)
    deep: set[bytes] = field(default_factory=set)
    pins: list[FlatLease] = field(default_factory=list)
    pinned: dict[int, int] = field(default_factory=dict)
    due: int = 0
    far: set[bytes] = field(default_factory=set)
    sought: dict[bytes, float] = field(default_factory=dict)
    since: float = 0.0
    refused: set[bytes] = field(default_factory=set)
    hints: Hints | None = None
    used: dict[bytes, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the engine has said so: nothing is stored for it any more."""
        return self.state is not RequestState.RUNNING


class Lives:
    """Begin: ``of``. Count: ``started``, ``ended``. End: ``finish``. ``alive``: those that have not
    been released; ``watch`` is told of every event of an end.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.alive: set[Life] = set()
        self.watch: Watch | None = None
        self._metrics = metrics

    def of(self, context: Any) -> Life:
        """The life of the request with this context of the engine's, which keeps it."""
        life: Life | None = context.get_state(Life)
        if life is None:
            life = Life(str(context.req_id))
            context.set_state(life)
            self.alive.add(life)
        return life

    def started(self, life: Life) -> None:
        """A transfer began."""
        life.under_way += 1

    def ended(self, life: Life) -> None:
        """A transfer ended; perhaps the last."""
        life.under_way -= 1
        self._release(life)

    def finish(self, life: Life) -> None:
        """The engine will store and load nothing more for it. Twice is once."""
        if not life.finished:
            self._enter(life, RequestState.GENERATION_DONE)
            self._enter(life, RequestState.FINALIZED)
            self._release(life)

    def _release(self, life: Life) -> None:
        if life.state is RequestState.FINALIZED and not life.under_way:
            self._enter(life, RequestState.RELEASED)
            self.alive.discard(life)

    def _enter(self, life: Life, state: RequestState) -> None:
        life.state = state
        self._metrics.add(("request", state.value))
        if self.watch is not None:
            self.watch(life.name, state)
