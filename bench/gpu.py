"""A GPU's blocks to page-locked host memory and back, beside plain copies of the same bytes; and
loads that run while the device computes, on a timeline.

    python -m bench.gpu [--trace FILE] [--json FILE]     needs CUDA; under four minutes
    python -m bench.gpu --cpu                            the same calls on the CPU: it works

Status: 0 everything was as it should be, 1 bytes were wrong or a target was missed, 3 no CUDA
device, else see ``bench.ending``. Kept here: blocks lie at random places of a layer-first pool,
their bytes are compared after each direction, a copy counts once its acknowledgement was polled,
and the plain copy of a round is the fastest of that round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.copies import torch_threads
from bench.ending import ended, written_to
from bench.machine import machine_block, versions_block
from bench.measure import (
    LIMIT,
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Skip,
    Target,
    no_collection,
    ratio,
)
from bench.report import benchmark_block, lines_of, report_block
from radix.commands.terminal import check_target
from radix.groups import Group
from radix.layout import Layout, Part
from radix.replay.output import draft_of
from radix.replay.timeline import Timeline
from radix.tier import Transfer, TransferDone, Urgency
from tiers.device import DeviceTier
from tiers.host import HostTier

KIB, MIB = 1 << 10, 1 << 20
NO_DEVICE = 3
DEADLINE_S = 60.0
QUEUED_STEPS = 2
AT_RANDOM, IN_ONE_RUN = "host blocks at random", "host blocks in one run"
_CUDA: Any = torch.cuda  # much of it is untyped
Slots = npt.NDArray[np.int32]


class Rig:
    """A layer-first pool on the device, a host tier below it, and plain memory to compare with."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        """``blocks`` of ``layers`` segments of ``segment`` bytes on the device, ``moved`` of them
        at a time; the host has room for twice as many.
        """
        self.layers, self.segment = sizes["layers"], sizes["segment"]
        self.block, self.moved = self.layers * self.segment, sizes["moved"]
        self.nbytes = self.moved * self.block
        self.cuda = device.type == "cuda"
        torch.manual_seed(1)
        shape = (self.layers, sizes["blocks"], self.segment // 8)
        self.pool = torch.randint(-(1 << 62), 1 << 62, shape, dtype=torch.int64, device=device)
        axes = (("layer", self.layers), ("byte", self.segment))
        group = Group("kv", Layout((Part("kv", "uint8", axes),)))
        self.device = DeviceTier({"kv": list(self.pool.unbind(0))}, staged=True)
        self.device.attach((group,), 64, None)
        self.host = HostTier(2 * self.nbytes)
        self.host.attach((group,), 64, self.device)
        rng = np.random.default_rng(2)
        self.slots = rng.permutation(sizes["blocks"])[: self.moved].astype(np.int32)
        room = np.sort(self.host.reserve(0, 2 * self.moved))
        self.lower = {
            IN_ONE_RUN: room[: self.moved],
            AT_RANDOM: rng.permutation(room[self.moved :]),
        }
        self.index = torch.from_numpy(self.slots.astype(np.int64)).to(device)
        self.plain = torch.empty(self.nbytes // 8, dtype=torch.int64, pin_memory=self.cuda)
        self.beside = torch.zeros(self.nbytes // 8, dtype=torch.int64, device=device)
        self.plain.zero_()  # touches it
        self._jobs = 0

    def close(self) -> None:
        """Waits for what runs, and gives the memory back."""
        self.settle()
        self.host.close()
        self.device.close()

    def settle(self) -> None:
        """Everything that was queued on the device is done."""
        if self.cuda:
            _CUDA.synchronize()

    def start(self, lower: Slots, *, storing: bool, by_layer: bool = False) -> int:
        """Starts a store of the blocks to ``lower``, or a load from there; its job number."""
        self._jobs += 1
        urgency = Urgency.STORE if storing else Urgency.DEMAND
        job = Transfer(self._jobs, 0, self.slots, lower, urgency, None, by_layer=by_layer)
        (self.host.store if storing else self.host.load)(job, self.device)
        return self._jobs

    def end(self) -> TransferDone:
        """Waits for the one transfer under way. ``AssertionError`` where it went wrong."""
        self.host.wait(DEADLINE_S)
        ended = self.host.poll()
        if len(ended) != 1 or not ended[0].good.all():
            raise AssertionError(f"a transfer did not end well: {ended}")
        return ended[0]

    def move(self, lower: Slots, *, storing: bool) -> None:
        """A store or a load, to its acknowledgement."""
        self.start(lower, storing=storing)
        self.end()

    def copy_plainly(self, *, storing: bool) -> None:
        """One copy of as many bytes, which lie in one piece on both sides."""
        source, target = (self.beside, self.plain) if storing else (self.plain, self.beside)
        target.copy_(source, non_blocking=True)
        self.settle()

    def held_rightly(self, lower: Slots) -> int:
        """How many host blocks hold what the pool does."""
        there = self.pool.index_select(1, self.index).transpose(0, 1).contiguous().cpu().numpy()
        (plane,) = self.host.planes(0)
        places = (int(plane["base"]) + int(row) * int(plane["stride"]) for row in lower)
        pairs = zip(places, there, strict=True)
        return sum(ctypes.string_at(at, self.block) == block.tobytes() for at, block in pairs)

    def brought_rightly(self, lower: Slots) -> int:
        """How many blocks a load brings back into wiped slots; the rest of the pool as it was."""
        before = self.pool.clone()
        self.pool.index_fill_(1, self.index, 0)
        self.move(lower, storing=False)
        self.settle()
        same = (self.pool == before).all(dim=2).all(dim=0)
        if int(same.sum()) != self.pool.size(1):
            return int(same.index_select(0, self.index).sum())
        return self.moved


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# ---------------------------------------------------------------------- both ways
def _measure_copies(rig: Rig, sizes: Sizes, rounds: Rounds) -> None:
    """GB/s of stores, loads and plain copies, in turn; the first round warms up."""
    for number in range(sizes["rounds"] + 1):
        for storing, way in ((True, "store"), (False, "load")):
            found = {
                f"{way}, {kind}": seconds(partial(rig.move, lower, storing=storing))
                for kind, lower in rig.lower.items()
            }
            copy = partial(rig.copy_plainly, storing=storing)
            plain = min(seconds(copy) for _ in range(3))
            if number:
                for name, took in found.items():
                    rounds.add(name, OURS, "GB/s", rig.nbytes / took / 1e9)
                rounds.add(_plain(way), LIMIT, "GB/s", rig.nbytes / plain / 1e9)


def _plain(way: str) -> str:
    return f"plain copy to page-locked memory, as a {way}"


# ---------------------------------------------------------------------- beside computing
@dataclass(slots=True)
class Steps:
    """Work on the device, a step for each layer, on the stream that computes."""

    matrix: torch.Tensor
    repeats: int
    marks: list[tuple[Any, Any]]
    spans: list[tuple[int, int]]

    def queue(self, cuda: bool, clock: Callable[[], int]) -> None:
        """One step more; on the CPU it is done when this returns."""
        start, end = (_CUDA.Event(enable_timing=True) for _ in range(2)) if cuda else (None, None)
        begun = clock()
        if start is not None:
            start.record()
        for _ in range(self.repeats):
            torch.mm(self.matrix, self.matrix)
        if end is not None:
            end.record()
        self.marks.append((start, end))
        self.spans.append((begun, clock()))

    def waiting(self) -> int:
        """Steps that were queued and are not done."""
        return sum(end is not None and not end.query() for _, end in self.marks)


def _steps_for(rig: Rig, sizes: Sizes, about_s: float) -> Steps:
    """Steps that take, all layers together, about as long as a load does (CUDA only)."""
    size = sizes["matrix"]
    dtype = torch.float16 if rig.cuda else torch.float32
    matrix = torch.ones((size, size), dtype=dtype, device=rig.pool.device) / size
    if not rig.cuda:
        return Steps(matrix, 1, [], [])
    torch.mm(matrix, matrix)
    rig.settle()

    def trial() -> None:
        for _ in range(50):
            torch.mm(matrix, matrix)
        rig.settle()

    once = seconds(trial) / 50
    return Steps(matrix, max(1, round(about_s / rig.layers / once)), [], [])


def _overlapped(
    rig: Rig, steps: Steps, timeline: Timeline, *, loading: bool, by_layer: bool
) -> float:
    """Seconds until all steps and the load are done. Without ``by_layer`` the steps are another
    request's and wait for nothing; with it step i waits for layer i.
    """
    steps.marks.clear()
    steps.spans.clear()
    rig.settle()
    base, zero = _CUDA.Event(enable_timing=True) if rig.cuda else None, timeline.now_ns()
    if base is not None:
        base.record()
        base.synchronize()
        zero = timeline.now_ns()
    begun = timeline.now_ns()
    job = rig.start(rig.lower[AT_RANDOM], storing=False, by_layer=by_layer) if loading else 0
    ended_ns, arrived = 0 if loading else begun, 0
    while not ended_ns or len(steps.marks) < rig.layers:
        if not ended_ns:
            arrived = _arrivals(rig, job, timeline, arrived) if by_layer else rig.layers
            done = rig.host.poll()
            if done:
                if not done[0].good.all():
                    raise AssertionError(f"a load did not end well: {done}")
                ended_ns, arrived = timeline.now_ns(), rig.layers
        may = not loading or arrived > len(steps.marks)
        if may and len(steps.marks) < rig.layers and steps.waiting() < QUEUED_STEPS:
            steps.queue(rig.cuda, timeline.now_ns)
    rig.settle()
    took_ns = timeline.now_ns() - begun
    title = "layer by layer" if by_layer else "beside another request"
    if loading:
        timeline.span(f"transfers/load {title}", "host to device", begun, ended_ns, job=job)
    for layer, (start, end) in enumerate(_spans_of(steps, base, zero)):
        timeline.span(f"compute/{title if loading else 'alone'}", f"layer {layer}", start, end)
    return took_ns / 1e9


def _arrivals(rig: Rig, job: int, timeline: Timeline, before: int) -> int:
    """Layers of the load that are complete, each new one noted on the timeline."""
    now = rig.host.layers(job)
    for layer in range(before, now):
        timeline.instant("transfers/load layer by layer", f"layer {layer} is there")
    return now


def _spans_of(steps: Steps, base: Any, zero: int) -> list[tuple[int, int]]:
    """When each step ran on the device, on the timeline's clock."""
    if base is None:
        return steps.spans
    found = []
    for start, end in steps.marks:
        first, last = (zero + round(base.elapsed_time(mark) * 1e6) for mark in (start, end))
        found.append((first, max(first, last)))
    return found


