"""The stages of a replay are exclusive, add up to all of its time, and what is in none is shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.cli import main
from radix.groups import Group
from radix.replay.bytes import replay_bytes
from radix.replay.options import TierSizes
from radix.replay.progress import Progress
from radix.replay.report import TieredReport
from radix.replay.stopwatch import BOOKS, BYTES, PARTS, REPLAY, REST, TREE, Stopwatch
from radix.replay.traces import read_trace
from tiers.index import IndexTier


class Clock:
    """A clock that stands still but where it is told to go on."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_ns(self, count: int) -> None:
        """Time goes on."""
        self.now_ns += count


def spent(stopwatch: Stopwatch) -> dict[str, int]:
    return {stage.name: round(stage.seconds * 1e9) for stage in stopwatch.stages()}


def test_a_stage_has_only_the_time_in_which_no_other_ran_inside_it() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    load = stopwatch.timed("load", clock.pass_ns)

    def plan(count: int) -> int:
        clock.pass_ns(7)
        load(count)
        clock.pass_ns(11)
        return count

    clock.pass_ns(1)
    with stopwatch.measure("admit"):
        clock.pass_ns(20)
        assert stopwatch.timed("plan", plan)(300) == 300
        clock.pass_ns(4000)
    clock.pass_ns(50_000)
    assert spent(stopwatch) == {"admit": 4020, "plan": 18, "load": 300, REST: 50_001}
    assert sum(spent(stopwatch).values()) == clock.now_ns


def test_a_stage_ends_though_its_call_raises() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)

    def fail() -> None:
        clock.pass_ns(5)
        raise KeyError("gone")

    with pytest.raises(KeyError), stopwatch.measure("admit"):
        stopwatch.timed("evict", fail)()
    clock.pass_ns(3)
    assert spent(stopwatch) == {"admit": 0, "evict": 5, REST: 3}


@pytest.mark.parametrize("fails", [False, True])
def test_a_context_is_entered_in_one_stage_and_left_in_another(fails: bool) -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    seen: list[type[BaseException] | None] = []

    @contextmanager
    def tiers() -> Iterator[str]:
        clock.pass_ns(10)
        error: type[BaseException] | None = None
        try:
            yield "tiers"
        except ValueError as caught:
            error = type(caught)
            raise
        finally:
            seen.append(error)
            clock.pass_ns(100)

    def run() -> None:
        with stopwatch.around(tiers(), "open", "close") as found:
            assert found == "tiers"
            clock.pass_ns(1000)
            if fails:
                raise ValueError("stop")

    if fails:
        with pytest.raises(ValueError, match="stop"):
            run()
    else:
        run()
    clock.pass_ns(10_000)
    assert seen == [ValueError if fails else None]
    assert spent(stopwatch) == {"open": 10, "close": 100, REST: 11_000}


def test_a_context_that_does_not_open_leaves_no_stage_open() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)

    @contextmanager
    def tiers() -> Iterator[None]:
        clock.pass_ns(10)
        raise OSError("no room")
        yield

    with pytest.raises(OSError, match="no room"), stopwatch.around(tiers(), "open", "close"):
        pass
    clock.pass_ns(7)
    assert spent(stopwatch) == {"open": 10, REST: 7}


def test_an_unknown_stage_is_refused_by_name() -> None:
    stopwatch = Stopwatch(Clock())
    with pytest.raises(ValueError, match="unknown stage 'mtach'"):
        stopwatch.timed("mtach", len)
    with pytest.raises(ValueError, match="unknown stage ''"), stopwatch.measure(""):
        pass
    with pytest.raises(AttributeError):
        stopwatch.watch(stopwatch, "no_such_call", "match")
    assert [stage.name for stage in stopwatch.stages()] == [REST]


def test_only_the_cache_that_is_watched_is_measured() -> None:
    groups = [Group.full("kv", 64)]
    prompt = np.arange(64, dtype=np.int32)
    with (
        PrefixCache(groups, [IndexTier(limit_bytes=1024)]) as watched,
        PrefixCache(groups, [IndexTier(limit_bytes=1024)]) as other,
    ):
        stopwatch = Stopwatch()
        stopwatch.watch_cache(watched)
        for cache in (watched, other, other):
            request = cache.admit(prompt)
            request.finish()
            cache.poll()
        calls = {stage.name: stage.calls for stage in stopwatch.stages()}
    assert (calls["admit"], calls["match"], calls["settle"]) == (1, 1, 1)


def write(path: Path) -> Path:
    random = np.random.default_rng(3)
    chains = [random.integers(0, 1 << 20, size=24).tolist() for _ in range(12)]
    lines = [
        json.dumps(
            {
                "timestamp": number,
                "hash_ids": chains[random.integers(12)][: int(random.integers(2, 25))],
            }
        )
        for number in range(120)
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.jsonl")


def replay(trace: Path, stopwatch: Stopwatch | None = None) -> TieredReport:
    sizes = TierSizes(32, 64, 512)
    tokens = read_trace(str(trace))
    report, _ = replay_bytes(tokens, sizes, 4096, None, True, Progress(), stopwatch)
    assert report.passed, report.checks
    return report


def test_stages_of_a_replay_add_up_to_every_tick_of_its_clock(trace: Path) -> None:
    # A clock that goes on by one at each reading: the stages must have all of them, none twice.
    ticks = itertools.count()
    report = replay(trace, Stopwatch(lambda: next(ticks)))
    assert sum(round(stage.seconds * 1e9) for stage in report.stages) == next(ticks) - 1
    assert all(stage.seconds > 0 for stage in report.stages)


def test_shares_of_a_replay_add_up_to_one_and_the_rest_is_shown(trace: Path) -> None:
    report = replay(trace)
    values = report.as_json()
    assert sum(stage["share"] for stage in values["stages"]) == pytest.approx(1)
    assert sum(values["parts"].values()) == pytest.approx(1)
    assert list(values["parts"]) == [TREE, BOOKS, BYTES, REPLAY]
    assert all(0 <= stage["share"] <= 1 for stage in values["stages"])
    assert report.seconds >= report.runs[0].seconds  # opening and closing are in it
    assert report.stages[-1].name == REST and report.stages[-1].seconds > 0


def test_every_stage_is_entered_as_often_as_it_happens(trace: Path) -> None:
    # A call that was renamed, or that is gone around, would be missing here.
    report = replay(trace)
    (run,) = report.runs
    calls = {stage.name: stage.calls for stage in report.stages}
    assert set(calls) == set(PARTS) - {"parse"}
    assert calls["insert"] == calls["verify"] == run.requests
    assert calls["match"] == calls["admit"]  # more than requests: some wait for room
    assert calls["content"] == 2 * run.requests  # keys, and bytes
    assert calls["admit"] >= run.requests
    assert calls["release"] >= run.requests
    assert (calls["open"], calls["close"], calls["flush"], calls[REST]) == (2, 2, 1, 1)
    assert all(calls[stage] for stage in ("evict", "plan", "settle", "store", "load", "progress"))


def test_command_line_shows_the_stages_and_writes_them(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.json"
    tiers = ["--tiers", "device=32,host=64,disk=512", "--block-bytes", "4096"]
    assert main(["replay", str(trace), *tiers, "--json", str(target)]) == 0
    out, _ = capsys.readouterr()
    for word in ("where the time went", TREE, BOOKS, BYTES, REPLAY, "parse", "100.0 %", REST):
        assert word in out, word
    report = json.loads(target.read_text())
    assert [stage["name"] for stage in report["stages"]] == [
        name for name in PARTS if name != "verify"
    ]
    assert sum(report["parts"].values()) == pytest.approx(1)
