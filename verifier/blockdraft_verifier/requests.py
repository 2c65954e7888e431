"""From the wire to a `GenerationRequest`, checked; and back to the wire."""

import math
from collections.abc import Sequence

import grpc
from google.protobuf.duration_pb2 import Duration
from llguidance import LLMatcher

from blockdraft_models.sampling_options import MAX_LOG_PROBS, Sampling
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.scheduling.logits_rules import (
    MAX_LOGIT_BIASES,
    NO_RULES,
    LogitsRules,
    TokenMasks,
)
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    FinishReason,
    GenerationRequest,
    RankedLogProbs,
    TokenSequence,
)

MAX_SALT_BYTES = 64
# Twice as many as a caller may name: each may have other tokens after a space.
MAX_BAD_WORDS = 128

FINISH_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}
SOURCES = {
    DraftSource.DRAFTER: inference_pb2.TOKEN_SOURCE_DRAFTER,
    DraftSource.PROMPT_LOOKUP: inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP,
    DraftSource.GRAMMAR: inference_pb2.TOKEN_SOURCE_GRAMMAR,
}


def parse_request(
    message: pb.SequenceRequest,
    vocab_size: int,
    max_context_tokens: int,
    grammar: LLMatcher | None = None,
) -> GenerationRequest:
    """Return the request a message asks for, or raise a `ServiceError` that names the field.

    The server has checked all this already; in a cluster, others may call a verifier too. Its
    grammar comes compiled.
    """
    for field in ("prompt_token_ids", "emitted_token_ids", "stop_token_ids"):
        _check_token_ids(field, getattr(message, field), vocab_size)
    if not message.prompt_token_ids:
        raise invalid_argument("prompt_token_ids", "the prompt is empty")
    length = len(message.prompt_token_ids) + len(message.emitted_token_ids)
    if length >= max_context_tokens:
        raise ServiceError(
            grpc.StatusCode.OUT_OF_RANGE,
            "PROMPT_TOO_LONG",
            f"{length} tokens leave no room in a context of {max_context_tokens}",
            metadata={"prompt_tokens": length, "max_context_tokens": max_context_tokens},
            field="prompt_token_ids",
        )
    if message.max_output_tokens <= len(message.emitted_token_ids):
        raise invalid_argument(
            "max_output_tokens",
            f"max_output_tokens must exceed the {len(message.emitted_token_ids)} emitted tokens, "
            f"got {message.max_output_tokens}",
        )
    for field in ("log_probs", "prompt_log_probs"):
        if not 0 <= getattr(message, field) <= MAX_LOG_PROBS:
            raise invalid_argument(field, f"{field} must be 0 to {MAX_LOG_PROBS}")
    if len(message.cache_salt) > MAX_SALT_BYTES:
        raise invalid_argument("cache_salt", f"cache_salt must have at most {MAX_SALT_BYTES} bytes")
    if message.HasField("max_draft_tokens") and message.max_draft_tokens < 0:
        raise invalid_argument("max_draft_tokens", "max_draft_tokens must be >= 0")
    return GenerationRequest(
        request_id=message.request_id,
        prompt=tuple(message.prompt_token_ids),
        emitted=tuple(message.emitted_token_ids),
        sampling=parse_sampling(message.sampling),
        rules=_parse_rules(message, vocab_size) if message.HasField("rules") else NO_RULES,
        grammar=grammar,
        grammar_text=message.grammar,
        max_output_tokens=message.max_output_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        log_probs=message.log_probs if message.HasField("log_probs") else None,
        prompt_log_probs=message.prompt_log_probs if message.HasField("prompt_log_probs") else None,
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        prompt_lookup=not message.prompt_lookup_disabled,
        replay=message.replay,
        cache_salt=message.cache_salt,
        background=message.background,
        recordable=message.recordable,
    )


def parse_sampling(message: pb.TokenSampling) -> Sampling:
    """Return the sampling options, checked."""
    if not (math.isfinite(message.temperature) and message.temperature >= 0):
        raise invalid_argument(
            "sampling.temperature", f"temperature must be >= 0, got {message.temperature}"
        )
    if message.top_k < 0:
        raise invalid_argument("sampling.top_k", f"top_k must be >= 0, got {message.top_k}")
    if not 0 < message.top_p <= 1:
        raise invalid_argument("sampling.top_p", f"top_p must be in (0, 1], got {message.top_p}")
    if not 0 <= message.min_p <= 1:
        raise invalid_argument("sampling.min_p", f"min_p must be in [0, 1], got {message.min_p}")
    return Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
    )


