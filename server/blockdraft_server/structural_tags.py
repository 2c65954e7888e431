"""From structural tags as vLLM, SGLang and gateways write them, in JSON, to ours.

Either "structures" with "triggers", or a "format" of "triggered_tags". The tags hold JSON of a
schema; other formats and contents are refused. With "at_least_one", where others allow text after
the first tag, a completion consists of tags alone.
"""

import json
from collections.abc import Callable
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import invalid_argument
from blockdraft_server.json_fields import Fields, json_value


def structural_tags(given: object, path: str) -> inference_pb2.StructuralTags:
    """Return the tags of the JSON object, or of its text, that is at `path` of a request."""
    fields = Fields(json_value(given, path), path)
    fields.only("type", "structural_tag")
    if (form := fields.take("format")) is None:
        return _tags(fields, "structures", lambda tag: tag.take("schema"))
    fields.finish()
    fields = Fields(form, fields.named("format"))
    if fields.text("type") != "triggered_tags":
        raise fields.unsupported("type")
    return _tags(fields, "tags", _content_schema)


def _tags(
    fields: Fields, name: str, schema_of: Callable[[Fields], Any]
) -> inference_pb2.StructuralTags:
    triggers = fields.texts("triggers")
    found = inference_pb2.StructuralTags(
        required=fields.flag("at_least_one"), single=fields.flag("stop_after_first")
    )
    for tag in fields.objects(name):
        begin = tag.text("begin") or ""
        trigger = next(filter(begin.startswith, triggers), None)
        if trigger is None:
            message = f"{tag.named('begin')} begins with none of the triggers"
            raise invalid_argument(tag.named("begin"), message)
        schema, end = json.dumps(schema_of(tag)), tag.text("end") or ""
        tag.finish()
        found.tags.add(trigger=trigger, begin=begin, json_schema=schema, end=end)
    fields.finish()
    return found


def _content_schema(tag: Fields) -> Any:
    tag.only("type", "tag")
    content = tag.inner("content")
    if content.text("type") != "json_schema":
        raise content.unsupported("type")
    schema = content.take("json_schema")
    content.finish()
    return schema
