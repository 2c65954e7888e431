"""Requests at both sides of every limit, and the arithmetic of usage."""

import math
from typing import Any

import grpc
import pytest

from blockdraft_models.sampling_options import GREEDY, NO_RULES, LogitsRules, Sampling
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.requests import add_step, parse_request, usage_message
from blockdraft_verifier.scheduling.sequence import (
    DraftSource,
    FinishReason,
    GenerationRequest,
    TokenSequence,
    Usage,
)

VOCAB, MAX_CONTEXT = 10, 8


OPTIONS = set(inference_pb2.SamplingOptions.DESCRIPTOR.fields_by_name) - {"bad_words"}
DRAFTING = inference_pb2.SpeculationOptions
WORD = inference_pb2.TokenIds(values=[VOCAB - 1])


def message(**changes: Any) -> pb.SequenceRequest:
    """Return a request with these fields, or with sampling options of these names."""
    options = {name: changes.pop(name) for name in OPTIONS & set(changes)}
    sampling = inference_pb2.SamplingOptions(**{"max_output_tokens": 5, **options})
    fields: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [1, 2, 3], **changes}
    return pb.SequenceRequest(sampling=sampling, **fields)


def parse(**changes: Any) -> GenerationRequest:
    return parse_request(message(**changes), VOCAB, MAX_CONTEXT)


def test_everything_is_taken_over() -> None:
    request = parse(
        emitted_token_ids=[4, 5],
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        seed=-(2**63),
        presence_penalty=-2.0,
        logit_bias={7: 1.5},
        stop_token_ids=[7, 8, 7],
        log_probs=2,
        speculation=DRAFTING(max_draft_tokens=4, prompt_lookup_disabled=True),
        background=True,
    )
    assert request == GenerationRequest(
        request_id="r",
        prompt=(1, 2, 3),
        emitted=(4, 5),
        sampling=Sampling(0.5, 3, 0.25, 0.125, -(2**63)),
        rules=LogitsRules(presence_penalty=-2.0, logit_bias={7: 1.5}),
        max_output_tokens=5,
        stop_token_ids=frozenset({7, 8}),
        log_probs=2,
        max_draft_tokens=4,
        prompt_lookup=False,
        background=True,
    )


def test_absent_is_not_zero() -> None:
    absent, zero = parse(), parse(log_probs=0, speculation=DRAFTING(max_draft_tokens=0))
    assert (absent.log_probs, absent.max_draft_tokens) == (None, None)
    assert (zero.log_probs, zero.max_draft_tokens) == (0, 0)
    assert (absent.sampling, absent.rules, absent.masks) == (GREEDY, NO_RULES, None)
    assert absent.prompt_lookup
    assert parse(speculation=DRAFTING(disabled=True, max_draft_tokens=4)).max_draft_tokens == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_token_ids": [0, VOCAB - 1]},
        {"emitted_token_ids": [VOCAB - 1]},
        {"stop_token_ids": [VOCAB - 1, 0]},
        {"prompt_token_ids": [1] * 7},
        {"prompt_token_ids": [1] * 5, "emitted_token_ids": [1, 1]},
        {"max_output_tokens": 1},
        {"max_output_tokens": 3, "emitted_token_ids": [1, 1]},
        {"max_output_tokens": 2**31 - 1},
        {"speculation": DRAFTING(max_draft_tokens=2**31 - 1)},
        {"seed": 2**63 - 1},
        {"repetition_penalty": 1e-45, "logit_bias": {0: 100, VOCAB - 1: -100}},
        {"allowed_token_ids": [7], "min_tokens": 0, "stop_token_ids": [7]},
        {"bad_words": [WORD] * 128, "min_tokens": 2**31 - 1},
    ],
)
def test_the_inner_side_of_every_limit(changes: dict[str, Any]) -> None:
    parse(**changes)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt_token_ids", {"prompt_token_ids": []}),
        ("prompt_token_ids[1]", {"prompt_token_ids": [1, VOCAB]}),
        ("prompt_token_ids[0]", {"prompt_token_ids": [-1, VOCAB]}),
        ("emitted_token_ids[0]", {"emitted_token_ids": [VOCAB]}),
        ("emitted_token_ids[1]", {"emitted_token_ids": [1, -1]}),
        ("sampling.stop_token_ids[0]", {"stop_token_ids": [VOCAB]}),
        ("sampling.stop_token_ids[2]", {"stop_token_ids": [1, 2, -1]}),
        ("sampling.repetition_penalty", {"repetition_penalty": 0.0}),
        ("sampling.frequency_penalty", {"frequency_penalty": math.nan}),
        ("sampling.logit_bias[1]", {"logit_bias": {1: math.inf}}),
        ("sampling.logit_bias[10]", {"logit_bias": {VOCAB: 1.0}}),
        ("sampling.allowed_token_ids[1]", {"allowed_token_ids": [1, VOCAB]}),
        ("bad_words[0]", {"bad_words": [inference_pb2.TokenIds()]}),
        ("bad_words", {"bad_words": [WORD] * 129}),
        ("bad_words[0].values[1]", {"bad_words": [inference_pb2.TokenIds(values=[1, -1])]}),
        ("sampling.min_tokens", {"min_tokens": -1}),
        (
            "sampling.allowed_token_ids",
            {"allowed_token_ids": [7], "min_tokens": 1, "stop_token_ids": [7]},
        ),
        ("sampling.max_output_tokens", {"max_output_tokens": 0}),
        ("sampling.max_output_tokens", {"max_output_tokens": -1}),
        ("sampling.max_output_tokens", {"max_output_tokens": 2, "emitted_token_ids": [1, 1]}),
        ("sampling.log_probs", {"log_probs": 21}),
        ("sampling.prompt_log_probs", {"prompt_log_probs": -1}),
        ("speculation.max_draft_tokens", {"speculation": DRAFTING(max_draft_tokens=-1)}),
        ("sampling.top_p", {"top_p": math.nan}),
    ],
)
def test_the_outer_side_names_the_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ServiceError) as caught:
        parse(**changes)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.reason == "INVALID_ARGUMENT"
    assert caught.value.field == field
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(("prompt", "emitted"), [(8, 0), (6, 2), (1, 7), (100, 0)])
def test_a_prompt_without_room_for_a_token(prompt: int, emitted: int) -> None:
    with pytest.raises(ServiceError) as caught:
        parse(
            prompt_token_ids=[1] * prompt,
            emitted_token_ids=[1] * emitted,
            max_output_tokens=200,
        )
    assert caught.value.code is grpc.StatusCode.OUT_OF_RANGE
    assert caught.value.reason == "PROMPT_TOO_LONG"
    assert caught.value.field == "prompt_token_ids"
    assert caught.value.metadata == {
        "prompt_tokens": str(prompt + emitted),
        "max_context_tokens": str(MAX_CONTEXT),
    }


