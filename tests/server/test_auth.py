import asyncio
import dataclasses
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.patience import PATIENCE_SECONDS
from tests.server.support import (
    Running,
    bearer,
    failure,
    running_server,
    serving,
    settings_for,
    text_request,
    until,
)

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.keys import EVERYONE, ApiKeys, Tenant, digest_of, parse_keys

KEYS = ApiKeys(lambda: parse_keys("alpha\nbeta"))


def said(header: str | bytes | None) -> tuple[tuple[str, str | bytes], ...]:
    return () if header is None else (("authorization", header),)


@pytest.mark.parametrize("header", ["Bearer alpha", "bearer beta", "BEARER  alpha "])
def test_known_keys_are_let_in(header: str) -> None:
    key = header.split()[1]
    assert KEYS.tenant(said(header)) == parse_keys("alpha\nbeta")[digest_of(key)]


@pytest.mark.parametrize(
    "header", [None, "", "alpha", "Basic alpha", "Bearer", "Bearer ", "Bearer alph", "Bearer älpha"]
)
def test_anything_else_is_not(header: str | None) -> None:
    with pytest.raises(ServiceError) as caught:
        KEYS.tenant(said(header))
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.reason == "UNAUTHENTICATED"


def test_a_digest_is_no_key() -> None:
    keys = ApiKeys(lambda: parse_keys(f"acme sha256:{digest_of('alpha').hex()}"))
    assert keys.tenant(said("Bearer alpha")).name == "acme"
    for wrong in (digest_of("alpha").hex(), f"sha256:{digest_of('alpha').hex()}", "acme"):
        with pytest.raises(ServiceError):
            keys.tenant(said(f"Bearer {wrong}"))


class Unscannable(dict[bytes, Tenant]):
    def __iter__(self) -> NoReturn:
        raise AssertionError("the keys are looked through one by one")

    items = values = keys = __iter__


def test_a_key_is_found_without_a_look_at_all_others() -> None:
    known = Unscannable(parse_keys("alpha\nbeta"))
    keys = ApiKeys(lambda: known)
    assert keys.tenant(said("Bearer beta")) == parse_keys("beta")[digest_of("beta")]
    with pytest.raises(ServiceError):
        keys.tenant(said("Bearer gamma"))


def test_without_keys_everyone_is_one_tenant() -> None:
    assert not ApiKeys().needed
    assert ApiKeys().tenant(said("Bearer whatever")) is ApiKeys().tenant(None) is EVERYONE


async def test_calls_need_a_key_but_health_and_reflection_do_not() -> None:
    async with serving(FakeVerifier(), api_keys=["alpha"]) as server:
        request = inference_pb2.GetModelRequest()
        for call in (
            server.stub.GetModel(request),
            server.stub.GetModel(request, metadata=bearer("wrong")),
            server.stream().read(),
        ):
            assert (await failure(call)).reason == "UNAUTHENTICATED"
        assert (await server.stub.GetModel(request, metadata=bearer("alpha"))).model
        answer = server.stream(max_output_tokens=2, metadata=bearer("alpha"))
        assert len([message async for message in answer]) == 2
        assert await server.healthy()


async def salts(api_keys: list[str], headers: list[str | None]) -> list[bytes]:
    fake = FakeVerifier()
    async with serving(fake, api_keys=api_keys) as server:
        for header in headers:
            metadata = () if header is None else (("authorization", header),)
            await server.generate(metadata=metadata)
    return [request.cache_salt for request in fake.requests]


async def test_each_tenant_has_a_prefix_cache_of_its_own() -> None:
    acme = [f"acme sha256:{digest_of(key).hex()}" for key in ("gamma", "delta")]
    headers: list[str | None] = ["Bearer alpha", "bearer  alpha ", "Bearer beta"]
    headers += ["Bearer gamma", "Bearer delta"]
    alpha, again, beta, gamma, delta = await salts(["alpha", "beta", *acme], headers)
    assert alpha == again
    assert gamma == delta
    assert len({alpha, beta, gamma, b""}) == 4
    assert b"alpha" not in alpha
    # Where everyone is let in, what they say of themselves means nothing.
    assert await salts([], [None, "Bearer alpha"]) == [b"", b""]


async def outcome(server: Running, key: str) -> str:
    try:
        await server.stub.GetModel(inference_pb2.GetModelRequest(), metadata=bearer(key))
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_keys_come_and_go_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    async with running_verifier(FakeVerifier(delay_seconds=0.05)) as address:
        settings = dataclasses.replace(settings_for(address), api_key_file=path)
        async with running_server(settings) as server:
            metadata = bearer("old")
            request = text_request(max_output_tokens=60)
            stream = server.stub.StreamGenerate(request, metadata=metadata).__aiter__()
            await anext(stream)
            assert await outcome(server, "new") == "UNAUTHENTICATED"
            path.write_text("old\nnew\n")
            await until_outcome(server, "new", "OK")
            assert await outcome(server, "old") == "OK"
            # Revoked. What was let in before goes on to its end.
            path.write_text("new\n")
            await until_outcome(server, "old", "UNAUTHENTICATED")
            *_, last = [message async for message in stream]
            assert last.finish_reason
            # A file that cannot be read right lets in whom the one before let in.
            path.write_text("new twice\n")
            await until(lambda: "stays in force" in caplog.text)
            assert await outcome(server, "new") == "OK"
            path.write_text("newest\n")
            await until_outcome(server, "newest", "OK")
            assert await outcome(server, "new") == "UNAUTHENTICATED"


async def until_outcome(server: Running, key: str, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await outcome(server, key) != wanted:
            await asyncio.sleep(0.01)
