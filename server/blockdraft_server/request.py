"""From a client's request to the request for a verifier, or to an error that names the field.

Two steps, because tokenizing is the expensive part: `check_request` checks everything that needs no
tokens, `sequence_request` the rest. Unset options get their defaults here and nowhere else.
"""

import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import grpc

from blockdraft_models.sampling_options import MAX_LOG_PROBS
from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.constraints import check_constraint, grammar_of
from blockdraft_server.field_checks import (
    ModelLimits,
    check,
    check_count,
    check_texts,
    check_token_ids,
    check_within,
)

MAX_STOP_SEQUENCES = 16
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 32 * 1024
MAX_BAD_WORDS = 64
# OpenAI's limits.
MAX_LOGIT_BIAS = 100
MAX_PENALTY = 2
MAX_COMPLETIONS = 16
"""Most completions of one prompt that a request may ask for, `n`."""

InferenceRequest = inference_pb2.GenerateRequest | inference_pb2.StreamGenerateRequest


def check_model(name: str, served: str) -> None:
    """Refuse a request for a model that is not served; an empty name means the served model."""
    if name and name != served:
        raise ServiceError(
            grpc.StatusCode.NOT_FOUND,
            "MODEL_NOT_FOUND",
            f"model {name!r} is not served here; {served!r} is",
            metadata={"model": name, "served_model": served},
            field="model",
        )


def check_request(request: InferenceRequest) -> None:
    """Check the ranges of everything but the prompt."""
    sampling, draft = request.sampling, request.speculation.max_draft_tokens
    temperature, top_p = sampling.temperature, sampling.top_p
    check(0 <= temperature < math.inf, "sampling.temperature", "finite and >= 0", temperature)
    check(sampling.top_k >= 0, "sampling.top_k", ">= 0", sampling.top_k)
    if sampling.HasField("top_p"):
        check(0 < top_p <= 1, "sampling.top_p", "in (0, 1]", top_p)
    check(0 <= sampling.min_p <= 1, "sampling.min_p", "in [0, 1]", sampling.min_p)
    if sampling.HasField("max_output_tokens"):
        max_tokens = sampling.max_output_tokens
        check(max_tokens >= 1, "sampling.max_output_tokens", ">= 1", max_tokens)
    for name in ("log_probs", "prompt_log_probs"):
        count = getattr(sampling, name)
        check(0 <= count <= MAX_LOG_PROBS, f"sampling.{name}", f"in [0, {MAX_LOG_PROBS}]", count)
    check(draft >= 0, "speculation.max_draft_tokens", ">= 0", draft)
    is_listed = request.priority in inference_pb2.Priority.values()
    check(is_listed, "priority", "one of those listed", request.priority)
    check_texts("sampling.stop_sequences", sampling.stop_sequences, MAX_STOP_SEQUENCES)
    stops = len(sampling.stop_token_ids)
    check_count("sampling.stop_token_ids", stops, MAX_STOP_TOKEN_IDS, "ids")
    _check_rules(sampling)
    if sampling.HasField("constraint"):
        check_constraint(sampling.constraint)


