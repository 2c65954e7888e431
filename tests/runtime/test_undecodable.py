from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.reasons import error_reason
from tests.server.support import running_server, settings_for

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
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_reason(caught.value) == "MALFORMED_REQUEST"