def _measure_overlap(rig: Rig, sizes: Sizes, rounds: Rounds, timeline: Timeline) -> None:
    """Milliseconds of a load, of computing, and of both at once."""
    load = min(seconds(lambda: rig.move(rig.lower[AT_RANDOM], storing=False)) for _ in range(3))
    steps = _steps_for(rig, sizes, load)
    for number in range(sizes["rounds"] + 1):
        alone = seconds(lambda: rig.move(rig.lower[AT_RANDOM], storing=False))
        quiet = _overlapped(rig, steps, timeline, loading=False, by_layer=False)
        beside = _overlapped(rig, steps, timeline, loading=True, by_layer=False)
        layers = _overlapped(rig, steps, timeline, loading=True, by_layer=True)
        if number:
            rounds.add("load alone", PLAIN, "ms", alone * 1e3)
            rounds.add("computing alone", PLAIN, "ms", quiet * 1e3)
            rounds.add("the longer of the two", LIMIT, "ms", max(alone, quiet) * 1e3)
            rounds.add("one after the other", PLAIN, "ms", (alone + quiet) * 1e3)
            rounds.add("both at once, another request's", OURS, "ms", beside * 1e3)
            rounds.add("both at once, layer by layer", OURS, "ms", layers * 1e3)


# ---------------------------------------------------------------------- the whole
def measure(sizes: Sizes, trace: Path) -> Outcome:
    """All of it on CUDA, or with ``sizes["cpu"]`` on the CPU, where no target is set; the timeline
    is written to ``trace``. ``Skip`` where there is no CUDA device.
    """
    if not sizes["cpu"] and not _CUDA.is_available():
        raise Skip("no CUDA device (python -m bench.gpu --cpu runs the same calls on the CPU)")
    if sizes["cpu"]:
        with torch_threads(1):
            return _measured(Rig(sizes, torch.device("cpu")), sizes, trace)
    return _measured(Rig(sizes, torch.device("cuda")), sizes, trace)


