"""The command line: each command stands in a module of `radix.commands`.

Kept here: bad input ends with exit status 2 and one line that names file, line and field, before
anything is written; a check that failed ends with 1, an interrupt with 130. What a command needs
beyond its options is imported when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from radix import __version__
from radix.commands import demo, doctor, events, explain, inspect, purge, replay, serve, top, warm
from radix.commands.terminal import (
    EXIT_BAD_INPUT,
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    Parser,
    complain,
)
from radix.errors import CacheError
from radix.options import OptionError
from radix.replay.traces import TraceError

# In the order in which the help names them.
COMMANDS = (replay, demo, serve, events, top, warm, explain, purge, inspect, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 a check failed, 2 bad input.

    Args:
        arguments: what follows the program's name; those of the process if left out.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (TraceError, OptionError) as error:
        return complain(str(error), EXIT_BAD_INPUT)
    except CacheError as error:
        return complain(f"{type(error).__name__}: {error}", EXIT_CHECK_FAILED)
    except KeyboardInterrupt:
        status = complain("interrupted", EXIT_INTERRUPTED)
        if arguments is None:
            # This process is ours and nothing is left to put in order, but taking torch apart
            # would take longer than all else.
            sys.stdout.flush()
            os._exit(status)
        return status
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CHECK_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}", EXIT_BAD_INPUT)
    except ModuleNotFoundError as error:
        return complain(_missing(error), EXIT_CHECK_FAILED)


def _parser() -> Parser:
    parser = Parser(prog="radix", description="A prefix cache for model state, run on traffic.")
    parser.add_argument("--version", action="version", version=f"radix {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


def _missing(error: ModuleNotFoundError) -> str:
    extras = {"rich": "cli", "matplotlib": "plot", "prometheus_client": "service", "torch": "torch"}
    extras |= {"zmq": "events", "msgspec": "events"}
    name = (error.name or "").partition(".")[0]
    if name in extras:
        return f"this needs {name}; install it with: pip install 'radix-tiers[{extras[name]}]'"
    return f"{error}; is the native module built?"


if __name__ == "__main__":
    sys.exit(main())
