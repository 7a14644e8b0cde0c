"""`radix replay --policy all` gives exactly the recorded counts of each policy on small generated
traces, and the plain references of the policies, which share no code with them, give the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radix.cli import main
from radix.policy.eviction import NATIVE_POLICIES, TIMED_POLICIES
from tests.policytraces import TRACES, Requests
from tests.refpolicies import REFERENCES, Cost

GOLDEN = json.loads((Path(__file__).parent / "policies.json").read_text())
CAPACITIES = (16, 48, 120)
SEED = 7
UNHINTED = [
    name for name in NATIVE_POLICIES if name not in TIMED_POLICIES
]  # the others: test_hints


def reference_hits(requests: Requests, capacity: int, policy: str) -> int:
    """Hit blocks of the reference: pin what is there, make room, insert what fits."""
    reference, used, hits = REFERENCES[policy](), 0, 0
    if isinstance(reference, Cost):  # a block of 512 tokens of Llama 3.1 8B, by what the first cost
        reference.price = (1.0, 512 * 4 * 32 * 32 * 128 / (2 * 8.03e9), 1, 1)
    for request in requests:
        prompt = tuple(request)
        hits += reference.match(prompt)
        pin = reference.lease(prompt)
        if (short := used + len(prompt) - reference.match(prompt) - capacity) > 0:
            short -= (gone := len(reference.evict(short)))
            used -= gone
            prompt = prompt[: len(prompt) - short]
        if missing := len(prompt) - reference.match(prompt):
            used += reference.insert(prompt, pin, [0] * missing)
        reference.release(pin, stamp=True)
    return hits


@pytest.mark.parametrize("name", sorted(TRACES))
def test_replay_of_all_policies_equals_the_golden_counts(name: str, tmp_path: Path) -> None:
    trace, result = tmp_path / f"{name}.jsonl", tmp_path / "result.json"
    with trace.open("w") as out:
        for number, ids in enumerate(TRACES[name](SEED)):
            record = {"timestamp": number, "input_length": 512 * len(ids), "output_length": 1}
            out.write(json.dumps({**record, "hash_ids": ids}) + "\n")
    capacities = ",".join(map(str, CAPACITIES))
    arguments = ["--capacity", capacities, "--policy", "all", "--json", str(result)]
    assert main(["replay", str(trace), *arguments]) == 0
    found: dict[str, list[int]] = {}
    for run in json.loads(result.read_text())["runs"]:
        found.setdefault(run["policy"], []).append(run["hit_blocks"])
    assert sorted(found) == sorted((*UNHINTED, "optimal"))
    assert found == GOLDEN[name]


@pytest.mark.parametrize("policy", sorted(set(REFERENCES) & set(UNHINTED)))
@pytest.mark.parametrize("name", sorted(TRACES))
def test_references_give_the_golden_counts_too(name: str, policy: str) -> None:
    requests = TRACES[name](SEED)
    assert [reference_hits(requests, room, policy) for room in CAPACITIES] == GOLDEN[name][policy]


@pytest.mark.parametrize("name", sorted(TRACES))
def test_golden_counts_tell_the_policies_apart(name: str) -> None:
    """No two policies give the same counts on a trace, or a name could stand for another."""
    counts = [tuple(found) for found in GOLDEN[name].values()]
    assert len(set(counts)) == len(counts)
