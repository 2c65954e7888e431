"""What the server tells about itself: tokens of a prompt, the served model, its health."""

import enum
from dataclasses import dataclass, field

from grpc_health.v1 import health_pb2

from blockdraft_protos.v1 import inference_pb2


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
    """Whether drafted, batched and replayed answers are bit for bit those of plain decoding.

    Attributes:
        exact: Whether all steps of the verifier round alike.
        dtype: Element type that the target computes in.
        classes: The steps ("rows x tokens") that round alike, class by class; one if exact.
        padded: Steps that round otherwise and are padded to one of those.
    """

    exact: bool
    dtype: str
    classes: tuple[str, ...]
    padded: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in a few words."""
        if self.padded:
            return f"exact in {self.dtype}, {len(self.padded)} shapes of steps padded"
        if self.exact:
            return f"exact in {self.dtype}"
        return f"not exact in {self.dtype}, steps round in {len(self.classes)} ways"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model.

    Attributes:
        name: Name to use in requests.
        target_fingerprint: Identity of the target's weights and configuration.
        vocabulary_size: Number of token ids the model knows.
        max_context_tokens: Most tokens a prompt and its answer may have together.
        drafter: The attached drafter; None while none is connected.
        server_version: Version of the server.
        exactness: What the verifier's self-test found; None if it has made none.
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
            found = proto.exactness
            exactness = ExactnessInfo(
                found.exact, found.dtype, tuple(found.classes), tuple(found.padded)
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
