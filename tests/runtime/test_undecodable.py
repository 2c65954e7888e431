from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.server.support import running_server, settings_for

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import received_error

# Prompt{text: "\xff"} as field 2 of a request: text that is no UTF-8.
BAD_TEXT = b"\x12\x03\x0a\x01\xff"
TRUNCATED = b"\x12\x7f\x0a"


@pytest.mark.parametrize("data", [BAD_TEXT, TRUNCATED])
@pytest.mark.parametrize("method", ["Generate", "StreamGenerate", "Tokenize"])
async def test_undecodable_requests_get_a_typed_error(method: str, data: bytes) -> None:
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address)) as server,
    ):
        path = f"/blockdraft.v1.InferenceService/{method}"
        kind: Any = server.channel.unary_unary
        if method == "StreamGenerate":
            kind = server.channel.unary_stream
        call = kind(path)(data)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call if method != "StreamGenerate" else call.read())
    error = received_error(caught.value)
    assert error is not None
    assert (error.code, error.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_REQUEST",
    )


async def test_reflection_still_lists_the_service() -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address)) as server,
    ):
        channel: Any = server.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        responses = [item async for item in stub.ServerReflectionInfo(iter([request]))]
    names = {service.name for service in responses[0].list_services_response.service}
    assert inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name in names
