"""From a caller's options to the messages of the wire."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from blockdraft_client.constraints import OutputConstraint, schema_text
from blockdraft_client.params import (
    CallOptions,
    ChatMessage,
    GenerationOptions,
    Priority,
    Prompt,
    SamplingParams,
)
from blockdraft_protos.v1 import inference_pb2

RequestT = TypeVar("RequestT", inference_pb2.GenerateRequest, inference_pb2.StreamGenerateRequest)

_MESSAGE_KEYS = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content"}
# Names of fields of `SamplingParams` in the messages, where they differ.
_WIRE_NAMES = {
    "max_tokens": "max_output_tokens",
    "logprobs": "log_probs",
    "prompt_logprobs": "prompt_log_probs",
    "stop": "stop_sequences",
}


def generation_request(
    kind: type[RequestT], prompt: Prompt, options: GenerationOptions
) -> tuple[RequestT, CallOptions, OutputConstraint | None]:
    """Return the request for one completion, the options of its call, and its form.

    `TypeError` if prompt or constraint have none of the forms, or there is no such option;
    `ValueError` if a message or the priority is malformed.
    """
    shortcuts: dict[str, Any] = dict(options)
    call = CallOptions(
        timeout=shortcuts.pop("timeout", None), metadata=shortcuts.pop("metadata", ())
    )
    sampling = shortcuts.pop("sampling", None) or SamplingParams()
    speculation = shortcuts.pop("speculation", None)
    priority, model = shortcuts.pop("priority", "normal"), shortcuts.pop("model", "")
    conversation = {name: shortcuts.pop(name, None) for name in ("tools", "template_arguments")}
    if priority not in get_args(Priority):
        raise ValueError(f"a priority is one of {', '.join(get_args(Priority))}; got {priority!r}")
    form = shortcuts.pop("response_format", None)
    if form is not None:
        form = form if isinstance(form, OutputConstraint) else OutputConstraint(json_schema=form)
        shortcuts["constraint"] = form
    sampling = dataclasses.replace(sampling, **shortcuts)
    chosen = {name: getattr(sampling, name) for name in SamplingParams.__slots__}
    for name in ("stop", "bad_words"):
        if isinstance(chosen[name], str):
            chosen[name] = [chosen[name]]
    if sampling.constraint is not None:
        chosen["constraint"] = _constraint_message(sampling.constraint)
    named = {_WIRE_NAMES.get(name, name): value for name, value in chosen.items()}
    drafting = None if speculation is None else dataclasses.asdict(speculation)
    request = kind(
        model=model,
        prompt=_with(prompt_message(prompt), **conversation),
        sampling=inference_pb2.SamplingOptions(**named),
        speculation=None if drafting is None else inference_pb2.SpeculationOptions(**drafting),
        priority=inference_pb2.Priority.Value(f"PRIORITY_{priority.upper()}"),
    )
    return request, call, form


def prompt_message(prompt: Prompt) -> inference_pb2.Prompt:
    """Return the wire form of a prompt; errors are those of `generation_request`."""
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    # An empty list has no form of its own; as token ids the server names the field at fault.
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        ids = inference_pb2.TokenIds(values=[item for item in prompt if isinstance(item, int)])
        return inference_pb2.Prompt(token_ids=ids)
    messages = [_chat_message(item) for item in prompt]
    return inference_pb2.Prompt(conversation=inference_pb2.Conversation(messages=messages))


def _constraint_message(constraint: OutputConstraint) -> inference_pb2.OutputConstraint:
    value: Any = getattr(constraint, constraint.kind)
    match constraint.kind:
        case "json_schema":
            value = schema_text(value)
        case "choice":
            value = {"texts": value}
        case "structural_tags":
            value = dataclasses.asdict(value)
            for tag in value["tags"]:
                tag["json_schema"] = schema_text(tag["json_schema"])
    free = constraint.free_text
    before = None if free is None else dataclasses.asdict(free)
    return inference_pb2.OutputConstraint(**{constraint.kind: value, "free_text": before})


def _with(
    prompt: inference_pb2.Prompt,
    tools: Sequence[Mapping[str, Any]] | None,
    template_arguments: Mapping[str, Any] | None,
) -> inference_pb2.Prompt:
    """Add the options of the chat template, which only a conversation goes through."""
    if not tools and not template_arguments:
        return prompt
    if prompt.WhichOneof("content") != "conversation":
        raise ValueError("tools and template_arguments are for conversations, lists of messages")
    prompt.conversation.tools.extend(map(json.dumps, tools or ()))
    if template_arguments:
        prompt.conversation.template_arguments = json.dumps(template_arguments)
    return prompt


def _chat_message(item: object) -> inference_pb2.ChatMessage:
    if isinstance(item, ChatMessage):
        return inference_pb2.ChatMessage(role=item.role, content=item.content)
    if not isinstance(item, Mapping):
        raise TypeError(
            "a prompt is a string, a sequence of int, or a sequence of ChatMessage or mappings; "
            f"got an item of type {type(item).__name__}"
        )
    if not {"role", "content"} <= set(item) <= _MESSAGE_KEYS:
        raise ValueError(
            'a message has the keys "role" and "content", and may have "tool_calls", '
            f'"tool_call_id" and "reasoning_content"; got {list(item)}'
        )
    try:
        calls = [
            inference_pb2.ToolCall(id=call.get("id"), **call["function"])
            for call in item.get("tool_calls") or ()
        ]
    except (AttributeError, KeyError, TypeError) as error:
        message = 'a tool call has an "id", and a "function" with its "name" and "arguments"'
        raise ValueError(message) from error
    return inference_pb2.ChatMessage(**{**item, "tool_calls": calls})
