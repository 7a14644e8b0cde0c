"""A random engine for the scheduler's side of the adapter: requests that share prefixes, in the
call order of vLLM 0.32 or 0.33, over small tiers. Full groups are looked up ascending, windows
descending; pending answers defer; what finds no room is offered again; completions come late, in
any order, as sets; requests are preempted and aborted; resets swallow completions while workers
still write; the engine is restarted. The bytes of every slot that a load names are compared with
what the weights of the moment compute.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from radix.events import RequestState
from tests.vllm.offloadrig import HIT, PENDING, OffloadRig, content, context_of, key_of

WINDOW = 2
MOST_DEFERRALS = 60
# What requests say of their blocks, good and bad, most of them nothing.
SAID: tuple[object, ...] = (
    *(None,) * 5,
    {"ended": True},
    {"keep_for": 5, "priority": 7},
    {"expects_return": 2.5},
    {"priority": 1000},
)
THREE = [RequestState.GENERATION_DONE, RequestState.FINALIZED, RequestState.RELEASED]


@dataclass(eq=False)
class Job:
    """A transfer that the engine's workers carry out some time."""

    request: Request
    keys: list[bytes]
    spec: Any
    storing: bool
    weights: int
    step: int
    done: bool = False


@dataclass(eq=False)
class Request:
    """One request: ``chain`` names its blocks; ``computed`` of them are in the device."""

    context: Any
    chain: list[int]
    state: str = "waiting"
    computed: int = 0
    stored: list[int] = field(default_factory=list)
    deferrals: int = 0
    preempted: bool = False
    jobs: set[Job] = field(default_factory=set)


