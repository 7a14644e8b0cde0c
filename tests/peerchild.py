"""A peer for the tests of the benchmarks' protocol, which misbehaves as its argument says."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.child import Found, Sizes, Work, serve


def answers() -> int:
    """Where the answers go: the one pipe that is no standard stream."""
    numbers = range(3, 16)
    return next(fd for fd in numbers if os.path.exists(f"/proc/self/fd/{fd}") and is_pipe(fd))


def is_pipe(fd: int) -> bool:
    return stat.S_ISFIFO(os.fstat(fd).st_mode)


FACTS = {"hits": 7}


class Misbehaving:
    """Each round's figures are the number of the round and the clock; ``fault`` says the rest.
    ``mark``: a file that is there once it hangs.
    """

    def __init__(self, fault: str, mark: str = os.devnull) -> None:
        self.fault, self.mark = fault, mark
        self.rounds = 0
        self.below = 0
        if fault == "starts another":
            self.below = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"]
            ).pid

    def versions(self) -> Mapping[str, str]:
        print("what a peer prints is no answer", flush=True)
        return {f"pid of {self.fault}": str(os.getpid()), "below": str(self.below)}

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        self.rounds = 0
        if self.fault == "refuses" and workload == "wrong":
            raise ValueError("this workload is none of mine")

    def round(self) -> Found:
        self.rounds += 1
        if self.rounds == 2:
            match self.fault:
                case "dies":
                    print("last words", file=sys.stderr, flush=True)
                    os._exit(3)
                case "hangs":
                    Path(self.mark).touch()
                    time.sleep(600)
                case "answers nonsense":
                    os.write(answers(), b"{]\n")
                case "answers a list":
                    os.write(answers(), b"[1]\n")
                case "answers half":
                    os.write(answers(), b'{"us": {"number": 2.0}}\n')
                case "answers a text":
                    os.write(answers(), b'{"us": {"number": "2"}, "facts": {}}\n')
                case "answers no number":
                    os.write(answers(), b'{"us": {"number": NaN}, "facts": {}}\n')
                case "answers twice":
                    answer = {"us": {"number": 2.0, "clock": time.monotonic()}, "facts": FACTS}
                    os.write(answers(), 2 * (json.dumps(answer).encode() + b"\n"))
                case "answers without end":
                    for _ in range(64):
                        os.write(answers(), b"x" * (1 << 16))
                case "times another":
                    return {"other": 1.0}, FACTS
        count = self.rounds if self.fault == "counts otherwise each time" else 7
        if self.fault == "counts otherwise":
            count = 8
        us = {"number": float(self.rounds), "clock": time.monotonic()}
        return us, {"hits": count}


def make(arguments: Sequence[str]) -> Work:
    return Misbehaving(*arguments)


if __name__ == "__main__":
    sys.exit(serve(make))
