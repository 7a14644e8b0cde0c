"""Clients die in the middle of what they do, the service is killed and started again, a client
stops reading: nothing leaks, nothing that was acknowledged is lost, nothing wrong is read, and
nobody waits for another. C115 (a restart is noticed), C116 (what a service forgot is a miss), C117
(a service that dies after a hit), C118 (a late end of an older write).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.keys import Namespace
from radix.service import Client, ServiceGoneError, ServiceLimitError
from radix.service.opening import declared
from radix.service.protocol import Op, Splitter, Status, encode, text_of
from tests.service.rig import GROUPS, ROOT, Service, content, contents, keys_of

# A client that reserves, writes, leases and reads until it is killed, wherever it is then.
CLIENT = """
import sys
import numpy as np
from tests.service.rig import GROUPS, SIZE, contents, keys_of
from radix.service import Client

seed = int(sys.argv[2])
draw = np.random.default_rng(seed)
client = Client(sys.argv[1], GROUPS, memory=[[np.zeros((64, SIZE), np.uint8)]])
leases = []
print("ready", flush=True)
while True:
    numbers = np.unique(draw.integers(0, 4000, 48)).tolist()
    keys = keys_of(numbers)
    room = client.reserve(keys)
    for index, granted in enumerate(room.granted.tolist()):
        if granted:
            room.block(index)[:] = contents([numbers[index]])[0]
    if draw.random() < 0.8:
        client.commit(room, durable=bool(draw.random() < 0.5))
    leases = [*leases[-3:], client.lease(keys=keys[:8])]
    client.load(keys[:32], np.arange(len(keys[:32])))