def _parse_rules(message: pb.SequenceRequest, vocab_size: int) -> LogitsRules:
    rules = message.rules
    if not (math.isfinite(rules.repetition_penalty) and rules.repetition_penalty > 0):
        raise invalid_argument("rules.repetition_penalty", "repetition_penalty must be > 0")
    numbers = (rules.frequency_penalty, rules.presence_penalty, *rules.logit_bias.values())
    if not all(map(math.isfinite, numbers)):
        raise invalid_argument("rules", "penalties and biases must be finite")
    if len(rules.logit_bias) > MAX_LOGIT_BIASES:
        raise invalid_argument("rules.logit_bias", f"at most {MAX_LOGIT_BIASES} biases may be")
    if len(rules.bad_words) > MAX_BAD_WORDS or not all(word.token_ids for word in rules.bad_words):
        raise invalid_argument(
            "rules.bad_words", f"at most {MAX_BAD_WORDS} bad words may be, and none may be empty"
        )
    if rules.min_tokens < 0:
        raise invalid_argument("rules.min_tokens", "min_tokens must be >= 0")
    _check_token_ids("rules.logit_bias", sorted(rules.logit_bias), vocab_size)
    _check_token_ids("rules.allowed_token_ids", rules.allowed_token_ids, vocab_size)
    for word in rules.bad_words:
        _check_token_ids("rules.bad_words", word.token_ids, vocab_size)
    masks = None
    if rules.allowed_token_ids or rules.bad_words or rules.min_tokens:
        try:
            masks = TokenMasks(
                vocab_size,
                allowed=rules.allowed_token_ids,
                bad_words=[tuple(word.token_ids) for word in rules.bad_words],
                min_tokens=rules.min_tokens,
                stop_token_ids=message.stop_token_ids,
            )
        except ValueError as error:
            # As callers of the server know it; no other rule can forbid all tokens of a vocabulary.
            raise invalid_argument("sampling.allowed_token_ids", str(error)) from error
    return LogitsRules(
        repetition_penalty=rules.repetition_penalty,
        frequency_penalty=rules.frequency_penalty,
        presence_penalty=rules.presence_penalty,
        logit_bias=dict(rules.logit_bias),
        masks=masks,
    )


def _check_token_ids(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    # One quick check for the many lists that are right.
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise invalid_argument(
                f"{field}[{index}]",
                f"token id {token} is outside the vocabulary of {vocab_size}",
                token_id=token,
                vocabulary_size=vocab_size,
            )


def add_step(message: pb.SequenceTokens, event: TokensGained, sequence: TokenSequence) -> None:
    """Append what a step gained to a message that holds the steps before it, if any."""
    message.token_ids.extend(event.token_ids)
    message.step_sizes.append(len(event.token_ids))
    message.sources.extend(SOURCES[source] for source in event.sources)
    chosen_count = len(event.token_ids) - event.accepted
    message.sources.extend([inference_pb2.TOKEN_SOURCE_TARGET] * chosen_count)
    if event.log_probs:
        message.log_probs.extend(map(_ranked, event.log_probs))
    if event.prompt_log_probs:
        message.prompt_log_probs.extend(map(_ranked, event.prompt_log_probs))
    if event.finish_reason is not None:
        message.finish_reason = FINISH_REASONS[event.finish_reason]
        message.usage.CopyFrom(usage_message(sequence))


def usage_message(sequence: TokenSequence) -> inference_pb2.Usage:
    """Return the usage of a finished sequence as a message."""
    usage = sequence.usage
    arrived = sequence.arrival_time
    began = usage.first_step_time if usage.first_step_time is not None else arrived
    first = usage.first_token_time if usage.first_token_time is not None else began
    last = usage.last_token_time if usage.last_token_time is not None else first
    attributed_seconds = usage.verify_seconds + usage.draft_seconds + usage.transport_seconds
    return inference_pb2.Usage(
        prompt_tokens=len(sequence.request.prompt),
        output_tokens=sequence.output_count - len(sequence.request.emitted),
        drafted_tokens=sum(usage.drafted_per_position),
        accepted_tokens=sum(usage.accepted_per_position),
        verification_steps=usage.verification_steps,
        cached_prompt_tokens=min(usage.cached_prompt_tokens, len(sequence.request.prompt)),
        drafted_per_position=usage.drafted_per_position,
        accepted_per_position=usage.accepted_per_position,
        queue_time=_duration(began - arrived),
        prefill_time=_duration(first - began),
        decode_time=_duration(last - first),
        step_times=inference_pb2.StepTimes(
            verify_time=_duration(usage.verify_seconds),
            draft_time=_duration(usage.draft_seconds),
            transport_time=_duration(usage.transport_seconds),
            host_time=_duration(last - first - attributed_seconds),
        ),
        prompt_lookup_drafted_tokens=usage.prompt_lookup_drafted,
        prompt_lookup_accepted_tokens=usage.prompt_lookup_accepted,
        forced_tokens=usage.forced,
    )


def _ranked(entry: RankedLogProbs) -> pb.RankedLogProbs:
    return pb.RankedLogProbs(
        chosen_log_prob=entry.chosen, token_ids=entry.top_ids, log_probs=entry.top
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(max(0.0, seconds) * 1e9))
    return duration
