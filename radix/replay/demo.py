"""`radix demo`: made-up chats, agents and a batch scan through device, host and disk with real
bytes, then the same once more over what the disk kept.

Kept here: several requests are open at once and decode in turns; every block that a request gets
back is compared with what it must hold; the warm start must serve each block that was durable when
the cold start was closed; whether it succeeds, fails or is interrupted, nothing is left behind but
the report.

    pass          device        host          disk
    cold start    empty         empty         an empty directory
    warm start    empty         empty         what the cold start left durable
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radix.events import Event, RequestEvent, RequestState
from radix.keys import Tokens
from radix.replay.history import History
from radix.replay.interrupt import Interrupt, deferred_interrupt
from radix.replay.options import TierSizes
from radix.replay.plots import plot_bytes_moved, plot_hit_ratio_over_time, plot_occupancy
from radix.replay.progress import Progress
from radix.replay.report import Check, TieredReport, TieredRun, write_json
from radix.replay.tiered import Serving, Shape, opened
from radix.replay.timeline import Timeline
from radix.replay.workload import Operation, WorkloadRequest, WorkloadSizes, generate
from radix.request import Request
from radix.tier import Keys

PAGE_TOKENS = 16
BLOCK_BYTES = 64 << 10
# The device holds little more than runs at once, the host a fourth of all blocks, the disk all.
SIZES = TierSizes(device=1024, host=1536, disk=8192)
WORKLOAD = WorkloadSizes()
# Each step of each request ends in a write to the disk; few large ones cost less than many small.
STEP_TOKENS = 48
COLD, WARM = "cold start", "warm start"


def run_demo(
    seed: int,
    report_dir: Path,
    progress: Progress,
    workload: WorkloadSizes = WORKLOAD,
    sizes: TierSizes = SIZES,
) -> TieredReport:
    """Run the demo and write plots, timeline and summary to `report_dir`, which is made if needed.

    Cost: with the sizes left out some ten seconds, 0.5 GiB of memory and 0.5 GiB of disk.

    Args:
        seed: what all traffic is made from; the same seed gives the same requests.
        report_dir: where hit_ratio.png, occupancy.png, bytes.png, timeline.json and summary.json
            are written, replacing those of an earlier run.
        progress: told what is done.
        workload: how much traffic of which shape.
        sizes: blocks a tier, at least as many on the device as the longest request fills.

    Raises:
        OSError: the report cannot be written, or there is no temporary folder.
        KeyboardInterrupt: Ctrl-C was pressed; no report is written.
    """
    operations = tuple(generate(np.random.default_rng(seed), workload))
    timeline = Timeline()
    with _report_folder(report_dir):
        with (
            deferred_interrupt() as interrupt,
            tempfile.TemporaryDirectory(prefix="radix-demo-") as data,
        ):
            shape = Shape(sizes, BLOCK_BYTES, PAGE_TOKENS, Path(data))
            history = History(shape.capacity_bytes)
            demo = _Demo(operations, shape, history, timeline, progress, interrupt)
            cold = demo.serve(COLD, frozenset())
            history.mark(timeline.now_ns() / 1e9, "closed and reopened")
            warm = demo.serve(WARM, cold.durable)
        report = TieredReport(
            source=f"demo of seed {seed}: chats, agents and a batch scan on {cold.device}",
            settings={
                "seed": seed,
                "device": cold.device,
                "device_blocks": sizes.device,
                "host_blocks": sizes.host,
                "disk_blocks": sizes.disk,
                "block_bytes": BLOCK_BYTES,
                "page_tokens": PAGE_TOKENS,
            },
            runs=(cold.run, warm.run),
            checks=(*cold.checks, *warm.checks),
            stages=(),
        )
        _write_report(report, (cold, warm), history, timeline, report_dir)
    return report


@contextmanager
def _report_folder(folder: Path) -> Iterator[None]:
    """Refuse before the work what cannot be written; take back a folder that stays empty."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _write_report(
    report: TieredReport,
    passes: Sequence[_Passed],
    history: History,
    timeline: Timeline,
    folder: Path,
) -> None:
    plot_hit_ratio_over_time(history, folder / "hit_ratio.png")
    plot_occupancy(history, folder / "occupancy.png")
    plot_bytes_moved(history, folder / "bytes.png")
    timeline.write(folder / "timeline.json")
    counters = {each.run.label: dict(each.counters) for each in passes}
    write_json(str(folder / "summary.json"), {**report.as_json(), "counters": counters})


