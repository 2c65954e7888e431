"""What the server answers, as frozen values; `.proto` is the message as it came."""

import enum
from dataclasses import dataclass, field

from blockdraft_client.usage import Usage
from blockdraft_protos.v1 import inference_pb2


class FinishReason(enum.StrEnum):
    """Why generation ended."""

    STOP = "stop"
    """The model ended its answer, or a stop sequence or stop token appeared."""
    LENGTH = "length"
    """max_output_tokens or the context's end was reached."""

    @classmethod
    def from_proto(cls, value: inference_pb2.FinishReason.ValueType) -> "FinishReason | None":
        """Read the enum; None while generation has not ended."""
        return _FINISH_REASONS.get(value)


_FINISH_REASONS = {
    inference_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """The log probability of one token.

    Attributes:
        token_id: The token.
        log_prob: Natural logarithm of its probability.
        token: Its bytes; may be part of a character.
    """

    token_id: int
    log_prob: float
    token: bytes


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """The log probability of a generated token and of its likeliest rivals."""

    chosen: TokenLogProb
    alternatives: tuple[TokenLogProb, ...]

    @classmethod
    def from_proto(cls, proto: inference_pb2.TokenLogProbs) -> "TokenLogProbs":
        """Read the message."""
        return cls(_log_prob(proto.chosen), tuple(_log_prob(rival) for rival in proto.alternatives))


def _log_prob(proto: inference_pb2.TokenLogProb) -> TokenLogProb:
    return TokenLogProb(proto.token_id, proto.log_prob, proto.token)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens gained by one verification step, or by several if the caller reads slowly.

    Attributes:
        text: New text in whole characters; may be empty while one is incomplete.
        token_ids: The new token ids.
        log_probs: One per token id; empty unless asked for.
        proto: The message this was read from.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...] = ()
    proto: inference_pb2.StreamGenerateResponse | None = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def from_proto(cls, proto: inference_pb2.StreamGenerateResponse) -> "Chunk":
        """Read the message."""
        return cls(proto.text, tuple(proto.token_ids), _log_probs(proto), proto)


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole answer.

    Attributes:
        text: The generated text, without the stop sequence that ended it.
        token_ids: The generated token ids, the stopping token included.
        log_probs: One per token id; empty unless asked for.
        finish_reason: Why generation ended.
        usage: What the request consumed.
        request_id: Identifier of the request.
        model: Name of the model that answered.
        proto: The message this was read from.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...]
    finish_reason: FinishReason | None
    usage: Usage
    request_id: str
    model: str
    proto: inference_pb2.GenerateResponse | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_proto(cls, proto: inference_pb2.GenerateResponse) -> "Completion":
        """Read the message."""
        return cls(
            text=proto.text,
            token_ids=tuple(proto.token_ids),
            log_probs=_log_probs(proto),
            finish_reason=FinishReason.from_proto(proto.finish_reason),
            usage=Usage.from_proto(proto.usage),
            request_id=proto.request_id,
            model=proto.model,
            proto=proto,
        )


@dataclass(frozen=True, slots=True)
class PartialCompletion:
    """What had arrived of an answer when its stream broke.

    Attributes:
        text: The text so far.
        token_ids: The token ids so far.
        log_probs: One per token id; empty unless asked for.
        request_id: Identifier of the request.
        model: Name of the model that answered.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...]
    request_id: str
    model: str


def _log_probs(
    proto: inference_pb2.GenerateResponse | inference_pb2.StreamGenerateResponse,
) -> tuple[TokenLogProbs, ...]:
    return tuple(TokenLogProbs.from_proto(item) for item in proto.log_probs)
