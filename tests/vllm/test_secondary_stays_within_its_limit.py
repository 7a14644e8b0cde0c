"""Index and blocks never take more than ``limit_bytes``; what was not used for longest goes first,
and use is what vLLM tells: lookups, loads, touches and chunks that are offered again (I25).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext

from radix.groups import Group
from tests.vllm.secondaryrig import ROW_BYTES, Host, content, key
from tiers.disk_open import limit_for

BLOCKS = 40
STEP_ENDS = ScheduleEndContext((), ())


def small(blocks: int = BLOCKS) -> int:
    """A limit under which a few blocks have room."""
    return limit_for([Group.full("row", ROW_BYTES)], blocks, 1)


def bytes_on_disk(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def fill(host: Host, numbers: range) -> None:
    """Stores one key after the other."""
    for number in numbers:
        assert host.store([key(number)], [0]).success


def capacity(host: Host) -> int:
    """How many blocks the tier can hold."""
    return host.tier.store.tiers[0].capacity_blocks(0)


def test_files_stay_within_the_limit_while_three_times_as_much_is_stored(tmp_path: Path) -> None:
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        for first in range(0, 3 * most, 8):
            host.store([key(n) for n in range(first, first + 8)], range(8))
            assert bytes_on_disk(tmp_path) <= small()
        told = host.counted()
        assert told["used_bytes"] <= small() and told["blocks"] <= most
        assert told["evicted_blocks"] >= most
        host.tier.store.check()
    assert bytes_on_disk(tmp_path) <= small()


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        fill(host, range(most + 5))
        found = host.lookup(*[key(n) for n in range(most + 5)])
        gone = found.count("M")
        assert gone >= 5
        assert found == "M" * gone + "H" * (most + 5 - gone)


@pytest.mark.parametrize("how", ["lookup", "load", "touch", "offered again"])
def test_what_is_used_stays(tmp_path: Path, how: str) -> None:
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        fill(host, range(most))
        used = [key(n) for n in range(4)]
        if how == "lookup":
            assert host.lookup(*used) == "HHHH"
            host.tier.on_schedule_end(STEP_ENDS)
        elif how == "load":
            assert host.load(used, range(4)).success
        elif how == "touch":
            host.tier.touch(used, ReqContext("r"))
        else:
            assert host.store(used, range(4)).success
        fill(host, range(1000, 1000 + most // 2))
        assert host.load(used, range(4)).success
        assert [host.row(i) for i in range(4)] == [content(name) for name in used]
        assert host.lookup(key(4)) == "M"


def test_of_one_request_the_deepest_chunk_goes_first_in_whatever_order_it_comes(
    tmp_path: Path,
) -> None:
    context = ReqContext("request")
    names = [key(number) for number in range(8)]
    for place, name in enumerate(names, start=1):
        context.set_offload_key_position(name, 32 * place)
    shuffled = [names[i] for i in (5, 0, 7, 2, 6, 1, 4, 3)]
    with Host(tmp_path, small()) as host:
        most = capacity(host)
        assert host.store(shuffled, range(8), context=context).success
        fill(host, range(1000, 1000 + most - 8 + 3))
        assert host.lookup(*names) == "HHHHHMMM"
        host.tier.touch(names[4:5], ReqContext("other"))
        host.tier.touch([key(n) for n in range(1000, 1000 + most - 8 + 3)], ReqContext("other"))
        host.tier.touch(names[:4][::-1], context)
        fill(host, range(2000, 2001))
        assert host.lookup(*names) == "HHHHMMMM"


def test_a_job_larger_than_the_directory_keeps_a_part_and_says_so(tmp_path: Path) -> None:
    with Host(tmp_path, small(4)) as host:
        most = capacity(host)
        assert most < 24
        names = [key(number) for number in range(24)]
        assert host.store(names, range(24)).success is False
        found = host.lookup(*names)
        assert 1 <= found.count("H") <= most
        assert found == "H" * found.count("H") + "M" * found.count("M"), "the start of a prompt"
        assert host.counted()["declined_blocks"] >= 24 - most
        host.tier.store.check()


def test_a_smaller_limit_at_the_next_start_is_held_too(tmp_path: Path) -> None:
    with Host(tmp_path, small(400)) as host:
        for first in range(0, 300, 20):
            host.store([key(n) for n in range(first, first + 20)], range(20))
    with Host(tmp_path, small()) as host:
        host.tier.store.check()
        assert bytes_on_disk(tmp_path) <= small()
        kept = [key(n) for n in range(300) if host.lookup(key(n)) == "H"][:20]
        assert host.load(kept, range(len(kept))).success
        assert [host.row(i) for i in range(len(kept))] == [content(name) for name in kept]
