"""The log of a service: a line of JSON for each event, on standard error, with the connection and
request that it is about where there is one.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line: time (Unix seconds), level, logger, message, what was given as `extra`
    (`request`, `connection`, `tenant`), and the trace of an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line. Cost: its length."""
        told: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {key: value for key, value in record.__dict__.items() if key not in _OWN}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def log_as_json(level: str, stream: TextIO | None = None) -> None:
    """From now on everything that this process logs is lines of JSON on ``stream`` (standard
    error), from ``level`` on.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