def _check_rules(sampling: inference_pb2.SamplingOptions) -> None:
    """Check the options that become `LogitsRules`, as far as that needs no tokenizer."""
    repetition = sampling.repetition_penalty
    usable = not sampling.HasField("repetition_penalty") or 0 < repetition < math.inf
    check(usable, "sampling.repetition_penalty", "finite and > 0", repetition)
    check_within("sampling.frequency_penalty", sampling.frequency_penalty, MAX_PENALTY)
    check_within("sampling.presence_penalty", sampling.presence_penalty, MAX_PENALTY)
    check_count("sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIASES, "biases")
    allowed = len(sampling.allowed_token_ids)
    check_count("sampling.allowed_token_ids", allowed, MAX_ALLOWED_TOKEN_IDS, "ids")
    for token_id, bias in sampling.logit_bias.items():
        check_within(f"sampling.logit_bias[{token_id}]", bias, MAX_LOGIT_BIAS)
    check_texts("sampling.bad_words", sampling.bad_words, MAX_BAD_WORDS)
    min_tokens, max_tokens = sampling.min_tokens, sampling.max_output_tokens
    check(min_tokens >= 0, "sampling.min_tokens", ">= 0", min_tokens)
    if sampling.HasField("max_output_tokens"):
        check(min_tokens <= max_tokens, "sampling.min_tokens", "<= max_output_tokens", min_tokens)


def sequence_request(
    request: InferenceRequest,
    prompt_token_ids: Sequence[int],
    limits: ModelLimits,
    eos_token_ids: Collection[int],
    encode: Callable[[str], list[int]],
    control_tokens: Mapping[str, int],
) -> verifier_pb2.SequenceRequest:
    """Return the verifier's request for a request that passed `check_request`.

    A `max_output_tokens` that does not fit into the context is reduced; such a completion ends with
    FINISH_REASON_LENGTH like any other that reached its limit. The target's own end tokens stop it
    too, unless the request ignores them. `encode` is the target's encoding of text after other
    text, for bad words; the `control_tokens` are the target's, by spelling, for a constraint.
    """
    sampling, speculation = request.sampling, request.speculation
    check_length(len(prompt_token_ids), limits)
    check_token_ids("prompt.token_ids.values", prompt_token_ids, limits)
    check_token_ids("sampling.stop_token_ids", sampling.stop_token_ids, limits)
    room = limits.max_context_tokens - len(prompt_token_ids)
    max_tokens = sampling.max_output_tokens if sampling.HasField("max_output_tokens") else room
    stops = {*(() if sampling.ignore_eos else eos_token_ids), *sampling.stop_token_ids}
    rules = _logits_rules(sampling, limits, encode)
    constrained = sampling.HasField("constraint")
    sequence = verifier_pb2.SequenceRequest(
        prompt_token_ids=prompt_token_ids,
        sampling=verifier_pb2.TokenSampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
            min_p=sampling.min_p,
            # Once, here, so that a replay uses the same.
            seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(63),
        ),
        max_output_tokens=min(max_tokens, room),
        stop_token_ids=sorted(stops),
        prompt_lookup_disabled=speculation.prompt_lookup_disabled,
        # Text under rules or a constraint is not the target's own.
        recordable=not (speculation.learning_disabled or rules is not None or constrained),
        rules=rules,
        grammar=grammar_of(sampling.constraint, control_tokens) if constrained else "",
    )
    if sampling.HasField("log_probs"):
        sequence.log_probs = sampling.log_probs
    if sampling.HasField("prompt_log_probs"):
        sequence.prompt_log_probs = sampling.prompt_log_probs
    if speculation.disabled:
        sequence.max_draft_tokens = 0
    elif speculation.HasField("max_draft_tokens"):
        sequence.max_draft_tokens = speculation.max_draft_tokens
    return sequence


def check_length(prompt_tokens: int, limits: ModelLimits) -> None:
    """Refuse a prompt that leaves no space for a completion in the context."""
    limit = limits.max_context_tokens
    if prompt_tokens >= limit:
        message = f"the prompt has {prompt_tokens} tokens; prompt and completion together may have "
        raise prompt_too_long(prompt_tokens, limit, f"{message}{limit}")


def prompt_too_long(tokens: int, limit: int, message: str = "") -> ServiceError:
    """Return the error for a prompt of at least `tokens` tokens, where `limit` are allowed."""
    return ServiceError(
        grpc.StatusCode.OUT_OF_RANGE,
        "PROMPT_TOO_LONG",
        message or f"the prompt has at least {tokens} tokens; at most {limit} are allowed",
        metadata={"prompt_tokens": tokens, "max_context_tokens": limit},
        field="prompt",
    )


def _logits_rules(
    sampling: inference_pb2.SamplingOptions,
    limits: ModelLimits,
    encode: Callable[[str], list[int]],
) -> verifier_pb2.LogitsRules | None:
    """Return the rules of options that passed `_check_rules`; None if they change nothing."""
    rules = verifier_pb2.LogitsRules(
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[
            verifier_pb2.TokenSequence(token_ids=ids)
            for word in sampling.bad_words
            for ids in _spellings(word, encode)
        ],
        min_tokens=sampling.min_tokens,
    )
    if sampling.HasField("repetition_penalty") and sampling.repetition_penalty != 1:
        rules.repetition_penalty = sampling.repetition_penalty
    if rules == verifier_pb2.LogitsRules():
        return None
    rules.repetition_penalty = rules.repetition_penalty or 1.0
    for token_id in rules.logit_bias:
        in_range = 0 <= token_id < limits.vocabulary_size
        expected = f"for ids in [0, {limits.vocabulary_size})"
        check(in_range, f"sampling.logit_bias[{token_id}]", expected, token_id)
    check_token_ids("sampling.allowed_token_ids", rules.allowed_token_ids, limits)
    return rules


def _spellings(word: str, encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    """Yield the tokens of a word, and its tokens after a space if they are others."""
    alone, after_space = encode(word), encode(f" {word}")
    yield alone
    if after_space[-len(alone) :] != alone:
        yield after_space


def with_next_seed(
    request: verifier_pb2.SequenceRequest, index: int
) -> verifier_pb2.SequenceRequest:
    """Return the request for completion number `index`, whose seed is greater by `index`."""
    copy = verifier_pb2.SequenceRequest()
    copy.CopyFrom(request)
    # Of 64 bits; the smallest comes after the largest.
    copy.sampling.seed = (request.sampling.seed + index + (1 << 63)) % (1 << 64) - (1 << 63)
    return copy
