"""OpenTelemetry spans of requests: where the time of each went, in all processes.

The server makes them when a request ends, from the times that the verifier reports: a request is
one span with a child each for waiting, for its prompt and for decoding. What the steps of decoding
were spent on is in the attributes of that child. A caller's `traceparent` metadata makes the
request part of the caller's trace.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import grpc

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Metadata = Sequence[tuple[str, str | bytes]]

_SCOPE = "blockdraft"


class Trace(Protocol):
    """Told how a request went."""

    def finished(self, usage: inference_pb2.Usage) -> None:
        """Note what a complete answer consumed."""


class Traces(Protocol):
    """Makes the traces of requests."""

    @contextmanager
    def request(self, request_id: str, model: str, metadata: Metadata) -> Iterator[Trace]:
        """Trace a request for the duration of the context."""

    def close(self) -> None:
        """Send what is left."""


class NoTraces:
    """Traces nothing."""

    @contextmanager
    def request(self, request_id: str, model: str, metadata: Metadata) -> Iterator[Trace]:
        """Trace nothing."""
        yield self

    def finished(self, usage: inference_pb2.Usage) -> None:
        """Note nothing."""

    def close(self) -> None:
        """Send nothing."""


class SpanTraces:
    """Traces by spans."""

    def __init__(self, provider: "TracerProvider") -> None:
        """Make spans by a provider, which is shut down at the end."""
        self._provider = provider
        self._tracer = provider.get_tracer(_SCOPE)

    @contextmanager
    def request(self, request_id: str, model: str, metadata: Metadata) -> Iterator[Trace]:
        """Trace a request as one span; an error that ends it is the span's."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        span = self._tracer.start_span(
            "generate",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={"blockdraft.request_id": request_id, "gen_ai.request.model": model},
        )
        try:
            yield _SpanTrace(self._tracer, span)
        except BaseException as error:
            # Anything but an exception is a cancellation: nobody waits any more.
            failed = isinstance(error, Exception)
            code = error.code if isinstance(error, ServiceError) else grpc.StatusCode.INTERNAL
            name = code.name if failed else "CANCELLED"
            span.set_status(trace.Status(trace.StatusCode.ERROR, name))
            raise
        finally:
            span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class _SpanTrace:
    """The trace of one request; its children end to end, the first where it began."""

    def __init__(self, tracer: "Tracer", span: "Span") -> None:
        self._tracer = tracer
        self._span = span
        self._end_ns = time.time_ns()

    def finished(self, usage: inference_pb2.Usage) -> None:
        """Add what a complete answer consumed."""
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "blockdraft.cached_prompt_tokens": usage.cached_prompt_tokens,
            }
        )
        steps = usage.step_times
        self._add("queue", usage.queue_time.ToNanoseconds(), {})
        self._add("prefill", usage.prefill_time.ToNanoseconds(), {})
        self._add(
            "decode",
            usage.decode_time.ToNanoseconds(),
            {
                "blockdraft.steps": usage.verification_steps,
                "blockdraft.drafted_tokens": usage.drafted_tokens,
                "blockdraft.accepted_tokens": usage.accepted_tokens,
                "blockdraft.verify_seconds": steps.verify_time.ToNanoseconds() / 1e9,
                "blockdraft.draft_seconds": steps.draft_time.ToNanoseconds() / 1e9,
                "blockdraft.transport_seconds": steps.transport_time.ToNanoseconds() / 1e9,
                "blockdraft.host_seconds": steps.host_time.ToNanoseconds() / 1e9,
            },
        )

    def _add(self, name: str, nanoseconds: int, attributes: Mapping[str, float]) -> None:
        from opentelemetry import trace

        span = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(self._span),
            start_time=self._end_ns,
            attributes=attributes,
        )
        self._end_ns += nanoseconds
        span.end(self._end_ns)


def traces_to(endpoint: str | None, version: str) -> Traces:
    """Return what traces requests.

    Args:
        endpoint: OTLP collector to send to by gRPC, such as `http://localhost:4317`; None for none.
        version: The server's.

    Raises:
        ModuleNotFoundError: If `blockdraft[trace]` is not installed.
    """
    if endpoint is None:
        return NoTraces()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = Resource.create({SERVICE_NAME: "blockdraft-server", SERVICE_VERSION: version})
    provider = TracerProvider(resource=about)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return SpanTraces(provider)
