"""From the tokens of one request to its text: detokenize, find stop strings, end."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_server.answer.detokenizer import Detokenizer
from blockdraft_server.request import GenerationSpec
from blockdraft_server.routing.replay import Replay
from blockdraft_server.routing.router import TokenRouter

_FINISH_REASONS = {
    verifier_pb2.TOKEN_FINISH_REASON_STOP: inference_pb2.FINISH_REASON_STOP,
    verifier_pb2.TOKEN_FINISH_REASON_LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one verification step, or several, add to an answer.

    Attributes:
        text: New text that is certain; may be empty.
        token_ids: The new tokens.
        log_probs: One entry per token, or empty.
        finish_reason: Why the answer has ended; None but on the last chunk.
        usage: What the request consumed; None but on the last chunk.
    """

    text: str
    token_ids: Sequence[int]
    log_probs: Sequence[inference_pb2.TokenLogProbs]
    finish_reason: inference_pb2.FinishReason.ValueType | None = None
    usage: inference_pb2.Usage | None = None


async def generate(
    spec: GenerationSpec,
    replay: Replay,
    router: TokenRouter,
    token_bytes: Callable[[int], bytes],
    deadline: float,
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of an answer; the last one carries the finish reason and the usage.

    A stop sequence ends the answer as soon as it is complete: the verifier's call is cancelled,
    the text is cut before it, `token_ids` end with the token that completed it, whatever came
    with that, and the usage is the server's own count (see `usage`). A stop token ends it in the
    verifier; it is among the `token_ids`, but not in the text.

    Args:
        spec: What to generate.
        replay: The request made of `spec`.
        router: Where to get tokens from.
        token_bytes: Returns the bytes of a token.
        deadline: Time by the router's clock at which the request has failed.

    Raises:
        ServiceError: See `TokenRouter.stream`.
    """
    detokenizer = Detokenizer(token_bytes, spec.stop_sequences)
    stops = frozenset(spec.stop_token_ids)
    told = 0
    async with contextlib.aclosing(router.stream(replay, deadline)) as messages:
        async for message in messages:
            token_ids = list(message.token_ids)
            ended = bool(token_ids) and token_ids[-1] in stops
            text = detokenizer.push(token_ids[:-1] if ended else token_ids)
            finish_reason = _FINISH_REASONS.get(message.finish_reason)
            if finish_reason is not None:
                text += detokenizer.finish()
            told += len(token_ids)
            usage = replay.usage() if finish_reason is not None or detokenizer.stopped else None
            if usage is not None and detokenizer.stopped:
                finish_reason = inference_pb2.FINISH_REASON_STOP
                # Of the tokens that came with the last one, none is part of the answer.
                token_ids = token_ids[: len(token_ids) - (told - detokenizer.tokens)]
                usage.output_tokens = detokenizer.tokens
            yield Chunk(
                text=text,
                token_ids=token_ids,
                log_probs=_log_probs(token_ids, message, token_bytes),
                finish_reason=finish_reason,
                usage=usage,
            )
            if finish_reason is not None:
                return


def _log_probs(
    token_ids: Sequence[int],
    message: verifier_pb2.SequenceTokens,
    token_bytes: Callable[[int], bytes],
) -> list[inference_pb2.TokenLogProbs]:
    if not message.log_probs:
        return []

    def one(token_id: int, log_prob: float) -> inference_pb2.TokenLogProb:
        return inference_pb2.TokenLogProb(
            token_id=token_id, log_prob=log_prob, token=token_bytes(token_id)
        )

    return [
        inference_pb2.TokenLogProbs(
            chosen=one(token_id, ranked.chosen_log_prob),
            alternatives=map(one, ranked.token_ids, ranked.log_probs),
        )
        for token_id, ranked in zip(token_ids, message.log_probs, strict=False)
    ]
