"""The parent's side: starts peers as child processes, asks them for rounds in turn, and collects
what they found.

Kept here: peers take turns round by round, so that a machine which slows down slows all; the first
round of each is discarded, because it pays for warming up; a child that dies, is silent for longer
than its deadline or answers with an error costs its own rows only; what was started is ended, by
its number, however a measurement ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.measure import Facts, Ratio, Row, Sizes, Target, ratio

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ".venv-peers"
_LAST_BYTES = 2000
_GRACE_S = 10.0  # for a child that ends by itself


class PeerError(Exception):
    """A peer can't go on; the text says why."""


class Disagreement(Exception):
    """Two programs that were given the same work counted different results: no figure counts."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to measure. ``label``: how its rows are called, one of a kind in a benchmark;
    ``subject``: whose they are ("radix", "sglang-rust"); ``program``: a module that calls
    ``child.serve``, with ``arguments``; ``env``: the folder of its environment below
    ``.venv-peers``, or "" for this one; ``deadline_s``: how long it may be silent.
    """

    label: str
    subject: str
    program: str
    env: str = ""
    arguments: tuple[str, ...] = ()
    deadline_s: float = 300.0

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        if not self.env:
            return Path(sys.executable)
        return ROOT / ENVIRONMENTS / self.env / "bin" / "python"


class Child:
    """A running peer; a context manager that ends it. Raises ``PeerError`` where it can't start."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.versions: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = -1  # what it writes to standard error: memory, no file to leave behind
        self._rest = b""

    def __enter__(self) -> Child:
        peer = self.peer
        if not peer.python.exists():
            raise PeerError(f"no environment {ENVIRONMENTS}/{peer.env}: make bench-peers")
        self._log = os.memfd_create("log")
        self._process = subprocess.Popen(
            [str(peer.python), "-m", peer.program, *peer.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            self.versions = self.ask({"do": "hello"})["versions"]
        except BaseException:
            self._end()
            os.close(self._log)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                with suppress(PeerError, BrokenPipeError):
                    self._tell({"do": "quit"})
                self._end(_GRACE_S)
            else:
                self._end()
        finally:
            os.close(self._log)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request, one answer. ``PeerError`` for an answer that is an error or none, and for a
        child that ended or is silent for longer than its deadline; it is ended then.
        """
        what = request["do"]
        try:
            self._tell(request)
            line = self._line(self.peer.deadline_s)
        except TimeoutError:
            self._end()
            raise PeerError(f"silent for {self.peer.deadline_s:g} s in {what!r}") from None
        except BrokenPipeError:
            line = b""
        if not line:
            status = self._end(_GRACE_S)
            raise PeerError(f"ended with status {status} in {what!r}{self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self._end()
            raise PeerError(f"answered {line[:80]!r}, which is no JSON") from None
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _tell(self, request: Mapping[str, Any]) -> None:
        if self._process is None:
            raise PeerError("has ended")
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()

    def _line(self, patience_s: float) -> bytes:
        """The next line of its output, empty where it ended. ``TimeoutError`` where none came."""
        assert self._process is not None and self._process.stdout is not None
        file = self._process.stdout.fileno()
        until = time.monotonic() + patience_s
        while b"\n" not in self._rest:
            if not select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            more = os.read(file, 1 << 16)
            if not more:
                return b""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """The last line that it logged."""
        size = os.fstat(self._log).st_size
        end = os.pread(self._log, _LAST_BYTES, max(0, size - _LAST_BYTES))
        lines = end.decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip().replace(f'{ROOT}/', '')}" if lines else ""

    def _end(self, grace_s: float = 0.0) -> int:
        """Gives it so long to end by itself, kills what is left of its group, and returns its
        status. It is not waited for before that: until then its number is nobody else's.
        """
        process, self._process = self._process, None
        if process is None:
            return 0
        until = time.monotonic() + grace_s
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, process.pid, look) is None and time.monotonic() < until:
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        return process.wait()


@dataclass(slots=True)
class Found:
    """What peers found at one workload: us of each operation for each round by label, the counts,
    the versions, and why what failed did.
    """

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)

    def rows(self, prefix: str = "", unit: str = "us") -> list[Row]:
        """A row "PREFIX OPERATION, LABEL" for each operation of each peer, operations together."""
        operations = dict.fromkeys(name for found in self.samples.values() for name in found)
        return [
            Row(f"{prefix}{name}, {label}", self.subjects[label], unit, tuple(found[name]))
            for name in operations
            for label, found in self.samples.items()
            if name in found
        ]

    def check_alike(self, names: Sequence[str]) -> Facts:
        """The named counts, which all must have alike. ``Disagreement`` where they do not."""
        first: dict[str, int | str] = {}
        for label, facts in self.facts.items():
            mine = {name: facts[name] for name in names if name in facts}
            for name, value in mine.items():
                if first.setdefault(name, value) != value:
                    raise Disagreement(f"{name}: {label} counts {value}, others {first[name]}")
        return first


def measure(peers: Sequence[Peer], workload: str, sizes: Sizes, seed: int) -> Found:
    """``sizes["rounds"]`` rounds of each peer after one that is discarded, in turn.

    A peer that fails is in ``failed`` with its reason and has no rows.
    """
    found = Found(subjects={peer.label: peer.subject for peer in peers})
    with ExitStack() as stack:
        running: list[Child] = []
        for peer in peers:
            try:
                child = stack.enter_context(Child(peer))
                child.ask(
                    {"do": "prepare", "workload": workload, "sizes": dict(sizes), "seed": seed}
                )
            except PeerError as error:
                found.failed[peer.label] = str(error)
                continue
            running.append(child)
            found.versions |= child.versions
        for number in range(sizes["rounds"] + 1):
            for child in list(running):
                try:
                    _one_round(child, found, keep=number > 0)
                except PeerError as error:
                    running.remove(child)
                    _forget(found, child.peer.label, str(error))
    return found


def _one_round(child: Child, found: Found, *, keep: bool) -> None:
    label = child.peer.label
    answer = child.ask({"do": "round"})
    facts = found.facts.setdefault(label, answer["facts"])
    if facts != answer["facts"]:
        raise Disagreement(f"{label} counts {answer['facts']}, in the round before {facts}")
    if keep:
        samples = found.samples.setdefault(label, {})
        for name, us in answer["us"].items():
            samples.setdefault(name, []).append(us)


def _forget(found: Found, label: str, reason: str) -> None:
    found.failed[label] = reason
    found.samples.pop(label, None)
    found.facts.pop(label, None)


def times_faster(
    rows: Sequence[Row], pairs: Sequence[tuple[str, str, float | None]]
) -> tuple[list[Ratio], list[Target]]:
    """Ratios "theirs / ours", and targets of at least so many times, of (theirs, ours, times or
    None); what was not measured is left out.
    """
    known = {row.name for row in rows}
    there = [each for each in pairs if each[0] in known and each[1] in known]
    return (
        [ratio(rows, theirs, ours) for theirs, ours, _ in there],
        [
            Target(f"{theirs} / {ours}", "at least", times)
            for theirs, ours, times in there
            if times is not None
        ],
    )
