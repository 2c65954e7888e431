import json
import math
import re
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.support import EOS, ByteTokenizer, text_request

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.prompts import check_prompt, prompt_token_ids
from blockdraft_server.request import ModelLimits, check_request, sequence_request
from blockdraft_verifier.requests import parse_request

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LIMITS = ModelLimits(vocabulary_size=300, max_context_tokens=10)


def checked(
    request: inference_pb2.StreamGenerateRequest, prompt: int = 4
) -> verifier_pb2.SequenceRequest:
    check_request(request)
    tokenizer = ByteTokenizer()
    return sequence_request(
        request, [1] * prompt, LIMITS, (EOS,), tokenizer.encode, tokenizer.control_tokens
    )


# What each field may be, and what not, by the item that is named.
BOUNDS: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {
    "temperature": ([0.0, 1e-6, 100.0], {"": [-1e-6, math.nan, math.inf, -math.inf]}),
    "top_k": ([0, 1, 1000], {"": [-1]}),
    "top_p": ([1e-6, 0.5, 1.0], {"": [0.0, -0.1, 1.001, math.nan]}),
    "min_p": ([0.0, 0.5, 1.0], {"": [-0.001, 1.001, math.nan]}),
    "seed": ([0, -(2**63), 2**63 - 1], {}),
    "max_output_tokens": ([1, 6, 2**31 - 1], {"": [0, -1]}),
    "log_probs": ([0, 20], {"": [-1, 21]}),
    "prompt_log_probs": ([0, 20], {"": [-1, 21]}),
    "repetition_penalty": ([1e-6, 1.0, 50.0], {"": [0.0, -1.0, math.nan, math.inf]}),
    "frequency_penalty": ([-2.0, 0.0, 2.0], {"": [-2.001, 2.001, math.nan]}),
    "presence_penalty": ([-2.0, 0.0, 2.0], {"": [-2.001, 2.001, math.nan]}),
    "logit_bias": (
        [{}, {0: -100.0, 299: 100.0}, dict.fromkeys(range(256), 1.0)],
        {"[7]": [{7: 100.1}, {7: math.nan}], "[300]": [{300: 1.0}], "[-1]": [{-1: 1.0}]},
    ),
    "allowed_token_ids": ([[], [0, 299]], {"[1]": [[1, 300]]}),
    "bad_words": ([[], ["x"] * 64, ["é" * 512]], {"": [["x"] * 65], "[1]": [["a", ""]]}),
    "min_tokens": ([0, 1, 2**31 - 1], {"": [-1]}),
    "stop_sequences": (
        [[], ["x"] * 16, ["é" * 512]],
        {"": [["x"] * 17], "[1]": [["a", ""]], "[0]": [["é" * 513]]},
    ),
    "stop_token_ids": (
        [[], [1] * 1024], {"": [[1] * 1025], "[2]": [[0, 299, 300]], "[0]": [[-1]]}
    ),
    "max_draft_tokens": ([0, 2**31 - 1], {"": [-1]}),
}  # fmt: skip


def request_with(**fields: Any) -> inference_pb2.StreamGenerateRequest:
    drafting = {name: fields.pop(name) for name in ("max_draft_tokens",) if name in fields}
    request = text_request(**fields)
    request.speculation.MergeFrom(inference_pb2.SpeculationOptions(**drafting))
    return request


def refusal(request: inference_pb2.StreamGenerateRequest) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        checked(request)
    return caught.value


@pytest.mark.parametrize("field", BOUNDS)
def test_the_bounds_of_a_field(field: str) -> None:
    good, bad = BOUNDS[field]
    for value in good:
        checked(request_with(**{field: value}))
    part = "speculation" if field == "max_draft_tokens" else "sampling"
    for item, values in bad.items():
        for value in values:
            error = refusal(request_with(**{field: value}))
            assert (error.code, error.reason) == (INVALID, "INVALID_ARGUMENT")
            assert error.field == f"{part}.{field}{item}"