class Driver:
    """``run`` some steps, then ``finish``; every failure tells the seed."""

    def __init__(
        self, seed: int, folder: Path, *, version: str, groups: int, canary: float
    ) -> None:
        self.seed, self.version, self.groups, self.canary = seed, version, groups, canary
        self.chance = random.Random(seed)
        self.saying = random.Random(seed)
        self.folder = folder if self.chance.random() < 0.8 else None
        self.host_blocks = self.chance.choice([6, 8, 12, 20]) * groups
        self.weights = self.now = self.names = self.loaded = self.swallowed = 0
        self.requests: list[Request] = []
        self.gone: list[Request] = []  # finished, told in the next step
        self.jobs: list[Job] = []
        self.stale: list[Job] = []
        self.loading: set[bytes] = set()
        self.reset_open = False
        self.resets = 0
        self.rig = self._rig()

    def _rig(self) -> OffloadRig:
        return OffloadRig(
            self.host_blocks,
            self.folder,
            groups=self.groups,
            events=self.chance.random() < 0.3,
            canary=self.canary,
            policy=("lru", "priority")[self.seed // 2 % 2],
        )

    def require(self, holds: bool, what: str) -> None:
        """Fails with the seed."""
        assert holds, f"seed {self.seed}, step {self.now}: {what}"

    # ------------------------------------------------------------ requests
    def _chain(self) -> list[int]:
        node, chain = 0, []
        for _ in range(self.chance.randrange(2, 8)):
            node = node * 3 + 1 + min(self.chance.randrange(4), 2)
            chain.append(node)
        return chain

    def _new(self) -> None:
        chain = self._chain()
        self.names += 1
        keys = [key_of(n, g) for g in range(self.groups) for n in chain]
        context = context_of(f"q{self.names}", keys, hints=self.saying.choice(SAID))
        request = Request(context, chain, stored=[0] * self.groups)
        self.rig.offload.on_new_request(request.context)
        self.requests.append(request)

    # ------------------------------------------------------------ looking
    def _full(self, request: Request, keys: list[bytes]) -> tuple[int, bool]:
        count, pending = 0, False
        for key in keys:
            answer = self.rig.offload.lookup(key, request.context)
            if answer not in (HIT, PENDING):
                break
            count += 1
            pending |= answer is PENDING
        return count, pending

    def _window(self, request: Request, keys: list[bytes]) -> tuple[int, bool]:
        run, pending = 0, False
        for index in range(len(keys) - 1, -1, -1):
            answer = self.rig.offload.lookup(keys[index], request.context)
            if answer in (HIT, PENDING):
                run += 1
                pending |= answer is PENDING
            else:
                run, pending = 0, False
            if run == WINDOW:
                return index + WINDOW, pending
        return run, pending

    def _hit(self, request: Request) -> int | None:
        """Blocks of a hit, None where it has to wait."""
        most = len(request.chain) - 1
        while most:
            keys = [key_of(n, 0) for n in request.chain[:most]]
            count, pending = self._full(request, keys)
            if self.groups > 1 and count:
                other = [key_of(n, 1) for n in request.chain[:count]]
                short, waits = self._window(request, other)
                if short < count:
                    most = short
                    continue
                pending |= waits
            if pending:
                return None
            return count
        return 0

    def _schedule(self, request: Request) -> None:
        hit = self._hit(request)
        keys = [] if not hit else self._keys_of_hit(request, hit)
        if hit is None or any(key in self.loading for key in keys):
            request.deferrals += hit is None
            self.require(request.deferrals < MOST_DEFERRALS, "a request waits for ever")
            self.rig.store.wait(0.2)
            return
        if self.chance.random() < 0.15:
            return  # no room in the device: nothing follows the answers in this step
        request.deferrals = 0
        request.computed = hit
        request.stored = [hit] * self.groups
        if not hit:
            request.state = "running"
            return
        spec = self.rig.offload.prepare_load(keys, request.context)
        self.loading.update(keys)
        request.state = "loading"
        self._begin(Job(request, keys, spec, False, self.weights, self.now))
        self.loaded += len(keys)

    def _keys_of_hit(self, request: Request, hit: int) -> list[bytes]:
        keys = [key_of(n, 0) for n in request.chain[:hit]]
        if self.groups > 1:
            keys += [key_of(n, 1) for n in request.chain[max(0, hit - WINDOW) : hit]]
        return keys

    def _begin(self, job: Job) -> None:
        job.request.jobs.add(job)
        self.jobs.append(job)

    # ------------------------------------------------------------ storing
    def _offer(self, request: Request) -> None:
        calls: list[list[tuple[int, bytes]]] = [[]]
        for group in range(self.groups):
            keys = [
                key_of(n, group) for n in request.chain[request.stored[group] : request.computed]
            ]
            if group and self.chance.random() < 0.5:
                calls += [[(group, key)] for key in keys]
            else:
                calls[0] += [(group, key) for key in keys]
        for call in calls:
            keys = [key for _, key in call]
            if not keys:
                continue
            out = self.rig.offload.prepare_store(keys, request.context)
            if out is None:
                continue
            self.require([k for k in keys if k in out.keys_to_store] == out.keys_to_store, "order")
            for group in {group for group, _ in call}:
                request.stored[group] = request.computed
            if out.keys_to_store:
                stored = list(out.keys_to_store)
                self._begin(Job(request, stored, out.store_spec, True, self.weights, self.now))

    def _stores(self) -> None:
        for request in self.requests:
            if request.state == "running":
                request.computed = min(
                    len(request.chain), request.computed + self.chance.randrange(1, 3)
                )
                self._offer(request)
        gone, self.gone = self.gone, []
        for request in gone:
            self._offer(request)
            self.rig.offload.on_request_finished(request.context)

    # ------------------------------------------------------------ workers
    def _carry_out(self, job: Job) -> None:
        if job.done:
            return
        job.done = True
        if job.storing:
            self.rig.fill(job.keys, job.spec, job.weights)
        else:
            wrong = self.rig.wrong(job.keys, job.spec, job.weights)
            self.require(not wrong, f"wrong bytes under {[key.hex()[:8] for key in wrong]}")

    def _workers(self) -> None:
        for job in self.stale:
            self._carry_out(job)
        self.stale = []
        if self.reset_open and self.version == "0.33":
            self.rig.offload.on_reset_flushed()
        self.reset_open = False
        for job in self.jobs:
            if job.step < self.now and self.chance.random() < 0.7:
                self._carry_out(job)

    def _complete(self) -> None:
        done = [job for job in self.jobs if job.done and self.chance.random() < 0.7]
        self.chance.shuffle(done)
        for job in done:
            self.jobs.remove(job)
            job.request.jobs.discard(job)
            if job.storing:
                self.rig.offload.complete_store(set(job.keys), job.request.context)
            else:
                self.rig.offload.complete_load(set(job.keys), job.request.context)
                self.loading.difference_update(job.keys)
                job.request.state = "running"

    # ------------------------------------------------------------ what comes in between
    def _finish(self, request: Request) -> None:
        request.state = "finished"
        self.requests.remove(request)
        self.gone.append(request)

    def _upset(self) -> list[str]:
        """Perhaps a preemption or an abort; who was preempted."""
        running = [r for r in self.requests if r.state == "running"]
        if running and self.chance.random() < 0.06:
            request = self.chance.choice(running)
            for job in list(request.jobs):
                self._carry_out(job)
            request.state, request.computed, request.preempted = "waiting", 0, True
            return [request.context.req_id]
        idle = [r for r in self.requests if r.state != "loading"]
        if idle and self.chance.random() < 0.05:
            self._finish(self.chance.choice(idle))
        return []

    def reset(self) -> None:
        """New weights: whatever is under way is forgotten by the engine, not by its workers."""
        for request in self.gone:
            self.rig.offload.on_request_finished(request.context)
        self.gone = []
        self.rig.offload.reset_cache()
        if self.chance.random() < 0.2:
            self.rig.offload.reset_cache()
        self.swallowed += len(self.jobs)
        for job in self.jobs:
            job.done = job.done or not job.storing  # bytes of loads that nobody will use
        self.stale += self.jobs
        self.jobs = []
        self.loading.clear()
        self.weights += 1
        self.resets += 1
        self.reset_open = True
        for request in self.requests:
            request.jobs.clear()
            request.state, request.computed = "waiting", 0
            request.stored = [0] * self.groups
        self.rig.offload.check()

    def restart(self) -> None:
        """The engine ends and starts again over the same directory."""
        self.stale, self.jobs, self.loading = [], [], set()
        self.requests, self.gone, self.reset_open = [], [], False
        self.rig.close()
        self.rig = self._rig()

    # ------------------------------------------------------------ running
    def step(self, *, fresh: bool = True) -> None:
        """One step of the engine."""
        self.now += 1
        if fresh and len(self.requests) < 5 and self.chance.random() < 0.6:
            self._new()
        for request in [r for r in self.requests if r.state == "waiting"]:
            self._schedule(request)
        preempted = self._upset()
        if self.version == "0.32":
            self.rig.step(preempted=preempted)
            self._stores()
        else:
            self._stores()
            self.rig.step(preempted=preempted)
        self._workers()
        self._complete()
        for request in list(self.requests):
            if request.state == "running" and request.computed == len(request.chain):
                self._finish(request)
        list(self.rig.offload.take_events())
        self.rig.offload.get_stats()
        self.rig.offload.check()
        if self.now % 5 == 0:
            self._compare()

    def _compare(self) -> None:
        """Every block that host memory shows is what the weights of now compute."""
        for group in range(self.groups):
            keys = [key_of(number, group) for number in range(1, 400)]
            names = np.frombuffer(b"".join(key[:-4] for key in keys), np.uint8).reshape(-1, 32)
            slots = self.rig.store.slots(names, group, namespace=self.rig.offload._blocks.space)
            for key, slot in zip(keys, slots.tolist(), strict=True):
                if slot >= 0:
                    same = np.array_equal(self.rig.memory(group, slot), content(key, self.weights))
                    self.require(same, f"group {group}: a block of other weights, or of nothing")

    def run(self, steps: int) -> None:
        """So many steps, with resets and restarts now and then."""
        for _ in range(steps):
            self.step()
            dice = self.chance.random()
            if dice < 0.02:
                self.reset()
            elif dice < 0.03 and self.folder is not None:
                self.restart()

    def finish(self) -> None:
        """Every request ends, everything under way ends, nothing is left."""
        for _ in range(400):
            if not (self.requests or self.gone or self.jobs or self.stale):
                break
            self.step(fresh=False)
        self.require(not (self.requests or self.gone or self.jobs), "requests do not end")
        offload = self.rig.offload
        for _ in range(20):
            self.rig.step()
            self.rig.settle()
        self.require(not offload.has_pending_work(), "work is pending for ever")
        self.require(not offload.lives.alive, "a request was never released")
        self.require(not offload._ledger.slots(), "slots of jobs that ended")
        self.require(not self.rig.store.tree.stats().leases, "leases are left")
        told: dict[str, list[RequestState]] = {}
        for name, state in self.rig.ends:
            told.setdefault(name, []).append(state)
        self.require(all(states == THREE for states in told.values()), f"events {told}")
        self.require(not self.rig.count("canary.mismatched"), "the canary sees a difference")
        self.rig.close()
