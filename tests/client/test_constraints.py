"""Constraints of completions: how they are sent, and what becomes of the completion."""

from typing import Any, assert_type

import pydantic
import pytest
from tests.client.api import Api, on_any
from tests.fakes.inference import FakeInference, RunningFake

from blockdraft_client import (
    Client,
    FinishReason,
    FreeText,
    InvalidOutputError,
    OutputConstraint,
    SamplingParams,
    StructuralTag,
    StructuralTags,
)
from blockdraft_client.parsing import parse
from blockdraft_client.requests import generation_request
from blockdraft_protos.v1 import inference_pb2

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SCHEMA_TEXT = '{"type": "object", "properties": {"city": {"type": "string"}}}'
JSON_OBJECT = OutputConstraint(json_object=True)
VALUE = {"city": "Oslo", "degrees": 7}


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


class Answer:
    """What the SDK needs of a model class, without pydantic."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA

    @classmethod
    def model_validate_json(cls, text: str) -> str:
        return text.upper()


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (OutputConstraint(json_schema=SCHEMA), {"json_schema": SCHEMA_TEXT}),
        (OutputConstraint(json_schema="{}"), {"json_schema": "{}"}),
        (OutputConstraint(json_schema=Answer), {"json_schema": SCHEMA_TEXT}),
        (JSON_OBJECT, {"json_object": True}),
        (OutputConstraint(choice=["a", "b"]), {"choice": {"texts": ["a", "b"]}}),
        (OutputConstraint(grammar="start: /a/"), {"grammar": "start: /a/"}),
        (
            OutputConstraint(regex="a+", free_text=FreeText("</think>", begin="<think>")),
            {"regex": "a+", "free_text": {"begin": "<think>", "end": "</think>"}},
        ),
        (
            OutputConstraint(
                structural_tags=StructuralTags(
                    [
                        StructuralTag("<a>", SCHEMA, "</a>"),
                        StructuralTag("<b", Answer, trigger="<"),
                    ],
                    required=True,
                    single=True,
                )
            ),
            {
                "structural_tags": {
                    "tags": [
                        {"begin": "<a>", "json_schema": SCHEMA_TEXT, "end": "</a>"},
                        {"begin": "<b", "json_schema": SCHEMA_TEXT, "trigger": "<"},
                    ],
                    "required": True,
                    "single": True,
                }
            },
        ),
    ],
)
def test_every_kind_has_a_message(constraint: OutputConstraint, message: dict[str, Any]) -> None:
    sampling = SamplingParams(constraint=constraint)
    request, _, form = generation_request(
        inference_pb2.GenerateRequest, "hi", {"sampling": sampling}
    )
    assert request.sampling.constraint == inference_pb2.OutputConstraint(**message)
    assert form is None


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: OutputConstraint(), ValueError, "got none"),
        (lambda: OutputConstraint(regex="a", json_object=True), ValueError, "json_object, regex"),
        (lambda: OutputConstraint(choice="yes"), TypeError, "list of texts"),
    ],
)
def test_a_constraint_has_one_kind(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("form", "parsed"),
    [
        (Weather, Weather(city="Oslo", degrees=7)),
        (Answer, '{"CITY": "OSLO", "DEGREES": 7}'),
        (SCHEMA, VALUE),
        (JSON_OBJECT, VALUE),
        (OutputConstraint(regex=".*"), None),
        (None, None),
    ],
)
async def test_a_completion_is_parsed(
    api: Api, service: FakeInference, form: Any, parsed: object
) -> None:
    done = await api.call("generate", "hi", response_format=form)
    streamed = await on_any(api.client.stream("hi", response_format=form), "completion")
    assert (done.parsed, streamed.parsed) == (parsed, parsed)
    assert service.requests[0].sampling == service.requests[1].sampling
    assert service.requests[0].sampling.HasField("constraint") == (form is not None)


def test_type_checkers_know_what_is_parsed(fake: RunningFake) -> None:
    with Client(fake.target) as client:
        assert assert_type(client.generate("hi", response_format=Weather).parsed, Weather).degrees
        with client.stream("hi", response_format=Weather) as stream:
            assert assert_type(stream.completion().parsed, Weather).city == "Oslo"


async def test_without_a_response_format_nothing_is_parsed(api: Api) -> None:
    done = await api.call("generate", "hi", constraint=JSON_OBJECT)
    assert (done.text[0], done.parsed) == ("{", None)


@pytest.mark.parametrize("form", [Weather, SCHEMA, JSON_OBJECT])
async def test_what_was_cut_off_is_told_with_the_completion(
    api: Api, service: FakeInference, form: Any
) -> None:
    service.finish_reason = inference_pb2.FINISH_REASON_LENGTH
    stream = api.client.stream("hi", response_format=form)
    for call in (
        api.call("generate", "hi", response_format=form),
        on_any(stream, "completion"),
    ):
        with pytest.raises(InvalidOutputError, match="reason length after 3 tokens") as caught:
            await call
        assert caught.value.completion.text == '{"city": "Oslo"'
        assert caught.value.completion.finish_reason is FinishReason.LENGTH
        assert isinstance(caught.value.__cause__, ValueError)


async def test_what_is_no_schema_is_not_sent(api: Api, service: FakeInference) -> None:
    with pytest.raises(TypeError, match="model_json_schema"):
        await api.call("generate", "hi", response_format=int)
    assert not service.calls


def test_reasoning_is_not_parsed() -> None:
    begun = OutputConstraint(json_object=True, free_text=FreeText("</think>"))
    assert parse('{?</think>\n{"a": "</think>"}', begun) == {"a": "</think>"}
    optional = OutputConstraint(json_object=True, free_text=FreeText("</think>", begin="<think>"))
    assert parse("<think>Hm.</think>{}", optional) == parse("{}", optional) == {}
    with pytest.raises(ValueError, match="Expecting value"):
        parse("<think>Hm.", optional)
