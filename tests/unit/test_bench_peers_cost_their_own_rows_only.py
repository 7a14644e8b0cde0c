"""A peer of the benchmarks that fails in whatever way is named with its reason and has no rows; the
others have theirs, nothing of it runs on, and counts that differ are never shown as figures.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import LIMIT, OURS, Row
from bench.peers import protocol
from bench.peers.protocol import (
    Case,
    Child,
    Disagreement,
    Found,
    Peer,
    PeerError,
    measure_cases,
    times_faster,
)

GOOD = Peer("good", "plain", "tests.peerchild", arguments=("nothing",), deadline_s=60.0)
CASE = Case("a", "any", {"rounds": 3})


def faulty(fault: str, **more: object) -> Peer:
    return replace(GOOD, label="faulty", subject="peer", arguments=(fault,), **more)


def measured(*peers: Peer) -> Found:
    return measure_cases(peers, [CASE], 1)["a"]


def alive(pid: int) -> bool:
    """Whether it runs: one that nobody waits for has ended all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rounds_go_in_turn_and_the_first_is_discarded() -> None:
    found = measured(GOOD, replace(GOOD, label="other", arguments=("other",)))
    assert found.failed == {}
    assert found.samples["good"]["number"] == [2.0, 3.0, 4.0]
    clocks = [
        when
        for pair in zip(
            found.samples["good"]["clock"], found.samples["other"]["clock"], strict=True
        )
        for when in pair
    ]
    assert clocks == sorted(clocks)
    assert [row.name for row in found.rows("x: ")] == [
        "x: number, good",
        "x: number, other",
        "x: clock, good",
        "x: clock, other",
    ]
    assert found.check_alike(["hits"]) == {"hits": 7}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies", "ended with status 3 in 'round': last words"),
        ("hangs", "silent for 8 s in 'round'"),
        ("answers nonsense", "no answer to 'round'"),
        ("answers a list", "answered b'[1]', which is no answer to 'round'"),
        ("answers half", "no answer to 'round'"),
        ("answers a text", "no answer to 'round'"),
        ("answers no number", "no answer to 'round'"),
        ("answers twice", "before it was asked for 'round'"),
        ("answers without end", "no answer to 'round'"),
        ("times another", "timed other operations than in the round before"),
    ],
)
def test_one_that_fails_under_way_has_no_rows_and_no_process(fault: str, reason: str) -> None:
    """An answer that was JSON, and of another form, ended the run with a traceback, as its fields
    were taken unseen; of two answers in one the second passed for that of the next round.
    """
    found = measured(faulty(fault, deadline_s=8.0 if fault == "hangs" else 60.0), GOOD)
    assert reason in found.failed["faulty"]
    assert set(found.samples) == set(found.facts) == {"good"}
    assert found.samples["good"]["number"] == [2.0, 3.0, 4.0]
    assert not alive(int(found.versions[f"pid of {fault}"]))


@pytest.mark.parametrize("broken", ["no program", "a folder", "of no program"])
def test_one_whose_interpreter_does_not_start_is_named(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that was half made or copied from another machine ended the whole run with a
    traceback: only one that was not there at all was looked for.
    """
    monkeypatch.setattr(protocol, "ROOT", tmp_path)
    python = tmp_path / ".venv-peers" / "half" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if broken == "a folder":
        python.mkdir()
    else:
        python.write_text("text" if broken == "no program" else "#!/no/such/interpreter\n")
        python.chmod(0o755 if broken == "of no program" else 0o644)
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PeerError, match=r"environment .venv-peers/half does not start: \w"):
        with Child(faulty("nothing", env="half")):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_one_without_an_environment_says_how_to_make_it() -> None:
    found = measured(faulty("nothing", env="no-such-peer"), GOOD)
    assert found.failed == {"faulty": "no environment .venv-peers/no-such-peer: make bench-peers"}
    assert set(found.samples) == {"good"}


def test_one_that_can_not_be_imported_says_so() -> None:
    found = measured(faulty("nothing", program="bench.peers.no_such_child"), GOOD)
    assert "No module named bench.peers.no_such_child" in found.failed["faulty"]


@pytest.mark.parametrize("subject", [OURS, LIMIT])
@pytest.mark.parametrize("fault", ["dies", "refuses"])
def test_one_of_ours_that_fails_is_a_failure(subject: str, fault: str) -> None:
    """A crash of our own child was named as a missing peer, and the status was 0."""
    cases = [Case("a", "wrong", {"rounds": 1})]
    with pytest.raises(RuntimeError, match=r"faulty: (ended with status 3|ValueError: this work)"):
        measure_cases([GOOD, replace(faulty(fault), subject=subject)], cases, 1)


def test_one_that_refuses_a_workload_is_asked_for_the_next() -> None:
    cases = [Case("a", "wrong", {"rounds": 1}), Case("b", "right", {"rounds": 1})]
    found = measure_cases([faulty("refuses"), GOOD], cases, 1)
    assert found["a"].failed == {"faulty": "ValueError: this workload is none of mine"}
    assert set(found["a"].samples) == {"good"}
    assert set(found["b"].samples) == {"faulty", "good"}
    assert found["b"].failed == {}


def test_one_that_died_is_named_at_every_later_workload() -> None:
    found = measure_cases([faulty("dies"), GOOD], [CASE, replace(CASE, name="b")], 1)
    assert found["b"].failed == found["a"].failed


def test_what_a_peer_started_ends_with_it() -> None:
    found = measured(faulty("starts another"))
    assert found.failed == {}
    below = int(found.versions["below"])
    assert below > 0
    until = time.monotonic() + 10.0  # a kill is not waited for
    while alive(below) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(below)


def test_counts_that_differ_stop_the_benchmark() -> None:
    found = measured(GOOD, faulty("counts otherwise"))
    with pytest.raises(Disagreement, match="hits: faulty counts 8, others 7"):
        found.check_alike(["hits"])
    with pytest.raises(Disagreement, match="in the round before"):
        measured(faulty("counts otherwise each time"))


def test_ratios_are_of_what_was_measured_and_no_more() -> None:
    rows = [Row("x, theirs", "peer", "us", (8.0, 9.0)), Row("x, ours", "radix", "us", (2.0, 3.0))]
    pairs = [("x, theirs", "x, ours", 3.0), ("y, theirs", "x, ours", 3.0)]
    ratios, targets = times_faster(rows, [*pairs, ("x, ours", "x, theirs", None)])
    assert [each.samples for each in ratios] == [(4.0, 3.0), (0.25, 1 / 3)]
    assert [(each.name, each.bound, each.value) for each in targets] == [
        ("x, theirs / x, ours", "at least", 3.0)
    ]