"""


def kill_clients(service: Service, times: int) -> None:
    """Two at a time, each killed a little later than the one before it."""
    for turn in range(times // 2):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, service.path, str(2 * turn + which)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
            )
            for which in range(2)
        ]
        for process in pair:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in pair:
            time.sleep(0.003 * (turn % 7))
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _killed(tmp_path: Path, times: int) -> None:
    with Service(tmp_path, data=str(tmp_path / "data")) as service:
        with service.client() as client:
            client.write(keys_of([0]), contents([0]))
            files = service.open_files
            kill_clients(service, times)
            service.until(lambda told: told["connections"] == 1)
            service.check()
            told = client.stat()
            assert told["writing"] == told["leased_keys"] == told["keeps"] == 0
            service.until(lambda _: service.open_files == files)
            # What goes to disk still holds its blocks a moment longer.
            service.until(lambda told: told["stores"][0]["leases"] == 0)
            # Every slot can be had again, and what is there is right.
            with service.client() as other:
                client.flush()
                everything = other.reserve(keys_of([f"new {i}" for i in range(4000)]))
                other.abort(everything)
            numbers: list[object] = list(range(4000))
            good, blocks = client.read(keys_of(numbers))
            assert good.any()
            wanted = [number for number, there in zip(numbers, good, strict=True) if there]
            assert (blocks == contents(wanted)).all()
        service.check()


def test_clients_killed_in_the_middle_leave_nothing_behind(tmp_path: Path) -> None:
    _killed(tmp_path, 10)


@pytest.mark.long
def test_a_hundred_clients_killed_in_the_middle_leave_nothing_behind(tmp_path: Path) -> None:
    _killed(tmp_path, 100)


def test_a_killed_service_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    """Three times over one folder: what was acknowledged before each kill is there after it."""
    acknowledged: set[int] = set()
    for turn in range(3):
        with Service(tmp_path, data=str(tmp_path / "data")) as service:
            with service.client() as client:
                before: list[object] = sorted(acknowledged)
                good, blocks = client.read(keys_of(before))
                assert good.all()
                assert (blocks == contents(before)).all()
                done = threading.Event()
                writer = threading.Thread(target=_write, args=(client, turn, acknowledged, done))
                writer.start()
                assert done.wait(60)
                service.kill()
                writer.join()
    assert len(acknowledged) > 900


def _write(client: Client, turn: int, acknowledged: set[int], done: threading.Event) -> None:
    """Blocks that no turn before wrote, until the service is gone."""
    for first in range(1000 * turn, 1000 * turn + 1000, 16):
        numbers: list[object] = list(range(first, first + 16))
        kept = client.write(keys_of(numbers), contents(numbers)).tolist()
        if not any(kept):
            break
        acknowledged.update(first + index for index, good in enumerate(kept) if good)
        if len(acknowledged) > 300 * (turn + 1):
            done.set()


def test_what_was_acknowledged_as_durable_is_so_whoever_brought_it(tmp_path: Path) -> None:
    """A durable write of blocks that another had just brought was acknowledged at once, because
    they were there: in memory. Of what two clients wrote before a kill every sixth was lost.
    """
    for turn in range(2):
        names: list[object] = [f"{turn} {index}" for index in range(3000)]
        with Service(tmp_path, data=str(tmp_path / "data")) as service:
            with service.client() as one, service.client() as other:
                assert one.write(keys_of(names), contents(names), durable=False).all()
                if turn:
                    other.does.local = False  # the bytes go in frames, as over TCP
                kept = other.write(keys_of(names), contents(names))
                assert kept.all()
                service.kill()
        with Service(tmp_path, data=str(tmp_path / "data")) as service, service.client() as client:
            good, blocks = client.read(keys_of(names[::5]))
            assert good.all() and (blocks == contents(names[::5])).all()


def test_what_the_disk_declines_is_durable_for_nobody(tmp_path: Path) -> None:
    """It is there, and kept for who asks no more than that."""
    names: list[object] = list(range(12))
    flags = {"data": str(tmp_path / "data"), "write": "write_after", "write_after": "9"}
    with Service(tmp_path, **flags) as service, service.client() as one, service.client() as other:
        assert one.write(keys_of(names[:8]), contents(names[:8]), durable=False).all()
        assert other.write(keys_of(names[:8]), contents(names[:8]), durable=False).all()
        assert not other.write(keys_of(names[:8]), contents(names[:8])).any()
        room = other.reserve(keys_of(names))
        assert room.there.tolist() == [True] * 8 + [False] * 4
        for index in range(8, 12):
            room.block(index)[:] = content(names[index])
        assert not other.commit(room).any()
        assert (other.has(keys_of(names)) == 0).all()


def test_a_restart_is_noticed_and_old_handles_are_refused(tmp_path: Path) -> None:
    names: list[object] = list(range(8))
    keys = keys_of(names)
    with Service(tmp_path) as service:
        client = service.client(timeout_s=5.0)
        assert client.write(keys, contents(names)).all()
        leased, room = client.lease(keys=keys[:4]), client.reserve(keys_of(["new"]))
        boot = client.boot
        service.kill()
    assert not leased.intact()
    with Service(tmp_path):
        assert (client.has(keys) == -1).all()  # a miss, not an error, and at the first call
        assert client.restarts == 1 and client.boot != boot
        with pytest.raises(LeaseError, match="connection"):
            client.commit(room)
        leased.release()  # of a lease that ended long ago: nothing
        assert client.write(keys, contents(names)).all()
        assert (client.has(keys) == 0).all()
        assert not leased.intact()


def test_a_service_that_dies_after_a_hit_is_a_miss_and_then_costs_nothing(tmp_path: Path) -> None:
    names: list[object] = list(range(8))
    keys, memory = keys_of(names), contents(names)
    with Service(tmp_path) as service:
        client = service.client(memory=[[memory]], timeout_s=2.0)
        assert client.store(keys, np.arange(8)).all()
        assert client.lookup(keys=keys, leave=0).pages == 8
        service.kill()
    assert not client.load(keys, np.arange(8)).any()
    assert not client.store(keys, np.arange(8)).any()
    assert client.lookup(keys=keys).pages == 0
    assert client.lease(keys=keys).held().sum() == 0
    assert client.valid_lengths([keys]).tolist() == [0]
    with pytest.raises(ServiceGoneError):
        client.forget(keys)  # what must not be lost says so
    began = time.process_time()
    for _ in range(100):
        client.has(keys)
    assert time.process_time() - began < 1.0
    client.close()


def test_a_stopped_service_is_given_up_after_the_deadline(tmp_path: Path) -> None:
    keys = keys_of([1])
    with Service(tmp_path) as service:
        client = service.client(timeout_s=0.3)
        client.write(keys, contents([1]))
        service.process.send_signal(signal.SIGSTOP)
        try:
            assert client.has(keys).tolist() == [-1]
            assert client.has(keys).tolist() == [-1]
        finally:
            service.process.send_signal(signal.SIGCONT)
        service.until(lambda told: told["connections"] == 0)
        time.sleep(0.2)
        assert client.has(keys).tolist() == [0]


@pytest.mark.timeout(60)  # less than the 90 s that a write has if nothing is said
@pytest.mark.parametrize("moment", ["before it has room", "before it is kept"])
def test_a_write_to_a_stopped_service_is_given_up_when_it_says(tmp_path: Path, moment: str) -> None:
    """Fault: a backend over a service held up its tier for 90 s, whatever its deadline. Mechanism:
    a write took no time limit. Source: a reader.
    """
    with Service(tmp_path) as service:
        client = service.client(timeout_s=0.3)
        client.write(keys_of([1]), contents([1]))
        room = client.reserve(keys_of([2]))
        service.process.send_signal(signal.SIGSTOP)
        try:
            if moment == "before it is kept":
                with pytest.raises(ServiceGoneError):
                    client._run(client.does.commit(room, None, True, timeout_s=0.3))
            else:
                assert not client.write(keys_of([3]), contents([3]), timeout_s=0.3).any()
        finally:
            service.process.send_signal(signal.SIGCONT)


def test_a_late_commit_of_an_older_reservation_is_refused(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as client:
        keys = keys_of(["a", "b"])
        first = client.reserve(keys)
        first.block(0)[:] = content("old")
        client.abort(first)  # given up: somebody else may bring the keys now
        second = client.reserve(keys)
        for index, name in enumerate(("a", "b")):
            second.block(index)[:] = content(name)
        with pytest.raises(LeaseError, match="ended before"):
            client.commit(first)
        assert not client.read(keys)[0].any()
        assert client.commit(second).all()
        assert (client.read(keys)[1] == contents(["a", "b"])).all()
        with pytest.raises(LeaseError):
            client.commit(first)
        assert (client.read(keys)[1] == contents(["a", "b"])).all()
        service.check()


def test_a_reset_ends_reservations_of_before(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as client:
        keys = keys_of(["a", "b"])
        assert client.write(keys[:1], contents(["a"])).all()
        room = client.reserve(keys)
        client.reset()
        room.block(1)[:] = content("b")
        assert client.commit(room).tolist() == [True, False]
        assert (client.has(keys) == -1).all()
        service.check()


def test_a_client_that_takes_no_answers_is_cut_and_holds_up_nobody(tmp_path: Path) -> None:
    names: list[object] = list(range(128))
    with Service(tmp_path, **{"limits.slow_s": "1", "limits.max_frame_bytes": "1MiB"}) as service:
        with service.client() as client:
            client.write(keys_of(names), contents(names))
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(service.path)
            opening = encode(Op.HELLO, 1, text_of({"tenant": "default"}))
            link.sendall(opening + _opened(2))
            asked = encode(Op.READ, 3, keys_of(names[:64]), items=64, store=1)
            before = service.resident_bytes
            link.settimeout(0.2)
            with pytest.raises(OSError):
                while True:  # it reads no answer; in the end nobody takes its questions either
                    link.sendall(asked)
            for _ in range(50):
                assert client.read(keys_of(names))[0].all()
            assert service.resident_bytes - before < 48 << 20
            service.until(lambda told: told["connections"] == 1)
            assert service.status()["counters"]["connection.cut: takes no answers"] == 1
            link.close()
        service.check()


def _opened(request: int) -> bytearray:
    asked = declared(tuple(GROUPS), 32, 0, Namespace(), 0)
    return encode(Op.OPEN, request, text_of(asked))


def test_clients_without_a_handshake_or_a_whole_frame_are_cut(tmp_path: Path) -> None:
    flags = {"limits.slow_s": "0.3", "limits.handshake_s": "0.3", "limits.max_connections": "3"}
    with Service(tmp_path, **flags) as service:
        links = []
        for sent in (b"", encode(Op.HELLO, 1, text_of({}))[:70], encode(Op.HELLO, 1, text_of({}))):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(service.path)
            link.sendall(sent)
            links.append(link)
        more = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        service.until(lambda told: told["connections"] == 3)
        more.connect(service.path)
        more.settimeout(5)
        frame = next(Splitter().feed(more.recv(4096)))
        assert frame.status == Status.LIMIT
        assert more.recv(1) == b""
        service.until(lambda told: told["connections"] == 1)
        for link in [*links, more]:
            link.close()


def test_what_a_client_holds_is_bounded_however_small_it_is(tmp_path: Path) -> None:
    names: list[object] = list(range(8))
    keys = keys_of(names)
    with Service(tmp_path, **{"limits.max_leases": "20"}) as service:
        with service.client() as client, service.client() as other:
            client.write(keys, contents(names))
            leases = [client.lease(keys=keys) for _ in range(2)]
            with pytest.raises(ServiceLimitError, match="16 keys are leased"):
                client.lease(keys=keys)
            rooms = [client.reserve(keys[:0]) for _ in range(18)]  # of nothing: they count, too
            for call in (lambda: client.reserve(keys[:0]), lambda: client.lease(keys=keys[:0])):
                with pytest.raises(ServiceLimitError, match="20 leases and reservations"):
                    call()
            assert other.lease(keys=keys).held().all()  # nobody else is bounded by it
            leases[0].release()
            client.abort(rooms[0])
            client.lease(keys=keys[:0]).release()
            assert client.stat()["writing"] == 17


def test_draining_lets_readers_end_and_takes_nothing_new(tmp_path: Path) -> None:
    names: list[object] = list(range(8))
    keys = keys_of(names)
    with Service(tmp_path, data=str(tmp_path / "data")) as service:
        client = service.client()
        client.write(keys, contents(names), durable=False)
        leased = client.lease(keys=keys)
        service.process.send_signal(signal.SIGTERM)
        service.until(lambda told: told["state"] == "draining")
        assert not os.path.exists(service.path)
        assert (leased.block(3) == content(3)).all() and leased.intact()
        assert not client.write(keys_of(["new"]), contents(["new"])).any()
        leased.release()
        assert service.process.wait(20) == 0  # though its client is there still
        client.close()
    with Service(tmp_path, data=str(tmp_path / "data")) as service, service.client() as client:
        good, blocks = client.read(keys)  # a warm restart: also what was not waited for
        assert good.all() and (blocks == contents(names)).all()


def test_a_socket_that_a_dead_service_left_is_taken_over_and_a_live_one_not(
    tmp_path: Path,
) -> None:
    with Service(tmp_path) as service:
        service.kill()
    assert os.path.exists(service.path)
    with Service(tmp_path) as service:
        with pytest.raises(AssertionError, match="ended"):
            Service(tmp_path)
        with service.client() as client:
            assert client.write(keys_of([1]), contents([1])).all()
