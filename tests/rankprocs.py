"""Real rank processes: spawned, each with its own hash seed, that meet over torch.distributed
(gloo, 127.0.0.1). The test's own process is the last member, the control plane. Ranks do what it
says, one message after another, until it says that it is over; what fails on a rank is told to it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from radix.groups import Group
from radix.layout import Part
from radix.ranks import Orders, RankWorker
from radix.reports import Values
from radix.shards import Parallelism, Shards, shards_of
from radix.tier import View
from tests.ranksrig import ReplicaMachine, _difference
from tests.shardrig import Rank, group, heads, latent, rank_of, recurrent, same, whole_state
from tiers.device import DeviceTier
from tiers.device_buffers import rows_of
from tiers.faults import FaultPlan, FaultyTier
from tiers.host import HostTier

RANKS = 4
BLOCKS = 6  # of the prompt
DEVICE = (12, 12, 6)
HOST_BYTES = 4 << 20
SEGMENT = 1 << 16


def model() -> tuple[Group, ...]:
    """Heads that ranks divide, a latent that each rank holds whole, and a state that has both."""
    shared = Part("bc", "bfloat16", (("layer", 4), ("channel", 5)))
    state = group("ssm", (*recurrent(), shared))
    return group("kv", heads(8)), group("mla", latent()), state


class Gathering:
    """The meeting of the ranks (see ``tests.ranksrig.Meeting``) over a process group."""

    def __init__(self, pg: Any, ranks: int) -> None:
        self._pg, self.ranks, self.steps = pg, ranks, 0

    def agree(self, rank: int) -> Callable[[Values], Values]:
        """The minimum that an engine with torch.distributed gives."""

        def minimum(values: Values) -> Values:
            self.steps += 1
            tensor = torch.from_numpy(values.copy())
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._pg)
            return tensor.numpy()

        return minimum

    def same(self, rank: int, value: object, what: str) -> None:
        """Asserts that all ranks come with values of one text; hashes of text differ here."""
        texts: list[Any] = [None] * self.ranks
        mine = [str(v) for v in value] if isinstance(value, list) else str(value)
        dist.all_gather_object(texts, mine, group=self._pg)
        assert all(text == texts[0] for text in texts), f"{what}: {_difference(texts)}"


@dataclass
class Mine:
    """What one rank process holds of one session."""

    rank: int
    shards: tuple[Shards, ...]
    tensors: list[Rank] = field(default_factory=list)
    expected: list[Rank] = field(default_factory=list)  # its share of the whole model state
    worker: RankWorker | None = None

    def open(self, file_name: str, plan: FaultPlan | None) -> None:
        """Makes the tensors, the device over them and the mapping of the host's memory."""
        rows, views = {}, []
        for number, shards in enumerate(self.shards):
            state = whole_state(shards.group, max(BLOCKS, *DEVICE), seed=number)
            self.expected.append(rank_of(shards, self.rank, state, 7, filled=True))
            blank = {name: t[: DEVICE[number]] for name, t in state.items()}
            held = rank_of(shards, self.rank, blank, 100 * self.rank + number, filled=False)
            self.tensors.append(held)
            reads = shards.reads(self.rank)
            rows[shards.group.name] = rows_of(shards.group.layout, reads, held.buffers)
            views.append(View(shards.layers_of(self.rank), shards.span(self.rank)))
        device = DeviceTier(rows, owned=False, views=views)
        groups = tuple(each.group for each in self.shards)
        device.attach(groups, 1, None)
        host = HostTier(HOST_BYTES, file_name=file_name, segment_bytes=SEGMENT)
        self.worker = RankWorker(
            self.rank, self.shards, device, host if plan is None else FaultyTier(host, plan)
        )

    def write(self, number: int, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """The forward: this rank's share of these blocks of the model state goes to its slots."""
        for name, tensor in self.tensors[number].tensors.items():
            tensor[list(slots)] = self.expected[number].tensors[name][list(blocks)]

    def holds(self, number: int, slots: Sequence[int], blocks: Sequence[int]) -> bool:
        """Whether its slots hold its share of these blocks, byte for byte."""
        pairs = [
            (tensor[list(slots)], self.expected[number].tensors[name][list(blocks)])
            for name, tensor in self.tensors[number].tensors.items()
        ]
        return bool(pairs) and all(same(left, right) for left, right in pairs)


# ---------------------------------------------------------------------- a rank
def _replicas(pg: Any, rank: int, seeds: Sequence[int], steps: int) -> list[int]:
    """Storms of these seeds, each rank a whole control plane."""
    taken = []
    for seed in seeds:
        meeting = Gathering(pg, RANKS)
        machine = ReplicaMachine(rank, meeting)
        machine.start(seed, 3, mixed=True)
        rng = random.Random(seed)
        for _ in range(steps):
            machine.step(rng)
        machine.rig.cache.check()
        machine.rig.walk()
        machine.teardown()
        taken.append(meeting.steps)
    return taken


def _answer(mine: Mine | None, what: str, value: Any, pg: Any, rank: int) -> tuple[Any, Any]:
    """Does what the control plane says; the session afterwards, and what is told back."""
    if what == "replicas":
        return mine, _replicas(pg, rank, *value)
    if what == "open":
        parallelism, file_name, plans = value
        mine = Mine(rank, shards_of(model(), parallelism))
        mine.open(file_name, plans.get(rank))
        return mine, None
    assert mine is not None and mine.worker is not None
    if what == "close":
        mine.worker.close()
        return None, None
    return mine, getattr(mine, what)(*value)


def rank_main(rank: int, folder: str) -> None:
    """A rank's process, from its first line to its last."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{folder}/meet"
    dist.init_process_group("gloo", store, rank=rank, world_size=RANKS + 1)
    pg = dist.new_group(list(range(RANKS)))
    mine: Mine | None = None
    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=RANKS)
        what, value = message[0]
        if what == "over":
            break
        if what == "orders":
            assert mine is not None and mine.worker is not None
            tensor = torch.from_numpy(mine.worker.step(value))
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
            continue
        try:
            mine, told = _answer(mine, what, value, pg, rank)
        except BaseException:  # outermost: told to the control plane
            told = traceback.format_exc()
            dist.gather_object(("failed", told), dst=RANKS)
        else:
            dist.gather_object(("did", told), dst=RANKS)
    os._exit(0)  # whatever still runs in threads of a group that is over


# ---------------------------------------------------------------------- the control plane
class Team:
    """The rank processes, as the control plane reaches them."""

    def exchange(self, orders: Orders, values: Values) -> Values:
        """Orders to all ranks, and the minimum of their numbers."""
        dist.broadcast_object_list([("orders", orders)], src=RANKS)
        tensor = torch.from_numpy(values.copy())
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor.numpy()

    def tell(self, what: str, *value: Any) -> list[Any]:
        """All ranks do it; what each answers."""
        dist.broadcast_object_list([(what, value)], src=RANKS)
        answers: list[Any] = [None] * (RANKS + 1)
        dist.gather_object(("did", None), answers, dst=RANKS)
        for rank, (state, told) in enumerate(answers[:RANKS]):
            assert state == "did", f"rank {rank}: {told}"
        return [told for _, told in answers[:RANKS]]

    def open(
        self, parallelism: Parallelism, file_name: str, plans: dict[int, FaultPlan] | None = None
    ) -> None:
        """A session: every rank makes its tensors and maps the host's memory."""
        self.tell("open", parallelism, file_name, plans or {})


@contextmanager
def team(folder: Path) -> Any:
    """Spawns the ranks and joins them as the control plane; they are gone afterwards."""
    context = multiprocessing.get_context("spawn")
    before = {name: os.environ.get(name) for name in ("PYTHONHASHSEED", "GLOO_SOCKET_IFNAME")}
    processes = []
    try:
        for rank in range(RANKS):
            os.environ["PYTHONHASHSEED"] = str(rank + 1)
            process = context.Process(target=rank_main, args=(rank, str(folder)), daemon=True)
            process.start()
            processes.append(process)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = f"file://{folder}/meet"
        dist.init_process_group("gloo", store, rank=RANKS, world_size=RANKS + 1)
        dist.new_group(list(range(RANKS)))
        yield Team()
        dist.broadcast_object_list([("over", None)], src=RANKS)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
