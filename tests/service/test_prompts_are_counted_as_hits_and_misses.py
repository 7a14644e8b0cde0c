"""What a prompt's lease could not use counts as missed, once and with its reason: else the hit
ratio of every engine that sends prompts would be one (I34). A LOOKUP counts nothing of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix.service import Client
from tests.service.rig import GROUPS, Service, contents, keys_of

PAGE = 16


def test_each_page_asked_for_is_a_hit_of_a_tier_or_a_miss_of_a_reason(tmp_path: Path) -> None:
    prompt = np.arange(100, dtype=np.int32)  # six pages, and four tokens behind them
    other = np.concatenate([prompt[:48], prompt[:48]])
    service = Service(tmp_path)
    try:
        with Client(service.path, GROUPS, page_tokens=PAGE) as client:
            room = client.reserve(tokens=prompt)
            for row, block in enumerate(contents(list(range(6)))):
                room.block(row)[:] = block
            assert client.commit(room).all()
            (store,) = service.status()["stores"]
            before = store["asked"]["asked"]
            for asked in (prompt, other, prompt + 7):
                client.lookup(asked)
            assert service.status()["stores"][0]["asked"]["asked"] == before
            for asked in (prompt, other, prompt + 7):
                client.lease(asked).release()
            (store,) = service.status()["stores"]
            # 6 of 6; 3 of 5, for the last of its tokens is computed in any case; none of 6.
            assert store["asked"]["hits"] == {"host": 6 + 3}
            assert store["asked"]["misses"] == {"cold": 2 + 6}
            (tenant,) = service.status()["tenants"]
            assert (tenant["asked"]["hit_ratio"], tenant["asked"]["asked"]) == (9 / 17, 17)
            assert tenant["used_bytes"] == {"host": 6 * 4096}  # it has its domain for itself
            service.check()
    finally:
        service.kill()


def test_lookups_are_counted_in_pages_and_in_keys(tmp_path: Path) -> None:
    """Fault: three keys looked up in a store of pages counted as none asked, and three found.
    Mechanism: what a frame brings was taken for tokens. Source: a reader.
    """
    service = Service(tmp_path)
    try:
        with Client(service.path, GROUPS, page_tokens=PAGE) as client:
            keys = np.ascontiguousarray(keys_of([0, 1, 2])[:, :16])
            assert client.write(keys, contents([0, 1, 2])).all()
            client.lookup(keys=keys, leave=0)
            client.lookup(np.arange(100, dtype=np.int32))
        counted = service.status()["counters"]
        told = [counted[f"lookup.{what}"] for what in ("requests", "asked", "hits")]
        assert told == [2, 3 + 6, 3]
    finally:
        service.kill()
