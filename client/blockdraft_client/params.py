"""What a caller may ask for: prompts, sampling, speculation. Free of gRPC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: Who speaks: "system", "user" or "assistant".
        content: What is said.
    """

    role: str
    content: str


Priority = Literal["normal", "background"]
"""Who goes first where requests wait: the background gets a place whenever nobody else waits."""

Prompt = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]]
"""Raw text, token ids, or a conversation (oldest message first)."""


Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop; None leaves the choice to the server.

    Attributes:
        max_output_tokens: Most tokens to generate; None means as many as the context allows.
        temperature: Randomness; 0 (the server's default) picks the likeliest token.
        top_k: Keeps the k likeliest tokens; 0 keeps all.
        top_p: Keeps the smallest set of likeliest tokens with at least this probability.
        min_p: Drops tokens less likely than this share of the likeliest.
        seed: Seed of the noise; the same seed, prompt and options give the same tokens.
        stop: Text or texts that end generation; they are not part of the answer.
        stop_token_ids: Token ids that end generation, besides the model's own.
        ignore_eos: Goes on past the model's own end-of-text tokens.
        log_probs: Number of alternatives to report per token; None reports none.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    log_probs: int | None = None


class SamplingShortcuts(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments; they win over `sampling=`."""

    max_output_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    log_probs: int | None


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether and how far to draft ahead; never changes the output.

    Attributes:
        disabled: Decodes one token at a time.
        max_draft_tokens: Most tokens to draft per step; None means as many as the verifier takes.
        lookup_disabled: Drafts nothing that was looked up in prompt and answer.
        learning_disabled: Keeps prompt and answer out of what a drafter that learns records.
    """

    disabled: bool = False
    max_draft_tokens: int | None = None
    lookup_disabled: bool = False
    learning_disabled: bool = False


class CallOptions(TypedDict, total=False):
    """What may be said of any call: its deadline in seconds, and metadata of its own."""

    timeout: float | None
    metadata: Metadata


class GenerationOptions(SamplingShortcuts, CallOptions, total=False):
    """What may be said of an answer beside its prompt, and of the call that asks for it.

    `sampling` is how to choose tokens and when to stop, `speculation` whether and how far to draft
    ahead, `priority` whether to give way to others where requests wait, and `model` the name of the
    model, by default the one that is served.
    """

    sampling: SamplingParams | None
    speculation: SpeculationParams | None
    priority: Priority
    model: str
