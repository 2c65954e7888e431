import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, completion
from tests.patience import PATIENCE_SECONDS
from tests.server.support import (
    EOS,
    Running,
    failure,
    serving,
    text_request,
    tokens_of,
    until,
    whole,
)

from blockdraft_models.tokenizer.text_decoder import Utf8Decoder
from blockdraft_protos.v1 import inference_pb2, inference_pb2_grpc
from blockdraft_runtime.settings.server import LimitsSettings
from blockdraft_runtime.status import invalid_argument

PROMPT = [1, 2]


@pytest.fixture
async def server(verifier: FakeVerifier) -> AsyncIterator[Running]:
    async with serving(verifier) as running:
        yield running


async def test_streams_a_message_for_a_verification_step_or_several(server: Running) -> None:
    request = text_request(max_output_tokens=8)
    messages = [message async for message in server.stub.StreamGenerate(request)]
    expected = completion(PROMPT, 8)
    assert tokens_of(messages) == expected
    # What comes late comes in the same message as what came before it.
    ends = list(itertools.accumulate(len(message.token_ids) for message in messages))
    assert set(ends) <= {1, 4, 7, 8}
    assert "".join(message.text for message in messages) == bytes(expected).decode()
    assert len(messages[0].request_id) == 32
    assert messages[0].model == "smollm2-135m"
    *earlier, last = messages
    assert not any(message.request_id for message in messages[1:])
    assert not any(message.finish_reason or message.HasField("usage") for message in earlier)
    assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    usage = last.usage
    assert (usage.prompt_tokens, usage.output_tokens, usage.verification_steps) == (2, 8, 3)
    assert (usage.drafted_tokens, usage.accepted_tokens) == (6, 4)
    assert usage.step_times.verify_time.ToMilliseconds() == 10


async def test_a_caller_who_reads_slowly_gets_the_same_text_in_fewer_messages(
    server: Running, verifier: FakeVerifier
) -> None:
    count = 3000
    verifier.description.max_context_tokens = 2 * count
    verifier.tokens_per_step = 1
    verifier.script = [97 + index % 26 for index in range(count)]
    await server.until_context(2 * count)
    # Log probabilities make the messages large, so that few of them fit into the connection, whose
    # window must not grow.
    request = text_request(max_output_tokens=count, log_probs=20)
    options = (("grpc.http2.bdp_probe", 0),)
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        slow = inference_pb2_grpc.InferenceServiceStub(channel)
        stream = aiter(slow.StreamGenerate(request))
        messages = [await anext(stream)]
        await until(lambda: verifier.sent >= count)
        # Others are served meanwhile.
        other = await server.generate("\x03", max_output_tokens=5)
        assert list(other.token_ids) == verifier.script[:5]
        messages += [message async for message in stream]
    token_ids = tokens_of(messages)
    assert token_ids == verifier.script
    assert "".join(message.text for message in messages) == bytes(token_ids).decode()
    log_probs = [entry for message in messages for entry in message.log_probs]
    assert [entry.chosen.token_id for entry in log_probs] == token_ids
    assert len(messages) < count / 2
    assert messages[-1].finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert messages[-1].usage.output_tokens == count


