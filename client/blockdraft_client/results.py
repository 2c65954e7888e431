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


_TOKEN_SOURCES = {
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
    return tuple(_TOKEN_SOURCES.get(source, TokenSource.UNKNOWN) for source in proto.token_sources)


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


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """The attached drafter.

    Attributes:
        method: Draft method, "dflash" for block diffusion.
        block_size: Tokens per block, the anchor included.
        fingerprint: Identity of its weights and configuration.
        trained: Whether the weights were trained for this target.
        version: Number of its version if it learns while it serves, from 1; 0 if it does not.
    """

    method: str
    block_size: int
    fingerprint: str
    trained: bool
    version: int = 0


@dataclass(frozen=True, slots=True)
class ExactnessInfo:
    """Whether drafted, batched and replayed completions are bit for bit those of plain decoding.

    Attributes:
        exact: Whether all steps of the verifier are batch-invariant.
        dtype: Element type that the target computes in.
        classes: The shapes of steps ("rows x tokens") by their numerics: the shapes of one class
            give the same bits. One class if exact.
        padded: Shapes with other numerics, which are padded to one of those.
    """

    exact: bool
    dtype: str
    classes: tuple[str, ...]
    padded: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the result in a few words."""
        if self.padded:
            return f"exact in {self.dtype}, {len(self.padded)} step shapes padded"
        if self.exact:
            return f"exact in {self.dtype}"
        return f"inexact in {self.dtype}, {len(self.classes)} classes of numerics"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model.

    Attributes:
        name: Name to use in requests.
        target_fingerprint: Identity of the target's weights and configuration.
        vocabulary_size: Number of token ids the model knows.
        max_context_tokens: Most tokens a prompt and its completion may have together.
        drafter: The attached drafter; None while none is connected.
        server_version: Version of the server.
        exactness: Result of the verifier's self-test; None if it has made none.
        proto: The message this was read from.
    """

    name: str
    target_fingerprint: str
    vocabulary_size: int
    max_context_tokens: int
    drafter: DrafterInfo | None
    server_version: str
    exactness: ExactnessInfo | None = None
    proto: inference_pb2.GetModelResponse | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_proto(cls, proto: inference_pb2.GetModelResponse) -> "ModelInfo":
        """Read the message."""
        drafter = None
        if proto.HasField("drafter"):
            drafter = DrafterInfo(
                method=proto.drafter.method,
                block_size=proto.drafter.block_size,
                fingerprint=proto.drafter.fingerprint,
                trained=proto.drafter.trained,
                version=proto.drafter.version,
            )
        exactness = None
        if proto.HasField("exactness"):
            message = proto.exactness
            exactness = ExactnessInfo(
                message.exact, message.dtype, tuple(message.classes), tuple(message.padded)
            )
        return cls(
            name=proto.model,
            target_fingerprint=proto.target_fingerprint,
            vocabulary_size=proto.vocabulary_size,
            max_context_tokens=proto.max_context_tokens,
            drafter=drafter,
            server_version=proto.version,
            exactness=exactness,
            proto=proto,
        )


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
