"""Tools of OpenAI's requests, and the form that calls of them must have.

A call has the model's own form, or that of Hermes where JSON Schema cannot describe it. Without a
demand, strict tools or a limit to one call, the model writes what it likes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.field_checks import check_count
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.json_fields import Fields
from blockdraft_server.openai.call_readers import Schemas
from blockdraft_server.openai.output_forms import HERMES, OutputForm
from blockdraft_server.openai.structured_outputs import Form

MAX_TOOLS = 1024


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may call."""

    texts: tuple[str, ...] = ()  # each tool as JSON, for the model's chat template to show
    tags: inference_pb2.StructuralTags | None = None  # the form of its calls; None for any
    named: bool = False  # whether the caller demands the call of one
    schemas: Schemas = field(default_factory=dict)  # of the parameters of these tools, by name


class _Tool(NamedTuple):
    text: str
    name: str
    strict: bool
    parameters: Mapping[str, Any]


def tools_of(fields: Fields, form: Form | None = None, calls: OutputForm = HERMES) -> Tools:
    """Return the tools that the model of a chat may or must call; none if it must not.

    `form` is that of text in place of calls, `calls` that of calls which are demanded.
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
        callable_tools = [_tool_of(tool, tools) for tool in allowed.objects("tools")]
        choice = allowed.text("mode")
        allowed.finish()
        if choice not in ("auto", "required") or not callable_tools:
            raise allowed.unsupported("mode" if callable_tools else "tools")
    elif isinstance(choice, Mapping):
        callable_tools, named = [_tool_of(Fields(choice, "tool_choice"), tools)], True
    elif choice not in (None, "auto", "required"):
        raise fields.unsupported("tool_choice")
    required = named or choice == "required"
    limited = required or single or form is not None or len(callable_tools) < len(tools)
    tags = None
    if limited or any(tool.strict for tool in tools):
        tags = inference_pb2.StructuralTags(
            tags=[_tag(tool, calls, checked=required or tool.strict) for tool in callable_tools],
            required=required or form is not None or bool(calls.answer),
            single=single or named or calls.single,
        )
        if not required and (form is not None or calls.answer):
            tags.tags.add(begin=calls.answer, json_schema="" if form is None else _schema(form))
    schemas = {tool.name: tool.parameters for tool in callable_tools}
    return Tools(tuple(tool.text for tool in tools), tags, named, schemas)


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


def _tool_of(choice: Fields, tools: list[_Tool]) -> _Tool:
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


def _schema(form: Form) -> str:
    """Return the JSON Schema of text in place of calls."""
    match form.constraint.WhichOneof("kind"):
        case "json_schema":
            return form.constraint.json_schema
        case "json_object":
            return '{"type": "object"}'
    message = f"{form.field} with tools must be JSON, unless tool_choice is none"
    raise invalid_argument(form.field, message)


def _tag(tool: _Tool, calls: OutputForm, *, checked: bool) -> inference_pb2.StructuralTag:
    """Return the form of a call; its arguments follow the tool's schema only if `checked`."""
    assert calls.call is not None
    before, between, after = calls.call
    name = tool.name
    if before.endswith('"'):
        name = json.dumps(name, ensure_ascii=False)[1:-1]
    # Without parameters there is nothing to tell.
    parameters = tool.parameters or {"properties": {}, "additionalProperties": False}
    return inference_pb2.StructuralTag(
        trigger=calls.trigger,
        begin=f"{before}{name}{between}",
        json_schema=json.dumps({"type": "object", **(parameters if checked else {})}),
        end=after,
    )
