"""Whatever stops a program of the benchmarks is told in one line, with a status that is not 0, and
leaves nothing behind: no child, no data, no half report, no open file.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as entry
from bench import registry
from bench.measure import Benchmark, Outcome, Place, Row, Sizes
from bench.peers.protocol import Disagreement
from bench.report import SCHEMA_VERSION, benchmark_block, read_report, report_block
from bench.run import main
from radix.options import OptionError
from tiers.disk import DiskTier

ROOT = Path(__file__).resolve().parents[2]
FOUND = Outcome(rows=[Row("r", "radix", "s", (1.0, 2.0))], facts={"hits": 1})
DISK = ("writes", "reads", "contention", "churn", "paths", "reopen")


def stub(run: Callable[[Sizes, Place], Outcome]) -> Benchmark:
    return Benchmark("stub", "a stub", run, smoke={}, full={})


def found(sizes: Sizes, place: Place) -> Outcome:
    return FOUND


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Makes what is called "stub" write some data and then do as it is told."""

    def install(body: Callable[[], None]) -> None:
        def run(sizes: Sizes, place: Place) -> Outcome:
            (place.data / "some").write_text("data")
            body()
            return FOUND

        monkeypatch.setitem(registry.BY_NAME, "stub", stub(run))

    return install


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("bench"), said
    return said


