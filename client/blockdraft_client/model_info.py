"""The served model, as frozen values: its drafter, its numerics, and whether drafting pays."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from blockdraft_client.results import TOKEN_SOURCES, TokenSource
from blockdraft_protos.v1 import inference_pb2


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


class DraftingState(enum.StrEnum):
    """Whether the drafter is asked for drafts."""

    UNKNOWN = "unknown"
    """The verifier is of another version."""
    ON = "on"
    """It is asked wherever that pays."""
    PAUSED = "paused"
    """It is not asked, or only as a probe."""
    WITHOUT_DRAFTER = "without a drafter"
    """None is connected."""


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Tokens of a source, since the verifier started.

    Attributes:
        drafted: Tokens that were drafted and verified.
        accepted: Those among them that the target chose too.
    """

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class DraftingInfo:
    """Whether tokens are drafted now, and from which sources they came.

    Attributes:
        state: Whether the drafter is asked for drafts.
        reason: Why it is not, in a few words; empty if it is.
        sources: Tokens by source; a source that drafted nothing is left out.
    """

    state: DraftingState
    reason: str = ""
    sources: Mapping[TokenSource, SourceCounts] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the state and the reason in a few words."""
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model.

    Attributes:
        name: Name to use in requests.
        target_fingerprint: Identity of the target's weights and configuration.
        vocabulary_size: Number of token ids the model knows.
        max_context_tokens: Maximum tokens that a prompt and its completion may have together.
        drafter: The attached drafter; None while none is connected.
        server_version: Version of the server.
        exactness: Result of the verifier's self-test; None if it has made none.
        drafting: Whether drafting pays on the verifier at hand, and what came of drafts so far.
        adapters: Names of its LoRA adapters, to be used as "model:adapter".
        proto: The message this was read from.
    """

    name: str
    target_fingerprint: str
    vocabulary_size: int
    max_context_tokens: int
    drafter: DrafterInfo | None
    server_version: str
    exactness: ExactnessInfo | None = None
    drafting: DraftingInfo = DraftingInfo(DraftingState.UNKNOWN)
    adapters: tuple[str, ...] = ()
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
        drafting = DraftingInfo(
            _DRAFTING_STATES.get(proto.drafting.state, DraftingState.UNKNOWN),
            proto.drafting.reason,
            {
                TOKEN_SOURCES.get(counts.source, TokenSource.UNKNOWN): SourceCounts(
                    counts.drafted_tokens, counts.accepted_tokens
                )
                for counts in proto.drafting.sources
            },
        )
        return cls(
            name=proto.model,
            target_fingerprint=proto.target_fingerprint,
            vocabulary_size=proto.vocabulary_size,
            max_context_tokens=proto.max_context_tokens,
            drafter=drafter,
            server_version=proto.version,
            exactness=exactness,
            drafting=drafting,
            adapters=tuple(proto.adapters),
            proto=proto,
        )


_DRAFTING_STATES = {
    inference_pb2.DRAFTING_STATE_ON: DraftingState.ON,
    inference_pb2.DRAFTING_STATE_PAUSED: DraftingState.PAUSED,
    inference_pb2.DRAFTING_STATE_WITHOUT_DRAFTER: DraftingState.WITHOUT_DRAFTER,
}