def _measured(rig: Rig, sizes: Sizes, trace: Path) -> Outcome:
    rounds, timeline = Rounds(), Timeline()
    try:
        right: dict[str, int | str] = {"blocks": rig.moved}
        for kind, lower in rig.lower.items():
            rig.move(lower, storing=True)
            right[f"stored rightly, {kind}"] = rig.held_rightly(lower)
            rig.host.commit(0, lower)
        with no_collection():
            _measure_copies(rig, sizes, rounds)
            _measure_overlap(rig, sizes, rounds, timeline)
        for kind, lower in rig.lower.items():
            right[f"loaded rightly, {kind}"] = rig.brought_rightly(lower)
        registered = rig.host.registered
    finally:
        rig.close()
    timeline.write(trace)
    found = rounds.rows()
    pairs = [(f"{way}, {kind}", _plain(way)) for way in ("store", "load") for kind in rig.lower]
    ratios = [ratio(found, name, to) for name, to in pairs]
    ratios.append(ratio(found, "both at once, another request's", "the longer of the two"))
    ratios.append(ratio(found, "both at once, layer by layer", "the longer of the two"))
    targets = [] if sizes["cpu"] else [Target(" / ".join(p), "at least", 0.85) for p in pairs]
    right["host memory page-locked"] = "yes" if registered else "no"
    return Outcome(rows=found, facts=right, ratios=ratios, targets=targets)


