"""The server's responses, as frozen values; `.proto` is the message as it came."""

import enum
from dataclasses import dataclass, field
from typing import Generic

from grpc_health.v1 import health_pb2

from blockdraft_client.constraints import ParsedT
from blockdraft_client.usage import Usage
from blockdraft_protos.v1 import inference_pb2


class FinishReason(enum.StrEnum):
    """Why generation ended."""

    STOP = "stop"
    """The model ended its completion, or a stop sequence or stop token appeared."""
    LENGTH = "length"
    """max_tokens or the context's end was reached."""

    @classmethod
    def from_proto(cls, value: inference_pb2.FinishReason.ValueType) -> "FinishReason | None":
        """Read the enum; None while generation has not ended."""
        return _FINISH_REASONS.get(value)


class TokenSource(enum.StrEnum):
    """Where a token comes from; the target has chosen each of them itself."""

    UNKNOWN = "unknown"
    """The server or its verifier is of another version."""
    TARGET = "target"
    DRAFTER = "drafter"
    PROMPT_LOOKUP = "prompt_lookup"
    GRAMMAR = "grammar"
    """The constraint left no other token."""


TOKEN_SOURCES = {
    inference_pb2.TOKEN_SOURCE_TARGET: TokenSource.TARGET,
    inference_pb2.TOKEN_SOURCE_DRAFTER: TokenSource.DRAFTER,
    inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP: TokenSource.PROMPT_LOOKUP,
    inference_pb2.TOKEN_SOURCE_GRAMMAR: TokenSource.GRAMMAR,
}
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


def log_probs_from(
    proto: inference_pb2.GenerateResponse | inference_pb2.StreamGenerateResponse,
) -> tuple[TokenLogProbs, ...]:
    """Read the log probabilities of a completion or of a part of one."""
    return tuple(TokenLogProbs.from_proto(item) for item in proto.log_probs)


def token_sources_from(
    proto: inference_pb2.GenerateResponse | inference_pb2.StreamGenerateResponse,
) -> tuple[TokenSource, ...]:
    """Read the sources of the tokens of a completion or of a part of one."""
    return tuple(TOKEN_SOURCES.get(source, TokenSource.UNKNOWN) for source in proto.token_sources)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens gained by one verification step, or by several if the caller reads slowly.

    Attributes:
        text: New text in whole characters; may be empty while one is incomplete.
        token_ids: The new token ids.
        log_probs: One per token id; empty unless asked for.
        token_sources: One per token id.
        proto: The message this was read from.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...] = ()
    token_sources: tuple[TokenSource, ...] = ()
    proto: inference_pb2.StreamGenerateResponse | None = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def from_proto(cls, proto: inference_pb2.StreamGenerateResponse) -> "Chunk":
        """Read the message."""
        return cls(
            proto.text,
            tuple(proto.token_ids),
            log_probs_from(proto),
            token_sources_from(proto),
            proto,
        )


@dataclass(frozen=True, slots=True)
class Completion(Generic[ParsedT]):
    """One whole completion.

    Attributes:
        text: The generated text, without the stop sequence that ended it.
        token_ids: The generated token ids, the stopping token included.
        log_probs: One per token id; empty unless asked for.
        finish_reason: Why generation ended.
        usage: Tokens, steps and time of the request.
        request_id: Identifier of the request.
        model: Name of the model that answered.
        prompt_log_probs: One per token of the prompt; empty unless asked for. The first one, which
            nothing precedes, is 0.
        token_sources: One per token id.
        proto: The message this was read from.
        parsed: The text read by a `response_format`: an instance of its class, or the JSON as
            Python's values; None without one, and for formats other than JSON.
    """

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[TokenLogProbs, ...]
    finish_reason: FinishReason | None
    usage: Usage
    request_id: str
    model: str
    prompt_log_probs: tuple[TokenLogProbs, ...] = ()
    token_sources: tuple[TokenSource, ...] = ()
    proto: inference_pb2.GenerateResponse | None = field(default=None, repr=False, compare=False)
    parsed: ParsedT = None  # type: ignore[assignment]  # a TypeVar's default is for its inference

    @classmethod
    def from_proto(cls, proto: inference_pb2.GenerateResponse) -> "Completion[ParsedT]":
        """Read the message."""
        return cls(
            text=proto.text,
            token_ids=tuple(proto.token_ids),
            log_probs=log_probs_from(proto),
            finish_reason=FinishReason.from_proto(proto.finish_reason),
            usage=Usage.from_proto(proto.usage),
            request_id=proto.request_id,
            model=proto.model,
            prompt_log_probs=tuple(map(TokenLogProbs.from_proto, proto.prompt_log_probs)),
            token_sources=token_sources_from(proto),
            proto=proto,
        )


@dataclass(frozen=True, slots=True)
class PartialCompletion:
    """The part of a completion that had arrived when its stream broke.

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


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokens of a prompt, exactly as generation would see them.

    Attributes:
        token_ids: The token ids.
        tokens: The bytes of each token, which may hold part of a character.
        proto: The message this was read from.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[bytes, ...]
    proto: inference_pb2.TokenizeResponse | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_proto(cls, proto: inference_pb2.TokenizeResponse) -> "Tokenization":
        """Read the message."""
        return cls(tuple(proto.token_ids), tuple(proto.tokens), proto)


class HealthStatus(enum.StrEnum):
    """Whether a service takes requests; the names of grpc.health.v1."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"

    @classmethod
    def from_proto(cls, proto: health_pb2.HealthCheckResponse) -> "HealthStatus":
        """Read the message."""
        return cls(health_pb2.HealthCheckResponse.ServingStatus.Name(proto.status))
