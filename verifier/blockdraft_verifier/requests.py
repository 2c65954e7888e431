"""From the wire to a `GenerationRequest`, checked; and back to the wire."""

from collections.abc import Sequence

import grpc
from google.protobuf.duration_pb2 import Duration
from llguidance import LLMatcher

from blockdraft_models.sampling_options import LogitsRules, OutputOptions, Sampling
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.field_checks import (
    check,
    check_count,
    check_token_ids,
    check_vocabulary,
    checked_options,
)
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    FinishReason,
    GenerationRequest,
    TokenSequence,
)
from blockdraft_verifier.scheduling.token_masks import TokenMasks

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
    adapters: Sequence[str] = (),
    *,
    denoises: bool = False,
) -> GenerationRequest:
    """Return the request a message asks for, or raise a `ServiceError` that names the field.

    The server has checked all this already, but for what a target that `denoises` cannot do; in a
    cluster, others may call a verifier too. Its grammar comes compiled. `adapters` are the names of
    the target's.
    """
    options, speculation = message.sampling, message.speculation
    for field in ("prompt_token_ids", "emitted_token_ids"):
        check_token_ids(field, getattr(message, field), vocab_size)
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
    emitted, max_tokens = len(message.emitted_token_ids), options.max_output_tokens
    expected = f"above the {emitted} emitted tokens"
    check(max_tokens > emitted, "sampling.max_output_tokens", expected, max_tokens)
    if len(message.cache_salt) > MAX_SALT_BYTES:
        raise invalid_argument("cache_salt", f"cache_salt must have at most {MAX_SALT_BYTES} bytes")
    if message.adapter and message.adapter not in adapters:
        raise ServiceError(
            grpc.StatusCode.NOT_FOUND,
            "MODEL_NOT_FOUND",
            f"the target has no adapter {message.adapter!r}",
            field="adapter",
        )
    if denoises:
        _check_for_diffusion(message)
    limited = speculation.HasField("max_draft_tokens")
    max_drafted = speculation.max_draft_tokens if limited else None
    check((max_drafted or 0) >= 0, "speculation.max_draft_tokens", ">= 0", max_drafted or 0)
    return GenerationRequest(
        request_id=message.request_id,
        prompt=tuple(message.prompt_token_ids),
        emitted=tuple(message.emitted_token_ids),
        sampling=Sampling(**checked_options(Sampling, options)),
        rules=LogitsRules(**checked_options(LogitsRules, options)),
        masks=_masks(message, vocab_size),
        grammar=grammar,
        grammar_text=message.grammar,
        stop_token_ids=frozenset(options.stop_token_ids),
        max_draft_tokens=0 if speculation.disabled or denoises else max_drafted,
        prompt_lookup=not speculation.prompt_lookup_disabled,
        replay=message.replay,
        cache_salt=message.cache_salt,
        background=message.background,
        recordable=message.recordable,
        adapter=1 + adapters.index(message.adapter) if message.adapter else 0,
        **checked_options(OutputOptions, options),
    )


def _check_for_diffusion(message: pb.SequenceRequest) -> None:
    """Refuse rules and reports for which all tokens before one must be known."""
    options = message.sampling
    rules = LogitsRules(**checked_options(LogitsRules, options))
    refused = {
        "sampling.constraint": bool(message.grammar),
        "sampling.bad_words": bool(message.bad_words),
        "sampling.allowed_token_ids": bool(rules.allowed_token_ids),
        "sampling.min_tokens": rules.min_tokens > 0,
        "sampling.repetition_penalty": rules.repetition_penalty != 1,
        "sampling.frequency_penalty": rules.frequency_penalty != 0,
        "sampling.presence_penalty": rules.presence_penalty != 0,
        "sampling.log_probs": options.HasField("log_probs"),
        "sampling.prompt_log_probs": options.HasField("prompt_log_probs"),
    }
    for field in filter(refused.__getitem__, refused):
        text = "is not possible with a diffusion target, which does not choose tokens in order"
        raise invalid_argument(field, f"{field} {text}")


def _masks(message: pb.SequenceRequest, vocab_size: int) -> TokenMasks | None:
    """Return the masks of a request, its token ids checked; None if all tokens may be chosen."""
    options, words = message.sampling, message.bad_words
    check_vocabulary(options, vocab_size)
    check_count("bad_words", len(words), MAX_BAD_WORDS, "words")
    for index, word in enumerate(words):
        check(len(word.values) > 0, f"bad_words[{index}]", "of at least one token", 0)
        check_token_ids(f"bad_words[{index}].values", word.values, vocab_size)
    if not (options.allowed_token_ids or words or options.min_tokens):
        return None
    try:
        return TokenMasks(
            vocab_size,
            allowed=options.allowed_token_ids,
            bad_words=[tuple(word.values) for word in words],
            min_tokens=options.min_tokens,
            stop_token_ids=options.stop_token_ids,
        )
    except ValueError as error:
        # No other rule can forbid all tokens of a vocabulary.
        raise invalid_argument("sampling.allowed_token_ids", str(error)) from error


def add_step(message: pb.SequenceTokens, event: TokensGained, sequence: TokenSequence) -> None:
    """Append what a step gained to a message that holds the steps before it, if any."""
    message.token_ids.extend(event.token_ids)
    message.step_sizes.append(len(event.token_ids))
    message.sources.extend(SOURCES[source] for source in event.sources)
    chosen_count = len(event.token_ids) - event.accepted
    message.sources.extend([inference_pb2.TOKEN_SOURCE_TARGET] * chosen_count)
    message.log_probs.extend(event.log_probs)
    message.prompt_log_probs.extend(event.prompt_log_probs)
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
        denoising_steps=usage.denoising_steps,
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(max(0.0, seconds) * 1e9))
    return duration
