"""From a client's request to the request for a verifier, or to an error that names the field.

Two steps, because tokenizing is the expensive part: `check_request` checks everything that needs no
tokens, `sequence_request` the rest.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from blockdraft_models.sampling_options import NO_RULES, LogitsRules, OutputOptions, Sampling
from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.field_checks import (
    check,
    check_count,
    check_texts,
    check_token_ids,
    check_vocabulary,
    checked_options,
)
from blockdraft_runtime.status import ServiceError
from blockdraft_server.constraints import check_constraint, grammar_of

MAX_STOP_SEQUENCES = 16
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 64
MAX_COMPLETIONS = 16
"""Most completions of one prompt that a request may ask for, `n`."""

InferenceRequest = inference_pb2.GenerateRequest | inference_pb2.StreamGenerateRequest


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of the target."""

    vocabulary_size: int  # number of token ids
    max_context_tokens: int  # most tokens of a prompt and its completion together


class ServedModel(NamedTuple):
    """The name of the served model, and a function that returns the names of its adapters."""

    name: str
    adapters: Callable[[], Collection[str]]

    def adapter(self, name: str) -> str:
        """Return the adapter that a model's name means: "model:adapter", or the adapter's alone.

        It is empty for the model itself, which an empty name means too. `ServiceError` if the model
        is not served.
        """
        if name in ("", self.name):
            return ""
        adapter = name.removeprefix(f"{self.name}:")
        if adapter not in self.adapters():
            raise ServiceError(
                grpc.StatusCode.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"model {name!r} is not served here; {self.name!r} is",
                metadata={"model": name, "served_model": self.name},
                field="model",
            )
        return adapter


def check_request(request: InferenceRequest) -> None:
    """Check the ranges of everything but the prompt."""
    sampling, draft = request.sampling, request.speculation.max_draft_tokens
    for options in (Sampling, OutputOptions, LogitsRules):
        checked_options(options, sampling)
    check(draft >= 0, "speculation.max_draft_tokens", ">= 0", draft)
    is_listed = request.priority in inference_pb2.Priority.values()
    check(is_listed, "priority", "one of those listed", request.priority)
    check_texts("sampling.stop_sequences", sampling.stop_sequences, MAX_STOP_SEQUENCES)
    stops = len(sampling.stop_token_ids)
    check_count("sampling.stop_token_ids", stops, MAX_STOP_TOKEN_IDS, "ids")
    check_texts("sampling.bad_words", sampling.bad_words, MAX_BAD_WORDS)
    if sampling.HasField("max_output_tokens"):
        fits = sampling.min_tokens <= sampling.max_output_tokens
        check(fits, "sampling.min_tokens", "<= max_output_tokens", sampling.min_tokens)
    if sampling.HasField("constraint"):
        check_constraint(sampling.constraint)


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
    options, speculation = request.sampling, request.speculation
    check_length(len(prompt_token_ids), limits)
    check_token_ids("prompt.token_ids.values", prompt_token_ids, limits.vocabulary_size)
    check_vocabulary(options, limits.vocabulary_size)
    ruled = options.bad_words or LogitsRules(**checked_options(LogitsRules, options)) != NO_RULES
    constrained = options.HasField("constraint")
    sequence = verifier_pb2.SequenceRequest(
        prompt_token_ids=prompt_token_ids,
        sampling=options,
        speculation=speculation,
        bad_words=[
            inference_pb2.TokenIds(values=ids)
            for word in options.bad_words
            for ids in _spellings(word, encode)
        ],
        # Text under rules or a constraint is not the target's own.
        recordable=not (speculation.learning_disabled or ruled or constrained),
        grammar=grammar_of(options.constraint, control_tokens) if constrained else "",
    )
    sampling = sequence.sampling
    for name in ("stop_sequences", "bad_words", "constraint"):
        sampling.ClearField(name)
    room = limits.max_context_tokens - len(prompt_token_ids)
    max_tokens = options.max_output_tokens if options.HasField("max_output_tokens") else room
    sampling.max_output_tokens = min(max_tokens, room)
    stops = {*(() if options.ignore_eos else eos_token_ids), *options.stop_token_ids}
    sampling.stop_token_ids[:] = sorted(stops)
    if not options.HasField("seed"):
        # Once, here, so that a replay uses the same.
        sampling.seed = secrets.randbits(63)
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
