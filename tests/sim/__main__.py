"""`make sim SEEDS=n`: simulations of n seeds. Ends with one line of JSON; the exit status is 0 only
if nothing was violated and every kind of fault struck in every state. One seed again:

    python -m tests.sim --seed 7 --operations 2000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.simulation import Outcome, simulate


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--operations", type=int, default=2000, help="of each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def main() -> int:
    """Runs the seeds."""
    asked = _arguments()
    if asked.seed is not None:
        outcome = simulate(asked.seed, asked.operations)
        print(f"digest {outcome.digest}, {dict(outcome.ran)}")
        print("\n".join(outcome.violations) or "nothing is wrong")
        return bool(outcome.violations)
    total = Outcome()
    seeds = range(asked.first, asked.first + asked.seeds)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=spawn) as pool:
        for outcome in pool.map(partial(simulate, operations=asked.operations), seeds):
            total.add(outcome)
            for violation in outcome.violations:
                print(violation, flush=True)
    missing = total.missing()
    line = {
        "seeds": total.seeds,
        "operations": total.operations,
        "struck": total.strikes.table(),
        "happened": dict(sorted(total.ran.items())),
        "never": missing,
        "violations": len(total.violations),
    }
    print(json.dumps(line))
    return bool(total.violations or missing)


if __name__ == "__main__":
    sys.exit(main())