@dataclass(frozen=True, slots=True)
class _Passed:
    """What a pass found; `durable`: keys of the blocks on the disk when it was closed."""

    run: TieredRun
    checks: tuple[Check, ...]
    counters: Mapping[str, int]
    durable: frozenset[bytes]
    device: str


@dataclass(frozen=True, slots=True)
class _Demo:
    """What both passes share."""

    operations: tuple[Operation, ...]
    shape: Shape
    history: History
    timeline: Timeline
    progress: Progress
    interrupt: Interrupt

    def serve(self, label: str, durable: frozenset[bytes]) -> _Passed:
        """Open the cache, run all operations, and close it; `durable` must be there and served."""
        timeline, tracks = self.timeline, _Tracks(self.timeline)
        self.progress.phase(label, len(self.operations))
        with opened(self.shape, timeline.now_ns, events=True) as (cache, device):
            serving = Serving(
                cache,
                device,
                self.shape,
                self.history,
                self.interrupt,
                verify=True,
                listen=tracks.hear,
            )
            found = frozenset(serving.on_disk)
            serving.sample(timeline.now_ns() / 1e9)
            player = _Player(serving, tracks)
            for number, operation in enumerate(self.operations, 1):
                with timeline.measure("program/operations", operation.action):
                    player.play(operation)
                held = serving.sample(timeline.now_ns() / 1e9)
                timeline.counter("blocks held", **held)
                self.progress.reach(number)
            serving.settle()
            serving.sample(timeline.now_ns() / 1e9)
            run = serving.run(label)
            checks = [*serving.checks(label, loads_expected=True), *_pass_checks(serving, run)]
            at_close = frozenset(serving.on_disk)
            if durable:
                self.progress.phase("blocks not asked for again", len(durable))
                by_workload = len(durable & player.served)
                player.ask_for(durable, self.operations, self.progress)
                checks += _restart_checks(durable, found, by_workload, player)
            cache.check()
            return _Passed(run, tuple(checks), cache.counters(), at_close, str(device.device))


def _pass_checks(serving: Serving, run: TieredRun) -> list[Check]:
    metrics = serving.cache.metrics
    read = metrics.total("load", "blocks", "disk")
    sound = metrics.total("load", "verified", "disk")
    return [
        Check(
            f"{run.label}: checksums of the disk held",
            read == sound > 0 and not run.corrupt_blocks,
            f"{sound:,} of {read:,}",
        ),
        Check(
            f"{run.label}: every tier served hits",
            all(run.hit_tokens.values()),
            ", ".join(f"{tokens:,}" for tokens in run.hit_tokens.values()),
        ),
    ]


def _restart_checks(
    durable: frozenset[bytes], found: frozenset[bytes], by_workload: int, player: _Player
) -> list[Check]:
    """The disk gave back all that it had acknowledged: to the workload, and the rest on request."""
    served = len(durable & player.served)
    serving = player.serving
    sound = serving.wrong_blocks == 0 and serving.loaded_blocks == serving.verified_blocks
    return [
        Check(
            f"{WARM}: durable blocks were found again",
            found == durable,
            f"{len(found & durable):,} of {len(durable):,}",
        ),
        Check(
            f"{WARM}: durable blocks were served",
            served == len(durable) and sound,
            f"{by_workload:,} + {served - by_workload:,} of {len(durable):,}",
        ),
    ]


