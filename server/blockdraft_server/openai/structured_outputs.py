"""Forms that completions must have: OpenAI's `response_format`, vLLM's `structured_outputs`."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_server.constraints import structural_tags
from blockdraft_server.json_fields import Fields
from blockdraft_server.json_schemas import FIELD


class Form(NamedTuple):
    """A form that completions must have, and the field of the request that demands it."""

    field: str
    constraint: inference_pb2.OutputConstraint


def asked_form(fields: Fields) -> Form | None:
    """Return the form that a request demands in one of two fields; None for any text."""
    response_format, outputs = _response_format(fields), _structured_outputs(fields)
    if response_format is not None and outputs is not None:
        message = "structured_outputs and response_format exclude each other"
        raise invalid_argument(outputs.field, message)
    return response_format or outputs


@contextlib.contextmanager
def naming(form: Form | None) -> Iterator[None]:
    """Let errors about a constraint name the field that asked for it."""
    try:
        yield
    except ServiceError as error:
        if form is not None and error.field is not None and error.field.startswith(FIELD):
            error.field = error.field.replace(FIELD, form.field)
            error.message = error.message.replace(FIELD, form.field)
        raise


def _response_format(fields: Fields) -> Form | None:
    name = "response_format"
    content = fields.take(name)
    if content is None:
        return None
    inner = Fields(content, name)
    kind, constraint = inner.text("type"), inference_pb2.OutputConstraint()
    if kind == "structural_tag":
        constraint.structural_tags.CopyFrom(structural_tags(content, name))
        return Form(name, constraint)
    if kind == "json_object":
        constraint.json_object = True
    elif kind == "json_schema":
        schema = inner.inner("json_schema")
        constraint.json_schema = json.dumps(schema.take("schema"))
        # Names are for people, and a schema is kept to, strictly or not.
        for ignored in ("name", "description"):
            schema.text(ignored)
        schema.flag("strict")
        schema.finish()
    elif kind != "text":
        raise inner.unsupported("type")
    inner.finish()
    return None if kind == "text" else Form(name, constraint)


def _structured_outputs(fields: Fields) -> Form | None:
    name = "structured_outputs"
    content = fields.take(name)
    if content is None:
        return None
    inner = Fields(content, name)
    schema, tags, texts = inner.take("json"), inner.take("structural_tag"), inner.texts("choice")
    kinds: dict[str, Any] = {
        "json_schema": schema if isinstance(schema, str | None) else json.dumps(schema),
        "json_object": inner.flag("json_object") or None,
        "regex": inner.text("regex"),
        "choice": inference_pb2.Choices(texts=texts) if texts else None,
        "grammar": inner.text("grammar"),
        "structural_tags": None
        if tags is None
        else structural_tags(tags, inner.named("structural_tag")),
    }
    inner.finish()
    arguments = {kind: value for kind, value in kinds.items() if value is not None}
    if len(arguments) != 1:
        kinds_there = "json, json_object, regex, choice, grammar and structural_tag"
        raise invalid_argument(name, f"{name} must have exactly one of {kinds_there}")
    return Form(name, inference_pb2.OutputConstraint(**arguments))