# ------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such", "--smoke"], "unknown: no-such; known: match"),
        (["stub", "--json", "{tmp}/none/r.json"], "none/r.json cannot be written"),
        (["stub", "--json", "{tmp}"], "is a directory"),
        (["stub", "--json", ""], "is a directory"),
        (["stub", "--json", "/proc/r.json"], "/proc/r.json: No such file"),
        (["stub", "--json", "/dev/full"], "/dev/full: No space left"),
        (["stub", "--data", "{tmp}/none"], "none' is no folder"),
        (["stub", "--data", ""], "'' is no folder"),
        (["stub", "--data", "/proc"], "/proc/radix-bench-"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report that could not be written was found out after all had been measured, with a
    traceback; a folder that is none had one, too.
    """
    monkeypatch.setitem(registry.BY_NAME, "stub", stub(found))
    told = [each.replace("{tmp}", str(tmp_path)) for each in arguments]
    assert main(told if "--data" in told else [*told, "--data", str(tmp_path)]) == 2
    assert said in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_traces_that_is_none_is_refused_before_anything_runs(
    tmp_path: Path,
    running: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong RADIX_TRACES skipped what needs traces, with status 0; a smoke run needs none."""
    calls: list[int] = []
    running(lambda: calls.append(1))
    monkeypatch.setenv("RADIX_TRACES", str(tmp_path / "none"))
    assert main(["stub", "--data", str(tmp_path)]) == 2
    assert "RADIX_TRACES: " in one_line(capsys)
    assert calls == []
    assert main(["stub", "--smoke", "--data", str(tmp_path)]) == 0
    assert calls == [1]


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("gpu", ["--cpu", "--json", "{tmp}/none/r", "--trace", "{tmp}/t"], "--json: {tmp}/none/r"),
        ("gpu", ["--cpu", "--trace", "{tmp}/none/t"], "--trace: {tmp}/none/t cannot be written"),
        ("gpu", ["--cpu", "--trace", "/dev/null", "--json", "/dev/full"], "/dev/full: No space"),
        ("writes", ["{tmp}/none"], "oasst_en100_tok.jsonl.gz: no such file"),
        ("curves", ["replay", "{tmp}/none"], "mooncake_conversation.jsonl.gz: no such file"),
        ("curves", ["replay", "{tmp}", "nope"], "unknown: nope; known: chat, agents"),
        ("curves", ["replay", "{tmp}", "--policy", "nope"], "unknown policy 'nope'"),
        ("hints", ["replay", "{tmp}/none"], "claude_code_mix64.jsonl.gz: no such file"),
    ],
)
def test_the_other_programs_refuse_bad_input_in_a_line_too(
    program: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder without the traces was a traceback; a part that is none was left out without a
    word, and the status was 0.
    """
    pytest.importorskip("matplotlib")
    entry_of = importlib.import_module(f"bench.{program}").main
    assert entry_of([each.replace("{tmp}", str(tmp_path)) for each in arguments]) == 2
    last = capsys.readouterr().err
    assert last.count("\n") == 1 and last.startswith(f"bench.{program}: "), last
    assert said.replace("{tmp}", str(tmp_path)) in last
    assert list(tmp_path.iterdir()) == []


def test_help_is_given_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--help"]) == 0
    assert "bench plot REPORT.json" in capsys.readouterr().out
    assert entry.main(["drw"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "bench: interrupted\n"),
        (ModuleNotFoundError("No module named 'numpy'"), 1, "'numpy': make setup installs it"),
    ],
)
def test_what_happens_while_modules_are_loaded_is_a_line_too(
    error: BaseException,
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in the seconds that torch takes, and another interpreter, ended in a traceback."""
    monkeypatch.setattr("bench.run.main", lambda arguments: refuse(error)())
    assert entry.main(["run"]) == status
    assert said in one_line(capsys)


# -------------------------------------------------------------- what goes wrong
def refuse(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "x"),
            "stub: OSError: [Errno 28] No space",
        ),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "stub: BrokenPipeError"),
        (RuntimeError("a store failed"), "stub: RuntimeError: a store failed"),
        (Disagreement("hits: a counts 7, others 8"), "stub: Disagreement: hits: a counts 7"),
        (EOFError("the trace\nends"), "stub: EOFError: the trace ends"),
    ],
)
def test_a_benchmark_that_fails_is_named_and_the_old_report_stays(
    error: Exception,
    said: str,
    tmp_path: Path,
    running: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A full disk and counts that differed ended in a traceback."""
    running(refuse(error))
    target = tmp_path / "report.json"
    target.write_text("what was there")
    assert main(["stub", "--json", str(target), "--data", str(tmp_path)]) == 1
    assert said in one_line(capsys)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "what was there"


@pytest.mark.parametrize(
    ("program", "name", "status", "said"),
    [
        ("valgrind", "instructions", 1, "RuntimeError: valgrind ended with status 3: it is broken"),
        ("fio", "reads", 1, "--output-format=json: it is broken"),
        ("redis-server", "remote", 0, "skipped: redis-server does not answer"),
    ],
)
def test_a_program_that_does_not_run_here_is_told_with_its_last_words(
    program: str,
    name: str,
    status: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A valgrind that failed was a traceback without its words; a Redis server that had ended was
    waited for all the same.
    """
    data, broken = tmp_path / "data", tmp_path / program
    data.mkdir()
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("bench.remote.START_S", 1e9)
    assert main([name, "--smoke", "--data", str(data)]) == status
    told = capfd.readouterr()
    assert said in (told.err if status else told.out)
    assert "Traceback" not in told.err
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_in_order(
    number: signal.Signals,
    tmp_path: Path,
    running: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SIGTERM and SIGHUP ended the process on the spot: gigabytes of data stayed, and a Redis
    server ran on.
    """
    running(lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    status = main(["stub", "--json", str(tmp_path / "r.json"), "--data", str(tmp_path)])
    assert status == 128 + number
    assert one_line(capsys) == "bench run: interrupted\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_so(
    tmp_path: Path, running: Callable[[Callable[[], None]], None]
) -> None:
    running(lambda: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert main(["stub", "--data", str(tmp_path)]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", DISK)
@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_in_the_middle_of_a_disk_benchmark_closes_its_tiers(
    name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiers were left open, whose threads zero segments ahead: one that made a file while the
    folder was removed let it stay.
    """
    calls: list[int] = []
    store = DiskTier.store

    def interrupted(self: DiskTier, *given: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        store(self, *given)

    monkeypatch.setattr(DiskTier, "store", interrupted)
    status = main([name, "--smoke", "--data", str(tmp_path)])
    if name == "reopen" and call > 1:
        assert (status, len(calls)) == (0, 1), "a smoke run of it stores once"
        return
    assert status == 130
    assert list(tmp_path.iterdir()) == []
    assert open_below(tmp_path) == []


def open_below(folder: Path) -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the one that lists them
            continue
    return [name for name in names if name.startswith(str(folder))]


# ------------------------------------------------------------------- processes
HANGING = """
import sys
from bench import registry
from bench.measure import Benchmark
from bench.peers.protocol import Case, Peer, Session
from bench.run import main

def run(sizes, place):
    with Session([Peer("p", "p", "tests.peerchild", "", ("hangs", sys.argv[2]))]) as session:
        told = session.measure("any", {"rounds": 0}, 1).versions
        (place.data / "some").write_text("data")
        print("pid", told["pid of hangs"], file=sys.stderr, flush=True)
        session.measure("any", {"rounds": 1}, 1)

registry.BY_NAME["stub"] = Benchmark("stub", "a stub", run, {}, {})
sys.exit(main(["stub", "--data", sys.argv[1], "--json", sys.argv[1] + "/r.json"]))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_peer_that_hangs_ends_with_the_run(number: signal.Signals, tmp_path: Path) -> None:
    """One that hung outlived a run that was killed: it reads the end of its input only between two
    rounds.
    """
    data, mark = tmp_path / "data", tmp_path / "it hangs"
    data.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(data), str(mark)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        pid = int(process.stderr.readline().removeprefix("pid "))
        while not mark.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        said = process.stderr.read()
    until = time.monotonic() + 10.0  # a kill is not waited for
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    survived = alive(pid)
    if survived:
        os.kill(pid, signal.SIGKILL)
    assert not survived
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert said == "bench run: interrupted\n"
        assert list(data.iterdir()) == []


def listed(output: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "run", "--list"],
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_output_that_nobody_takes_is_no_traceback() -> None:
    """``bench run | head`` ended with a traceback, and another of the interpreter's own."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = listed(theirs)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")
    full = os.open("/dev/full", os.O_WRONLY)
    done = listed(full)
    os.close(full)
    assert done.returncode == 2
    assert done.stderr == "bench run: standard output: No space left on device\n"


# ---------------------------------------------------------------------- reports
def report() -> dict[str, Any]:
    block = benchmark_block(stub(found), {}, FOUND)
    return json.loads(json.dumps(report_block({"cpu": "x", "cores": 2}, {}, [block], True)))


def changed(path: tuple[str | int, ...], value: object) -> str:
    """A report with one place changed, or taken out."""
    whole = report()
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(whole)


ROW = ("benchmarks", 0, "rows", 0)
DAMAGED = {
    "no JSON": ("{", "no JSON"),
    "no text": (b"\x89PNG\xff", "no JSON"),
    "too deep": ("[" * 100_000, "no JSON"),
    "a list": ("[]", "no report of"),
    "of radix replay": (json.dumps({"schema_version": 1, "runs": []}), "no report of"),
    "another schema": (
        changed(("schema_version",), 99),
        "schema_version is 99, this program reads",
    ),
    "no machine": (changed(("machine",), None), "report has no 'machine'"),
    "no list": (changed(("benchmarks",), {}), "report.benchmarks is {}, no list"),
    "a block": (changed(("benchmarks", 0), 3), "report.benchmarks[0] is 3, no dict"),
    "no rows": (changed(("benchmarks",), []), "it holds no rows"),
    "no samples": (changed((*ROW, "samples"), []), "rows[0].samples is empty"),
    "a text": (changed((*ROW, "median"), "1"), "rows[0].median is '1', no number"),
    "not finite": (changed((*ROW, "median"), float("nan")), "rows[0].median is nan, no number"),
    "subject": (changed((*ROW, "subject"), ["x"]), "rows[0].subject is ['x'], no str"),
    "median": (changed((*ROW, "median"), 9.0), "'r': the median is no sample's"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_file_that_is_no_report_is_not_drawn(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but a missing key ended in a traceback, and one of another schema was drawn."""
    pytest.importorskip("matplotlib")
    from bench import plot

    text, said = DAMAGED[damage]
    source, target = tmp_path / "report.json", tmp_path / "figure.png"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    target.write_text("what was there")
    assert plot.main([str(source), str(target)]) == 2
    assert said in one_line(capsys)
    assert target.read_text() == "what was there"
    assert sorted(tmp_path.iterdir()) == [target, source]


def test_names_are_drawn_as_they_are_and_a_figure_that_fails_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name with dollars was taken for a formula; the report was blamed for a full disk."""
    pytest.importorskip("matplotlib")
    from bench import plot

    source, target = tmp_path / "report.json", tmp_path / "figure.png"
    source.write_text(changed((*ROW, "name"), "a $^$ b"))
    assert plot.main([str(source), str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert plot.main([str(source), "/dev/full"]) == 2
    assert one_line(capsys) == "bench plot: /dev/full: No space left on device\n"
    assert plot.main([str(source), str(tmp_path / "none" / "f.png")]) == 2
    assert "none/f.png cannot be written" in one_line(capsys)


def test_what_a_run_wrote_is_read_and_skipped_ones_are_too(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main(["evict", "--smoke", "--json", str(path), "--data", str(tmp_path)]) == 0
    whole = read_report(path)
    assert whole["schema_version"] == SCHEMA_VERSION
    whole["benchmarks"].append({"name": "n", "title": "t", "skipped": "why"})
    path.write_text(json.dumps(whole))
    assert read_report(path) == whole
    whole["benchmarks"].append({"name": "n", "skipped": "why"})
    path.write_text(json.dumps(whole))
    with pytest.raises(OptionError, match=r"benchmarks\[2\] has no 'title'"):
        read_report(path)


# --------------------------------------------------------------------- the names
def test_no_benchmark_hides_another_of_its_name() -> None:
    """Two were called "writes": the first was never run, while the pages explained both."""
    one = stub(found)
    with pytest.raises(ValueError, match="two benchmarks are called 'stub'"):
        registry.named([one, replace(one, title="another")])
    assert "write-policies" in registry.BY_NAME
    assert registry.BY_NAME["writes"].title.startswith("Durable writes")
