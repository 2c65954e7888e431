import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tests.server.support import EOS, ByteTokenizer, text_request

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.prompts import check_prompt, prompt_token_ids
from blockdraft_server.request import (
    ModelLimits,
    check_model,
    check_request,
    sequence_request,
)

LIMITS = ModelLimits(vocabulary_size=300, max_context_tokens=10)


def checked(
    request: inference_pb2.StreamGenerateRequest, prompt: int = 4
) -> verifier_pb2.SequenceRequest:
    check_request(request)
    return sequence_request(request, [1] * prompt, LIMITS, (EOS,))


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0.0, 1e-6, 100.0], [-1e-6, math.nan, math.inf, -math.inf]),
        ("top_k", [0, 1, 1000], [-1]),
        ("top_p", [1e-6, 0.5, 1.0], [0.0, -0.1, 1.001, math.nan]),
        ("min_p", [0.0, 0.5, 1.0], [-0.001, 1.001, math.nan]),
        ("seed", [0, -(2**63), 2**63 - 1], []),
        ("max_output_tokens", [1, 6, 2**31 - 1], [0, -1]),
        ("log_probs", [0, 20], [-1, 21]),
        ("stop_sequences", [[], ["x"] * 16, ["é" * 512]], [["x"] * 17]),
        ("stop_token_ids", [[], [1] * 1024], [[1] * 1025]),
    ],
)
def test_the_bounds_of_sampling(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        checked(text_request(**{field: value}))
    for value in bad:
        with pytest.raises(ServiceError) as caught:
            checked(text_request(**{field: value}))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.reason == "INVALID_ARGUMENT"
        assert caught.value.field == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "index", "values"),
    [
        ("stop_sequences", 1, ["a", ""]),
        ("stop_sequences", 0, ["é" * 513]),
        ("stop_token_ids", 2, [0, 299, 300]),
        ("stop_token_ids", 0, [-1]),
    ],
)
def test_the_offending_item_is_named(field: str, index: int, values: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        checked(text_request(**{field: values}))
    assert caught.value.field == f"sampling.{field}[{index}]"


def test_the_offending_token_of_a_prompt_is_named() -> None:
    with pytest.raises(ServiceError) as caught:
        sequence_request(text_request(), [0, 299, 1, 300], LIMITS, ())
    assert caught.value.field == "prompt.token_ids.values[3]"
    assert caught.value.metadata["value"] == "300"


def test_max_draft_tokens_is_not_negative() -> None:
    request = text_request()
    request.speculation.max_draft_tokens = -1
    with pytest.raises(ServiceError) as caught:
        checked(request)
    assert caught.value.field == "speculation.max_draft_tokens"


def test_unset_options_get_their_defaults() -> None:
    asked = checked(text_request())
    sampling = asked.sampling
    values = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    assert values == (0.0, 0, 1.0, 0.0)
    assert asked.max_output_tokens == 6
    assert asked.stop_token_ids == [EOS]
    assert not asked.HasField("log_probs")
    assert not asked.HasField("max_draft_tokens")
    assert 0 <= sampling.seed < 2**63
    assert checked(text_request()).sampling.seed != sampling.seed


def test_zero_log_probs_differ_from_none() -> None:
    proto = checked(text_request(log_probs=0))
    assert proto.HasField("log_probs")
    assert not checked(text_request()).HasField("log_probs")


def test_stop_tokens_are_the_models_own_and_the_requests() -> None:
    assert checked(text_request(stop_token_ids=[7, EOS, 7])).stop_token_ids == [7, EOS]
    request = text_request(stop_token_ids=[7], ignore_eos=True)
    assert checked(request).stop_token_ids == [7]


def test_disabled_speculation_wins_over_its_length() -> None:
    request = text_request()
    request.speculation.max_draft_tokens = 0
    assert checked(request).HasField("max_draft_tokens")
    assert checked(request).max_draft_tokens == 0
    request.speculation.max_draft_tokens = 5
    assert checked(request).max_draft_tokens == 5
    request.speculation.disabled = True
    assert checked(request).HasField("max_draft_tokens")
    assert checked(request).max_draft_tokens == 0


def test_lookup_is_disabled_by_itself() -> None:
    assert not checked(text_request()).lookup_disabled
    request = text_request()
    request.speculation.lookup_disabled = True
    proto = checked(request)
    assert proto.lookup_disabled
    assert proto.recordable
    request.speculation.learning_disabled = True
    assert not checked(request).recordable
    assert not proto.HasField("max_draft_tokens")


def test_the_prompt_must_leave_room_for_one_token() -> None:
    assert checked(text_request(), prompt=9).max_output_tokens == 1
    with pytest.raises(ServiceError) as caught:
        checked(text_request(), prompt=10)
    assert (caught.value.code, caught.value.reason) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "PROMPT_TOO_LONG",
    )
    assert caught.value.metadata == {"prompt_tokens": "10", "max_context_tokens": "10"}


def test_an_explicit_length_is_capped_to_what_fits() -> None:
    assert checked(text_request(max_output_tokens=6)).max_output_tokens == 6
    assert checked(text_request(max_output_tokens=7)).max_output_tokens == 6


def test_only_the_served_model_is_known() -> None:
    check_model("", "tiny")
    check_model("tiny", "tiny")
    with pytest.raises(ServiceError) as caught:
        check_model("huge", "tiny")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def chat(*roles: str) -> inference_pb2.Prompt:
    messages = [inference_pb2.ChatMessage(role=role, content="é") for role in roles]
    return inference_pb2.Prompt(conversation=inference_pb2.Conversation(messages=messages))


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (inference_pb2.Prompt(), "prompt"),
        (inference_pb2.Prompt(text=""), "prompt.text"),
        (inference_pb2.Prompt(text="12345"), "prompt.text"),
        (inference_pb2.Prompt(text="éé!"), "prompt.text"),
        (inference_pb2.Prompt(token_ids=inference_pb2.TokenIds()), "prompt.token_ids.values"),
        (chat(), "prompt.conversation.messages"),
        (chat("user", "tool"), "prompt.conversation.messages[1].role"),
        (chat(""), "prompt.conversation.messages[0].role"),
        (chat("user", "assistant", "user"), "prompt.conversation"),
    ],
)
def test_bad_prompts_name_their_field(prompt: inference_pb2.Prompt, field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        check_prompt(prompt, max_bytes=4)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == field


@pytest.mark.parametrize(
    "prompt",
    [
        inference_pb2.Prompt(text="éé"),
        inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(values=[0] * 9)),
        chat("system", "user"),
    ],
)
def test_good_prompts_pass(prompt: inference_pb2.Prompt) -> None:
    check_prompt(prompt, max_bytes=4)


async def test_a_prompt_without_tokens_is_invalid() -> None:
    class Silent(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    with ThreadPoolExecutor(1) as threads, pytest.raises(ServiceError, match="no tokens"):
        await prompt_token_ids(inference_pb2.Prompt(text="x"), 1, Silent(), threads)
