"""Logging of the serving processes: one line per event on stderr, as text or as JSON."""

import logging
import sys
import time
from collections import deque
from collections.abc import Sequence

from pythonjsonlogger.json import JsonFormatter

from blockdraft_runtime.settings.process import LogFormat, LogLevel

_TIME = "%Y-%m-%dT%H:%M:%S"
# Most warnings and errors that `recent_faults` returns.
_KEPT_FAULTS = 50


class _RecentFaults(logging.Handler):
    """Keeps the newest warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: deque[logging.LogRecord] = deque(maxlen=_KEPT_FAULTS)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def configure_logging(role: str, level: LogLevel = "info", form: LogFormat = "text") -> None:
    """Log to stderr, times in UTC, and keep the newest warnings and errors for `recent_faults`.

    A line is `time level role logger: message`, or a JSON object with these names and those of the
    event, such as `request_id`.
    """
    formatter = _json(role) if form == "json" else _text(role)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler, _RecentFaults()]
    root.setLevel(level.upper())
    # Below this level these libraries log their internals.
    for noisy in ("jax", "asyncio", "urllib3", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def recent_faults() -> Sequence[logging.LogRecord]:
    """Return the newest warnings and errors since `configure_logging`, oldest first."""
    handlers = [
        handler for handler in logging.getLogger().handlers if isinstance(handler, _RecentFaults)
    ]
    return [record for handler in handlers for record in list(handler.records)]


def _text(role: str) -> logging.Formatter:
    return logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {role} %(name)s: %(message)s", datefmt=_TIME
    )


def _json(role: str) -> logging.Formatter:
    return JsonFormatter(
        ["asctime", "levelname", "name", "message"],
        datefmt=_TIME + "Z",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        static_fields={"role": role},
    )
