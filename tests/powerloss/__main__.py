"""`make powerloss SEEDS=n`: power losses of n seeds. Ends with one line of JSON; the exit status is
0 only without violations. What failed is kept, and made again by

    python -m tests.powerloss --case FILE --point P --state K --into FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

from tests.powerloss.campaign import Outcome, Plan, run_seed
from tests.powerloss.faults import FAULTS
from tests.powerloss.ledger import ledger_of
from tests.powerloss.recording import build_shim
from tests.powerloss.replay import Case, Effort, Tally, judge, states


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss")
    parser.add_argument("--seeds", type=int, default=4, help="how many, from 0")
    parser.add_argument("--seed", type=int, action="append", help="just this one; may be repeated")
    parser.add_argument("--fault", choices=sorted(FAULTS), default="none")
    parser.add_argument("--quick", action="store_true", help="fewer states at each crash point")
    parser.add_argument("--case", type=Path, help="a case that was kept: judge one state of it")
    parser.add_argument("--point", type=int)
    parser.add_argument("--state", type=int)
    parser.add_argument("--into", type=Path, help="where that state is to be made")
    return parser.parse_args()


def replay_one(kept: Path, point: int, number: int, root: Path) -> list[str]:
    """Makes one state of a kept case below ``root`` and judges it; what is wrong with it."""
    case: Case = pickle.loads(kept.read_bytes())
    for state in states(case, ledger_of(case.recording, case.before)):
        if (state.point, state.number) == (point, number):
            root.mkdir(parents=True, exist_ok=True)
            state.write(root, case.seed)
            return judge(root, state, deep=True, tally=Tally())
    raise SystemExit(f"{kept} has no state {number} at point {point}")


def main() -> int:
    """Runs the seeds, or one state."""
    asked = _arguments()
    if asked.case is not None:
        into = asked.into or Path(tempfile.mkdtemp(prefix="powerloss-"))
        faults = replay_one(asked.case, asked.point, asked.state, into)
        print("\n".join(faults) or f"nothing is wrong with it: {into}")
        return bool(faults)
    effort = Effort(40, 12, 64) if asked.quick else Effort()
    plan = Plan(effort=effort, parts=os.cpu_count() or 1, fault=asked.fault)
    total, seeds = Outcome(), asked.seed or list(range(asked.seeds))
    for seed in seeds:
        place = Path(tempfile.mkdtemp(prefix=f"powerloss-{seed}-"))
        outcome = run_seed(seed, plan, build_shim(place), place)
        total.counts += outcome.counts
        total.violations += outcome.violations
        print(f"seed {seed}: {dict(outcome.counts)}, {len(outcome.violations)} violations")
        for violation in outcome.violations[:10]:
            print(f"  {violation}\n    kept in {place}")
        sys.stdout.flush()
        if not outcome.violations:
            shutil.rmtree(place)
    line = {"seeds": len(seeds), **total.counts, "violations": len(total.violations)}
    print(json.dumps(line))
    return bool(total.violations)


if __name__ == "__main__":
    sys.exit(main())
