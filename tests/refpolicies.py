"""Eviction policies by brute force: a plain trie of runs, every choice a look at all of it. What
the native half keeps in lists and heaps is recomputed here from the rules alone (I17).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radix.hints import Said

Prompt = tuple[int, ...]
ALWAYS = 1 << 64


@dataclass(eq=False)
class Run:
    """Pages with one history. ``slots``: one each; those that went are gone from its end."""

    pages: list[int]
    slots: list[int]
    above: Run | None
    below: dict[int, Run] = field(default_factory=dict)
    pins: int = 0
    key: int = 0
    last: int = 0
    uses: int = 0
    queue: int = 0
    said: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether a lease ends here or below."""
        return self.pins > 0 or any(child.held for child in self.below.values())


@dataclass(eq=False)
class Pin:
    """A lease: the run where it ends, and when it was taken."""

    end: Run
    taken: int


class Reference:
    """One column of one full group, under a policy."""

    def __init__(self) -> None:
        self.root = Run([], [], None)
        self.clock = 0
        self.came = 0
        self.now = 0

    # ------------------------------------------------------------ what a policy says
    def comes(self, run: Run) -> None:
        """A new run gets its key and queue."""
        raise NotImplementedError

    def used(self, run: Run, again: bool) -> None:
        """A run was used; ``again``: by a request that came after its last use."""

    def settle(self) -> None:
        """A path was used."""

    def going(self, run: Run, count: int) -> None:
        """A run is the victim; up to ``count`` pages of it go."""

    def hinted(self, run: Run, said: Said, own: bool) -> None:
        """A request said so of a run; ``own``: nothing else goes on from where it ends."""

    # ------------------------------------------------------------ the trie
    def runs(self) -> list[Run]:
        """All runs, in any order."""
        found, todo = [], [self.root]
        while todo:
            run = todo.pop()
            found.append(run)
            todo += run.below.values()
        return found[1:]

    def leaves(self, queue: int) -> list[Run]:
        """What may go of a queue, the first first."""
        free = [r for r in self.runs() if not r.below and not r.held and r.queue == queue]
        return sorted(free, key=lambda run: (run.key, run.last))

    def resident(self, queue: int) -> int:
        """Pages of the runs of a queue."""
        return sum(len(run.pages) for run in self.runs() if run.queue == queue)

    def path(self, run: Run, pages: int) -> Prompt:
        """What leads to the first ``pages`` pages of a run, and they."""
        found: Prompt = tuple(run.pages[:pages])
        while run.above is not None and run.above.above is not None:
            run = run.above
            found = (*run.pages, *found)
        return found

    def _split(self, run: Run, at: int) -> Run:
        """The upper part of a run, which keeps its history; the run itself is the lower one."""
        assert run.above is not None and 0 < at < len(run.pages)
        upper = Run(run.pages[:at], run.slots[:at], run.above, {run.pages[at]: run})
        upper.key, upper.last, upper.uses, upper.queue = run.key, run.last, run.uses, run.queue
        upper.said = dict(run.said)
        run.above.below[run.pages[0]] = upper
        run.above = upper
        del run.pages[:at], run.slots[:at]
        return upper

    def _walk(self, prompt: Prompt) -> tuple[Run, int, int]:
        """The run that a prompt's known part ends in, pages of it there, and pages in all."""
        run, inside, done = self.root, 0, 0
        while done < len(prompt) and prompt[done] in run.below:
            run, inside = run.below[prompt[done]], 0
            while inside < len(run.pages) and prompt[done : done + 1] == (run.pages[inside],):
                inside, done = inside + 1, done + 1
            if inside < len(run.pages):
                break
        return run, inside, done

    def _end(self, prompt: Prompt) -> tuple[Run, int]:
        """The same with the run cut there."""
        run, inside, done = self._walk(prompt)
        return (self._split(run, inside) if inside < len(run.pages) else run), done

    def _use(self, run: Run, since: int, fresh: Run | None = None) -> None:
        self.clock += 1
        each: Run | None = run
        while each is not None and each.above is not None:
            again = each is not fresh and each.last <= since
            each.uses += again
            each.last = self.clock
            self.used(each, again)
            each = each.above
        self.settle()

    # ------------------------------------------------------------ what a cache does
    def match(self, prompt: Prompt) -> int:
        """Pages that are there."""
        return self._walk(prompt)[2]

    def lease(self, prompt: Prompt) -> Pin:
        """Pins what is there."""
        pin = Pin(self._end(prompt)[0], self.clock)
        pin.end.pins += 1
        return pin

    def insert(self, prompt: Prompt, pin: Pin | None, slots: list[int]) -> int:
        """Adds what is missing, with the slots that are left over for it; pages added."""
        run, done = self._end(prompt)
        fresh = None
        if done < len(prompt):
            fresh = Run(list(prompt[done:]), slots[-(len(prompt) - done) :], run)
            fresh.last = self.clock
            run.below[prompt[done]] = fresh
            self.came += 1
            self.comes(fresh)
            run = fresh
        if pin is not None:
            pin.end.pins -= 1
            pin.end = run
            run.pins += 1
        self._use(run, ALWAYS if pin is None else pin.taken, fresh)
        return len(prompt) - done

    def release(self, pin: Pin, *, stamp: bool) -> None:
        """Gives a pin back."""
        if stamp:
            self._use(pin.end, pin.taken)
        pin.end.pins -= 1

    def touch(self, prompt: Prompt) -> None:
        """Uses what is there."""
        self._use(self._end(prompt)[0], ALWAYS)

    def hint(self, prompt: Prompt, said: Said) -> None:
        """A request says something of what is there."""
        run, own = self._end(prompt)[0], True
        each, most = run, 0
        while each.above is not None:
            own = own and len(each.below) <= most
            self.hinted(each, said, own)
            each, most = each.above, 1

    def tell(self, now: int) -> None:
        """What time it is."""
        self.now = max(self.now, now)

    def victim(self) -> Run | None:
        """The run that goes next."""
        return next((run for queue in (0, 1) for run in self.leaves(queue)), None)

    def evict(self, count: int) -> list[int]:
        """Slots of what went, in order."""
        gone: list[int] = []
        while len(gone) < count and (run := self.victim()) is not None:
            self.going(run, count - len(gone))
            while run.pages and len(gone) < count:
                page = run.pages.pop()
                gone.append(run.slots.pop())
            if not run.pages:
                assert run.above is not None
                del run.above.below[page]
        return gone


