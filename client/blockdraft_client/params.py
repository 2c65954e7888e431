"""The options of a request and of a connection: encryption, retries, keep-alive. No gRPC."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict

from blockdraft_client.constraints import OutputConstraint, ParsedT, ResponseFormat


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: The speaker: "system", "user" or "assistant".
        content: The text.
    """

    role: str
    content: str


Priority = Literal["normal", "background"]
"""The order in which requests wait: a background request runs when no normal one waits."""

Prompt = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, Any]]
"""Text to continue as it is, token ids, or a conversation, oldest message first.

Only a conversation is put into the chat template of the model. A message that is a mapping may also
have `tool_calls`, `tool_call_id` and `reasoning_content`, as OpenAI's messages have.
"""


Metadata = Sequence[tuple[str, str]]


def flag(text: str) -> Any:
    """Return an optional field that is a flag of the command line too, with `text` as its help."""
    return field(default=None, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop; None leaves the choice to the server.

    Attributes:
        max_tokens: Maximum tokens to generate; None means as many as the context allows.
        temperature: Randomness; 0 (the server's default) picks the likeliest token.
        top_k: Keeps the k likeliest tokens; 0 keeps all.
        top_p: Keeps the smallest set of likeliest tokens with at least this probability.
        min_p: Drops tokens less likely than this share of the likeliest.
        seed: Seed of the Gumbel noise; the same seed, prompt and options give the same tokens.
        stop: Text or texts that end generation; they are not part of the completion.
        stop_token_ids: Token ids that end generation, besides the model's own.
        ignore_eos: Goes on past the model's own end-of-text tokens.
        logprobs: Number of alternatives to report per token; None reports no log probabilities.
        prompt_logprobs: The same for the tokens of the prompt, which take longer to compute then.
        repetition_penalty: Divides the positive logits of tokens of the prompt and the completion,
            and multiplies the negative ones.
        frequency_penalty: Subtracted from a token's logit for each time it was generated.
        presence_penalty: Subtracted from the logits of tokens that were generated.
        logit_bias: Added to the logits of some tokens, by id.
        allowed_token_ids: The only tokens to generate; all if there are none.
        bad_words: Text or texts that are not generated, in the model's usual tokens.
        min_tokens: Tokens to generate before anything but a limit may end the completion.
        constraint: The form that the completion must have; None means any.
    """

    max_tokens: int | None = flag("maximum tokens to generate")
    temperature: float | None = flag("randomness; 0, the default, picks the likeliest token")
    top_k: int | None = flag("keep the k likeliest tokens; 0 keeps all")
    top_p: float | None = flag("keep the likeliest tokens with this probability in sum")
    min_p: float | None = flag("drop tokens less likely than this share of the likeliest")
    seed: int | None = flag("seed of the Gumbel noise")
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = flag("alternatives to report per token; needs --json")
    prompt_logprobs: int | None = flag("the same for tokens of the prompt")
    repetition_penalty: float | None = flag("makes tokens of prompt and completion less likely")
    frequency_penalty: float | None = flag("makes tokens less likely each time they are generated")
    presence_penalty: float | None = flag("makes tokens less likely that were generated")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    bad_words: str | Sequence[str] = ()
    min_tokens: int | None = flag("tokens to generate before the completion may end")
    constraint: OutputConstraint | None = None


class SamplingShortcuts(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments; they win over `sampling=`."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: str | Sequence[str]
    min_tokens: int | None
    constraint: OutputConstraint | None


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether and how far to draft ahead; never changes the output.

    Attributes:
        disabled: Decodes one token at a time.
        max_draft_tokens: Maximum tokens to draft per step; None for as many as the verifier takes.
        prompt_lookup_disabled: Turns off prompt lookup, which drafts by matching n-grams.
        learning_disabled: Keeps prompt and completion out of the drafter's training samples.
    """

    disabled: bool = False
    max_draft_tokens: int | None = None
    prompt_lookup_disabled: bool = False
    learning_disabled: bool = False


class CallOptions(TypedDict, total=False):
    """The options of every call: its deadline in seconds, and its metadata."""

    timeout: float | None
    metadata: Metadata


class GenerationOptions(SamplingShortcuts, CallOptions, Generic[ParsedT], total=False):
    """The options of a generation request beside its prompt, and of its call.

    `sampling` is how to choose tokens and when to stop, `speculation` whether and how far to draft
    ahead, `priority` whether to give way to other requests that wait, and `model` the name of the
    model, by default the one that is served. `tools`, in the form of OpenAI's, and
    `template_arguments`, such as `{"enable_thinking": False}`, are for the chat template.
    `response_format` is a constraint by which the completion is parsed too; it wins over
    `constraint`.
    """

    sampling: SamplingParams | None
    speculation: SpeculationParams | None
    priority: Priority
    model: str
    tools: Sequence[Mapping[str, Any]] | None
    template_arguments: Mapping[str, Any] | None
    response_format: ResponseFormat[ParsedT] | None


DEFAULT_PORT = 50051
"""The port that `blockdraft serve` listens on."""
DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"

# The server hangs up on clients that ping a silent stream more often than this.
MIN_KEEPALIVE_INTERVAL_SECONDS = 10.0

# grpc silently lowers a larger number to this.
MAX_ATTEMPTS = 5

ApiKey = str | Callable[[], str]
"""An API key, or a function that is asked for it on every call and must answer at once."""


@dataclass(frozen=True, slots=True)
class TLSConfig:
    """Certificates of an encrypted connection, all PEM.

    Attributes:
        ca_certificate: Certificates to trust; None trusts the system's authorities.
        client_certificate: The client's certificate chain, if the server asks for one.
        client_key: The private key of `client_certificate`.
        server_name: Name the server's certificate must have; None means that of the target.
    """

    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Check that certificate and key come together."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key must be given together")

    @classmethod
    def from_files(
        cls,
        ca_certificate: str | os.PathLike[str] | None = None,
        client_certificate: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
    ) -> "TLSConfig":
        """Read the certificates from files."""
        paths = (ca_certificate, client_certificate, client_key)
        ca, certificate, key = (Path(path).read_bytes() if path else None for path in paths)
        return cls(ca, certificate, key, server_name)


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How calls are tried again when the server is UNAVAILABLE; no other error is retried.

    A stream is retried only while nothing has arrived.

    Attributes:
        max_attempts: Most attempts, the first included; 1 turns retries off.
        initial_backoff_seconds: Longest wait before the second attempt; waits are random.
        max_backoff_seconds: Longest wait before any attempt.
        backoff_multiplier: Growth of the wait from attempt to attempt.
    """

    max_attempts: int = 4
    initial_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 2.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"max_attempts must be in [1, {MAX_ATTEMPTS}], got {self.max_attempts}"
            )
        for name in ("initial_backoff_seconds", "max_backoff_seconds", "backoff_multiplier"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class KeepAliveConfig:
    """How a silent connection is checked while a call is open.

    Attributes:
        interval_seconds: Time between two pings; at least 10, which is what servers permit.
        timeout_seconds: How long a ping may stay unanswered.
    """

    interval_seconds: float = 20.0
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.interval_seconds < MIN_KEEPALIVE_INTERVAL_SECONDS:
            raise ValueError(
                f"interval_seconds must be >= {MIN_KEEPALIVE_INTERVAL_SECONDS:.0f}, "
                f"got {self.interval_seconds}"
            )
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be > 0, got {self.timeout_seconds}")


DEFAULT_RETRY = RetryConfig()
DEFAULT_KEEPALIVE = KeepAliveConfig()
