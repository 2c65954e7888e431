"""How many requests the server holds at once. Pure: one event loop, no I/O."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from blockdraft_runtime.status import ServiceError

_MIN_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 30.0


class Admission:
    """Lets requests in while there is room for them to run or to wait.

    Requests beyond what the verifiers decode at once wait in the verifiers' own queues, where
    the scheduler sees them; the server only bounds their number. Several servers before the same
    verifiers know nothing of each other: each lets in its share of what all may hold together.
    """

    def __init__(
        self,
        max_waiting: int,
        capacity: Callable[[], int],
        servers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            max_waiting: Requests that may wait beyond the capacity.
            capacity: Returns how many sequences the healthy verifiers decode at once; 0 when
                there is none.
            servers: Servers that share the verifiers, this one included.
            clock: Returns the time in seconds.
        """
        self._max_waiting = max_waiting
        self._capacity = capacity
        self._servers = servers
        self._clock = clock
        self._admitted = 0
        self._draining = False
        self._last_release: float | None = None
        self._release_interval = 1.0

    @property
    def admitted(self) -> int:
        """Requests held now."""
        return self._admitted

    def drain(self) -> None:
        """Refuse everything from now on; what was let in goes on."""
        self._draining = True

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold a place for the duration of the context.

        Raises:
            ServiceError: UNAVAILABLE while draining or without a verifier, RESOURCE_EXHAUSTED
                while full.
        """
        self._check()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1
            self._note_release()

    def _check(self) -> None:
        if self._draining:
            raise ServiceError(
                grpc.StatusCode.UNAVAILABLE,
                "DRAINING",
                "the server is shutting down",
                retry_after_seconds=1.0,
            )
        capacity = self._capacity()
        if capacity < 1:
            raise verifier_unavailable("no verifier is ready")
        limit = -(-(capacity + self._max_waiting) // self._servers)
        if self._admitted >= limit:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                f"the server holds {self._admitted} requests, at most {limit} are allowed",
                metadata={"requests": self._admitted, "limit": limit},
                # About when the next place becomes free.
                retry_after_seconds=min(
                    max(self._release_interval, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS
                ),
            )

    def _note_release(self) -> None:
        now = self._clock()
        if self._last_release is not None:
            # An exponential moving average over about the last ten requests.
            self._release_interval += 0.1 * (now - self._last_release - self._release_interval)
        self._last_release = now


def verifier_unavailable(message: str, **metadata: object) -> ServiceError:
    """Return the error for a request that finds no verifier."""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        "VERIFIER_UNAVAILABLE",
        message,
        metadata=metadata,
        retry_after_seconds=1.0,
    )
