"""The server's metrics, for Prometheus."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.admission import TENANT_LIMIT
from blockdraft_server.keys import OTHER_TENANTS
from blockdraft_server.routing.link import Standing

logger = logging.getLogger(__name__)

# From a cached prompt on an accelerator to a long prompt that waits on a CPU.
_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_HOLD_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# So many tenants have series of their own; later ones share one.
_MAX_TENANTS = 100


class ServerMetrics:
    """The server's metrics on one registry, each under `blockdraft_server_`.

    Mean time per output token (TPOT), by PromQL:
    `rate(blockdraft_server_inter_token_latency_seconds_sum[1m])
    / rate(blockdraft_server_inter_token_latency_seconds_count[1m])`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything on `registry`."""
        counter = partial(Counter, namespace="blockdraft_server", registry=registry)
        gauge = partial(Gauge, namespace="blockdraft_server", registry=registry)
        histogram = partial(Histogram, namespace="blockdraft_server", registry=registry)
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "Time from a request's arrival to its first token",
            buckets=_FIRST_TOKEN_BUCKETS,
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds",
            "Time between two messages of a stream, divided by the tokens of the later one",
            buckets=_TOKEN_BUCKETS,
        )
        self.request_latency = histogram(
            "request_latency_seconds",
            "Time from a request's arrival to its end",
            buckets=_REQUEST_BUCKETS,
        )
        self.waiting = gauge("requests_waiting", "Requests without a token yet")
        self.running = gauge("requests_running", "Requests that stream tokens")
        self._requests = counter(
            "requests_total",
            "Generation requests, by how they ended: finish reason, or status code of the error",
            ("outcome",),
        )
        self._prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of admitted requests")
        self._output_tokens = counter("output_tokens_total", "Tokens received from verifiers")
        self._tenant_requests = counter(
            "tenant_requests_total",
            "Generation requests by tenant, and by how they ended as above",
            ("tenant", "outcome"),
        )
        self._tenant_tokens = counter(
            "tenant_tokens_total",
            "Tokens by tenant: those of the prompts of admitted requests, and those received",
            ("tenant", "kind"),
        )
        self.replays = counter("replays_total", "Broken streams sent to a verifier again")
        self._verifiers = gauge(
            "verifiers",
            "Verifiers known, by whether they are ready; those that leave get no new requests",
            ("state",),
        )
        self.name_resolution_failures = counter(
            "name_resolution_failures_total", "Failed attempts to resolve the name of a verifier"
        )
        self.tls_certificate_expiry = gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the certificate expires, in seconds since 1970; 0 without TLS",
        )
        self.build = gauge("build_info", "1, for what is running", ("version", "model"))
        self.event_loop_hold = histogram(
            "event_loop_hold_seconds",
            "Time for which one callback let no other run, measured a hundred times a second",
            buckets=_HOLD_BUCKETS,
        )
        self.event_loop_longest_hold = gauge(
            "event_loop_longest_hold_seconds",
            "The longest such time of the last one to two minutes",
        )
        self._tenants: set[str] = set()

    @contextmanager
    def request(self, tenant: str, request_id: str) -> "Iterator[RequestTimer]":
        """Measure a tenant's generation request while the context lasts, and log how it went."""
        timer = RequestTimer(self, self._label(tenant), request_id)
        try:
            yield timer
        except BaseException as error:
            timer.failed(error)
            raise
        finally:
            timer.close()

    def count_verifiers(self, count: Callable[[Standing], int]) -> None:
        """Read the number of verifiers of each standing whenever the metrics are collected."""
        for standing in get_args(Standing):
            self._verifiers.labels(state=standing).set_function(partial(count, standing))

    def count_tokens(self, tenant: str, kind: str, count: int) -> None:
        """Count tokens of a kind, `prompt` or `output`, for all and for their tenant."""
        (self._prompt_tokens if kind == "prompt" else self._output_tokens).inc(count)
        self._tenant_tokens.labels(tenant=tenant, kind=kind).inc(count)

    def count_request(self, tenant: str, outcome: str) -> None:
        """Count a request that has ended, for all and for its tenant."""
        self._requests.labels(outcome=outcome).inc()
        self._tenant_requests.labels(tenant=tenant, outcome=outcome).inc()

    def _label(self, tenant: str) -> str:
        """Return a tenant's label; the number of series stays bounded if there are many tenants."""
        if tenant not in self._tenants and len(self._tenants) >= _MAX_TENANTS:
            return OTHER_TENANTS
        self._tenants.add(tenant)
        return tenant


class RequestTimer:
    """The measurements of one request."""

    def __init__(self, metrics: ServerMetrics, tenant: str, request_id: str) -> None:
        """Begin now, waiting for the first token."""
        self._metrics = metrics
        self._tenant = tenant
        self._request_id = request_id
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._started = time.monotonic()
        self._first: float | None = None
        self._last: float | None = None
        # The outcome if the completion ends without a last message.
        self._outcome = "cancelled"
        metrics.waiting.inc()

    def prompt(self, count: int) -> None:
        """Note that the prompt has `count` tokens."""
        self._prompt_tokens = count
        self._metrics.count_tokens(self._tenant, "prompt", count)

    def tokens(self, count: int) -> None:
        """Note that a message of `count` tokens arrived."""
        if count == 0:
            return
        now = time.monotonic()
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
        """Note the finish reason of the completion."""
        name = inference_pb2.FinishReason.Name(reason)
        self._outcome = name.removeprefix("FINISH_REASON_").lower()

    def failed(self, error: BaseException) -> None:
        """Note the exception that ended the request.

        Anything but an ordinary exception is a cancellation: asyncio raises `CancelledError` and
        `GeneratorExit` when the caller is gone.
        """
        if isinstance(error, ServiceError):
            # A caller's own fault must not look like an overloaded service.
            over = error.reason == TENANT_LIMIT
            self._outcome = (error.reason if over else error.code.name).lower()
        else:
            self._outcome = "internal" if isinstance(error, Exception) else "cancelled"

    def close(self) -> None:
        """Record the end of the request."""
        seconds = time.monotonic() - self._started
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
