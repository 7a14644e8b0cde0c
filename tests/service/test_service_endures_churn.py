"""A service under clients that come, write, read, keep and go, over a pool and a disk much too
small for what they bring: its memory and its descriptors stay as they are, and what it gives is
right.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from radix.keys import Namespace
from radix.service import Client
from tests.service.rig import SIZE, Blocks, Service, contents, keys_of

MIB = 1 << 20


def _churn(service: Service, seed: int, until: float, failures: list[BaseException]) -> None:
    draw = np.random.default_rng(seed)
    try:
        while time.monotonic() < until:
            memory = np.zeros((64, SIZE), np.uint8)
            with service.client(memory=[[memory]]) as client:
                for _ in range(int(draw.integers(1, 40))):
                    _act(client, memory, draw)
    except BaseException as error:  # outermost: a thread of the test; the test raises it
        failures.append(error)


def _act(client: Client, memory: Blocks, draw: np.random.Generator) -> None:
    space = f"model {int(draw.integers(0, 200))}"  # namespaces come and go, too
    first = int(draw.integers(0, 1 << 20))
    numbers = list(range(first, first + int(draw.integers(1, 64))))
    names: list[object] = [(space, number) for number in numbers]
    keys, rows = keys_of(list(numbers)), np.arange(len(numbers))
    place = {"namespace": Namespace(space)}
    memory[rows] = contents(names)
    client.store(keys, rows, durable=bool(draw.random() < 0.1), **place)
    memory[:] = 0
    good = client.load(keys, rows, **place)
    assert (memory[rows][good] == contents(names)[good]).all()
    what = draw.random()
    if what < 0.1:
        client.keep(keys[:2], float(draw.random()), **place)
    elif what < 0.2:
        client.reserve(keys_of([f"left {first}"]), **place)  # and left to the end of its client
    elif what < 0.3:
        client.lease(keys=keys, **place)
    elif what < 0.31:
        client.events(0, **place)


def _endures(tmp_path: Path, seconds: float) -> None:
    with Service(tmp_path, data=str(tmp_path / "data")) as service:
        failures: list[BaseException] = []
        seen: list[tuple[int, int]] = []
        for part in range(4):  # the first makes warm what is made once
            until = time.monotonic() + seconds / 4
            threads = [
                threading.Thread(target=_churn, args=(service, 4 * part + n, until, failures))
                for n in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failures:
                raise failures[0]
            service.until(lambda told: told["connections"] == 0)
            service.check()
            seen.append((service.resident_bytes, service.open_files))
        assert seen[-1][1] == seen[0][1]
        assert max(resident for resident, _ in seen[1:]) - seen[0][0] < 24 * MIB, seen
        counters = service.status()["counters"]
        assert "refused.internal" not in counters
        used = sum(
            file.stat().st_blocks * 512 for file in (tmp_path / "data").rglob("*") if file.is_file()
        )
        assert used < 66 * MIB
        assert os.path.exists(service.path)


def test_ten_seconds_of_churn_leave_memory_as_it_was(tmp_path: Path) -> None:
    _endures(tmp_path, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_minutes_of_churn_leave_memory_as_it_was(tmp_path: Path) -> None:
    _endures(tmp_path, 600)
