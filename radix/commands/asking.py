"""How commands reach a service that runs: its control socket, and its admin address."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radix.errors import CacheError
from radix.options import OptionError

_TIMEOUT_S = 600.0


class ServiceAnswerError(CacheError):
    """The service was asked, and said no."""


class _Control(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connects to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask_control(service: Path, question: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the service whose socket is ``service``; its answer.

    Raises:
        OptionError: nobody listens there, or not to this user.
        ServiceAnswerError: it says why not.
    """
    from radix.service.control import control_path

    link = _Control(control_path(service))
    try:
        link.request("POST", question, json.dumps(asked), {"Content-Type": "application/json"})
        answer = link.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
    except (FileNotFoundError, ConnectionRefusedError):
        raise OptionError("--socket", f"no service listens at {service}") from None
    except (ConnectionError, http.client.HTTPException):
        what = f"the service at {service} lets only its own user and root ask"
        raise OptionError("--socket", what) from None
    finally:
        link.close()
    return _said(answer.status, told)


def ask_admin(address: str, path: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """Ask the admin server at host:port.

    Raises:
        OptionError: nobody answers there.
        ServiceAnswerError: it says why not.
    """
    link = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        what = f"no service answers at {address} ({error or type(error).__name__})"
        raise OptionError("--admin", what) from None
    finally:
        link.close()
    return _said(answer.status, told)


def _said(status: int, told: dict[str, Any]) -> dict[str, Any]:
    """The answer, where it is one."""
    if status != 200:
        raise ServiceAnswerError(str(told.get("error", status)))
    return told
