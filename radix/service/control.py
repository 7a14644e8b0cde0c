"""The control socket: what only the user who runs the service may do, over HTTP on a UNIX socket
beside the service's own. The kernel says who asks; root and the service's own user are let in.

    POST /purge    {"tenant": ..., "namespace": ...}    what went, once it is durable
    POST /explain  {"tokens": [...], ...}               how far a prompt reaches, and why
    GET  /status                                        as the admin page
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from radix.errors import CacheError

_LOG = logging.getLogger("radix.service.control")
_CREDENTIALS = struct.Struct("3i")
_MOST_BODY_BYTES = 32 << 20
_TIMEOUT_S = 10.0
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def control_path(path: Path) -> Path:
    """Where the control socket of a service lies, whose own is at ``path``."""
    return path.with_name(f"{path.name}.control")


class ControlServer:
    """Listens when made, serves in threads until ``close``. ``answers``: by path, called with the
    JSON of the body by any thread.
    """

    def __init__(self, path: Path, answers: Mapping[str, Answer]) -> None:
        """Raises ``OSError`` where nothing can listen there. A socket that nobody listens to is
        replaced.
        """
        self.path = path
        path.unlink(missing_ok=True)  # the service's own socket, beside it, is ours already
        before = os.umask(0o177)
        try:
            self._http = _Http(str(path), answers)
        finally:
            os.umask(before)
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="radix-control", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answers nothing more. Idempotent."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        super().__init__(path, _Handler)  # type: ignore[arg-type]  # a path is an address here

    def server_bind(self) -> None:
        """A UNIX socket has neither a host nor a port to look up."""
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """The kernel says which user asks."""
        raw = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(raw)[1]
        if user in (0, os.getuid()):
            return True
        _LOG.warning("turned away", extra={"uid": user})
        return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no fault of ours."""
        _LOG.debug("a request ended early", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = _TIMEOUT_S
    server_version = "radix"
    sys_version = ""

    def do_POST(self) -> None:
        """Answers, or says why not."""
        answer = self.server.answers.get(self.path)
        if answer is None:
            known = ", ".join(self.server.answers)
            self._send(HTTPStatus.NOT_FOUND, {"error": f"no such question; there are {known}"})
            return
        try:
            asked = self._body()
            _LOG.info("asked", extra={"question": self.path})
            self._send(HTTPStatus.OK, answer(asked))
        except (ValueError, TypeError, KeyError) as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (CacheError, TimeoutError, OSError) as error:
            told = {"error": f"{type(error).__name__}: {error}"}
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, told)

    def _body(self) -> Mapping[str, Any]:
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > _MOST_BODY_BYTES:
            raise ValueError(f"Content-Length: expected at most {_MOST_BODY_BYTES}, got {size!r}")
        asked = json.loads(self.rfile.read(int(size)))
        if not isinstance(asked, dict):
            raise ValueError("the body must be a JSON object")
        return asked

    def _send(self, status: HTTPStatus, told: Mapping[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Into the log of the service, never on standard error."""
        _LOG.debug(format, *args)
