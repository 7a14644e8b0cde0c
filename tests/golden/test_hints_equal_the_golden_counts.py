"""`radix replay --hints think` gives exactly the recorded counts on a small generated trace of
sessions, with true and with wrong hints, and the plain references, told the same, give them too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radix.cli import main
from radix.hints import Hints, said_of
from radix.replay.hints import hints_of
from radix.replay.traces import read_trace
from tests.policytraces import sessions
from tests.refpolicies import REFERENCES

GOLDEN = json.loads((Path(__file__).parent / "hints.json").read_text())
CAPACITIES = (24, 60, 150)
SEED = 7


def written(folder: Path) -> Path:
    """The trace as a file."""
    trace = folder / "sessions.jsonl"
    with trace.open("w") as out:
        for now, session, ids in sessions(SEED):
            record = {"timestamp": now, "session_id": session, "input_length": 512 * len(ids)}
            out.write(json.dumps({**record, "output_length": 1, "hash_ids": ids}) + "\n")
    return trace


def reference_hits(capacity: int, policy: str, hints: list[Hints]) -> int:
    """Hit blocks of the reference that is told time and hints, too."""
    reference, used, hits = REFERENCES[policy](), 0, 0
    for (now, _, ids), said in zip(sessions(SEED), hints, strict=True):
        prompt = tuple(ids)
        reference.tell(now * 1000)
        hits += reference.match(prompt)
        pin = reference.lease(prompt)
        if (short := used + len(prompt) - reference.match(prompt) - capacity) > 0:
            short -= (gone := len(reference.evict(short)))
            used -= gone
            prompt = prompt[: len(prompt) - short]
        if missing := len(prompt) - reference.match(prompt):
            used += reference.insert(prompt, pin, [0] * missing)
        reference.release(pin, stamp=True)
        reference.hint(prompt, said_of(said, now * 1000))
    return hits


@pytest.mark.parametrize("error", sorted(GOLDEN))
def test_replay_with_hints_equals_the_golden_counts(error: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    arguments = ["--capacity", ",".join(map(str, CAPACITIES)), "--json", str(result)]
    arguments += ["--policy", "lru,priority,optimal"]
    arguments += [] if error == "none" else ["--hints", "think", "--hint-error", error]
    assert main(["replay", str(written(tmp_path)), *arguments]) == 0
    found: dict[str, list[int]] = {}
    for run in json.loads(result.read_text())["runs"]:
        found.setdefault(run["policy"], []).append(run["hit_blocks"])
    assert found == GOLDEN[error]


@pytest.mark.parametrize("policy", ["lru", "priority"])
@pytest.mark.parametrize("error", ["0%", "50%"])
def test_references_give_the_golden_counts_too(error: str, policy: str, tmp_path: Path) -> None:
    hints = hints_of(read_trace(str(written(tmp_path))), float(error[:-1]) / 100)
    found = [reference_hits(room, policy, hints) for room in CAPACITIES]
    assert found == GOLDEN[error][policy]


def test_true_hints_are_worth_most_of_the_gap() -> None:
    """Wrong ones less; without any the policy is the order of last use."""
    assert GOLDEN["none"]["priority"] == GOLDEN["none"]["lru"]
    for at, best in enumerate(GOLDEN["0%"]["optimal"]):
        lru = GOLDEN["none"]["lru"][at]
        true, some, half = (GOLDEN[error]["priority"][at] for error in ("0%", "20%", "50%"))
        assert lru < some < true <= best
        assert half < some
        if CAPACITIES[at] > CAPACITIES[0]:  # less than three prompts fit there
            assert true - lru > 0.8 * (best - lru)
