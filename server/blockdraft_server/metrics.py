"""What the server measures, for Prometheus."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.access.admission import TENANT_LIMIT
from blockdraft_server.access.tenants import OTHER_TENANTS
from blockdraft_server.routing.link import Standing

logger = logging.getLogger(__name__)

# From a cached prompt on an accelerator to a long prompt that waits on a CPU.
_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_HOLD_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# So many tenants have series of their own; those who come later share one.
_MAX_TENANTS = 100


class ServerMetrics:
    """The server's metrics on one registry.

    Mean time per output token, by PromQL:
    `rate(blockdraft_server_inter_token_latency_seconds_sum[1m])
    / rate(blockdraft_server_inter_token_latency_seconds_count[1m])`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything on `registry`."""

        def name(suffix: str) -> str:
            return f"blockdraft_server_{suffix}"

        self.time_to_first_token = Histogram(
            name("time_to_first_token_seconds"),
            "Time from a request's arrival to its first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            name("inter_token_latency_seconds"),
            "Time between two messages of a stream, divided by the tokens of the later one",
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self.request_latency = Histogram(
            name("request_latency_seconds"),
            "Time from a request's arrival to its end",
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self.waiting = Gauge(
            name("requests_waiting"), "Requests without a token yet", registry=registry
        )
        self.running = Gauge(
            name("requests_running"), "Requests that stream tokens", registry=registry
        )
        self.requests = Counter(
            name("requests_total"),
            "Generation requests, by how they ended: finish reason, or status code of the error",
            ("outcome",),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            name("prompt_tokens_total"), "Prompt tokens of admitted requests", registry=registry
        )
        self.output_tokens = Counter(
            name("output_tokens_total"), "Tokens received from verifiers", registry=registry
        )
        self._tenant_requests = Counter(
            name("tenant_requests_total"),
            "Generation requests by tenant, and by how they ended as above",
            ("tenant", "outcome"),
            registry=registry,
        )
        self._tenant_tokens = Counter(
            name("tenant_tokens_total"),
            "Tokens by tenant: those of the prompts of admitted requests, and those received",
            ("tenant", "kind"),
            registry=registry,
        )
        self._tenants: set[str] = set()
        self.replays = Counter(
            name("replays_total"), "Broken streams sent to a verifier again", registry=registry
        )

        self._verifiers = Gauge(
            name("verifiers"),
            "Verifiers known, by whether they are ready; those that leave get no new requests",
            ("state",),
            registry=registry,
        )
        self.lookup_failures = Counter(
            name("lookup_failures_total"),
            "Names of verifiers that could not be looked up, each time",
            registry=registry,
        )
        self.tls_certificate_expiry = Gauge(
            name("tls_certificate_expiry_timestamp_seconds"),
            "When the certificate expires, in seconds since 1970; 0 without TLS",
            registry=registry,
        )
        self.build = Gauge(
            name("build_info"),
            "1, for what is running",
            ("version", "model"),
            registry=registry,
        )
        self.event_loop_hold = Histogram(
            name("event_loop_hold_seconds"),
            "Time for which one callback let no other run, looked at a hundred times a second",
            buckets=_HOLD_BUCKETS,
            registry=registry,
        )
        self.event_loop_longest_hold = Gauge(
            name("event_loop_longest_hold_seconds"),
            "The longest such time of the last one to two minutes",
            registry=registry,
        )

    @contextmanager
    def request(
        self, tenant: str, request_id: str, clock: Callable[[], float] = time.monotonic
    ) -> "Iterator[RequestTimer]":
        """Measure a tenant's generation request while the context lasts, and log how it went."""
        timer = RequestTimer(self, self._label(tenant), request_id, clock)
        try:
            yield timer
        except BaseException as error:
            timer.failed(error)
            raise
        finally:
            timer.close()

    def count_verifiers(self, count: Callable[[Standing], int]) -> None:
        """Ask for the number of verifiers of each standing whenever somebody wants to know."""
        for standing in get_args(Standing):
            self._verifiers.labels(state=standing).set_function(partial(count, standing))

    def count_tokens(self, tenant: str, kind: str, count: int) -> None:
        """Count tokens of a kind, `prompt` or `output`, for all and for their tenant."""
        (self.prompt_tokens if kind == "prompt" else self.output_tokens).inc(count)
        self._tenant_tokens.labels(tenant=tenant, kind=kind).inc(count)

    def count_request(self, tenant: str, outcome: str) -> None:
        """Count a request that has ended, for all and for its tenant."""
        self.requests.labels(outcome=outcome).inc()
        self._tenant_requests.labels(tenant=tenant, outcome=outcome).inc()

    def _label(self, tenant: str) -> str:
        """Return what a tenant is called; a file of keys with many names makes no more series."""
        if tenant not in self._tenants and len(self._tenants) >= _MAX_TENANTS:
            return OTHER_TENANTS
        self._tenants.add(tenant)
        return tenant


class RequestTimer:
    """The measurements of one request."""

    def __init__(
        self,
        metrics: ServerMetrics,
        tenant: str,
        request_id: str,
        clock: Callable[[], float],
    ) -> None:
        """Begin now, waiting for the first token."""
        self._tenant = tenant
        self._request_id = request_id
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._first: float | None = None
        # What remains if the answer ends without a last chunk.
        self._outcome = "cancelled"
        self._metrics = metrics
        self._clock = clock
        self._started = clock()
        self._last: float | None = None
        metrics.waiting.inc()

    def prompt(self, count: int) -> None:
        """Note that the prompt has `count` tokens."""
        self._prompt_tokens = count
        self._metrics.count_tokens(self._tenant, "prompt", count)

    def tokens(self, count: int) -> None:
        """Note that a message of `count` tokens arrived."""
        if count == 0:
            return
        now = self._clock()
        self._output_tokens += count
        self._metrics.count_tokens(self._tenant, "output", count)
        if self._last is None:
            self._first = now
            self._metrics.time_to_first_token.observe(now - self._started)
            self._metrics.waiting.dec()
            self._metrics.running.inc()
        else:
            self._metrics.inter_token_latency.observe((now - self._last) / count)
        self._last = now

    def finished(self, reason: inference_pb2.FinishReason.ValueType) -> None:
        """Note why the answer is complete."""
        self._outcome = (
            inference_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
        )

    def failed(self, error: BaseException) -> None:
        """Note the exception that ended the request.

        Anything but an ordinary exception is a cancellation: `CancelledError` and `GeneratorExit`
        are how asyncio tells that nobody waits any more.
        """
        if isinstance(error, ServiceError):
            # What is a caller's own doing must not look like a service that is overloaded.
            over = error.reason == TENANT_LIMIT
            self._outcome = (error.reason if over else error.code.name).lower()
        else:
            self._outcome = "internal" if isinstance(error, Exception) else "cancelled"

    def close(self) -> None:
        """Record the end of the request."""
        seconds = self._clock() - self._started
        (self._metrics.waiting if self._last is None else self._metrics.running).dec()
        self._metrics.request_latency.observe(seconds)
        self._metrics.count_request(self._tenant, self._outcome)
        about = {
            "request_id": self._request_id,
            "tenant": self._tenant,
            "outcome": self._outcome,
            "prompt_tokens": self._prompt_tokens,
            "output_tokens": self._output_tokens,
            "first_token_seconds": None if self._first is None else self._first - self._started,
            "seconds": seconds,
        }
        logger.info(
            "request %(request_id)s: %(outcome)s after %(seconds).3f s, "
            "%(prompt_tokens)d prompt and %(output_tokens)d output tokens",
            about,
            extra=about,
        )