def values_of(field: Any) -> st.SearchStrategy[Any]:
    """Return values of a field of SamplingOptions, many of them near its bounds."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (values_of(each) for each in field.message_type.fields)
        return st.dictionaries(key, value, max_size=2)
    near = st.sampled_from([-1, 0, 1, 2, 20, 21, 100, 299, 300])
    bits = 64 if field.cpp_type == field.CPPTYPE_INT64 else 32
    each: st.SearchStrategy[Any] = near | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        each = near | st.floats(width=32)
    elif field.cpp_type == field.CPPTYPE_STRING:
        each = st.text(max_size=2)
    elif field.cpp_type == field.CPPTYPE_BOOL:
        each = st.booleans()
    return st.lists(each, max_size=3) if field.is_repeated else each


OPTIONS = {
    each.name: values_of(each)
    for each in inference_pb2.SamplingOptions.DESCRIPTOR.fields
    if each.name != "constraint"
}
# Of more of them, one would nearly always be refused.
SOME = st.lists(st.sampled_from([*OPTIONS]), max_size=3, unique=True)


@settings(max_examples=400)
@given(SOME.flatmap(lambda names: st.fixed_dictionaries({each: OPTIONS[each] for each in names})))
def test_any_request_is_refused_by_its_field_or_taken_by_the_verifier(
    fields: dict[str, Any],
) -> None:
    try:
        sequence = checked(text_request(**fields))
    except ServiceError as error:
        part, name = re.split(r"[.\[]", error.field or "")[:2]
        assert (part, name in fields) == ("sampling", True)
    else:
        parse_request(sequence, LIMITS.vocabulary_size, LIMITS.max_context_tokens)


def test_the_offending_token_of_a_prompt_is_named() -> None:
    with pytest.raises(ServiceError) as caught:
        sequence_request(
            text_request(), [0, 299, 1, 300], LIMITS, (EOS,), ByteTokenizer().encode, {}
        )
    assert caught.value.field == "prompt.token_ids.values[3]"
    assert caught.value.metadata["value"] == "300"


def test_unset_options_get_their_defaults() -> None:
    asked = checked(text_request())
    sampling = asked.sampling
    assert sampling.max_output_tokens == 6
    assert sampling.stop_token_ids == [EOS]
    assert asked.recordable
    assert 0 <= sampling.seed < 2**63
    assert checked(text_request()).sampling.seed != sampling.seed


def test_stop_tokens_are_the_models_own_and_the_requests() -> None:
    asked = checked(text_request(stop_token_ids=[7, EOS, 7]))
    assert asked.sampling.stop_token_ids == [7, EOS]
    request = text_request(stop_token_ids=[7], ignore_eos=True)
    assert checked(request).sampling.stop_token_ids == [7]


def test_options_reach_the_verifier_without_texts() -> None:
    neutral: dict[str, Any] = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "min_tokens": 0}
    assert checked(text_request(**neutral)).recordable
    request = text_request(
        presence_penalty=0.5,
        logit_bias={3: -1.0},
        allowed_token_ids=[4, 5],
        min_tokens=3,
        max_output_tokens=3,
        seed=-1,
        ignore_eos=True,
    )
    expected = verifier_pb2.SequenceRequest(
        prompt_token_ids=[1] * 4,
        sampling=request.sampling,
        speculation=request.speculation,
        # A token of this tokenizer is a byte, so that a space before a word is one of its own.
        bad_words=[inference_pb2.TokenIds(values=b"ab"), inference_pb2.TokenIds(values=b" c")],
    )
    request.sampling.bad_words[:] = ["ab", " c"]
    request.sampling.stop_sequences[:] = ["x"]
    assert checked(request) == expected


def test_a_constraint_reaches_the_verifier_as_a_grammar() -> None:
    assert checked(text_request()).grammar == ""
    schema = inference_pb2.OutputConstraint(json_schema='{"type": "string"}')
    schema.free_text.end = "<turn>"
    asked = checked(text_request(constraint=schema))
    main, other = json.loads(asked.grammar)["grammars"]
    # The tokenizer's control token of that name.
    assert "<[257]>" in main["lark_grammar"]
    assert other["json_schema"]["type"] == "string"
    assert not asked.recordable
    with pytest.raises(ServiceError) as caught:
        check_request(text_request(constraint=inference_pb2.OutputConstraint()))
    assert caught.value.field == "sampling.constraint"


class WordTokenizer(ByteTokenizer):
    """Has another token for a word after a space."""

    def encode_inner(self, text: str) -> list[int]:
        return [2 + len(text) + 100 * text.startswith(" ")]


def test_bad_words_are_forbidden_at_the_beginning_and_after_a_space() -> None:
    request = text_request(bad_words=["word"])
    asked = sequence_request(request, [1], LIMITS, (), WordTokenizer().encode_inner, {})
    assert [list(word.values) for word in asked.bad_words] == [[6], [107]]


@pytest.mark.parametrize("learning_disabled", [False, True])
def test_what_is_said_of_drafting_reaches_the_verifier(learning_disabled: bool) -> None:
    request = text_request()
    request.speculation.max_draft_tokens = 0
    request.speculation.learning_disabled = learning_disabled
    asked = checked(request)
    assert asked.speculation == request.speculation
    assert asked.recordable != learning_disabled


def test_an_answer_is_capped_to_what_the_prompt_leaves_room_for() -> None:
    for count in (6, 7):
        assert checked(text_request(max_output_tokens=count)).sampling.max_output_tokens == 6
    assert checked(text_request(), prompt=9).sampling.max_output_tokens == 1
    with pytest.raises(ServiceError) as caught:
        checked(text_request(), prompt=10)
    assert (caught.value.code, caught.value.reason) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "PROMPT_TOO_LONG",
    )
    assert caught.value.metadata == {"prompt_tokens": "10", "max_context_tokens": "10"}


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
        (chat("user", "robot"), "prompt.conversation.messages[1].role"),
        (chat(""), "prompt.conversation.messages[0].role"),
        (chat("user", "assistant", "user"), "prompt.conversation"),
    ],
)
def test_bad_prompts_name_their_field(prompt: inference_pb2.Prompt, field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        check_prompt(prompt, max_bytes=4)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == field


def test_good_prompts_pass() -> None:
    ids = inference_pb2.TokenIds(values=[0] * 9)
    for prompt, size in (
        (inference_pb2.Prompt(text="éé"), 4),
        (inference_pb2.Prompt(token_ids=ids), 0),
        (chat("system", "user"), 4),
    ):
        assert check_prompt(prompt, max_bytes=4) == size


def test_a_prompt_without_tokens_is_invalid() -> None:
    class Silent(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    with pytest.raises(ServiceError, match="no tokens"):
        prompt_token_ids(inference_pb2.Prompt(text="x"), Silent())  # type: ignore[arg-type]
