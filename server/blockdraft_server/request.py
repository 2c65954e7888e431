"""From a request as it came to what shall be generated, or to an error that names the field.

Two steps, because tokenizing is the expensive part: `check_request` looks at everything that
needs no tokens, `generation_spec` at the rest. Unset options get their defaults here and nowhere
else.
"""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import grpc

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.status import ServiceError, invalid_argument

MAX_STOP_SEQUENCES = 16
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOG_PROBS = 20

GenerationRequest = inference_pb2.GenerateRequest | inference_pb2.StreamGenerateRequest


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the target can take.

    Attributes:
        vocabulary_size: Number of token ids.
        max_context_tokens: Most tokens of a prompt and its answer together.
    """

    vocabulary_size: int
    max_context_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """A checked request with every default filled in.

    Attributes:
        prompt_token_ids: The prompt; at least one id.
        max_output_tokens: Most tokens to generate; fits into the context.
        stop_sequences: Texts that end the answer.
        stop_token_ids: Tokens that end the answer, in ascending order.
        temperature: Randomness.
        top_k: See `SamplingOptions`.
        top_p: See `SamplingOptions`.
        min_p: See `SamplingOptions`.
        seed: Seed of the noise.
        log_probs: Number of alternatives per token, or None for no log probabilities.
        max_draft_tokens: Most tokens to draft per step, or None for as many as a verifier takes.
        lookup_disabled: Whether nothing may be drafted that was looked up in prompt and answer.
        learning_disabled: Whether no drafter may record prompt and answer to learn from them.
    """

    prompt_token_ids: tuple[int, ...]
    max_output_tokens: int
    stop_sequences: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    log_probs: int | None
    max_draft_tokens: int | None
    lookup_disabled: bool
    learning_disabled: bool

    def to_proto(self, request_id: str) -> verifier_pb2.SequenceRequest:
        """Return the request for a verifier."""
        return verifier_pb2.SequenceRequest(
            request_id=request_id,
            prompt_token_ids=self.prompt_token_ids,
            sampling=verifier_pb2.TokenSampling(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=self.seed,
            ),
            max_output_tokens=self.max_output_tokens,
            stop_token_ids=self.stop_token_ids,
            log_probs=self.log_probs,
            max_draft_tokens=self.max_draft_tokens,
            lookup_disabled=self.lookup_disabled,
            recordable=not self.learning_disabled,
        )


def check_model(name: str, served: str) -> None:
    """Refuse a request for another model than the one served; an empty name means that one.

    Raises:
        ServiceError: NOT_FOUND.
    """
    if name and name != served:
        raise ServiceError(
            grpc.StatusCode.NOT_FOUND,
            "MODEL_NOT_FOUND",
            f"model {name!r} is not served here; {served!r} is",
            metadata={"model": name, "served_model": served},
            field="model",
        )


def check_request(request: GenerationRequest) -> None:
    """Check the ranges of everything but the prompt.

    Raises:
        ServiceError: INVALID_ARGUMENT, naming the field.
    """
    sampling = request.sampling
    _check(
        math.isfinite(sampling.temperature) and sampling.temperature >= 0,
        "sampling.temperature",
        "finite and >= 0",
        sampling.temperature,
    )
    _check(sampling.top_k >= 0, "sampling.top_k", ">= 0", sampling.top_k)
    if sampling.HasField("top_p"):
        _check(0 < sampling.top_p <= 1, "sampling.top_p", "in (0, 1]", sampling.top_p)
    _check(0 <= sampling.min_p <= 1, "sampling.min_p", "in [0, 1]", sampling.min_p)
    if sampling.HasField("max_output_tokens"):
        value = sampling.max_output_tokens
        _check(value >= 1, "sampling.max_output_tokens", ">= 1", value)
    count = len(sampling.stop_sequences)
    if count > MAX_STOP_SEQUENCES:
        raise invalid_argument(
            "sampling.stop_sequences",
            f"sampling.stop_sequences holds {count} texts, at most {MAX_STOP_SEQUENCES} may be",
            count=count,
            limit=MAX_STOP_SEQUENCES,
        )
    for index, sequence in enumerate(sampling.stop_sequences):
        if not sequence:
            field = f"sampling.stop_sequences[{index}]"
            raise invalid_argument(field, f"{field} must not be empty")
        size = len(sequence.encode())
        if size > MAX_STOP_BYTES:
            field = f"sampling.stop_sequences[{index}]"
            message = f"{field} has {size} bytes, at most {MAX_STOP_BYTES} are allowed"
            raise invalid_argument(field, message, bytes=size, limit=MAX_STOP_BYTES)
    count = len(sampling.stop_token_ids)
    if count > MAX_STOP_TOKEN_IDS:
        raise invalid_argument(
            "sampling.stop_token_ids",
            f"sampling.stop_token_ids holds {count} ids, at most {MAX_STOP_TOKEN_IDS} may be",
            count=count,
            limit=MAX_STOP_TOKEN_IDS,
        )
    _check(
        0 <= sampling.log_probs <= MAX_LOG_PROBS,
        "sampling.log_probs",
        f"in [0, {MAX_LOG_PROBS}]",
        sampling.log_probs,
    )
    draft = request.speculation.max_draft_tokens
    _check(draft >= 0, "speculation.max_draft_tokens", ">= 0", draft)


def generation_spec(
    request: GenerationRequest,
    prompt_token_ids: Sequence[int],
    limits: ModelLimits,
    eos_token_ids: Collection[int],
) -> GenerationSpec:
    """Return what `request`, which passed `check_request`, asks for.

    A `max_output_tokens` beyond what the context has room for is reduced to that; such an answer
    ends with FINISH_REASON_LENGTH like any other that was not long enough.

    Args:
        request: The request.
        prompt_token_ids: Its prompt as token ids.
        limits: What the target can take.
        eos_token_ids: The target's own end-of-text tokens.

    Raises:
        ServiceError: INVALID_ARGUMENT for a token id outside the vocabulary, OUT_OF_RANGE for a
            prompt that leaves no room for an answer.
    """
    sampling = request.sampling
    check_length(len(prompt_token_ids), limits)
    room = limits.max_context_tokens - len(prompt_token_ids)
    check_token_ids("prompt.token_ids.values", prompt_token_ids, limits)
    check_token_ids("sampling.stop_token_ids", sampling.stop_token_ids, limits)
    wanted = sampling.max_output_tokens if sampling.HasField("max_output_tokens") else room
    own_stops = () if sampling.ignore_eos else eos_token_ids
    speculation = request.speculation
    max_draft_tokens = (
        speculation.max_draft_tokens if speculation.HasField("max_draft_tokens") else None
    )
    return GenerationSpec(
        prompt_token_ids=tuple(prompt_token_ids),
        max_output_tokens=min(wanted, room),
        stop_sequences=tuple(sampling.stop_sequences),
        stop_token_ids=tuple(sorted({*own_stops, *sampling.stop_token_ids})),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(63),
        log_probs=sampling.log_probs if sampling.HasField("log_probs") else None,
        max_draft_tokens=0 if speculation.disabled else max_draft_tokens,
        lookup_disabled=speculation.lookup_disabled,
        learning_disabled=speculation.learning_disabled,
    )


def check_length(prompt_tokens: int, limits: ModelLimits) -> None:
    """Refuse a prompt that leaves no room for an answer.

    Raises:
        ServiceError: OUT_OF_RANGE.
    """
    if prompt_tokens >= limits.max_context_tokens:
        raise ServiceError(
            grpc.StatusCode.OUT_OF_RANGE,
            "PROMPT_TOO_LONG",
            f"the prompt has {prompt_tokens} tokens; prompt and answer together may have "
            f"{limits.max_context_tokens}",
            metadata={
                "prompt_tokens": prompt_tokens,
                "max_context_tokens": limits.max_context_tokens,
            },
            field="prompt",
        )


def check_token_ids(field: str, token_ids: Sequence[int], limits: ModelLimits) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        ServiceError: INVALID_ARGUMENT, naming the first offending position.
    """
    # Told at once for the many that are right: a prompt may be as long as a book.
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < limits.vocabulary_size):
        return
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < limits.vocabulary_size:
            bounds = f"in [0, {limits.vocabulary_size})"
            _check(False, f"{field}[{index}]", bounds, token_id)


def _check(condition: bool, field: str, expected: str, value: float) -> None:
    if not condition:
        raise invalid_argument(field, f"{field} must be {expected}, got {value:g}", value=value)
