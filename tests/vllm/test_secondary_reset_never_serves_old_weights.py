"""vLLM drains a tier where it resets its caches: it sleeps, or its weights change, and it does not
say which. What was stored before is hidden from then on, and stays for the next start, which loads
the weights that the model's name stands for. What is stored after it dies with the process.
"""

from __future__ import annotations

from pathlib import Path

from tests.vllm.secondaryrig import Host, content, key

BEFORE, AFTER = [key(n) for n in range(6)], [key(n) for n in range(3, 9)]


def test_a_reset_hides_what_was_stored_before(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(BEFORE, range(6))
        host.tier.drain_jobs()
        assert host.lookup(*BEFORE) == "M" * 6
        assert not host.load(BEFORE, range(6)).success
        assert host.counted()["resets"] == 1
        host.tier.store.check()


def test_after_a_reset_the_tier_serves_what_is_stored_anew(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(BEFORE, range(6))
        host.tier.drain_jobs()
        for row, name in enumerate(AFTER):
            host.write(row, content(b"new weights" + name))
        host.submit(AFTER, range(6))
        assert all(result.success for result in host.results().values())
        assert host.lookup(*AFTER) == "H" * 6
        assert host.load(AFTER, range(6, 12)).success
        assert [host.row(6 + i) for i in range(6)] == [content(b"new weights" + n) for n in AFTER]


def test_the_next_start_finds_the_first_weights_alone(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(BEFORE, range(6))
        host.tier.drain_jobs()
        for row, name in enumerate(AFTER):
            host.write(row, content(b"new weights" + name))
        host.submit(AFTER, range(6))
        host.results()
    with Host(tmp_path) as host:
        assert host.lookup(*BEFORE) == "H" * 6
        assert host.lookup(*AFTER[3:]) == "M" * 3
        assert host.load(BEFORE, range(6)).success
        assert [host.row(i) for i in range(6)] == [content(name) for name in BEFORE]
        assert host.counted()["blocks"] == 6, "what nobody can find takes no room"
        host.tier.store.check()


def test_a_job_under_way_at_the_reset_belongs_to_what_was_before(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.fill(range(6), BEFORE)
        number = host.submit(BEFORE, range(6))
        host.tier.drain_jobs()
        assert [(r.job_id, r.success) for r in host.tier.get_finished_jobs()] == [(number, True)]
        assert host.lookup(*BEFORE) == "M" * 6
    with Host(tmp_path) as host:
        assert host.lookup(*BEFORE) == "H" * 6


def test_keep_keeps_what_was_stored(tmp_path: Path) -> None:
    with Host(tmp_path, after_reset="keep") as host:
        host.store(BEFORE, range(6))
        host.tier.drain_jobs()
        assert host.store([key(99)], [9]).success
        assert host.lookup(*BEFORE) == "H" * 6
        assert host.load(BEFORE, range(6)).success


def test_nothing_is_found_before_the_workers_have_ended_what_they_did_at_the_reset(
    tmp_path: Path,
) -> None:
    """vLLM 0.32 gives rows out again at a reset, to which a worker may still be writing; it says
    nothing of their end, but a store that comes after the reset was written behind them.
    """
    with Host(tmp_path, after_reset="keep") as host:
        host.store(BEFORE, range(6))
        host.tier.drain_jobs()
        assert host.lookup(*BEFORE) == "M" * 6
        host.store([key(99)], [9])
        assert host.lookup(*BEFORE) == "H" * 6
