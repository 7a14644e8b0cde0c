"""The child's side of the protocol: JSON lines in, JSON lines out, until it is told to quit.

A program of a peer calls ``serve`` with a function that makes its work; nothing of the peer is
imported before ``serve`` runs, because what the peer prints goes to standard error from then on.
Kept here: standard output carries answers and nothing else; whatever fails is one answer with the
key ``error``, and the child goes on; it ends with its parent, also where its peer hangs. Only the
standard library, numpy and the peer are needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from bench.measure import no_collection

Sizes = Mapping[str, int]
Facts = Mapping[str, int | str]
Found = tuple[Mapping[str, float], Facts]
_PARENT_DIES = 1  # PR_SET_PDEATHSIG


class Work(Protocol):
    """One peer at work. Made once a process; ``prepare`` may be called again."""

    def versions(self) -> Mapping[str, str]:
        """Name and version of each package that takes part."""
        ...

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        """Makes all that is not measured. ``ValueError`` for a workload that it does not know."""
        ...

    def round(self) -> Found:
        """Does the workload once. Returns the median us of each operation, and counts that prove
        that the work was done: the seed decides them. The collector is off meanwhile.
        """
        ...


def end_with_parent() -> None:
    """This process is killed when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL)


def serve(make: Callable[[Sequence[str]], Work], arguments: Sequence[str] | None = None) -> int:
    """Answers requests from standard input until it ends or says "quit". ``make`` is given the
    program's arguments. Returns the exit status.
    """
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    given = sys.argv[1:] if arguments is None else arguments
    work: list[Work] = []
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            break
        try:
            if not work:
                work.append(make(given))
            answer = _answer(work[0], request)
        except Exception as error:  # outermost: told to the parent as this request's answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


def _answer(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "hello":
            return {"versions": dict(work.versions())}
        case "prepare":
            work.prepare(request["workload"], request["sizes"], request["seed"])
            return {"ok": True}
        case "round":
            with no_collection():
                us, facts = work.round()
            return {"us": dict(us), "facts": dict(facts)}
        case other:
            raise ValueError(f"do must be hello, prepare, round or quit, not {other!r}")