def finished_sequence() -> TokenSequence:
    request = GenerationRequest("r", (1, 2, 3), emitted=(4, 5))
    sequence = TokenSequence(1, request, arrival_time=10.0)
    sequence.tokens += [6, 7, 8, 9]
    sequence.usage = Usage(
        cached_prompt_tokens=4,
        first_step_time=10.5,
        first_token_time=12.0,
        last_token_time=15.0,
        verify_seconds=1.0,
        draft_seconds=0.5,
        transport_seconds=0.25,
    )
    sequence.usage.count_verification([DraftSource.DRAFTER] * 3, 1)
    sequence.usage.count_verification([], 0)
    sequence.usage.count_verification([DraftSource.PROMPT_LOOKUP] * 2, 2)
    return sequence


def test_usage_by_hand() -> None:
    usage = usage_message(finished_sequence())
    assert usage.prompt_tokens == 3
    assert usage.output_tokens == 4
    assert usage.cached_prompt_tokens == 3  # never more than the prompt
    assert usage.verification_steps == 3
    assert list(usage.drafted_per_position) == [2, 2, 1]
    assert list(usage.accepted_per_position) == [2, 1, 0]
    assert (usage.drafted_tokens, usage.accepted_tokens) == (5, 3)
    assert (usage.prompt_lookup_drafted_tokens, usage.prompt_lookup_accepted_tokens) == (2, 2)
    seconds = {
        name: getattr(message, name).ToNanoseconds() / 1e9
        for message, names in (
            (usage, ("queue_time", "prefill_time", "decode_time")),
            (usage.step_times, ("verify_time", "draft_time", "transport_time", "host_time")),
        )
        for name in names
    }
    assert seconds == {
        "queue_time": 0.5,
        "prefill_time": 1.5,
        "decode_time": 3.0,
        "verify_time": 1.0,
        "draft_time": 0.5,
        "transport_time": 0.25,
        "host_time": 1.25,
    }


def test_times_that_never_came_are_zero() -> None:
    sequence = TokenSequence(1, GenerationRequest("r", (1,)), arrival_time=10.0)
    usage = usage_message(sequence)
    assert usage.queue_time.ToNanoseconds() == 0
    assert usage.prefill_time.ToNanoseconds() == 0
    assert usage.decode_time.ToNanoseconds() == 0
    sequence.usage.verify_seconds = 5.0
    assert usage_message(sequence).step_times.host_time.ToNanoseconds() == 0


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (None, inference_pb2.FINISH_REASON_UNSPECIFIED),
        (FinishReason.STOP, inference_pb2.FINISH_REASON_STOP),
        (FinishReason.LENGTH, inference_pb2.FINISH_REASON_LENGTH),
    ],
)
def test_messages(reason: FinishReason | None, sent: inference_pb2.FinishReason.ValueType) -> None:
    chosen = inference_pb2.TokenLogProb(token_id=6, log_prob=-0.5)
    scored = inference_pb2.TokenLogProbs(chosen=chosen, alternatives=[chosen])
    sources = (DraftSource.PROMPT_LOOKUP,)
    event = TokensGained((6, 7), (scored, scored), 2, sources, finish_reason=reason)
    response = pb.SequenceTokens()
    add_step(response, event, finished_sequence())
    assert list(response.token_ids) == [6, 7]
    assert list(response.step_sizes) == [2]
    assert list(response.sources) == [
        inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP,
        inference_pb2.TOKEN_SOURCE_TARGET,
    ]
    assert list(response.log_probs) == [scored, scored]
    assert response.finish_reason == sent
    # Usage comes with the last message only.
    assert response.HasField("usage") == (reason is not None)
