"""Replay a trace with real bytes through device, host and disk, one request after the other.

Kept here: each prompt is admitted, its hit brought to the device, the rest written as computing it
would, and shared; what lies on the disk of an earlier replay of the same shape is used; when Ctrl-C
is pressed, what is durable is kept and nothing else is left behind.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from radix.replay.history import History
from radix.replay.interrupt import Interrupt, deferred_interrupt
from radix.replay.options import TierSizes
from radix.replay.progress import Progress
from radix.replay.report import TieredReport
from radix.replay.stopwatch import Stopwatch
from radix.replay.tiered import Serving, Shape, opened
from radix.replay.traces import Trace

_SAMPLES = 1000


def replay_bytes(
    trace: Trace,
    sizes: TierSizes,
    block_bytes: int,
    data: Path | None,
    verify: bool,
    progress: Progress,
    stopwatch: Stopwatch | None = None,
    write: str = "write_through",
    budget_bytes: int | None = None,
    unit_s: float = 1e-3,
) -> tuple[TieredReport, History]:
    """Run a whole trace through the tiers and count hits, bytes moved and blocks verified.

    A prompt longer than the device is cut to what fits. Cost: the bytes of all prompts, some GB/s.

    Args:
        trace: the prompts; a page is one block id, or `trace.page_tokens` token ids.
        sizes: blocks a tier; 0 goes without it.
        block_bytes: bytes of the block of one page.
        data: the disk tier's directory, opened warm where it exists and kept; None takes a
            temporary one.
        verify: whether every block that a request gets back is compared with what it must hold.
        progress: told how many requests are done.
        stopwatch: whose stages the report has, from when it was made until the tiers are closed;
            one of the replay alone unless given.
        write: the policy of writing.
        budget_bytes: what the disk may be given to write in a day, by the trace's own time.
        unit_s: seconds that one of the trace's units of time stands for.

    Raises:
        OptionError: the tiers do not fit this machine, or `data` cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed; what is durable is kept.
    """
    stopwatch = stopwatch or Stopwatch()
    directory = stopwatch.around(_directory(sizes, data), "open", "close")
    with deferred_interrupt() as interrupt, directory as folder:
        shape = Shape(
            sizes, block_bytes, trace.page_tokens, folder, trace.unit, write, budget_bytes
        )
        clock = _TraceClock(trace, unit_s)
        report, history = _replay(trace, shape, data, verify, progress, interrupt, stopwatch, clock)
    return replace(report, stages=stopwatch.stages()), history


class _TraceClock:
    """The time of the request that runs, by the trace, as far as it goes on; the machine's where
    the trace has none.
    """

    def __init__(self, trace: Trace, unit_s: float) -> None:
        since = trace.timestamps - trace.timestamps[:1].sum()
        self._seconds = np.maximum.accumulate(since * unit_s)
        self.spanned_s = float(self._seconds[-1]) if len(self._seconds) else 0.0
        self._now_ns = 0

    def at(self, number: int) -> None:
        """This request begins."""
        self._now_ns = int(self._seconds[number] * 1e9)

    def __call__(self) -> int:
        return self._now_ns if self.spanned_s else time.perf_counter_ns()


@contextmanager
def _directory(sizes: TierSizes, data: Path | None) -> Iterator[Path | None]:
    if data is not None or not sizes.disk:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="radix-replay-") as name:
        yield Path(name)


def _replay(
    trace: Trace,
    shape: Shape,
    data: Path | None,
    verify: bool,
    progress: Progress,
    interrupt: Interrupt,
    stopwatch: Stopwatch,
    clock: _TraceClock,
) -> tuple[TieredReport, History]:
    history = History(shape.capacity_bytes)
    progress.phase("requests", len(trace))
    began = time.perf_counter()
    tiers = opened(shape, clock, events=False)
    with stopwatch.around(tiers, "open", "close") as (cache, device):
        stopwatch.watch_cache(cache)
        serving = Serving(cache, device, shape, history, interrupt, verify=verify)
        stopwatch.watch(serving, "sample", "sample")
        stopwatch.watch(serving.content, "write", "content")
        stopwatch.watch(serving.content, "keys", "content")
        stopwatch.watch(serving.content, "wrong", "verify")
        step = max(1, len(trace) // _SAMPLES)
        for number, (prompt, space) in enumerate(zip(trace.prompts(), trace.spaces(), strict=True)):
            clock.at(number)
            if len(prompt):
                request = serving.admit(prompt, namespace=space)
                keys = serving.ready(request)
                serving.compute(request, keys, request.hit_tokens, len(request))
                request.finish()
                serving.poll()
                serving.pace()
            if number % step == 0:
                progress.reach(number)
                serving.sample(time.perf_counter() - began)
        serving.settle()
        serving.sample(time.perf_counter() - began)
        progress.reach(len(trace))
        report = TieredReport(
            source=trace.name,
            settings={
                "device_blocks": shape.sizes.device,
                "host_blocks": shape.sizes.host,
                "disk_blocks": shape.sizes.disk,
                "block_bytes": shape.block_bytes,
                "page_tokens": shape.page_tokens,
                "page": trace.unit,
                "device": str(device.device),
                "data": "" if data is None else str(data),
                "verify": int(verify),
                "write": shape.write,
                "write_budget_bytes_per_day": shape.budget_bytes or 0,
            },
            runs=(serving.run("replay", clock.spanned_s),),
            checks=tuple(serving.checks()),
            stages=(),
        )
    return report, history