@pytest.mark.parametrize(
    ("script", "sampling", "token_ids", "text"),
    [
        ([*b"hi", EOS], {}, [*b"hi", EOS], "hi"),
        (list(b"hello"), {"stop_token_ids": [ord("l")]}, list(b"hel"), "he"),
    ],
)
async def test_the_token_that_ends_the_answer_is_reported_but_has_no_text(
    server: Running,
    verifier: FakeVerifier,
    script: list[int],
    sampling: dict[str, Any],
    token_ids: list[int],
    text: str,
) -> None:
    verifier.script = script
    response = await server.generate(**sampling)
    assert (list(response.token_ids), response.text) == (token_ids, text)
    assert response.finish_reason == inference_pb2.FINISH_REASON_STOP


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 7])
async def test_a_stop_sequence_cuts_the_text_and_cancels_the_verifier(
    server: Running, verifier: FakeVerifier, tokens_per_step: int
) -> None:
    verifier.tokens_per_step = tokens_per_step
    verifier.script = list("one é END two three four five six seven".encode())
    # What comes after the message that ends the stop sequence waits for the cancellation.
    stopped = len("one é END".encode())
    verifier.hold_after = 1 + -(-(stopped - 1) // tokens_per_step)
    request = text_request(stop_sequences=["xyz", "END"], max_output_tokens=38)
    messages = [message async for message in server.stub.StreamGenerate(request)]
    assert "".join(message.text for message in messages) == "one é "
    assert messages[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    token_ids = tokens_of(messages)
    # Not what came with it: that depends on how many drafts were accepted.
    assert bytes(token_ids).decode() == "one é END"
    usage = messages[-1].usage
    assert usage.prompt_tokens == 2
    assert usage.output_tokens == len(token_ids)
    assert usage.verification_steps == -(-(len(token_ids) - 1) // tokens_per_step)
    assert usage.accepted_tokens == usage.verification_steps * (tokens_per_step - 1)
    await until(lambda: verifier.cancelled == 1)


async def test_log_probs_name_the_bytes_of_each_token(server: Running) -> None:
    response = await server.generate(max_output_tokens=4, log_probs=2)
    assert len(response.log_probs) == 4
    token = response.token_ids[0]
    first = response.log_probs[0]
    assert (first.chosen.token_id, first.chosen.token) == (token, bytes([token]))
    assert [item.token_id for item in first.alternatives] == [token, token + 1]
    assert [item.log_prob for item in first.alternatives] == [-0.5, -1.5]


async def test_a_request_or_its_tenant_may_be_in_the_background(
    server: Running, verifier: FakeVerifier
) -> None:
    request = text_request(max_output_tokens=1)
    await server.stub.Generate(whole(request))
    request.priority = inference_pb2.PRIORITY_BACKGROUND
    await server.stub.Generate(whole(request))
    assert [sent.background for sent in verifier.requests] == [False, True]
    request.priority = 9  # type: ignore[assignment]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.Generate(whole(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "priority" in (caught.value.details() or "")


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_cancelled_call_is_cancelled_at_the_verifier(
    server: Running, verifier: FakeVerifier, how: str
) -> None:
    verifier.hold_after = 1
    seconds, calls, begun = 0.3, 0, False
    while not begun:
        timeout = seconds if how == "deadline" else None
        call = server.stream(timeout=timeout)
        calls += 1
        # A busy machine may take longer than that to get anything out of the verifier.
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                begun = True
                break
        seconds *= 2
    if how == "cancel":
        call.cancel()
    await until(lambda: verifier.cancelled == len(verifier.requests))
    await until(lambda: server.metric("requests_running") == 0)
    # The server's own clock may notice a passed deadline before the transport does.
    outcomes = ("cancelled", "deadline_exceeded") if how == "deadline" else ("cancelled",)
    # One whose deadline passed early enough never came to the server.
    assert 1 <= sum(server.metric("requests_total", outcome=name) for name in outcomes) <= calls


async def test_the_servers_own_deadline_ends_calls_without_one(verifier: FakeVerifier) -> None:
    verifier.delay_seconds = 0.05
    limits = LimitsSettings(default_timeout_seconds=0.2)
    async with serving(verifier, limits=limits) as server:
        error = await failure(server.generate())
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.reason == "DEADLINE_EXCEEDED"


async def test_a_refusal_of_the_verifier_is_passed_on(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.refusal = invalid_argument("sampling.seed", "no such seed", seed=3)
    error = await failure(server.generate())
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message == "no such seed"
    assert error.metadata["seed"] == "3"
    assert len(error.metadata["request_id"]) == 32
    assert len(verifier.requests) == 1
    assert server.metric("requests_total", outcome="invalid_argument") == 1


async def test_an_unexplained_failure_of_the_verifier_is_internal(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.break_after = [1]
    verifier.break_code = grpc.StatusCode.DATA_LOSS
    error = await failure(server.generate())
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "VERIFIER_ERROR")


async def test_an_unknown_model_is_not_found(server: Running) -> None:
    request = whole(text_request())
    request.model = "gpt"
    error = await failure(server.stub.Generate(request))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    model = inference_pb2.GetModelRequest(model="gpt")
    assert (await failure(server.stub.GetModel(model))).reason == "MODEL_NOT_FOUND"


async def test_tokenize_lists_the_tokens_of_each_form(server: Running) -> None:
    async def tokens(prompt: inference_pb2.Prompt) -> list[int]:
        request = inference_pb2.TokenizeRequest(prompt=prompt)
        response = await server.stub.Tokenize(request)
        assert len(response.tokens) == len(response.token_ids)
        return list(response.token_ids)

    assert await tokens(inference_pb2.Prompt(text="é")) == [0xC3, 0xA9]
    ids = inference_pb2.TokenIds(values=[7, 257])
    assert await tokens(inference_pb2.Prompt(token_ids=ids)) == [7, 257]
    message = inference_pb2.ChatMessage(role="user", content="x" * 5000)
    chat = inference_pb2.Conversation(messages=[message])
    assert await tokens(inference_pb2.Prompt(conversation=chat)) == [257, ord("u"), *b"x" * 5000]


async def test_only_an_unconstrained_answer_begins_a_text(server: Running) -> None:
    tokenizer, continued = server.tokenizer, list[bool]()

    def text_decoder(*, continues: bool = False) -> Utf8Decoder:
        continued.append(continues)
        return Utf8Decoder(tokenizer.token_bytes)

    tokenizer.text_decoder = text_decoder  # type: ignore[method-assign]
    message = inference_pb2.ChatMessage(role="user", content="x")
    chat = inference_pb2.Prompt(conversation=inference_pb2.Conversation(messages=[message]))
    ids = inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=[1]))
    constraint = inference_pb2.OutputConstraint(regex="a")
    for prompt, constrained in ((None, False), (ids, False), (chat, False), (chat, True)):
        request = text_request(max_output_tokens=2)
        if prompt is not None:
            request.prompt.CopyFrom(prompt)
        if constrained:
            request.sampling.constraint.CopyFrom(constraint)
        await server.stub.Generate(whole(request))
    assert continued == [True, True, False, True]


async def test_get_model_describes_target_and_drafter(
    server: Running, verifier: FakeVerifier
) -> None:
    model = await server.stub.GetModel(inference_pb2.GetModelRequest())
    assert model.model == "smollm2-135m"
    assert model.target_fingerprint == "0123456789abcdef"
    assert (model.vocabulary_size, model.max_context_tokens) == (300, 64)
    assert not model.HasField("drafter")
    assert not model.HasField("exactness")
    found = verifier.description.exactness
    found.exact, found.dtype = False, "float32"
    found.classes.extend(["1x1", "1x2 1x4"])
    verifier.description.drafter.method = "dflash"
    verifier.description.drafter.block_size = 8
    request = inference_pb2.GetModelRequest(model="smollm2-135m")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (model := await server.stub.GetModel(request)).HasField("drafter"):
            await asyncio.sleep(0.01)
    assert (model.drafter.method, model.drafter.block_size) == ("dflash", 8)
    assert (model.exactness.exact, model.exactness.dtype) == (False, "float32")
    assert list(model.exactness.classes) == ["1x1", "1x2 1x4"]


async def test_metrics_count_requests_and_tokens(server: Running) -> None:
    for _ in range(2):
        await server.generate(max_output_tokens=8)
    assert server.metric("requests_total", outcome="length") == 2
    assert server.metric("prompt_tokens_total") == 4
    assert server.metric("output_tokens_total") == 16
    assert server.metric("time_to_first_token_seconds_count") == 2
    # Four messages each, fewer if some came late.
    assert server.metric("inter_token_latency_seconds_count") <= 6
    assert server.metric("request_latency_seconds_count") == 2
    assert server.metric("requests_waiting") == 0
    assert server.metric("requests_running") == 0
    assert server.metric("replays_total") == 0
