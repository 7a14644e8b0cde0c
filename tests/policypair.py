"""A native tree under a policy beside a plain reference of it: both are told the same, and every
eviction must take the same slots in the same order from both.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from radix.gate import Gate
from radix.hints import Hints, said_of
from radix.metrics import Metrics
from radix.policy.eviction import EvictionPolicy, check_policy
from radix.policy.given import ask_policy
from radix.tree import Cursor, TreeCore
from radix.treeparts import Price
from tests.refpolicies import REFERENCES, Cost, Lru, Pin, Prompt, Reference

US = 1_000_000
COLUMN = np.zeros(1, np.uint32)
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
HINTS = st.builds(
    Hints,
    expects_return=st.none() | st.integers(0, 30),
    keep_for=st.none() | st.integers(0, 30),
    priority=st.none() | st.integers(-2, 2),
)
ENDED = st.builds(Hints, keep_for=st.none() | st.integers(0, 9), ended=st.just(True))
STEPS = st.one_of(
    st.tuples(st.just("hint"), PROMPTS, HINTS | ENDED),
    st.tuples(st.just("tell"), st.integers(1, 20)),
    st.tuples(st.just("begin"), PROMPTS),
    st.tuples(st.just("finish"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("serve"), PROMPTS),
    st.tuples(st.just("touch"), PROMPTS),
    st.tuples(st.just("add"), PROMPTS),
    st.tuples(st.just("evict"), st.integers(1, 9)),
)


class Pair:
    """A native tree and a reference of ``room`` pages that are told the same."""

    def __init__(self, policy: str | EvictionPolicy, room: int, reference: str = "") -> None:
        """``reference``: whose order it must be, where the policy is not named."""
        self.tree = TreeCore(4, groups=1, tiers=1, policy=check_policy(policy))
        self.metrics = Metrics()
        ask_policy(self.tree, policy, self.metrics, Gate())
        self.reference: Reference = REFERENCES[reference or check_policy(policy)]()
        self.root = self.tree.root()
        if isinstance(self.reference, Cost):
            self.tree.price([Price(*Cost.price[:3], 0)])
        self.hears = isinstance(policy, str)  # a user's own policy is told no hints
        self.room, self.used, self.numbers = room, 0, 0
        self.open: list[tuple[Prompt, int, Cursor, Pin]] = []

    def begin(self, prompt: Prompt) -> None:
        """Pins what is there of a prompt."""
        cursor = self._find(prompt)
        lease, node, pages = self.tree.lease(cursor)
        pin = self.reference.lease(prompt)
        self.open.append((prompt, lease, Cursor(self.root, node, pages), pin))

    def finish(self, number: int, stamp: bool) -> None:
        """Inserts as much of an open prompt as fits, and releases it."""
        if not self.open:
            return
        prompt, lease, cursor, pin = self.open.pop(number % len(self.open))
        self._insert(prompt, lease, cursor, pin)
        self.tree.release(lease, stamp=stamp)
        self.reference.release(pin, stamp=stamp)

    def serve(self, prompt: Prompt) -> None:
        """A whole request."""
        self.begin(prompt)
        self.finish(-1, True)

    def add(self, prompt: Prompt) -> None:
        """Inserts without a lease, where that fits."""
        if self.used + len(prompt) <= self.room:
            self._insert(prompt, 0, Cursor(self.root, self.root, 0), None)

    def touch(self, prompt: Prompt) -> None:
        """Uses what is there."""
        cursor = self._find(prompt)
        if cursor.pages:
            self.tree.touch(cursor)
            self.reference.touch(prompt)

    def hint(self, prompt: Prompt, hints: Hints) -> None:
        """Says something of what is there, in whole seconds."""
        if not self.hears:
            return
        cursor, said = self._find(prompt), said_of(hints, self.reference.now * US)
        if not cursor.pages or (isinstance(self.reference, Lru) and self.reference.pinned(prompt)):
            return  # the list alone knows no order of what is pinned
        whole = said._replace(returns=said.returns // US, until=said.until // US)
        self.tree.hint(cursor, whole)
        self.reference.hint(prompt, whole)

    def tell(self, seconds: int) -> None:
        """Time goes by."""
        self.reference.tell(self.reference.now + seconds)
        self.tree.tell_time(self.reference.now)

    def evict(self, count: int) -> int:
        """Both take the same slots in the same order."""
        slots = np.zeros(count, np.int32)
        before = self.tree.next_victim(0)
        freed = self.tree.evict(0, slots)
        assert slots[:freed].tolist() == self.reference.evict(count)
        assert (before is None) == (freed == 0)
        self.used -= freed
        return freed

    def _find(self, prompt: Prompt) -> Cursor:
        found = self.tree.match(self.root, np.array(prompt, np.int32), 0)
        assert found.structural_pages == self.reference.match(prompt)
        return Cursor(self.root, found.node, found.structural_pages)

    def _insert(self, prompt: Prompt, lease: int, cursor: Cursor, pin: Pin | None) -> None:
        while (short := self.used + len(prompt) - self.reference.match(prompt) - self.room) > 0:
            if not self.evict(short):
                prompt = prompt[:-short]  # nothing more may go
        count = len(prompt) - cursor.pages
        if count <= 0:
            return
        slots = np.arange(self.numbers, self.numbers + count, dtype=np.int32)
        self.numbers += count
        run = np.array(prompt[cursor.pages :], np.int32)
        made = self.tree.insert(cursor, run, COLUMN, slots[None, :], None, lease)
        added = self.reference.insert(prompt, pin, slots.tolist())
        assert made.created == added
        self.used += added

    def check(self) -> None:
        """Nothing is wrong with the native half, and both hold as much."""
        self.tree.check()
        assert self.tree.column_stats(0).resident == self.used
        assert sum(len(run.pages) for run in self.reference.runs()) == self.used


def some_hints(random: np.random.Generator) -> Hints:
    """Hints of any kind."""
    times = [None if random.random() < 0.5 else int(random.integers(1, 40)) for _ in range(2)]
    ended = bool(random.random() < 0.2)
    priority = None if random.random() < 0.7 else int(random.integers(-2, 3))
    return Hints(None if ended else times[0], times[1], priority, ended)
