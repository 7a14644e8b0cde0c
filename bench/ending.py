"""How the programs here end: whatever stops one is a line on standard error and a status.

Kept here: 0 done, 1 something failed under way, 2 bad input, 128 and its number for a signal;
SIGTERM and SIGHUP are interrupts as Ctrl-C is, so that children are ended and data is removed. What
is none of these is a fault of the program itself, and keeps its traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import lmdb
import redis

from radix.commands.terminal import EXIT_BAD_INPUT, EXIT_CHECK_FAILED
from radix.errors import CacheError
from radix.options import OptionError
from radix.replay.traces import TraceError

# What a machine, a disk, a trace or another program may do to a measurement.
FAILURES = (
    *(OSError, EOFError, ValueError, RuntimeError, MemoryError, zlib.error),
    *(CacheError, lmdb.Error, redis.RedisError, subprocess.SubprocessError),
)
_SIGNALLED = 128


class Failed(Exception):
    """A measurement could not go on; the text names it and says why."""


def ended(program: str, body: Callable[[], int]) -> int:
    """The status of ``body``, or of what stopped it, which is told in one line that begins with the
    name of the program.
    """
    try:
        with _signals_that_interrupt():
            status = body()
            sys.stdout.flush()
            return status
    except (OptionError, TraceError) as error:
        return _complain(program, str(error), EXIT_BAD_INPUT)
    except Failed as error:
        return _complain(program, str(error), EXIT_CHECK_FAILED)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        return _complain(program, "interrupted", _SIGNALLED + number)
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return EXIT_CHECK_FAILED
    except OSError as error:
        if error.filename is None:
            _drop_output()
        where = error.filename or "standard output"
        return _complain(program, f"{where}: {error.strerror or error}", EXIT_BAD_INPUT)


@contextmanager
def written_to(target: str | Path) -> Iterator[None]:
    """Faults of writing in the body name the file that they are of: those of a full disk name none,
    those of a draft another one.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


def _complain(program: str, what: str, status: int) -> int:
    sys.stderr.write(f"{program}: {' '.join(what.split())}\n")
    return status


def _drop_output() -> None:
    """The interpreter must not try again, at its end, to write what was refused."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _signals_that_interrupt() -> Iterator[None]:
    """Those that would end the process on the spot; not those that whoever started it ignores."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
