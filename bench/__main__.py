"""The one entry: ``python -m bench run [NAME...]`` measures, ``python -m bench plot`` draws."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = (
    "usage: python -m bench run [NAME...] [--peers] [--smoke] [--json FILE|-]  (run --help: more)\n"
    "       python -m bench plot REPORT.json FIGURE.png"
)


def main(arguments: Sequence[str]) -> int:
    """Exit status of what was asked for, 2 for anything else."""
    try:
        if arguments[:1] == ["run"]:
            from bench.run import main as measure

            return measure(arguments[1:])
        if arguments[:1] == ["plot"]:
            from bench.plot import main as draw  # needs matplotlib

            return draw(arguments[1:])
    except ModuleNotFoundError as error:
        print(f"bench: {error}: make setup installs it, in .venv", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while all of that was imported, which takes seconds
        print("bench: interrupted", file=sys.stderr)
        return 130
    wanted = bool({"-h", "--help"} & set(arguments[:1]))
    print(USAGE, file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
