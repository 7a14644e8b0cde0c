"""What goes to disk below a service is decided as its options say: what nobody reads back is not
written under write_expected, and a day's budget, of the whole service, is kept; /status and the
metrics tell both with their numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radix.options import OptionError
from radix.service.config import read_config
from radix.service.hosting import limits_of
from tests.service.rig import SIZE, Service, contents, keys_of

MIB = 1 << 20


def brought(service: Service, count: int) -> dict[str, Any]:
    """The status of the store after so many new blocks, a hundred at a time."""
    with service.client() as client:
        for first in range(0, count, 100):
            names: list[object] = list(range(first, first + 100))
            client.write(keys_of(names), contents(names))
        client.flush()
    (store,) = service.status()["stores"]
    service.check()
    found: dict[str, Any] = store
    return found


def test_what_nobody_reads_back_is_written_no_more(tmp_path: Path) -> None:
    told = {"data": str(tmp_path / "data"), "host_bytes": "4MiB", "disk_bytes": "8MiB"}
    with Service(tmp_path, write="write_expected", write_expected="0.2", **told) as service:
        store = brought(service, 6000)
        writes, counters = store["writes"], store["counters"]
        assert (writes["policy"], writes["budget_bytes_per_day"]) == ("write_expected", None)
        assert writes["chances"][0] < 0.2  # asked for once: none of them was asked for again
        not_written = counters["store.not_expected.disk.kv"]
        assert not_written + counters["store.blocks.disk.kv"] == 6000
        (tenant,) = service.status()["tenants"]
        assert tenant["evicted_blocks"]["host"] == 6000 - 4 * MIB // SIZE
        assert not_written > 1000  # all that came once it was known
        assert writes["written_bytes"]["disk"] < (6000 - 1000) * SIZE * 1.5


def test_a_day_s_budget_is_kept_and_told(tmp_path: Path) -> None:
    told = {"data": str(tmp_path / "data"), "write_budget_bytes_per_day": "8MiB"}
    with Service(tmp_path, write_burst_bytes="2MiB", **told) as service:
        store = brought(service, 2000)
        writes, counters = store["writes"], store["counters"]
        assert writes["budget_bytes_per_day"] == 8 * MIB
        stored = counters["store.blocks.disk.kv"]
        assert stored + counters["store.over_budget.disk.kv"] == 2000
        assert 0 < stored <= 2 * MIB // SIZE + 10
        assert writes["budget_left_bytes"]["disk"] < SIZE


def test_stores_share_a_budget_as_they_share_the_disk() -> None:
    flags = {"write_budget_bytes_per_day": "1GiB", "disk_bytes": "64MiB"}
    whole, half = (limits_of(read_config(None, flags), size * MIB) for size in (64, 32))
    assert whole.write_budget_bytes_per_day == 1 << 30
    assert half.write_budget_bytes_per_day == 1 << 29
    assert half.write_burst_bytes is None


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("write_expected", "0", "a part above 0"),
        ("write_expected", "1.5", "a part above 0"),
        ("write_after", "255", "from 1 to 254"),
        ("write_budget_bytes_per_day", "12", "at least 1048576 bytes"),
    ],
)
def test_options_of_writing_are_refused_by_name(key: str, text: str, expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as refused:
        read_config(None, {key: text})
    assert key.replace("_", "-") in str(refused.value)
