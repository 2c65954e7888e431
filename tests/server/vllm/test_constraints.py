"""Constraints of vLLM's protocol, and the JSON of its structural tags."""

import json
from typing import Any

import pytest

from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.vllm import vllm_engine_pb2 as pb
from blockdraft_runtime.status import ServiceError
from blockdraft_server.vllm.mapping import request_of


def request(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[1]), sampling_params=pb.SamplingParams(**sampling)
    )


SCHEMA = '{"type": "string"}'
STRUCTURES = {"structures": [{"begin": "<f>", "schema": {"type": "string"}, "end": "</f>"}]}
CONTENT = {"type": "json_schema", "json_schema": {"type": "string"}}
TAG = {"type": "tag", "begin": "<f>", "content": CONTENT, "end": "</f>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<g>", "<f"], "tags": [TAG]}
OURS = {"trigger": "<f", "begin": "<f>", "json_schema": SCHEMA, "end": "</f>"}


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a|b"}, {"regex": "a|b"}),
        ({"grammar": "start: /a/"}, {"grammar": "start: /a/"}),
        ({"choice": {"choices": ["a", "b"]}}, {"choice": {"texts": ["a", "b"]}}),
        (
            {"structural_tag": json.dumps({**STRUCTURES, "triggers": ["<f"]})},
            {"structural_tags": {"tags": [OURS]}},
        ),
        (
            {"structural_tag": json.dumps({"type": "structural_tag", "format": TRIGGERED})},
            {"structural_tags": {"tags": [OURS]}},
        ),
        (
            {
                "structural_tag": json.dumps(
                    {"format": {**TRIGGERED, "at_least_one": True, "stop_after_first": True}}
                )
            },
            {"structural_tags": {"tags": [OURS], "required": True, "single": True}},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_constraints_are_ours(asked: dict[str, Any], ours: dict[str, Any]) -> None:
    found, _ = request_of(request(**asked))
    assert found.sampling.constraint == inference_pb2.OutputConstraint(**ours)


@pytest.mark.parametrize(
    ("tag", "field"),
    [
        ([], ""),
        ({"type": "other"}, ".type"),
        ({**STRUCTURES, "triggers": ["<g"]}, ".structures[0].begin"),
        ({**STRUCTURES, "triggers": ["<f"], "x": 1}, ".x"),
        ({"structures": [1], "triggers": ["<f"]}, ".structures[0]"),
        ({"structures": {"a": 1}, "triggers": ["<f"]}, ".structures"),
        ({"format": {"type": "tag"}}, ".format.type"),
        ({"format": TRIGGERED, "triggers": []}, ".triggers"),
        ({"format": {**TRIGGERED, "excludes": ["x"]}}, ".format.excludes"),
        ({"format": {**TRIGGERED, "tags": [{**TAG, "x": 1}]}}, ".format.tags[0].x"),
        (
            {"format": {**TRIGGERED, "tags": [{**TAG, "content": {"type": "any_text"}}]}},
            ".format.tags[0].content.type",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_tags_of_other_forms_are_refused_by_name(tag: Any, field: str) -> None:
    with pytest.raises(ServiceError) as caught:
        request_of(request(structural_tag=json.dumps(tag)))
    assert caught.value.field == f"sampling_params.structural_tag{field}"
