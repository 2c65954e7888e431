"""The gRPC options of connections between processes, and the pauses before they try again."""

import random
from collections.abc import Callable
from dataclasses import dataclass

# A prefill's features are sent in chunks of at most a few MiB; the margin is for large batches.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A silent peer is given up after 10 s: its work goes on elsewhere.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # For pings that gRPC sends on its own; while one is in flight, keepalive sends none.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer should be found again within a fraction of a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A client may ping a silent (queued) stream every 5 s; without these it is cut off.
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A peer that is gone without a word must not hold slots and streams for hours.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 1024),  # of one connection
    # No algorithm: a small message could become gigabytes, before its size is checked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Two processes on one port would each take half of the calls.
    ("grpc.so_reuseport", 0),
)

# 2.0**1024 overflows; no pause needs more doublings than this.
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The range from which pauses are drawn."""

    initial_seconds: float  # longest pause after the first failure; doubles with each further one
    max_seconds: float  # longest pause after any number of failures


class Backoff:
    """The pauses of one caller after failures in a row. Not thread-safe.

    A failure usually hits many callers: a verifier that dies breaks all its streams. Fixed pauses
    would bring them all back at the same instant, time after time. So each pause is drawn from the
    second half of a range that doubles; without its first half, pauses grow until the range is at
    its longest.
    """

    def __init__(self, policy: BackoffPolicy, draw: Callable[[], float] = random.random) -> None:
        """Start without a failure; `draw` returns a random number from [0, 1)."""
        self._policy = policy
        self._draw = draw
        self._failures = 0

    def pause_seconds(self) -> float:
        """Count a failure; return the pause before the next try."""
        doubled = self._policy.initial_seconds * 2.0 ** min(self._failures, _MOST_DOUBLINGS)
        self._failures += 1
        return min(doubled, self._policy.max_seconds) * (1 + self._draw()) / 2

    def reset(self) -> None:
        """Forget the failures: a try succeeded."""
        self._failures = 0
