"""Two services over one backend, each a process of its own as on a machine of its own, with clients
in this one: what one stored the other finds, leases and reads, bytes right, over its own socket and
TCP; domains see nothing of each other; a RESET reaches both; kill -9 loses nothing that is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.groups import Group
from radix.keys import Namespace
from radix.layout import Layout
from radix.groups import Retention
from radix.service import AsyncClient, Client
from tests.remote.servicesrig import Pair
from tests.remoterig import RedisNodes, redis_nodes
from tests.service.rig import GROUPS, SIZE, Service, contents, keys_of

NAMES: list[object] = [f"shared {number}" for number in range(24)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with redis_nodes() as running:
        yield running


@pytest.fixture
def pair(nodes: RedisNodes, tmp_path: Path) -> Iterator[Pair]:
    nodes.clear()
    with Pair(tmp_path, nodes.url) as services:
        yield services


def test_what_one_stored_the_other_leases(pair: Pair) -> None:
    with pair.one.client() as here, pair.two.client() as there:
        keys = keys_of(NAMES)
        assert (there.has(keys) == -1).all()
        assert here.write(keys, contents(NAMES)).all()
        pair.wait_for(len(NAMES))
        assert (there.has(keys) == -1).all()  # what nobody asked the backend for is not known
        assert (there.has(keys, seek=True) > 0).all()
        with there.lease(keys=keys) as lease:
            assert lease.held().all()
            for name, block in zip(NAMES, lease.blocks(), strict=True):
                assert block is not None and (block == contents([name])[0]).all()
        assert (there.has(keys) == 0).all()
        pair.two.check()
        pair.one.check()
