from pathlib import Path

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.server.support import failure, running_server, settings_for, text_request, whole

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError, received_error
from blockdraft_server.auth import ApiKeys, read_api_keys


@pytest.mark.parametrize("header", ["Bearer alpha", "bearer beta", "BEARER  alpha "])
def test_known_keys_are_let_in(header: str) -> None:
    ApiKeys(["alpha", "beta"]).check(header)


@pytest.mark.parametrize(
    "header", [None, "", "alpha", "Basic alpha", "Bearer", "Bearer ", "Bearer alph", "Bearer älpha"]
)
def test_anything_else_is_not(header: str | None) -> None:
    with pytest.raises(ServiceError) as caught:
        ApiKeys(["alpha", "beta"]).check(header)
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.reason == "UNAUTHENTICATED"


def test_a_key_file_has_one_key_per_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team\nalpha\n\n  beta  \n")
    assert read_api_keys(path) == {"alpha", "beta"}
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="no API key"):
        read_api_keys(path)


async def test_calls_need_a_key_but_health_and_reflection_do_not() -> None:
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(settings_for(address), api_keys=frozenset({"alpha"})) as server,
    ):
        request = inference_pb2.GetModelRequest()
        error = await failure(server.stub.GetModel(request))
        assert error.reason == "UNAUTHENTICATED"
        metadata = (("authorization", "Bearer wrong"),)
        error = await failure(server.stub.GetModel(request, metadata=metadata))
        assert error.code is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.stub.StreamGenerate(text_request()).read()
        refusal = received_error(caught.value)
        assert refusal is not None
        assert refusal.reason == "UNAUTHENTICATED"
        metadata = (("authorization", "Bearer alpha"),)
        assert (await server.stub.GetModel(request, metadata=metadata)).model
        call = server.stub.StreamGenerate(text_request(max_output_tokens=2), metadata=metadata)
        assert len([message async for message in call]) == 2
        assert await server.healthy()


async def salts(api_keys: frozenset[str], headers: list[str | None]) -> list[bytes]:
    fake = FakeVerifier()
    async with (
        running_verifier(fake) as address,
        running_server(settings_for(address), api_keys=api_keys) as server,
    ):
        for header in headers:
            metadata = () if header is None else (("authorization", header),)
            await server.stub.Generate(whole(text_request()), metadata=metadata)
    return [request.cache_salt for request in fake.requests]


async def test_each_key_has_a_prefix_cache_of_its_own() -> None:
    keys = frozenset({"alpha", "beta"})
    headers: list[str | None] = ["Bearer alpha", "bearer  alpha ", "Bearer beta"]
    alpha, again, beta = await salts(keys, headers)
    assert alpha == again
    assert len({alpha, beta, b""}) == 3
    assert b"alpha" not in alpha
    # Where everyone is let in, what they say of themselves means nothing.
    assert await salts(frozenset(), [None, "Bearer alpha"]) == [b"", b""]
