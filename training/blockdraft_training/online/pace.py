"""The times at which learning may compute: never while a verifier decodes.

Each step waits here before it begins, until nothing has been decoded for a moment. So learning does
not raise the inter-token latency of a completion.
"""

import http.client
import logging
import math
import re
import time
import urllib.parse
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

# Sequences that decode or wait; asked for by name, so that no other metric is collected.
_GAUGES = ("blockdraft_verifier_running_sequences", "blockdraft_verifier_waiting_sequences")
_VALUE = re.compile(rf"^({'|'.join(_GAUGES)})(?:\{{[^}}]*\}})? (\S+)$", re.M)
_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.05


class Pace:
    """Waits until nothing is decoded, and reports the time."""

    def __init__(
        self,
        busy: Callable[[], bool],
        settle_seconds: float,
        waited: Callable[[float], object] = lambda seconds: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Wait while `busy`, and then until nothing has been busy for `settle_seconds`.

        `waited` is called with the seconds of each part of a wait.
        """
        self._busy, self._settle, self._waited = busy, settle_seconds, waited
        self._clock, self._sleep = clock, sleep

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Return when a step may be computed, or learning has been stopped."""
        now = self._clock()
        # When nothing has decoded for long enough; infinite while something does.
        ready_at = math.inf if self._busy() else now
        while now < ready_at and not stopped():
            self._sleep(_POLL_SECONDS)
            before, now = now, self._clock()
            self._waited(now - before)
            if self._busy():
                ready_at = math.inf
            elif ready_at == math.inf:
                ready_at = now + self._settle


class Verifiers:
    """Verifiers, whose metrics say whether they decode."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Ask at these addresses; `ValueError` if one is not an HTTP address."""
        self._addresses = [_address(url) for url in urls]
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._silent: set[str] = set()

    def busy(self) -> bool:
        """Return whether a verifier has sequences, or does not respond and so may have some."""
        return any(self._decodes(host, path) for host, path in self._addresses)

    def _decodes(self, host: str, path: str) -> bool:
        connection = self._connections.get(host)
        if connection is None:
            connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
            self._connections[host] = connection
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            gauges = _VALUE.findall(response.read().decode("utf-8", "replace"))
            if response.status != http.HTTPStatus.OK or {name for name, _ in gauges} != {*_GAUGES}:
                raise ValueError("no metrics of a verifier")
            busy = sum(float(value) for _, value in gauges) > 0
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()  # the next request opens it again
            if isinstance(error, ConnectionRefusedError):
                return False  # no process is there
            if host not in self._silent:
                logger.warning("verifier %s does not respond, learning waits: %s", host, error)
            self._silent.add(host)
            return True
        self._silent.discard(host)
        return busy


def _address(url: str) -> tuple[str, str]:
    """Return the host, and the path with the names of the gauges."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.netloc:
        raise ValueError(f"--watch {url!r} is not an http:// address")
    query = urllib.parse.urlencode([("name[]", name) for name in _GAUGES])
    return parts.netloc, f"{parts.path or '/metrics'}?{query}"
