"""The parent's side: starts peers as child processes, asks them for rounds in turn, and collects
what they found.

Kept here: peers take turns round by round, so that a machine which slows down slows all; the first
round of each is discarded, because it pays for warming up; a child that dies, is silent for longer
than its deadline or answers with an error costs its own rows only, unless it is ours: then the
benchmark failed; what was started is ended, by its number, however a measurement ends.
"""

from __future__ import annotations

import json
import math
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
from typing import Any, NoReturn

from bench.measure import LIMIT, OURS, Facts, Place, Ratio, Row, Sizes, Target, ratio

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ".venv-peers"
_LAST_BYTES = 2000
_LONGEST_ANSWER = 1 << 20
_ANSWERS: dict[str, dict[str, tuple[type, ...]]] = {  # what they map names to, by request
    "hello": {"versions": (str,)},
    "round": {"us": (int, float), "facts": (int, str)},
}
LEFT_OUT = "not started: a smoke run starts peers where --peers asks for them"
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
        self._reason = "not started"

    def __enter__(self) -> Child:
        self._log = os.memfd_create("log")
        try:
            self._process = self._started()
            self.versions = self.ask({"do": "hello"})["versions"]
        except BaseException:
            self._end()
            os.close(self._log)
            raise
        return self

    def _started(self) -> subprocess.Popen[bytes]:
        peer = self.peer
        try:
            if not peer.python.exists():
                raise PeerError(f"no environment {ENVIRONMENTS}/{peer.env}: make bench-peers")
            return subprocess.Popen(
                [str(peer.python), "-m", peer.program, *peer.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        except OSError as error:
            where = f"environment {ENVIRONMENTS}/{peer.env}" if peer.env else "interpreter"
            raise PeerError(f"the {where} does not start: {error.strerror}") from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._process is not None:
                with suppress(BrokenPipeError):
                    self._tell({"do": "quit"})
                self._end(_GRACE_S)
            else:
                self._end()
        finally:
            os.close(self._log)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request, one answer. ``PeerError`` for an answer that is an error or none, and for a
        child that ended or is silent for longer than its deadline; it is ended then, and each later
        request is refused with the same words.
        """
        if self._process is None:
            raise PeerError(self._reason)
        what = request["do"]
        if unasked := self._unasked():
            self._end()
            self._refuse(f"said {unasked[:80]!r} before it was asked for {what!r}")
        try:
            self._tell(request)
            line = self._line(self.peer.deadline_s)
        except TimeoutError:
            self._end()
            self._refuse(f"silent for {self.peer.deadline_s:g} s in {what!r}")
        except BrokenPipeError:
            line = b""
        if not line:
            status = self._end(_GRACE_S)
            self._refuse(f"ended with status {status} in {what!r}{self._last_words()}")
        answer = _answer_in(line, what)
        if answer is None:
            self._end()
            self._refuse(f"answered {line[:80]!r}, which is no answer to {what!r}")
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _refuse(self, reason: str) -> NoReturn:
        self._reason = reason
        raise PeerError(reason) from None

    def _tell(self, request: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()

    def _unasked(self) -> bytes:
        """What it said beyond its last answer, and would be taken for its next."""
        assert self._process is not None and self._process.stdout is not None
        file = self._process.stdout.fileno()
        if not self._rest and select.select([file], [], [], 0.0)[0]:
            self._rest = os.read(file, 1 << 16)
        return self._rest

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
            if len(self._rest) > _LONGEST_ANSWER:
                return self._rest
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


def _answer_in(line: bytes, what: str) -> dict[str, Any] | None:
    """What a line says in answer to a request (see ``child``), None where it is no such answer."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    if "error" in answer:
        return answer
    for name, kinds in _ANSWERS.get(what, {}).items():
        values = answer.get(name)
        if not isinstance(values, dict):
            return None
        if not all(isinstance(value, kinds) for value in values.values()):
            return None
    spans = answer["us"].values() if what == "round" else ()
    return answer if all(map(math.isfinite, spans)) else None


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

    def add(self, label: str, answer: Mapping[str, Any], *, keep: bool) -> None:
        """One round's answer; not ``keep``: of its counts alone."""
        facts = self.facts.setdefault(label, answer["facts"])
        if facts != answer["facts"]:
            raise Disagreement(f"{label} counts {answer['facts']}, in the round before {facts}")
        if keep:
            samples = self.samples.setdefault(label, {name: [] for name in answer["us"]})
            if samples.keys() != answer["us"].keys():
                raise PeerError("timed other operations than in the round before")
            for name, us in answer["us"].items():
                samples[name].append(us)

    def forget(self, label: str, reason: str) -> None:
        """A peer failed: nothing of it counts."""
        self.failed[label] = reason
        self.samples.pop(label, None)
        self.facts.pop(label, None)

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


@dataclass(frozen=True, slots=True)
class Case:
    """A workload in some sizes, by the name under which its figures are found."""

    name: str
    workload: str
    sizes: Sizes


class Session:
    """Peers that run side by side for one workload after another; a context manager that ends them.

    Those with an environment of their own are left out where ``place`` says that peers are.
    """

    def __init__(self, peers: Sequence[Peer], place: Place | None = None) -> None:
        self._peers = peers
        self._alone = place is not None and not place.peers
        self._children: dict[str, Child] = {}
        self._failed: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._open = ExitStack()

    def __enter__(self) -> Session:
        with ExitStack() as stack:
            for peer in self._peers:
                if self._alone and peer.env:
                    self._failed[peer.label] = LEFT_OUT
                    continue
                try:
                    child = stack.enter_context(Child(peer))
                except PeerError as error:
                    self._failed[peer.label] = str(error)
                    continue
                self._children[peer.label] = child
                self._versions |= child.versions
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def measure(self, workload: str, sizes: Sizes, seed: int) -> Found:
        """``sizes["rounds"]`` rounds of each peer after one that is discarded, in turn.

        A peer that fails is in ``failed`` with its reason and has no rows; one that answered with
        an error is asked again at the next workload. Raises ``RuntimeError`` where one of ours did.
        """
        found = Found(
            versions=dict(self._versions),
            failed=dict(self._failed),
            subjects={peer.label: peer.subject for peer in self._peers},
        )
        asked = {"do": "prepare", "workload": workload, "sizes": dict(sizes), "seed": seed}
        running = dict(self._children)
        for label, child in self._children.items():
            try:
                child.ask(asked)
            except PeerError as error:
                found.forget(label, str(error))
                del running[label]
        for number in range(sizes["rounds"] + 1):
            for label, child in list(running.items()):
                try:
                    found.add(label, child.ask({"do": "round"}), keep=number > 0)
                except PeerError as error:
                    found.forget(label, str(error))
                    del running[label]
        for label, reason in found.failed.items():
            if found.subjects[label] in (OURS, LIMIT):  # no figure would be missing but by a fault
                raise RuntimeError(f"{label}: {reason}")
        return found


def measure_cases(
    peers: Sequence[Peer], cases: Sequence[Case], seed: int, place: Place | None = None
) -> dict[str, Found]:
    """Each case in turn, by its name; the peers are started once, because that takes seconds."""
    with Session(peers, place) as session:
        return {case.name: session.measure(case.workload, case.sizes, seed) for case in cases}


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
