import asyncio

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, answer, running_verifier
from tests.server.support import config_for, running_server, text_request, whole

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError, received_error

PROMPT = [1, 2]


def text_of(token_ids: list[int]) -> str:
    return bytes(token_ids).decode()


async def failure(call: "asyncio.Future[object]") -> ServiceError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = received_error(caught.value)
    assert error is not None
    return error


async def test_streams_one_message_per_verification_step() -> None:
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(config_for(address)) as server,
    ):
        messages = [m async for m in server.stub.StreamGenerate(text_request(max_output_tokens=8))]
    expected = answer(PROMPT, 8)
    assert [list(m.token_ids) for m in messages] == [
        expected[:1],
        expected[1:4],
        expected[4:7],
        expected[7:],
    ]
    assert "".join(m.text for m in messages) == text_of(expected)
    assert len(messages[0].request_id) == 32
    assert messages[0].model == "smollm2-135m"
    assert not messages[1].request_id
    assert [m.finish_reason for m in messages] == [0, 0, 0, inference_pb2.FINISH_REASON_LENGTH]
    assert not messages[0].HasField("usage")
    usage = messages[-1].usage
    assert (usage.prompt_tokens, usage.output_tokens, usage.verification_steps) == (2, 8, 3)
    assert usage.step_times.verify_time.ToMilliseconds() == 10


async def test_generate_gives_the_whole_answer_at_once() -> None:
    async with (
        running_verifier(FakeVerifier()) as address,
        running_server(config_for(address)) as server,
    ):
        response = await server.stub.Generate(whole(text_request(max_output_tokens=8)))
    assert list(response.token_ids) == answer(PROMPT, 8)
    assert response.text == text_of(answer(PROMPT, 8))
    assert response.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert response.usage.output_tokens == 8
    assert len(response.request_id) == 32