class Fifo(Reference):
    """What came first."""

    def comes(self, run: Run) -> None:
        run.key = self.came


class Lfu(Reference):
    """The fewest uses, on top of the last victim's key at that time."""

    age = 0

    def comes(self, run: Run) -> None:
        run.key = self.age + 1

    def used(self, run: Run, again: bool) -> None:
        if again:
            run.key = self.age + 1 + run.uses

    def going(self, run: Run, count: int) -> None:
        self.age = max(self.age, run.key)


class Slru(Reference):
    """What was used once, then what was used again, which is at most four fifths."""

    def comes(self, run: Run) -> None:
        run.key = self.clock

    def used(self, run: Run, again: bool) -> None:
        run.key = self.clock
        run.queue |= again

    def settle(self) -> None:
        while self.resident(1) * 5 > (self.resident(0) + self.resident(1)) * 4:
            free = self.leaves(1)
            if not free:
                return
            free[0].queue, free[0].key = 0, self.clock


class Gone:
    """Runs of pages that went, by the path to the first of each; the oldest first."""

    def __init__(self) -> None:
        self.runs: dict[Prompt, int] = {}

    @property
    def pages(self) -> int:
        """Pages of all of them."""
        return sum(self.runs.values())

    def forget_oldest(self) -> None:
        """One run less."""
        del self.runs[next(iter(self.runs))]

    def recall(self, whole: Prompt, first: int) -> int:
        """Pages of a path that went and are back, from page ``first`` on; nothing behind a gap."""
        at = first
        while at < len(whole) and whole[: at + 1] in self.runs:
            at += self.runs.pop(whole[: at + 1])
        return min(at, len(whole)) - first


