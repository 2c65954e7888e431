"""Logging of the serving processes: one line per event on stderr, as text or as JSON."""

import logging
import sys
import time
from collections import deque
from collections.abc import Sequence

from pythonjsonlogger.json import JsonFormatter

from blockdraft_runtime.settings.process import LogFormat, LogLevel

_TIME = "%Y-%m-%dT%H:%M:%S"
# So many warnings and errors are kept to be asked for.
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

    As text, `time level role logger: message`; or as one JSON object a line with the same names,
    and what the event is about, such as `request_id`, beside them.
    """
    formatter = _json(role) if form == "json" else _text(role)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler, _RecentFaults()]
    root.setLevel(level.upper())
    # Libraries narrate their inner life at these levels.
    for noisy in ("jax", "asyncio", "urllib3", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def recent_faults() -> Sequence[logging.LogRecord]:
    """Return the newest warnings and errors since `configure_logging`, oldest first."""
    kept = [each for each in logging.getLogger().handlers if isinstance(each, _RecentFaults)]
    return [record for handler in kept for record in list(handler.records)]


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
