"""No livelock: in small random systems of requests each of which fits alone every request finishes
(I29), with groups of every retention, prompts that share beginnings, steps, decoding beyond what
was reserved, slots that rest behind fences, resets, limits of what is kept, and copies that are
late, fail or hang. The model is ``tests/livelock.py``; each failure names its seed and does the
same again.
"""

from __future__ import annotations

import pytest

from radix import Waiter, Waiting
from tests.livelock import Engine, System, campaign, serve, table

SYSTEMS = 2000


def test_every_request_finishes() -> None:
    total, strikes, broken = campaign(0, SYSTEMS, workers=2)
    assert not broken, broken[0]
    assert total["seeds"] == SYSTEMS
    quiet = [kind for kind, count in total.items() if not count]
    assert not quiet, f"never happened: {quiet}"
    assert not table(strikes)[1], "a kind of fault never struck in some state"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, id="the retracted came back before the oldest had its turn"),
        pytest.param(73, id="more tokens asked for slots that the window of the tree funds"),
        pytest.param(168, id="a store that hung was forgotten once its deadline had passed"),
        pytest.param(347, id="a load hung and nobody lacked room"),
        pytest.param(524, id="a shorter hit lacked what its own pin held"),
        pytest.param(530, id="what looks ahead pinned windows of groups that do not"),
        pytest.param(969, id="a block of the tree was pinned beside an equal one"),
        pytest.param(21037, id="a node went while its last block was sent down to make room"),
        pytest.param(7078, id="the end of the match was evicted before a shorter hit was tried"),
        pytest.param(47007, id="and so was what a group that looks ahead needs behind it"),
        pytest.param(328, id="it kept its own beside an equal one that its second lease pinned"),
        pytest.param(2143, id="its lease went on pinning a window that it had left"),
        pytest.param(1239, id="slots for a longer hit stayed with pages that were not next"),
    ],
)
def test_system_that_hung_once_finishes(seed: int) -> None:
    """Each was found by this model: the name says what held everybody up."""
    assert serve(seed)["requests"] > 0


@pytest.mark.parametrize("seed", [7, 86, 102])
def test_same_seed_is_the_same_run(seed: int) -> None:
    one, other = Engine(System.draw(seed)), Engine(System.draw(seed))
    assert one.run() == other.run() and one.trace == other.trace


class Greedy(Waiting):
    """Lets somebody younger in while one that runs lacks room."""

    def _lacking(self) -> Waiter | None:
        return None


class Patient(Waiting):
    """Names nobody to give way."""

    def _pressed(self) -> Waiter | None:
        return None


class Endless(Waiting):
    """Cancels nothing."""

    def _overdue(self, pressed: bool) -> None:
        """Nothing."""


@pytest.mark.parametrize("broken", [Greedy, Patient, Endless])
def test_queue_without_one_of_its_rules_is_seen_to_hang(broken: type[Waiting]) -> None:
    """A model that could not fail would show nothing; and what it says can be repeated."""
    for seed in range(400):
        try:
            Engine(System.draw(seed), broken).run()
        except AssertionError as error:
            with pytest.raises(AssertionError) as again:
                Engine(System.draw(seed), broken).run()
            assert str(again.value) == str(error) and f"seed {seed}, tick" in str(error)
            return
    raise AssertionError(f"{broken.__name__} finished everywhere")
