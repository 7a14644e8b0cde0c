"""HTTP for people and for Prometheus, on loopback alone: `/healthz`, `/metrics`, `/status`, and one
page that draws them. It only reads; whoever may open a socket of this machine may ask.

Kept here: no answer is larger than what it is of, no question changes anything, none waits longer
than a few seconds; a page of elsewhere in a browser on this machine learns nothing (the Host is
checked, nothing is shared across origins).
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from radix.errors import CacheError, StaleError
from radix.service.config import Address
from radix.service.explorer import ExplorerError
from radix.service.history import SAMPLE_S, History
from radix.service.metrics import CONTENT_TYPE, exposition
from radix.service.status import Status

_LOG = logging.getLogger("radix.service.admin")
_JSON = "application/json"
_PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TIMEOUT_S = 10.0
_MOST_REQUESTS = 32  # at once
Look = Callable[[Mapping[str, str]], dict[str, Any]]


class AdminServer:
    """Listens when made, serves in threads until ``close``. ``address``: with the real port."""

    def __init__(
        self,
        address: Address,
        status: Callable[[], Status],
        look: Look,
        sample_s: float = SAMPLE_S,
    ) -> None:
        """``status``, ``look`` (of the tree): called by any thread, answer within seconds or raise.

        Raises ``ValueError`` for an address beyond loopback, ``OSError`` for one that is taken.
        """
        if not address.loopback:
            raise ValueError(f"address must be on loopback, not {address}")
        self._http = _Http(address, status, look)
        self.address = Address(address.host, self._http.server_address[1])
        self._http.hosts = {
            f"{name}:{self.address.port}" for name in ("127.0.0.1", "localhost", "[::1]")
        } | {str(self.address)}
        self.history = History(status, sample_s)
        self._http.history = self.history
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="radix-admin", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answers nothing more. Idempotent."""
        self.history.close()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    history: History
    hosts: set[str]

    def __init__(self, address: Address, status: Callable[[], Status], look: Look) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.status = status
        self.look = look
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a request, and so many at most: the others are turned away."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no fault of ours."""
        _LOG.debug("a request of %s ended early", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = _TIMEOUT_S
    server_version = "radix"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers, or says why not."""
        if self.headers.get("Host", "") not in self.server.hosts:
            self._fail(HTTPStatus.FORBIDDEN, "the Host is not this service's")
            return
        url = urlsplit(self.path)
        try:
            self._answer(url.path, dict(parse_qsl(url.query)))
        except (ExplorerError, ValueError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except StaleError:
            self._fail(HTTPStatus.GONE, "what was asked for has gone meanwhile")
        except (CacheError, TimeoutError, FutureTimeoutError) as error:
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: {error}")

    do_HEAD = do_GET

    def _answer(self, path: str, asked: dict[str, str]) -> None:
        if path in _PAGES:
            name, kind = _PAGES[path]
            self._send(HTTPStatus.OK, kind, (files("radix.service") / "web" / name).read_bytes())
        elif path == "/healthz":
            state = self.server.status().state
            good = HTTPStatus.OK if state == "running" else HTTPStatus.SERVICE_UNAVAILABLE
            self._send_json(good, {"state": state})
        elif path == "/metrics":
            self._send(HTTPStatus.OK, CONTENT_TYPE, exposition(self.server.status))
        elif path == "/status":
            self._send_json(HTTPStatus.OK, self.server.status().as_json())
        elif path == "/history":
            self._send_json(HTTPStatus.OK, {"samples": self.server.history.samples()})
        elif path == "/tree":
            self._send_json(HTTPStatus.OK, self.server.look(asked))
        else:
            known = ", ".join([*_PAGES, "/healthz", "/metrics", "/status", "/history", "/tree"])
            self._fail(HTTPStatus.NOT_FOUND, f"no such page; there are {known}")

    def _send_json(self, status: HTTPStatus, told: dict[str, Any]) -> None:
        self._send(status, _JSON, json.dumps(told).encode())

    def _fail(self, status: HTTPStatus, what: str) -> None:
        self._send_json(status, {"error": what})

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Into the log of the service, never on standard error."""
        _LOG.debug(format, *args)
