"""From a response to a completion, with its text parsed as the caller's response format says."""

import json
from dataclasses import replace
from typing import Any

from blockdraft_client.constraints import OutputConstraint, ParsedT
from blockdraft_client.errors import InvalidOutputError
from blockdraft_client.results import Completion
from blockdraft_protos.v1 import inference_pb2


def parsed_completion(
    proto: inference_pb2.GenerateResponse, form: OutputConstraint | None
) -> Completion[ParsedT]:
    """Read the message, and parse the text if a form is given.

    `InvalidOutputError` if the text is not of this form, because something cut it off.
    """
    completion = Completion[ParsedT].from_proto(proto)
    if form is None:
        return completion
    try:
        return replace(completion, parsed=parse(completion.text, form))
    except (ValueError, RecursionError) as error:
        raise InvalidOutputError(completion, error) from error


def parse(text: str, form: OutputConstraint) -> Any:
    """Return the JSON of a completion, as an instance if its schema is a class's.

    None for forms other than JSON. `ValueError`, or `RecursionError`, if it is no such JSON.
    """
    if form.kind not in ("json_schema", "json_object"):
        return None
    free = form.free_text
    if free is not None and text.startswith(free.begin):
        text = text.partition(free.end)[2]
    if isinstance(form.json_schema, type):
        return form.json_schema.model_validate_json(text)
    return json.loads(text)
