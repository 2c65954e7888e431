"""From the tokens of a verifier to the text of a completion: whole characters, cut before a stop.

Whatever the chunking, the text is that of the whole token sequence. If several stop sequences
occur, the one that ends first ends the text; of two that end at the same character, the longer one.
So the decision never waits for later characters.

The completions of one request become one stream of messages in `merged`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from blockdraft_models.tokenizer.text_decoder import TextDecoder, TokenBytes
from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.keys import Metadata
from blockdraft_server.routing.replay import Replay
from blockdraft_server.routing.router import TokenRouter, deadline_exceeded

Message = inference_pb2.StreamGenerateResponse


class Complete(Protocol):
    """Returns one stream of messages per completion, as `InferenceService.completions` does."""

    def __call__(
        self,
        requests: Sequence[inference_pb2.StreamGenerateRequest],
        count: int,
        metadata: Metadata | None,
        remaining: float | None,
        stand_ins: Mapping[str, str] = ...,
    ) -> list[AsyncGenerator[Message, None]]:
        """Return the streams; see `InferenceService.completions`."""


LAST_WORDS_SECONDS = 1.0
"""Time after a request's deadline for writing the error to its caller."""
FINISH_NAMES = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
}
"""The finish reasons by the names of OpenAI and vLLM."""


async def generate(
    replay: Replay,
    stop_sequences: Sequence[str],
    router: TokenRouter,
    token_bytes: TokenBytes,
    decoder: TextDecoder,
    deadline: float,
) -> AsyncGenerator[inference_pb2.StreamGenerateResponse, None]:
    """Yield the messages of a completion; the last has the finish reason and the usage.

    A stop sequence ends the completion as soon as it is whole: the verifier's call is cancelled,
    the text is cut before it, `token_ids` end with its last token even if more came with that, and
    the usage is the server's own count (see `replay`). A stop token ends it in the verifier; it is
    among the `token_ids`, but not in the text. `deadline` and errors are those of
    `TokenRouter.stream`.
    """
    min_tokens = replay.request.sampling.min_tokens
    detokenizer = Detokenizer(decoder, stop_sequences, min_tokens)
    stop_tokens = frozenset(replay.request.sampling.stop_token_ids)
    token_count = 0
    scores_prompt = replay.request.sampling.HasField("prompt_log_probs")
    async with contextlib.aclosing(router.stream(replay, deadline)) as messages:
        async for message in messages:
            token_ids = list(message.token_ids)
            ended = bool(token_ids) and token_ids[-1] in stop_tokens
            text = detokenizer.push(token_ids[:-1] if ended else token_ids)
            finish_reason = message.finish_reason
            if finish_reason:
                text += detokenizer.finish()
            token_count += len(token_ids)
            usage = replay.usage() if finish_reason or detokenizer.stopped else None
            if usage is not None and detokenizer.stopped:
                finish_reason = inference_pb2.FINISH_REASON_STOP
                # Tokens after the last one of the stop sequence are no part of the completion.
                token_ids = token_ids[: len(token_ids) - (token_count - detokenizer.tokens)]
                usage.output_tokens = detokenizer.tokens
            of_prompt = list(message.prompt_log_probs)
            if scores_prompt:
                # The first token, which follows none, has the log probability 0.
                first = inference_pb2.TokenLogProb(token_id=replay.request.prompt_token_ids[0])
                of_prompt.insert(0, inference_pb2.TokenLogProbs(chosen=first))
                scores_prompt = False
            yield inference_pb2.StreamGenerateResponse(
                text=text,
                token_ids=token_ids,
                token_sources=message.sources[: len(token_ids)],
                log_probs=_with_bytes(message.log_probs[: len(token_ids)], token_bytes),
                prompt_log_probs=_with_bytes(of_prompt, token_bytes),
                finish_reason=finish_reason,
                usage=usage,
            )
            if finish_reason:
                return


def _with_bytes(
    entries: Sequence[inference_pb2.TokenLogProbs], token_bytes: TokenBytes
) -> Sequence[inference_pb2.TokenLogProbs]:
    """Fill in the bytes of tokens, which a verifier does not know."""
    for entry in entries:
        for token in (entry.chosen, *entry.alternatives):
            token.token = token_bytes(token.token_id)
    return entries


@contextlib.asynccontextmanager
async def writing(context: Any, seconds: float) -> AsyncIterator[None]:
    """Bound the writes of a call without a deadline to `seconds` plus `LAST_WORDS_SECONDS`.

    A caller that does not read would hold a slot for ever. gRPC enforces the callers' deadlines.
    """
    if context.time_remaining() is not None:
        yield
        return
    try:
        async with asyncio.timeout(seconds + LAST_WORDS_SECONDS):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None


