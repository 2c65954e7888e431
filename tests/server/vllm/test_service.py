"""vLLM's engine protocol: the same completions as by our own, and nothing ignored."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.fakes.verifier import FakeVerifier, completion
from tests.patience import PATIENCE_SECONDS
from tests.server.support import EOS, Running, serving, until

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_protos.vllm import vllm_engine_pb2 as pb
from blockdraft_protos.vllm import vllm_engine_pb2_grpc
from blockdraft_runtime.status import ServiceError, received_error
from blockdraft_server.constraints import MAX_CONSTRAINT_BYTES
from blockdraft_server.vllm import mapping

PROMPT = [1, 2]


@pytest.fixture
async def server(verifier: FakeVerifier) -> AsyncIterator[Running]:
    async with serving(verifier) as running:
        yield running


def stub(server: Running) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(server.channel)


def request(*, stream: bool = True, name: str = "a", **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=name,
        tokenized=pb.TokenizedInput(input_ids=PROMPT),
        sampling_params=pb.SamplingParams(**{"temperature": 0, "max_tokens": 8, **sampling}),
        stream=stream,
    )


async def responses(server: Running, asked: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [one async for one in stub(server).Generate(asked, timeout=PATIENCE_SECONDS)]


async def refusal(server: Running, asked: pb.GenerateRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await responses(server, asked)
    error = received_error(raised.value)
    assert error is not None
    return raised.value.code(), error.field or ""


async def test_a_stream_is_chunks_of_new_tokens_and_an_end_without_any(server: Running) -> None:
    *chunks, end = await responses(server, request())
    told = [token for one in chunks for token in one.chunk.token_ids]
    assert told == completion(PROMPT, 8)
    assert all(one.chunk.completion_tokens == len(one.chunk.token_ids) for one in chunks)
    assert (end.complete.finish_reason, list(end.complete.output_ids)) == ("length", [])
    assert (end.complete.prompt_tokens, end.complete.completion_tokens) == (2, 0)
    # As the fake verifier reports.
    assert (end.complete.spec_draft_tokens, end.complete.spec_accepted_tokens) == (6, 4)


@pytest.mark.parametrize("text", [None, "\x01\x02"])
async def test_without_a_stream_all_comes_at_once(server: Running, text: str | None) -> None:
    asked = request(stream=False)
    if text is not None:
        asked.text = text  # which is tokenized here, in place of the tokens
    [one] = await responses(server, asked)
    assert list(one.complete.output_ids) == completion(PROMPT, 8)
    assert one.complete.completion_tokens == 8


async def test_what_is_unset_means_what_vllm_means(server: Running, verifier: FakeVerifier) -> None:
    asked = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=PROMPT))
    [one] = await responses(server, asked)
    sampling = verifier.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)
    # The rest of the context.
    assert len(one.complete.output_ids) == 62


async def test_options_reach_the_verifier(server: Running, verifier: FakeVerifier) -> None:
    options: dict[str, Any] = {
        **{"temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "seed": 11},
        **{"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": -0.5},
        **{"logit_bias": {7: 2.0}, "min_tokens": 3},
    }
    await responses(server, request(stop_token_ids=[9], logprobs=2, **options))
    told = verifier.requests[-1]
    assert {name: getattr(told.sampling, name) for name in options} == options
    assert list(told.sampling.stop_token_ids) == [9, EOS]
    assert told.sampling.log_probs == 2
    await responses(server, request(ignore_eos=True))
    assert list(verifier.requests[-1].sampling.stop_token_ids) == []


async def test_log_probabilities_lie_beside_their_tokens(server: Running) -> None:
    [one] = await responses(server, request(stream=False, logprobs=2))
    found = one.complete.output_logprobs
    assert list(found.token_ids) == list(one.complete.output_ids)
    assert len(found.token_logprobs) == len(found.top_logprobs) == 8
    *chunks, _ = await responses(server, request(logprobs=2))
    streamed = [value for each in chunks for value in each.chunk.output_logprobs.token_logprobs]
    assert streamed == list(found.token_logprobs)


async def test_several_completions_have_seeds_of_their_own(
    server: Running, verifier: FakeVerifier
) -> None:
    found = await responses(server, request(n=3, seed=5, temperature=1))
    ends = [one.complete.index for one in found if one.WhichOneof("response") == "complete"]
    assert sorted(ends) == [0, 1, 2]
    for index in range(3):
        told = [one.chunk for one in found if one.HasField("chunk") and one.chunk.index == index]
        assert [token for one in told for token in one.token_ids] == completion(PROMPT, 8)
    assert sorted(each.sampling.seed for each in verifier.requests) == [5, 6, 7]


async def test_stop_texts_and_tokens(server: Running, verifier: FakeVerifier) -> None:
    verifier.script = list(b"hello")
    [one] = await responses(server, request(stream=False, stop=["ll"], max_tokens=5))
    assert (one.complete.finish_reason, list(one.complete.output_ids)) == ("stop", list(b"hell"))
    verifier.script = [*b"hi", EOS]
    [one] = await responses(server, request(stream=False))
    assert (one.complete.finish_reason, list(one.complete.output_ids)) == ("stop", [*b"hi", EOS])


@pytest.mark.parametrize(
    "changed",
    [
        {"kv_transfer_params": b""},
        {"kv_transfer_params_json": ""},
        {"mm_inputs": b""},
        {"media_refs": b""},
        {"extra_mm_inputs": [b""]},
        {"data_parallel_rank": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_a_request_may_bring_beside_its_text_is_refused_by_name(
    changed: dict[str, Any],
) -> None:
    [name] = changed
    with pytest.raises(ServiceError, match=f"^{name} is not supported"):
        mapping.request_of(pb.GenerateRequest(**changed))


REFUSED: dict[str, Any] = {
    "n": 17,
    "stop_token_ids": [1 << 31],
    "temperature": -1.0,
    "logprobs": 21,
    "repetition_penalty": -1.0,
    "frequency_penalty": 2.5,
    "presence_penalty": -2.5,
    "min_tokens": 9,
}


async def test_values_out_of_range_are_refused_by_name(server: Running) -> None:
    for name, value in REFUSED.items():
        code, field = await refusal(server, request(**{name: value}))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        # Ranges are checked where our own requests are: by our names.
        assert field.split(".")[1] in (name, "log_probs")
    asked = request()
    asked.tokenized.input_ids.append(1 << 31)
    assert (await refusal(server, asked))[1] == "tokenized.input_ids"


async def test_more_than_there_can_be_is_reduced(server: Running) -> None:
    [one] = await responses(server, request(stream=False, max_tokens=1 << 31, top_k=1 << 31))
    assert len(one.complete.output_ids) == 62


async def test_whole_completions_come_in_order(server: Running, verifier: FakeVerifier) -> None:
    verifier.delay_seconds = 0.01
    found = await responses(server, request(stream=False, n=4, temperature=1))
    assert [one.complete.index for one in found] == [0, 1, 2, 3]


def test_every_field_is_honoured_or_refused() -> None:
    # A field that is added to the proto and to no list is refused.
    for field in pb.SamplingParams.DESCRIPTOR.fields:
        if field.name in mapping._SAMPLING:
            continue
        asked = pb.GenerateRequest()
        value: Any = "1" if field.cpp_type == field.CPPTYPE_STRING else 1
        setattr(asked.sampling_params, field.name, value)
        with pytest.raises(ServiceError, match=f"sampling_params.{field.name} is not supported"):
            mapping.request_of(asked)


async def test_a_constraint_reaches_the_verifier(server: Running, verifier: FakeVerifier) -> None:
    await responses(server, request(choice={"choices": ["a", "b"]}))
    assert '\\"a\\" | \\"b\\"' in verifier.requests[0].grammar
    found = await refusal(server, request(choice={"choices": [""]}))
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.constraint.choice.texts[0]")


async def test_neutral_values_are_taken(server: Running) -> None:
    asked = request(stream=False, repetition_penalty=1.0, n=1, skip_special_tokens=True)
    asked.data_parallel_rank = 0
    assert len(await responses(server, asked)) == 1


async def test_an_aborted_request_says_so_and_frees_its_pages(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    call = stub(server).Generate(request(name="long", n=2), timeout=PATIENCE_SECONDS)
    stream = aiter(call)
    await anext(stream)
    await stub(server).Abort(pb.AbortRequest(request_ids=["long", "unknown"]))
    rest = [one async for one in stream]
    ends = [one.complete.finish_reason for one in rest if one.HasField("complete")]
    assert ends == ["abort", "abort"]
    await until(lambda: verifier.cancelled == 2)


async def test_an_abort_that_comes_at_once_ends_it_too(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 0  # for ever, so that nothing but an abort ends a request
    # Cancelled before they began: nothing of the tasks ran.
    for number in range(20):
        name = f"quick {number}"
        answer = asyncio.ensure_future(responses(server, request(name=name)))
        while not answer.done():
            await stub(server).Abort(pb.AbortRequest(request_ids=[name]))
        [end] = await answer
        assert end.complete.finish_reason == "abort"


async def test_a_tenant_cannot_abort_the_requests_of_another(verifier: FakeVerifier) -> None:
    verifier.hold_after = 1
    async with serving(verifier, api_keys=("ours", "theirs")) as server:
        ours, theirs = ((("authorization", f"Bearer {key}"),) for key in ("ours", "theirs"))
        call = stub(server).Generate(request(), metadata=ours, timeout=PATIENCE_SECONDS)
        stream = aiter(call)
        await anext(stream)
        await stub(server).Abort(pb.AbortRequest(request_ids=["a"]), metadata=theirs)
        verifier.go_on.set()
        *_, end = [one async for one in stream]
        assert end.complete.finish_reason == "length"


async def test_a_caller_that_goes_away_ends_its_sequences(
    server: Running, verifier: FakeVerifier
) -> None:
    verifier.hold_after = 1
    call = stub(server).Generate(request(n=2), timeout=PATIENCE_SECONDS)
    await call.read()
    call.cancel()
    await until(lambda: verifier.cancelled == 2)
    assert (await stub(server).GetServerInfo(pb.GetServerInfoRequest())).active_requests == 0


async def test_keys_guard_it_too(verifier: FakeVerifier) -> None:
    async with serving(verifier, api_keys=("key",)) as guarded:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await responses(guarded, request())
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call = stub(guarded).Generate(request(), metadata=(("authorization", "Bearer key"),))
        assert len([one async for one in call]) > 1


async def test_what_is_served_and_how_busy_it_is(server: Running, verifier: FakeVerifier) -> None:
    assert (await stub(server).HealthCheck(pb.HealthCheckRequest())).healthy
    info = await stub(server).GetServerInfo(pb.GetServerInfoRequest())
    assert (info.server_type, info.max_num_seqs) == ("vllm-grpc", 4)
    verifier.load = verifier_pb2.GetLoadResponse(
        running_sequences=3, waiting_sequences=2, used_pages=1, total_pages=4
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            [load] = (await stub(server).GetLoads(pb.GetLoadsRequest())).loads
            if load.num_running_reqs:
                break
            await asyncio.sleep(0.01)
    assert (load.num_running_reqs, load.num_waiting_reqs, load.token_usage) == (3, 2, 0.25)


async def test_a_request_too_large_to_decode_is_refused(server: Running) -> None:
    asked = request()
    asked.tokenized.input_ids.extend([1] * 10_000)
    code, _ = await refusal(server, asked)
    assert code is grpc.StatusCode.OUT_OF_RANGE
    choices = {"choice": {"choices": [""] * 100_000}}
    for many in ({"stop": [""] * 100_000}, {"stop_token_ids": [1] * 100_000}, choices):
        code, field = await refusal(server, request(**many))
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling_params")
    found = await refusal(server, request(regex="x" * (MAX_CONSTRAINT_BYTES + 1)))
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.constraint")
    asked = request(stop=["x" * 100] * 11_500)
    assert (await refusal(server, asked))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_gateway_that_reads_slowly_gets_the_same_tokens_in_fewer_messages(
    server: Running, verifier: FakeVerifier
) -> None:
    count = 3000
    verifier.description.max_context_tokens = 2 * count
    verifier.tokens_per_step = 1
    verifier.script = [97 + index % 26 for index in range(count)]
    await server.until_context(2 * count)
    # Large messages, of which few fit into the connection, whose window must not grow.
    asked = request(max_tokens=count, logprobs=20)
    async with grpc.aio.insecure_channel(
        server.address, options=(("grpc.http2.bdp_probe", 0),)
    ) as channel:
        stream = aiter(vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(asked))
        chunks = [await anext(stream)]
        await until(lambda: verifier.sent >= count)
        chunks += [one async for one in stream]
    assert [token for one in chunks for token in one.chunk.token_ids] == verifier.script
    assert len(chunks) < count / 2
