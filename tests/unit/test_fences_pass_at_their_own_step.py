"""A step fence has passed when that step was told, and not a step before: its kernels still read
and write until then (I7).
"""

from __future__ import annotations

from radix.lifecycle import Fences


def test_what_waits_for_a_step_runs_at_that_step_and_no_earlier() -> None:
    fences = Fences()
    ran: list[int] = []
    for step in range(3):
        fences.after(step, lambda step=step: ran.append(step))
    assert ran == []
    for step in range(3):
        fences.step = step
        fences.run()
        assert ran == list(range(step + 1))
    fences.after(2, lambda: ran.append(2))
    assert ran == [0, 1, 2, 2]