async def merged(
    completions: Sequence[AsyncGenerator[Message, None]],
    begun: Callable[[list["asyncio.Task[None]"]], None] | None = None,
) -> AsyncGenerator[tuple[int, Message | None], None]:
    """Yield the messages of all completions as they come, each with the completion's number.

    The first error ends all of them. `begun` gets the tasks that read the completions; the
    completion of a cancelled task ends with None.
    """
    if len(completions) == 1 and begun is None:
        async with contextlib.aclosing(completions[0]) as only:
            async for response in only:
                yield 0, response
        return
    # With the number of the completion: a message, an error, or None if it was cancelled.
    arrived: asyncio.Queue[tuple[int, Message | Exception | None]] = asyncio.Queue()
    # If the caller reads slowly, further messages wait in their feeds, which merge them.
    room = asyncio.Semaphore(len(completions))

    async def follow(index: int) -> None:
        try:
            async with contextlib.aclosing(completions[index]) as messages:
                async for message in messages:
                    await room.acquire()
                    arrived.put_nowait((index, message))
        except Exception as error:
            arrived.put_nowait((index, error))

    def ended(task: "asyncio.Task[None]", index: int) -> None:
        # Called also for a task that was cancelled before it began.
        if task.cancelled():
            arrived.put_nowait((index, None))

    tasks = [asyncio.create_task(follow(index)) for index in range(len(completions))]
    for index, task in enumerate(tasks):
        task.add_done_callback(partial(ended, index=index))
    if begun is not None:
        begun(tasks)
    open_indices = set(range(len(completions)))
    try:
        while open_indices:
            index, message = await arrived.get()
            if isinstance(message, Exception):
                raise message
            if message is not None:
                room.release()
            if index in open_indices:
                yield index, message
            if message is None or message.finish_reason:
                open_indices.discard(index)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Detokenizer:
    """Turns the tokens of one completion into text as they arrive.

    Attributes:
        tokens: Number of tokens of the completion: all up to the last one of a stop sequence.
        stopped: Whether a stop sequence was found; no further text comes.
    """

    def __init__(
        self, decoder: TextDecoder, stop_sequences: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        """Start empty; a stop sequence ends the text after `min_tokens`; none may be empty."""
        self.tokens = 0
        self.stopped = False
        self._min_tokens = min_tokens
        self._decoder = decoder
        self._matcher = StopMatcher(stop_sequences) if stop_sequences else None
        self._held_text = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the new text that no later token can change.

        Incomplete characters and any end that may begin a stop sequence are held back.
        """
        if self._matcher is None:
            self.tokens += len(token_ids)
            return self._decoder.push(token_ids)
        texts = []
        # One by one: how many tokens came together must not decide where the completion ends.
        for token_id in token_ids:
            if self.stopped:
                break
            self.tokens += 1
            texts.append(self._release(self._decoder.push([token_id])))
        return "".join(texts)

    def finish(self) -> str:
        """Return the text that was held back; the token stream has ended."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.finish())
        if not self.stopped:
            text, self._held_text = text + self._held_text, ""
        return text

    def _release(self, text: str) -> str:
        if self._matcher is None:
            return text
        pending = self._held_text + text
        for position, character in enumerate(text, start=len(self._held_text) + 1):
            length = self._matcher.push(character)
            if length is not None and self.tokens > self._min_tokens:
                self.stopped = True
                self._held_text = ""
                return pending[: position - length]
        boundary = len(pending) - self._matcher.longest_prefix
        self._held_text = pending[boundary:]
        return pending[:boundary]


class StopMatcher:
    """Finds the first completed occurrence of any of some sequences, character by character.

    Knuth-Morris-Pratt, one automaton per sequence: constant work per character and sequence, so
    that no choice of stop sequences can make a request expensive.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        """Build the automata of `sequences`, none of which may be empty."""
        self._sequences = tuple(sequences)
        self._fallbacks = tuple(_fallbacks(sequence) for sequence in sequences)
        self._matched = [0] * len(sequences)

    @property
    def longest_prefix(self) -> int:
        """Length of the longest suffix of the text so far that begins a stop sequence."""
        return max(self._matched, default=0)

    def push(self, character: str) -> int | None:
        """Read one character; return the length of the sequence it completes, if any."""
        completed = None
        for index, sequence in enumerate(self._sequences):
            length = self._matched[index]
            while length > 0 and sequence[length] != character:
                length = self._fallbacks[index][length - 1]
            if sequence[length] == character:
                length += 1
            if length == len(sequence):
                completed = max(completed or 0, length)
                length = self._fallbacks[index][length - 1]
            self._matched[index] = length
        return completed


def _fallbacks(sequence: str) -> tuple[int, ...]:
    """Return, per prefix of `sequence`, the length of its longest proper prefix that ends it."""
    fallbacks = [0] * len(sequence)
    length = 0
    for index in range(1, len(sequence)):
        while length > 0 and sequence[index] != sequence[length]:
            length = fallbacks[length - 1]
        if sequence[index] == sequence[length]:
            length += 1
        fallbacks[index] = length
    return tuple(fallbacks)
