"""Spans of requests to a running server."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.fakes.verifier import FakeVerifier
from tests.server.support import Running, serving, until

from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.traces import SpanTraces, Traces, traces_to

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def server(verifier: FakeVerifier, spans: InMemorySpanExporter) -> AsyncIterator[Running]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with serving(verifier, traces=SpanTraces(provider)) as server:
        yield server


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_is_a_span_of_its_callers_trace(
    server: Running, verifier: FakeVerifier, spans: InMemorySpanExporter
) -> None:
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
    answer = await server.generate("secret words", metadata=metadata)
    found = named(spans)
    assert set(found) == {"generate", "queue", "prefill", "decode"}
    whole = found["generate"]
    assert whole.context is not None
    assert whole.parent is not None
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.attributes is not None
    assert whole.attributes["blockdraft.request_id"] == answer.request_id
    assert whole.attributes["gen_ai.usage.output_tokens"] == answer.usage.output_tokens
    # The children follow one another and are as long as the usage says.
    usage, end = answer.usage, whole.start_time
    parts = (usage.queue_time, usage.prefill_time, usage.decode_time)
    for name, part in zip(("queue", "prefill", "decode"), parts, strict=True):
        span = found[name]
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == part.ToNanoseconds()
        assert span.start_time == end
        end = span.end_time
    decode = found["decode"].attributes
    assert decode is not None
    assert decode["blockdraft.accepted_tokens"] == usage.accepted_tokens
    verify = usage.step_times.verify_time.ToNanoseconds() / 1e9
    assert decode["blockdraft.verify_seconds"] == verify
    # What was asked and answered is nobody else's business.
    assert "secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_an_error_is_the_spans(server: Running, spans: InMemorySpanExporter) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await server.stub.Generate(inference_pb2.GenerateRequest())
    status = named(spans)["generate"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "INVALID_ARGUMENT")


async def test_a_cancelled_request_ends_its_span(
    server: Running, verifier: FakeVerifier, spans: InMemorySpanExporter
) -> None:
    verifier.delay_seconds = 1000.0
    call = server.stream()
    await until(lambda: bool(verifier.requests))
    call.cancel()
    await until(lambda: "generate" in named(spans))
    assert named(spans)["generate"].status.description == "CANCELLED"


def test_without_a_collector_nothing_is_traced() -> None:
    assert isinstance(traces_to(None, "1"), Traces)


class Collector(TraceServiceServicer):
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        scopes = (scope for sent in request.resource_spans for scope in sent.scope_spans)
        self.names += [span.name for scope in scopes for span in scope.spans]
        return ExportTraceServiceResponse()


def test_spans_are_sent_to_a_collector() -> None:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    traces = traces_to(f"http://127.0.0.1:{port}", "1")
    with traces.request("r1", "m", ()) as finished:
        finished(inference_pb2.Usage(output_tokens=3))
    traces.close()
    assert sorted(collector.names) == ["decode", "generate", "prefill", "queue"]
    server.stop(None)