class _Tracks:
    """Turns what a cache tells into spans of the timeline: states of requests, and transfers."""

    def __init__(self, timeline: Timeline) -> None:
        self.made: dict[int, WorkloadRequest] = {}
        self._timeline = timeline
        self._since: dict[int, RequestEvent] = {}

    def hear(self, event: Event) -> None:
        """Record the span that this event ends, if it does."""
        self._timeline.hear(event)
        if isinstance(event, RequestEvent) and event.request in self.made:
            made = self.made[event.request]
            before = self._since.pop(event.request, None)
            if before is not None:
                self._timeline.span(
                    f"requests/{made.kind}",
                    f"{made.session}: {before.state.value}",
                    before.time_ns,
                    event.time_ns,
                    request=made.number,
                )
            if event.state is not RequestState.RELEASED:
                self._since[event.request] = event


@dataclass(slots=True)
class _Open:
    """A request between admission and its end. `keys`: of all its pages, None until it runs."""

    request: Request
    output: Tokens
    keys: Keys | None = None
    computed: int = 0
    sampled: int = 0


class _Player:
    """Plays operations: `play`, then `ask_for` what was not asked for."""

    def __init__(self, serving: Serving, tracks: _Tracks) -> None:
        self.serving = serving
        self.served: set[bytes] = set()
        self._tracks = tracks
        self._open: dict[int, _Open] = {}

    def play(self, operation: Operation) -> None:
        """Do what the operation says; every request that is open takes a step."""
        number = operation.request.number
        if operation.action == "admit":
            made = operation.request
            request = self.serving.admit(made.prompt, len(made.output), self._make_room)
            self._tracks.made[request.id] = made
            self._open[number] = _Open(request, made.output)
        elif number in self._open:
            self._end(self._open.pop(number), aborted=operation.action == "abort")
        self.serving.pace()
        self.serving.poll()
        for each in self._open.values():
            if each.request.ready:
                self._step(each, len(each.output))

    def _make_room(self) -> bool:
        """End the oldest request early: what it holds is kept only as long as it may stay."""
        if not self._open:
            return False
        self._end(self._open.pop(min(self._open)), aborted=True)
        return True

    def _end(self, each: _Open, *, aborted: bool) -> None:
        """Sample the rest, or half of everything, and end it."""
        upto = len(each.output) // 2 if aborted else len(each.output)
        while each.keys is None or each.sampled < upto:
            self._step(each, upto)
        if aborted:
            each.request.abort()
        else:
            each.request.finish()

    def _step(self, each: _Open, upto: int) -> None:
        """Compute the prompt behind the hit, or sample a few tokens more."""
        serving, request = self.serving, each.request
        if each.keys is None:
            keys = serving.ready(request)
            hit_tokens = request.hit_tokens
            self.served.update(map(bytes, keys[: hit_tokens // PAGE_TOKENS]))
            each.keys = serving.content.keys(np.concatenate((request.tokens(), each.output)))
            each.computed = len(request)
            serving.compute(request, each.keys, hit_tokens, each.computed)
            return
        sampled = each.output[each.sampled : min(each.sampled + STEP_TOKENS, upto)]
        if len(sampled):
            request.append(sampled)
            each.sampled += len(sampled)
            # The state of the last token is computed only when the next one is sampled.
            before, each.computed = each.computed, len(request) - 1
            serving.compute(request, each.keys, before, each.computed)

    def ask_for(
        self, wanted: frozenset[bytes], operations: Sequence[Operation], progress: Progress
    ) -> None:
        """Admit whole histories, longest first, as long as they hold something `wanted`."""
        made = [operation.request for operation in operations if operation.action == "admit"]
        histories = [np.concatenate((each.prompt, each.output)) for each in made]
        for history in sorted(histories, key=len, reverse=True):
            keys = set(map(bytes, self.serving.content.keys(history)))
            if not keys & wanted - self.served:
                continue
            # One token more, because the last token of a prompt is never hit.
            request = self.serving.admit(np.append(history, np.int32(0)))
            found = self.serving.ready(request)
            self.served.update(map(bytes, found[: request.hit_tokens // PAGE_TOKENS]))
            request.abort()
            self.serving.poll()
            self.serving.pace()
            progress.reach(len(wanted & self.served))
