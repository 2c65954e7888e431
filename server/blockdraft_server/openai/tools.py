"""Tools of OpenAI's requests, and the form that calls of them must have.

A call is what Qwen and Hermes write and `output_parser` reads. Without a demand, strict tools or a
limit to one call, the model writes what it likes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.field_checks import check_count
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai.output_parser import CALL, CALLED
from blockdraft_server.openai.structured_outputs import Form

MAX_TOOLS = 1024


@dataclass(frozen=True, slots=True)
class Tools:
    """What the model may call."""

    texts: tuple[str, ...] = ()  # each tool as JSON, for the model's chat template to show
    tags: inference_pb2.StructuralTags | None = None  # how it may call them; None for as it likes
    named: bool = False  # whether the caller demands the call of one


class _Tool(NamedTuple):
    text: str
    name: str
    strict: bool
    parameters: Mapping[str, Any]


def asked_tools(fields: Fields, form: Form | None = None) -> Tools:
    """Return the tools that the model of a chat may or must call; none if it must not.

    What it says in place of calls has a form.
    """
    tools, choice = list(_tools(fields)), fields.take("tool_choice")
    single = not fields.flag("parallel_tool_calls", unset=True)
    if choice == "none" or (not tools and choice in (None, "auto")):
        return Tools()
    if not tools:
        raise invalid_argument("tool_choice", "tool_choice needs tools")
    callable_tools, named = tools, False
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = Fields(choice, "tool_choice").inner("allowed_tools")
        callable_tools = [_chosen(one, tools) for one in allowed.objects("tools")]
        choice = allowed.text("mode")
        allowed.finish()
        if choice not in ("auto", "required") or not callable_tools:
            raise allowed.unsupported("mode" if callable_tools else "tools")
    elif isinstance(choice, Mapping):
        callable_tools, named = [_chosen(Fields(choice, "tool_choice"), tools)], True
    elif choice not in (None, "auto", "required"):
        raise fields.unsupported("tool_choice")
    required = named or choice == "required"
    answers = [] if form is None or required else [_answer(form)]
    limited = required or single or answers or len(callable_tools) < len(tools)
    tags = None
    if limited or any(tool.strict for tool in tools):
        calls = [_tag(tool, checked=required or tool.strict) for tool in callable_tools]
        tags = inference_pb2.StructuralTags(
            tags=[*calls, *answers], required=required or bool(answers), single=single or named
        )
    return Tools(tuple(tool.text for tool in tools), tags, named)


def _tools(fields: Fields) -> Iterator[_Tool]:
    tools = fields.objects("tools")
    check_count("tools", len(tools), MAX_TOOLS, "tools")
    for tool in tools:
        text = json.dumps(tool.all())
        if tool.text("type") != "function":
            raise tool.unsupported("type")
        function = Fields(tool.take("function"), tool.named("function"))
        name = function.text("name")
        if not name:
            raise invalid_argument(function.named("name"), f"{function.named('name')} is missing")
        parameters = function.inner("parameters").all()
        yield _Tool(text, name, function.flag("strict"), parameters)


def _chosen(choice: Fields, tools: list[_Tool]) -> _Tool:
    """Return the tool that a choice names."""
    if choice.text("type") != "function":
        raise choice.unsupported("type")
    function = choice.inner("function")
    name = function.text("name")
    function.finish()
    choice.finish()
    for tool in tools:
        if tool.name == name:
            return tool
    raise invalid_argument(function.named("name"), f"{function.named('name')} is none of the tools")


def _answer(form: Form) -> inference_pb2.StructuralTag:
    """Return the form of what may be said in place of calls."""
    match form.constraint.WhichOneof("kind"):
        case "json_schema":
            return inference_pb2.StructuralTag(json_schema=form.constraint.json_schema)
        case "json_object":
            return inference_pb2.StructuralTag(json_schema='{"type": "object"}')
    message = f"{form.field} with tools must be JSON, unless tool_choice is none"
    raise invalid_argument(form.field, message)


def _tag(tool: _Tool, *, checked: bool) -> inference_pb2.StructuralTag:
    """Return the form of a call, whose arguments are an object or as the tool says."""
    name = json.dumps(tool.name, ensure_ascii=False)
    # Without parameters there is nothing to tell.
    parameters = tool.parameters or {"properties": {}, "additionalProperties": False}
    return inference_pb2.StructuralTag(
        trigger=CALL,
        begin=f'{CALL}\n{{"name": {name}, "arguments": ',
        json_schema=json.dumps({"type": "object", **(parameters if checked else {})}),
        end=f"}}\n{CALLED}",
    )