class S3Fifo(Reference):
    """What came goes through a tenth of the room; what was used twice there, or comes back soon
    after it went from there, stays in the rest for as many turns as it was used, at most three.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gone, self.turns = Gone(), 0

    def comes(self, run: Run) -> None:
        whole = self.path(run, len(run.pages))
        back = self.gone.recall(whole, len(whole) - len(run.pages))
        self._last(run, 1 if back else 0, 0)

    def used(self, run: Run, again: bool) -> None:
        run.uses = min(run.uses, 3)

    def victim(self) -> Run | None:
        while True:
            queue = 0 if 10 * self.resident(0) > self.resident(0) + self.resident(1) else 1
            free = self.leaves(queue) or self.leaves(1 - queue)
            if not free:
                return None
            if free[0].queue == 0 and free[0].uses >= 2:
                self._last(free[0], 1, 0)
            elif free[0].queue == 1 and free[0].uses:
                self._last(free[0], 1, free[0].uses - 1)
            else:
                return free[0]

    def going(self, run: Run, count: int) -> None:
        going = min(count, len(run.pages))
        first = self.path(run, len(run.pages) - going + 1)
        self.gone.runs.pop(first, None)
        if run.queue == 0:
            self.gone.runs[first] = going
        while self.gone.pages > self.resident(0) + self.resident(1):
            self.gone.forget_oldest()

    def _last(self, run: Run, queue: int, uses: int) -> None:
        self.turns += 1
        run.queue, run.uses, run.key = queue, uses, self.turns


class Arc(Reference):
    """Once used and more often used, by last use each; the room is divided between them by what
    comes back soon after it went.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gone, self.target = (Gone(), Gone()), 0

    def comes(self, run: Run) -> None:
        whole = self.path(run, len(run.pages))
        for side, gone in enumerate(self.gone):
            back = gone.recall(whole, len(whole) - len(run.pages))
            if back:
                step = max(back, back * self.gone[1 - side].pages // (gone.pages + back))
                most = self.resident(0) + self.resident(1)
                self.target = max(0, min(most, self.target + (-step if side else step)))
                break
        run.queue, run.key = int(bool(back)), self.clock

    def used(self, run: Run, again: bool) -> None:
        run.queue |= again
        run.key = self.clock

    def victim(self) -> Run | None:
        queue = 0 if self.resident(0) > self.target else 1
        free = self.leaves(queue) or self.leaves(1 - queue)
        return free[0] if free else None

    def going(self, run: Run, count: int) -> None:
        going = min(count, len(run.pages))
        first = self.path(run, len(run.pages) - going + 1)
        for gone in self.gone:
            gone.runs.pop(first, None)
        self.gone[run.queue].runs[first] = going
        once, often = self.gone
        room = self.resident(0) + self.resident(1)
        left = self.resident(0) - (0 if run.queue else going)
        while once.runs and once.pages + left > room:
            once.forget_oldest()
        while once.pages + often.pages > room:
            (often if often.runs else once).forget_oldest()


class Lru(Reference):
    """What was used longest ago; before it what no request goes on from, the last said first."""

    ended = 0

    def comes(self, run: Run) -> None:
        run.key = 0

    def used(self, run: Run, again: bool) -> None:
        run.key = 0

    def pinned(self, prompt: Prompt) -> bool:
        """Whether a lease holds the end of what is there."""
        return self._end(prompt)[0].held

    def hinted(self, run: Run, said: Said, own: bool) -> None:
        if own and said.says & 2:
            self.ended -= 1
            run.key = self.ended


class Priority(Reference):
    """By what was said: what is over, then the least priority, then what is furthest from a use."""

    def comes(self, run: Run) -> None:
        run.said = {"since": self.now, "returns": 0, "until": 0, "own": 0, "held": 0, "over": 0}

    def used(self, run: Run, again: bool) -> None:
        run.said |= {"since": self.now, "returns": 0, "over": 0}

    def hinted(self, run: Run, said: Said, own: bool) -> None:
        self._pass(run)
        mine, named = run.said, bool(said.says & 1)
        priority = said.priority if named else 101
        if said.until > self.now:
            if not mine["until"] or priority > mine["held"]:
                mine |= {"until": said.until, "held": priority}
            elif priority == mine["held"]:
                mine["until"] = max(mine["until"], said.until)
        elif named:
            mine["own"] = priority
        if said.returns > self.now:
            mine["returns"] = min(mine["returns"] or said.returns, said.returns)
        if own and said.says & 2:
            mine |= {"over": 1, "returns": 0}

    def _pass(self, run: Run) -> None:
        """What was said ends by time."""
        mine = run.said
        if 0 < mine["returns"] <= self.now:
            mine |= {"since": mine["returns"], "returns": 0}
        if mine["until"] <= self.now:
            mine["until"] = 0

    def _level(self, run: Run) -> int:
        mine = run.said
        own = -101 if mine["over"] else mine["own"]
        return max(own, mine["held"]) if mine["until"] else own

    def victim(self) -> Run | None:
        free = [run for run in self.runs() if not run.below and not run.held]
        for run in self.runs():
            self._pass(run)
        if not free:
            return None
        least = min(self._level(run) for run in free)
        level = [run for run in free if self._level(run) == least]
        back = [run for run in level if run.said["returns"]]
        idle = [run for run in level if not run.said["returns"]]
        back.sort(key=lambda run: (-run.said["returns"], run.last))
        idle.sort(key=lambda run: (run.said["since"], run.last))
        if not back or not idle:
            return (back or idle)[0]
        further = back[0].said["returns"] - self.now > self.now - idle[0].said["since"]
        return back[0] if further else idle[0]


class Cost(Reference):
    """What saves the fewest FLOPs a byte, on top of the last victim's key at that time. ``price``:
    FLOPs of a token, more of them for each before it, bytes of a page, tokens of one.
    """

    price: tuple[float, float, int, int] = (3.0, 0.25, 7, 1)
    age = 0

    def comes(self, run: Run) -> None:
        linear, quadratic, size, tokens = self.price
        first = len(self.path(run, 0)) * tokens
        end = first + len(run.pages) * tokens
        flops = (end - first) * (linear + quadratic * (first + end - 1) / 2)
        run.key = self.age + int(flops / (len(run.pages) * size) * 4096)

    def used(self, run: Run, again: bool) -> None:
        self.comes(run)

    def going(self, run: Run, count: int) -> None:
        self.age = max(self.age, run.key)


REFERENCES: dict[str, type[Reference]] = {
    "lru": Lru,
    "fifo": Fifo,
    "lfu": Lfu,
    "slru": Slru,
    "s3fifo": S3Fifo,
    "arc": Arc,
    "priority": Priority,
    "cost": Cost,
}