def wrong_of(outcome: Outcome) -> list[str]:
    """What did not arrive as it should have, in words."""
    whole = outcome.facts["blocks"]
    return [
        f"{name}: {value} of {whole} blocks"
        for name, value in outcome.facts.items()
        if "rightly" in name and value != whole
    ]


def run_gpu(sizes: Sizes, place: Place) -> Outcome:
    """As a benchmark among the others: the timeline is looked at, and not kept."""
    trace = place.data / "gpu-overlap.json"
    try:
        outcome = measure(sizes, trace)
        events = json.loads(trace.read_text())["traceEvents"]
    finally:
        trace.unlink(missing_ok=True)
    if wrong := wrong_of(outcome):
        raise AssertionError("; ".join(wrong))
    drawn = sum(event["ph"] == "X" for event in events)
    return Outcome(outcome.rows, {**outcome.facts, "spans": drawn}, outcome.ratios, outcome.targets)


_CPU = {
    "cpu": 1,
    "layers": 4,
    "segment": 4 * KIB,
    "blocks": 64,
    "moved": 24,
    "matrix": 32,
    "rounds": 2,
}
_FULL = {
    "cpu": 0,
    "layers": 64,
    "segment": 32 * KIB,
    "blocks": 1024,
    "moved": 256,
    "matrix": 4096,
    "rounds": 7,
}

BENCHMARKS = (
    Benchmark(
        "gpu",
        "Device to page-locked host memory and back, and loads beside computing",
        run_gpu,
        smoke=_CPU,
        full=_FULL,
        tags=("gpu",),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it and prints what it found. Returns the exit status (above)."""
    parser = argparse.ArgumentParser(prog="bench.gpu", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--cpu", action="store_true", help="tiny, with tensors on the CPU")
    parser.add_argument("--json", metavar="FILE", help="write the report")
    parser.add_argument(
        "--trace", metavar="FILE", default="gpu-overlap.json", help="where the timeline goes"
    )
    return ended("bench.gpu", partial(_run, parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    check_target("--json", options.json)
    check_target("--trace", options.trace)
    sizes = _CPU if options.cpu else _FULL
    try:
        outcome = measure(sizes, Path(options.trace))
    except Skip as reason:
        print(f"bench.gpu: skipped: {reason}", file=sys.stderr)
        return NO_DEVICE
    (benchmark,) = BENCHMARKS
    block = benchmark_block(benchmark, sizes, outcome)
    print("\n".join(lines_of(block)))
    print(f"timeline: {options.trace} (opens in Perfetto and in chrome://tracing)")
    if options.json:
        machine = machine_block(Path(tempfile.gettempdir()))
        if not options.cpu:
            machine["gpu"] = _CUDA.get_device_name()
        report = report_block(machine, versions_block(), [block], options.cpu)
        with written_to(options.json), draft_of(options.json) as draft:
            draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = wrong_of(outcome)
    for line in wrong:
        print(f"WRONG BYTES: {line}", file=sys.stderr)
    return int(bool(wrong) or not all(target["reached"] for target in block["targets"]))


if __name__ == "__main__":
    sys.exit(main())
