"""A stream to a server over a real engine whose steps are made one by one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from llguidance import LLMatcher
from tests.fakes.engine import FakeRunner
from tests.patience import PATIENCE_SECONDS
from tests.verifier.grammars import choice_of, tiny_grammars, tiny_tokenizer
from tests.verifier.support import decode, engine_over, error_of

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_verifier import decode_stream
from blockdraft_verifier.decode_stream import MAX_REFUSED, DecodeStream
from blockdraft_verifier.engine.listeners import Listener, StepEnd
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

# A step takes them both: together they fill a power of two.
PROMPTS = ((1, 2, 3, 4), (4, 5, 6, 7))
TOKENS = 6


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = engine_over(FakeRunner())
    yield engine
    engine.stop()


@pytest.fixture
def expected(engine: Engine) -> list[list[int]]:
    requests = [GenerationRequest("", each, max_output_tokens=TOKENS) for each in PROMPTS]
    return [outcome.tokens for outcome in decode(engine, requests)]


def submit(
    engine: Engine,
    request: pb.SequenceRequest,
    grammar: LLMatcher | None,
    listener: Listener,
    on_step_end: StepEnd,
) -> TokenSequence:
    """Take any request but one without a prompt."""
    if not request.prompt_token_ids:
        raise invalid_argument("prompt_token_ids", "the prompt is empty")
    prompt = tuple(request.prompt_token_ids)
    wanted = GenerationRequest(
        "", prompt, grammar=grammar, grammar_text=request.grammar, max_output_tokens=TOKENS
    )
    return engine.submit(wanted, listener, on_step_end)


def stream_over(engine: Engine, grammars: GrammarCompiler) -> DecodeStream:
    return DecodeStream(partial(submit, engine), engine.cancel, engine.resume, grammars)


class Server:
    """The other end of a stream: what it asks for, and what it gets."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.grammars = tiny_grammars()
        self.stream = stream_over(engine, self.grammars)
        self._requests: asyncio.Queue[pb.DecodeRequest | None] = asyncio.Queue()
        self.responses = self.stream.serve(self._coming())

    async def _coming(self) -> AsyncIterator[pb.DecodeRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def ask(self, *requests: pb.DecodeRequest | None) -> None:
        """Send requests, None for the end of all, and wait until they were taken in."""
        for request in requests:
            self._requests.put_nowait(request)
        await settle()

    async def begin(self, number: int, prompt: tuple[int, ...]) -> None:
        begin = pb.SequenceRequest(prompt_token_ids=prompt)
        await self.ask(pb.DecodeRequest(sequence_id=number, begin=begin))

    async def steps(self, count: int) -> None:
        """Make steps of the engine, on a thread as it is used to."""
        for _ in range(count):
            await asyncio.to_thread(self.engine.step)
            await asyncio.to_thread(self.engine.conclude)
        await settle()


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def opened(engine: Engine) -> tuple[Server, asyncio.Future[pb.DecodeResponse]]:
    """Return a stream that has begun to serve, and its first message to come."""
    server = Server(engine)
    first = asyncio.ensure_future(anext(server.responses))
    await settle()
    return server, first


def sizes(response: pb.DecodeResponse) -> dict[int, list[int]]:
    return {message.sequence_id: list(message.step_sizes) for message in response.sequences}


async def test_a_step_is_one_message_and_one_call_into_the_event_loop(
    engine: Engine, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, first = await opened(engine)
    async with aclosing(server.responses):
        for number, prompt in enumerate(PROMPTS):
            await server.begin(number, prompt)
        calls: list[Callable[..., object]] = []
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def count(callback: Any, *arguments: Any, **options: Any) -> Any:
            calls.append(callback)
            return original(callback, *arguments, **options)

        monkeypatch.setattr(server.stream, "_loop", SimpleNamespace(call_soon_threadsafe=count))
        responses = []
        for step in range(TOKENS):
            await server.steps(1)
            responses.append(await (first if step == 0 else anext(server.responses)))
        assert [sizes(response) for response in responses] == [{0: [1], 1: [1]}] * TOKENS
        assert len(calls) == TOKENS
        for number, tokens in enumerate(expected):
            messages = [response.sequences[number] for response in responses]
            assert [token for message in messages for token in message.token_ids] == tokens
            assert [bool(message.finish_reason) for message in messages] == [False] * 5 + [True]
            assert messages[-1].usage.output_tokens == TOKENS


async def test_steps_that_were_not_read_are_one_message(
    engine: Engine, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, first = await opened(engine)
    async with aclosing(server.responses):
        for number, prompt in enumerate(PROMPTS):
            await server.begin(number, prompt)
        await server.steps(1)
        assert sizes(await first) == {0: [1], 1: [1]}
        await server.steps(TOKENS - 1)
        rest = await anext(server.responses)
        assert sizes(rest) == {0: [1] * 5, 1: [1] * 5}
        for message, tokens in zip(rest.sequences, expected, strict=True):
            assert list(message.token_ids) == tokens[1:]
            assert message.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        assert not server.stream._sequences
        # Within limits: then it takes several.
        monkeypatch.setattr(decode_stream, "MAX_MESSAGE_TOKENS", 4)
        for number, prompt in enumerate(PROMPTS, start=2):
            await server.begin(number, prompt)
        await server.steps(TOKENS)
        several = [await anext(server.responses) for _ in range(3)]
        assert [sizes(each) for each in several] == [
            {2: [1] * 4},
            {2: [1] * 2, 3: [1] * 2},
            {3: [1] * 4},
        ]


async def test_a_refused_sequence_disturbs_no_other(
    engine: Engine, expected: list[list[int]]
) -> None:
    server, first = await opened(engine)
    async with aclosing(server.responses):
        await server.begin(1, PROMPTS[0])
        await server.begin(2, ())
        (refused,) = (await first).sequences
        assert refused.sequence_id == 2
        error = error_of(refused)
        assert (error.code, error.field) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt_token_ids",
        )
        await server.steps(TOKENS)
        (message,) = (await anext(server.responses)).sequences
        assert (message.sequence_id, list(message.token_ids)) == (1, expected[0])


async def test_a_cancelled_sequence_frees_its_pages_and_disturbs_no_other(
    engine: Engine, expected: list[list[int]]
) -> None:
    server, first = await opened(engine)
    async with aclosing(server.responses):
        for number, prompt in enumerate(PROMPTS):
            await server.begin(number, prompt)
        await server.steps(1)
        await first
        await server.steps(1)
        cancel = pb.CancelSequence()
        # An unknown sequence, or one that has ended, is no mistake.
        await server.ask(
            pb.DecodeRequest(sequence_id=0, cancel=cancel),
            pb.DecodeRequest(sequence_id=0, cancel=cancel),
            pb.DecodeRequest(sequence_id=9, cancel=cancel),
        )
        await server.steps(1)
        assert engine.load().running == 1
        await server.steps(TOKENS)
        (rest,) = (await anext(server.responses)).sequences
        assert (rest.sequence_id, list(rest.token_ids)) == (1, expected[1][1:])
        assert engine.load().used_pages == 0


async def test_the_end_of_the_stream_cancels_what_is_left(engine: Engine) -> None:
    server, first = await opened(engine)
    await server.begin(1, PROMPTS[0])
    await server.steps(1)
    await first
    await server.responses.aclose()
    await server.steps(1)
    assert (engine.load().running, engine.load().used_pages) == (0, 0)


async def test_the_end_of_requests_lets_sequences_end(engine: Engine) -> None:
    server, first = await opened(engine)
    await server.begin(1, PROMPTS[0])
    await server.ask(None)
    await server.steps(TOKENS)
    assert sizes(await first) == {1: [1]}
    assert sizes(await anext(server.responses)) == {1: [1] * (TOKENS - 1)}
    with pytest.raises(StopAsyncIteration):
        await anext(server.responses)


async def test_draining_ends_a_stream_when_its_sequences_have_ended(engine: Engine) -> None:
    idle, nothing = await opened(engine)
    idle.stream.drain()
    with pytest.raises(StopAsyncIteration):
        await nothing
    server, first = await opened(engine)
    await server.begin(1, PROMPTS[0])
    server.stream.drain()
    await server.steps(TOKENS)
    assert sizes(await first) == {1: [1]}
    assert sizes(await anext(server.responses)) == {1: [1] * (TOKENS - 1)}
    with pytest.raises(StopAsyncIteration):
        await anext(server.responses)


@pytest.mark.parametrize("what", ["again", "nothing"])
async def test_requests_against_the_rules_end_the_stream(engine: Engine, what: str) -> None:
    server, first = await opened(engine)
    await server.begin(1, PROMPTS[0])
    if what == "again":
        await server.begin(1, PROMPTS[1])
    else:
        await server.ask(pb.DecodeRequest(sequence_id=2))
    with pytest.raises(ServiceError) as caught:
        await first
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    await server.steps(1)
    assert engine.load().used_pages == 0


async def test_a_server_that_does_not_read_is_not_heard_for_ever(engine: Engine) -> None:
    heard = 0

    async def requests() -> AsyncIterator[pb.DecodeRequest]:
        nonlocal heard
        for number in range(3 * MAX_REFUSED):
            heard += 1
            yield pb.DecodeRequest(sequence_id=number, begin=pb.SequenceRequest())
            await asyncio.sleep(0)

    stream = stream_over(engine, tiny_grammars())
    async with aclosing(stream.serve(requests())) as responses:
        told = len((await anext(responses)).sequences)
        for _ in range(4 * MAX_REFUSED):
            await asyncio.sleep(0)
        assert heard <= told + MAX_REFUSED + 1
        async for response in responses:
            assert len(response.sequences) <= MAX_REFUSED
            told += len(response.sequences)
    assert told == heard == 3 * MAX_REFUSED


async def test_a_grammar_that_cannot_be_tried_is_told_of(engine: Engine) -> None:
    class Failing(GrammarCompiler):
        async def compile(self, *arguments: object) -> LLMatcher:
            raise OSError("no more processes")

    async def requests() -> AsyncIterator[pb.DecodeRequest]:
        begin = pb.SequenceRequest(prompt_token_ids=PROMPTS[0], grammar="any")
        yield pb.DecodeRequest(sequence_id=1, begin=begin)

    stream = stream_over(engine, Failing(tiny_tokenizer))
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(stream.serve(requests())) as responses:
        [message] = (await anext(responses)).sequences
    assert error_of(message).code is grpc.StatusCode.INTERNAL


async def test_grammars_are_compiled_beside_other_sequences(engine: Engine) -> None:
    server = Server(engine)
    grammar = choice_of(["alpha", "beta"])

    def begin(number: int, **fields: Any) -> pb.DecodeRequest:
        request = pb.SequenceRequest(prompt_token_ids=PROMPTS[0], **fields)
        return pb.DecodeRequest(sequence_id=number, begin=request)

    cancel = pb.DecodeRequest(sequence_id=3, cancel=pb.CancelSequence())
    requests = [begin(1, grammar=grammar), begin(2, grammar="nothing"), begin(3, grammar=grammar)]
    await server.ask(*requests, cancel, begin(4), None)
    engine.start()
    tokens: dict[int, int] = {}
    errors: dict[int, ServiceError] = {}
    # The stream ends only when what was compiled has ended too.
    async for response in server.responses:
        for message in response.sequences:
            if message.HasField("error"):
                errors[message.sequence_id] = error_of(message)
            else:
                count = len(message.token_ids)
                tokens[message.sequence_id] = tokens.get(message.sequence_id, 0) + count
    # This target says what it likes, whatever the masks.
    assert errors.keys() == {1, 2}
    assert errors[1].code is grpc.StatusCode.FAILED_PRECONDITION
    assert errors[1].reason == "CONSTRAINT_TOO_COMPLEX"
    assert errors[2].code is grpc.StatusCode.INVALID_ARGUMENT
    assert tokens == {1: 1, 4: TOKENS}
