"""OpenTelemetry spans of requests: where the time of each went, in all processes.

The server makes them when a request ends, from the times that the verifier reports: a request is
one span with a child each for waiting, for its prompt and for decoding. The attributes of the last
child say how the time of the decoding steps was spent. A caller's `traceparent` metadata makes the
request part of the caller's trace.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.keys import Metadata

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Finished = Callable[[inference_pb2.Usage], None]
"""Takes the usage of a complete completion."""


class Traces:
    """Traces nothing; `SpanTraces` does."""

    @contextmanager
    def request(self, request_id: str, model: str, metadata: Metadata) -> Iterator[Finished]:
        """Trace a request for the duration of the context."""
        yield lambda usage: None

    def close(self) -> None:
        """Send the remaining spans."""


class SpanTraces(Traces):
    """Traces by spans."""

    def __init__(self, provider: "TracerProvider") -> None:
        """Make spans by a provider, which is shut down at the end."""
        self._provider = provider
        self._tracer = provider.get_tracer("blockdraft")

    @contextmanager
    def request(self, request_id: str, model: str, metadata: Metadata) -> Iterator[Finished]:
        """Trace a request as one span; an error that ends it is the span's."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        began_ns = time.time_ns()
        span = self._tracer.start_span(
            "generate",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=trace.SpanKind.SERVER,
            start_time=began_ns,
            attributes={"blockdraft.request_id": request_id, "gen_ai.request.model": model},
        )
        try:
            yield lambda usage: self._finished(span, began_ns, usage)
        except BaseException as error:
            # Anything but an exception is a cancellation: the caller is gone.
            failed = isinstance(error, Exception)
            code = error.code if isinstance(error, ServiceError) else grpc.StatusCode.INTERNAL
            name = code.name if failed else "CANCELLED"
            span.set_status(trace.Status(trace.StatusCode.ERROR, name))
            raise
        finally:
            span.end()

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def _finished(self, span: "Span", began_ns: int, usage: inference_pb2.Usage) -> None:
        """Add the usage, and the child spans, end to end from the beginning of the request."""
        from opentelemetry import trace

        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "blockdraft.cached_prompt_tokens": usage.cached_prompt_tokens,
            }
        )
        steps = usage.step_times
        spent = {
            "blockdraft.steps": usage.verification_steps,
            "blockdraft.drafted_tokens": usage.drafted_tokens,
            "blockdraft.accepted_tokens": usage.accepted_tokens,
            "blockdraft.verify_seconds": steps.verify_time.ToNanoseconds() / 1e9,
            "blockdraft.draft_seconds": steps.draft_time.ToNanoseconds() / 1e9,
            "blockdraft.transport_seconds": steps.transport_time.ToNanoseconds() / 1e9,
            "blockdraft.host_seconds": steps.host_time.ToNanoseconds() / 1e9,
        }
        inside, end_ns = trace.set_span_in_context(span), began_ns
        for name, duration, attributes in (
            ("queue", usage.queue_time, None),
            ("prefill", usage.prefill_time, None),
            ("decode", usage.decode_time, spent),
        ):
            part = self._tracer.start_span(
                name, context=inside, start_time=end_ns, attributes=attributes
            )
            end_ns += duration.ToNanoseconds()
            part.end(end_ns)


def traces_to(endpoint: str | None, version: str) -> Traces:
    """Return the `Traces` of a collector, by OTLP over gRPC; for None, those that send nothing.

    `ModuleNotFoundError` if `blockdraft[trace]` is not installed.
    """
    if endpoint is None:
        return Traces()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = Resource.create({SERVICE_NAME: "blockdraft-server", SERVICE_VERSION: version})
    provider = TracerProvider(resource=about)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return SpanTraces(provider)
