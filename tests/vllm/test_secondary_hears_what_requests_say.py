"""What a request says of its blocks, in ``kv_transfer_params`` under ``radix_hints``, decides what
goes first from the directory below vLLM's tier; what is no hint is counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm.v1.kv_offload.base import OffloadPolicy, ReqContext

from radix.engines.hinting import KEY
from tests.vllm.secondaryrig import Host, key
from tests.vllm.test_secondary_stays_within_its_limit import capacity, fill, small


def begun(host: Host, hints: object = None) -> ReqContext:
    """A new request that says this."""
    context = ReqContext("r", None if hints is None else {KEY: hints})
    host.tier.on_new_request(context)
    return context


def served(host: Host, numbers: Sequence[int], hints: object = None) -> None:
    """A request brings these blocks and ends."""
    context = begun(host, hints)
    assert host.store([key(n) for n in numbers], range(len(numbers)), context=context).success
    host.tier.on_request_finished(context)


def kept(host: Host, *numbers: int) -> str:
    """H or M for each."""
    assert host.counted().get("faults", 0) == 0
    return host.lookup(*[key(n) for n in numbers])


def test_reserved_blocks_stay_while_all_others_go(tmp_path: Path) -> None:
    with Host(tmp_path, small(), policy="priority") as host:
        served(host, (1, 2), {"keep_for": 3600})
        served(host, (3, 4))
        fill(host, range(100, 100 + 2 * capacity(host)))
        assert kept(host, 1, 2, 3, 4) == "HHMM"


def test_what_is_said_to_be_over_goes_before_what_is_older(tmp_path: Path) -> None:
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        fill(host, range(most - 2))
        served(host, (1001, 1002), {"ended": True})
        fill(host, range(2000, 2002))
        assert kept(host, 0, 1, 1001, 1002) == "HHMM"


def test_a_job_that_ends_after_its_request_is_what_the_request_said(tmp_path: Path) -> None:
    """vLLM tells the end of a request while its last copies to the disk are under way."""
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        fill(host, range(most - 2))
        context, names = begun(host, {"ended": True}), [key(1001), key(1002)]
        host.fill((0, 1), names)
        host.submit(names, (0, 1), context=context)
        host.tier.on_request_finished(context)
        assert all(result.success for result in host.results().values())
        fill(host, range(2000, 2002))
        assert kept(host, 0, 1, 1001, 1002) == "HHMM"


def test_while_a_request_runs_its_priority_holds_and_nothing_is_over(tmp_path: Path) -> None:
    with Host(tmp_path, small(), policy="priority") as host:
        high, over = begun(host, {"priority": 9}), begun(host, {"ended": True})
        host.store([key(1), key(2)], (0, 1), context=high)
        fill(host, range(100, 100 + 2 * capacity(host)))
        host.store([key(3), key(4)], (0, 1), context=over)
        fill(host, range(2000, 2002))
        assert kept(host, 1, 2, 3, 4) == "HHHH"
        host.tier.on_request_finished(over)
        fill(host, range(3000, 3002))
        assert kept(host, 1, 2, 3, 4) == "HHMM"


def test_a_hinted_request_is_given_all_its_blocks_and_those_that_were_there_are_meant(
    tmp_path: Path,
) -> None:
    with Host(tmp_path, small(), policy="priority") as host:
        plain, hinted = ReqContext("p"), ReqContext("h", {KEY: {"priority": 3}})
        assert host.tier.on_new_request(plain).policy is OffloadPolicy.CHUNK_LEVEL
        assert host.tier.on_new_request(hinted).policy is OffloadPolicy.REQUEST_LEVEL
        served(host, (1, 2))
        host.store([key(1), key(2)], (0, 1), context=hinted)
        host.tier.on_request_finished(hinted)
        fill(host, range(100, 100 + 2 * capacity(host)))
        assert kept(host, 1, 2) == "HH"


def test_what_is_no_hint_is_counted_and_the_request_goes_on_without(tmp_path: Path) -> None:
    with Host(tmp_path, small(), policy="priority") as host:
        for number, bad in enumerate(({"priority": 101}, {"keepfor": 3}, ["ended"], 7)):
            served(host, (number,), bad)
        served(host, (50,), {"expects_return": 1})
        told = host.counted()
        assert (told["hints_refused"], told["hints_taken"]) == (4, 1)
        assert kept(host, 0, 1, 2, 3, 50) == "HHHHH"
        host.tier.store.check()


def test_the_end_of_the_tier_passes_over_hints(tmp_path: Path) -> None:
    host = Host(tmp_path, small(), policy="priority")
    with host:
        context = begun(host, {"priority": 3})
        host.fill((0,), [key(1)])
        host.submit([key(1)], (0,), context=context)
    host.tier.on_request_finished(context)
    assert host.tier._counts["faults"] == 0
