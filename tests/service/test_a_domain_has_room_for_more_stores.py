"""A store that says no size leaves room for other kinds of blocks: each next one gets a share of
what is left, down to the least that works; where nothing is left the refusal says what was asked
and what there is, and a store that nobody has open any more gives way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.errors import NeverFitsError
from radix.groups import Group
from radix.service import Client
from tests.service.rig import Service, contents, keys_of

MIB = 1 << 20


def _kind(number: int) -> list[Group]:
    return [Group.full("kv", 4096 * (number + 1))]


def _pools(service: Service) -> list[int]:
    return [store["tiers"][0]["limit_bytes"] for store in service.status()["stores"]]


def test_each_kind_of_block_gets_a_share_of_what_is_left(tmp_path: Path) -> None:
    clients: list[Client] = []
    with Service(tmp_path, host_bytes="16MiB", store_share="0.75") as service:
        try:
            for number in range(4):
                client = service.client(groups=_kind(number))
                clients.append(client)
                names: list[object] = [number]
                assert client.write(keys_of(names), contents(names, 4096 * (number + 1))).all()
            assert _pools(service) == [12 * MIB, 3 * MIB, 3 * MIB // 4, 3 * MIB // 16]
            for number, client in enumerate(clients):  # and none took anything of another
                wanted = contents([number], 4096 * (number + 1))
                assert (client.read(keys_of([number]))[1] == wanted).all()
            service.check()
        finally:
            for client in clients:
                client.close()


def test_where_nothing_is_left_the_refusal_says_so(tmp_path: Path) -> None:
    with Service(tmp_path, host_bytes="1MiB", store_share="1") as service:
        with service.client() as first, service.client(groups=_kind(1)) as second:
            assert (first.has(keys_of([1])) == -1).all()
            with pytest.raises(
                NeverFitsError, match=r"0 of its 1048576 bytes left.*32768"
            ) as error:
                second.has(keys_of([1]))
            assert "store_share" in str(error.value)
        service.until(lambda told: told["connections"] == 0)
        with service.client(groups=_kind(1)) as third:  # nobody has the first one open now
            assert (third.has(keys_of([1])) == -1).all()
        assert _pools(service) == [MIB]
