"""The admin server answers from one status at a time, changes nothing, listens on loopback alone
and is no way in for pages of elsewhere.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radix.errors import ClosedError
from radix.service.admin import AdminServer
from radix.service.config import Address
from radix.service.metrics import COUNTERS, GAUGES
from tests.adminrig import Rig, serving


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with serving(tmp_path_factory.mktemp("disk")) as made:
        for number in range(4):
            made.serve(number)
        made.serve(0)
        made.serve(9, tenant=b"\x00\xff")
        made.put(240)
        yield made


def get(
    rig: Rig, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    link = http.client.HTTPConnection("127.0.0.1", rig.admin.address.port, timeout=20)
    try:
        link.request(method, path, headers={} if host is None else {"Host": host})
        answer = link.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        link.close()


def told(rig: Rig, path: str) -> dict[str, Any]:
    status, body, _ = get(rig, path)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def metrics(rig: Rig) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, body, headers = get(rig, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def test_status_is_what_the_stores_say(rig: Rig) -> None:
    status = told(rig, "/status")
    prompts, keys = status["stores"]
    with rig.lock:
        usage, counters = rig.cache.usage(), dict(rig.cache.counters())
    assert prompts["counters"] == counters
    assert {tier["name"]: tier["used_bytes"] for tier in prompts["tiers"]} == {
        name: use.used_bytes for name, use in usage.items()
    }
    asked = prompts["asked"]
    assert asked["asked"] == sum(asked["hits"].values()) + sum(asked["misses"].values()) == 600
    assert asked["hits"] == {"host": 96} and asked["hit_ratio"] == 96 / 600
    assert keys["asked"] == {
        "unit": "blocks",
        "asked": 480,
        "hits": {"host": 240},
        "misses": {"cold": 240},
        "hit_ratio": 0.5,
    }
    assert (prompts["namespaces"], keys["namespaces"]) == (2, 1)
    assert prompts["groups"] == {"kv": 16384}


def test_metrics_carry_the_numbers_of_the_status(rig: Rig) -> None:
    found = metrics(rig)
    where = (("domain", ""), ("store", "prompts"))
    host = tuple(sorted((*where, ("tier", "host"))))
    status = told(rig, "/status")
    assert found["radix_tier_used_bytes", host] == status["stores"][0]["tiers"][0]["used_bytes"]
    unit = tuple(sorted((*where, ("unit", "tokens"))))
    assert found["radix_asked_total", unit] == 600
    hit = tuple(sorted((*where, ("tier", "host"), ("unit", "tokens"))))
    assert found["radix_hits_total", hit] == 96
    moved = [key for key in found if key[0] == "radix_moved_bytes_total"]
    assert {dict(labels)["what"] for _, labels in moved} == {"store"}
    assert sum(found[key] for key in moved) > 100_000
    events = {dict(labels)["event"] for name, labels in found if name == "radix_events_total"}
    assert "connection.turned away" in events
    assert not {event for event in events if event.startswith(("match.", "has."))}
    known = {*GAUGES, *(f"{name}_total" for name in COUNTERS)} | {"radix_info"}
    assert {name for name, _ in found} <= known


def test_health_follows_the_state(rig: Rig) -> None:
    assert get(rig, "/healthz")[0] == 200
    rig.state = "draining"
    try:
        status, body, _ = get(rig, "/healthz")
        assert (status, json.loads(body)) == (503, {"state": "draining"})
    finally:
        rig.state = "running"
    rig.broken = ClosedError("the service has ended")
    try:
        for path in ("/healthz", "/status", "/metrics"):
            status, body, _ = get(rig, path)
            assert status == 503 and "ended" in json.loads(body)["error"]
    finally:
        rig.broken = None
    assert get(rig, "/healthz")[0] == 200


def test_the_history_is_sampled(rig: Rig) -> None:
    before = len(told(rig, "/history")["samples"])
    deadline = time.monotonic() + 20
    while len(samples := told(rig, "/history")["samples"]) < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert samples[-1]["asked"] == {"tokens": [600, 96], "blocks": [480, 240]}
    assert samples[-1]["tiers"]["disk"][1] == 96 << 20
    assert samples == sorted(samples, key=lambda sample: float(sample["t"]))


def test_the_tree_is_looked_at_in_bounded_pieces(rig: Rig) -> None:
    assert told(rig, "/tree") == {"stores": ["keys", "prompts"]}
    spaces = told(rig, "/tree?store=prompts")
    assert (spaces["total"], spaces["next"]) == (2, None)
    assert {space["tenant"] for space in spaces["namespaces"]} == {"acme", "00ff"}
    root = next(each["root"] for each in spaces["namespaces"] if each["tenant"] == "acme")
    nodes = told(rig, f"/tree?store=prompts&root={root}&node={root}")["nodes"]
    assert sorted(node["pages"] for node in nodes) == [6, 6, 6, 6]
    assert {tuple(node["tiers"].items()) for node in nodes} == {(("host", 6), ("disk", 6))}
    assert len({node["mark"] for node in nodes}) == 4
    (space,) = told(rig, "/tree?store=keys")["namespaces"]
    seen: list[str] = []
    after = "0"
    while after is not None:
        query = f"/tree?store=keys&root={space['root']}&node={space['root']}&most=50&after={after}"
        piece = told(rig, query)
        assert len(piece["nodes"]) <= 50
        seen += [node["node"] for node in piece["nodes"]]
        after = piece["next"]
    assert len(seen) == len(set(seen)) == 240
    most = f"/tree?store=keys&root={space['root']}&node={space['root']}&most=99999"
    assert len(told(rig, most)["nodes"]) == 200  # whoever asks for more


def test_looking_changes_nothing(rig: Rig) -> None:
    with rig.lock:
        before = rig.cache.counters(), rig.cache.tree.stats(), rig.flat.tree.stats()
        order = rig.cache.tree.order(0)
    for path in ("/status", "/metrics", "/tree?store=prompts", "/history", "/"):
        assert get(rig, path)[0] == 200
    with rig.lock:
        assert (rig.cache.counters(), rig.cache.tree.stats(), rig.flat.tree.stats()) == before
        assert rig.cache.tree.order(0) == order
        rig.cache.check()
        rig.flat.check()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tree?store=nowhere", 400),
        ("/tree?store=keys&root=5&node=5", 400),
        ("/tree?store=keys&node=x", 400),
        ("/tree?store=keys&most=-1", 400),
        ("/tree?store=prompts&root={root}&node=18446744073709551615", 410),
        ("/tree?store=prompts&root={root}&node=99999999999999999999", 400),
        ("/nowhere", 404),
        ("/../../etc/passwd", 404),
    ],
)
def test_what_is_not_there_is_refused(rig: Rig, path: str, status: int) -> None:
    root = told(rig, "/tree?store=prompts")["namespaces"][0]["root"]
    found, body, _ = get(rig, path.format(root=root))
    assert (found, "error" in json.loads(body)) == (status, True)


def test_a_page_of_elsewhere_learns_nothing(rig: Rig) -> None:
    """A name that is made to point at 127.0.0.1 must not read the status through a browser."""
    for host in ("evil.example:80", f"evil.example:{rig.admin.address.port}", "", "127.0.0.1"):
        status, body, _ = get(rig, "/status", host=host)
        assert status == 403 and b"stores" not in body
    assert get(rig, "/status", host=f"localhost:{rig.admin.address.port}")[0] == 200
    _, _, headers = get(rig, "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(rig: Rig, method: str) -> None:
    assert get(rig, "/status", method=method)[0] == 501
    status, body, headers = get(rig, "/status", method="HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000


def test_the_page_needs_nothing_from_elsewhere(rig: Rig) -> None:
    for path in ("/", "/app.js", "/charts.js", "/tree.js", "/style.css"):
        status, body, _ = get(rig, path)
        assert status == 200 and len(body) > 300
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "@import" not in text


def test_clients_that_say_nothing_hold_nobody_up(rig: Rig) -> None:
    address = ("127.0.0.1", rig.admin.address.port)
    silent = [socket.create_connection(address, timeout=20) for _ in range(20)]
    try:
        silent[0].sendall(b"GET /status HT")
        silent[1].sendall(b"\x00\xff" * 1000)
        assert get(rig, "/healthz")[0] == 200
    finally:
        for link in silent:
            link.close()


def test_more_requests_than_there_is_room_for_are_turned_away(rig: Rig) -> None:
    address = ("127.0.0.1", rig.admin.address.port)
    links = [socket.create_connection(address, timeout=20) for _ in range(40)]
    try:
        links[-1].settimeout(20)
        assert links[-1].recv(1) == b""  # closed at once: the first 32 say nothing and wait
    finally:
        for link in links:
            link.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert get(rig, "/healthz")[0] == 200
            return
        except (ConnectionError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_it_listens_on_loopback_alone(rig: Rig) -> None:
    def never(*_: object) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="must be on loopback"):
        AdminServer(Address("0.0.0.0", 0), never, never)
    with pytest.raises(OSError):
        AdminServer(rig.admin.address, never, never)


def test_closing_ends_every_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with serving(tmp_path) as made:
        port = made.admin.address.port
        assert get(made, "/healthz")[0] == 200
    deadline = time.monotonic() + 20
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, set(threading.enumerate()) - before
        time.sleep(0.01)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
