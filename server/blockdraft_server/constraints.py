"""Constraints on completions: from the constraint of a request to a grammar of llguidance.

The verifier reads grammars in llguidance's JSON format: a main one in its dialect of Lark and, by
name, the JSON Schemas and grammars of callers that it refers to. What may precede the constrained
text and what may surround structural tags becomes lazy lexemes, which end where their last
characters first occur. Control tokens are no text and stand for themselves. Pure; the verifier
finds out whether a schema or a grammar can be compiled.

Structural tags also come in JSON, as vLLM, SGLang and gateways write them: either "structures" with
"triggers", or a "format" of "triggered_tags". The tags hold JSON of a schema; other formats and
contents are refused. With "at_least_one", where others allow text after the first tag, a completion
consists of tags alone. A tag that begins with nothing then stands in place of all of them.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.field_checks import check_count
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_server.json_fields import Fields, json_value
from blockdraft_server.json_schemas import FIELD, enforceable

MAX_CONSTRAINT_BYTES = 256 * 1024
MAX_CHOICES = 1024
MAX_TAGS = 128

_NOTHING = '""'  # in Lark


def check_constraint(constraint: inference_pb2.OutputConstraint) -> None:
    """Check a constraint as far as that needs no tokenizer."""
    size, kind = constraint.ByteSize(), constraint.WhichOneof("kind")
    if size > MAX_CONSTRAINT_BYTES:
        raise constraint_too_large(size)
    if kind is None:
        raise invalid_argument(FIELD, f"{FIELD} must say what the completion must look like")
    field, value = f"{FIELD}.{kind}", getattr(constraint, kind)
    if kind == "json_schema":
        _check_schema(field, value)
    elif kind == "choice":
        _check_there(f"{field}.texts", value.texts)
        check_count(f"{field}.texts", len(value.texts), MAX_CHOICES, "texts")
        for index, text in enumerate(value.texts):
            _check_there(f"{field}.texts[{index}]", text)
    elif kind == "structural_tags":
        _check_there(f"{field}.tags", value.tags)
        check_count(f"{field}.tags", len(value.tags), MAX_TAGS, "tags")
        for index, tag in enumerate(value.tags):
            _check_tag(f"{field}.tags[{index}]", tag, required=value.required)
        if not value.required:
            _check_triggers(f"{field}.tags", {_trigger(tag) for tag in value.tags})
    elif kind == "json_object":
        if not value:
            raise invalid_argument(field, f"{field} must be true where it is set")
    else:
        _check_there(field, value)
    if kind == "regex" and re.sub(r"\\.", "", value, flags=re.DOTALL).endswith("\\"):
        raise invalid_argument(field, f"{field} must not end with a backslash that escapes nothing")
    if constraint.HasField("free_text"):
        _check_there(f"{FIELD}.free_text.end", constraint.free_text.end)


def constraint_too_large(size: int) -> ServiceError:
    """Return the error for a constraint of `size` bytes."""
    message = f"{FIELD} has {size} bytes, at most {MAX_CONSTRAINT_BYTES} may be"
    return invalid_argument(FIELD, message, bytes=size, limit=MAX_CONSTRAINT_BYTES)


def _check_there(field: str, value: Any) -> None:
    if not value:
        raise invalid_argument(field, f"{field} must not be empty")


def _check_tag(field: str, tag: inference_pb2.StructuralTag, *, required: bool) -> None:
    if not required:
        _check_there(f"{field}.begin", tag.begin)
    if not tag.begin.startswith(tag.trigger):
        message = f"{field}.begin must start with the trigger {tag.trigger!r}"
        raise invalid_argument(f"{field}.begin", message)
    if tag.json_schema:
        _check_schema(f"{field}.json_schema", tag.json_schema)
    else:
        _check_there(f"{field}.begin", tag.begin)


def _check_triggers(field: str, triggers: Collection[str]) -> None:
    # A trigger that begins others is the beginning of the one after it in sorted order.
    for first, second in itertools.pairwise(sorted(triggers)):
        if second.startswith(first):
            message = f"the trigger {first!r} begins the trigger {second!r}, and so hides it"
            raise invalid_argument(field, message)


def _trigger(tag: inference_pb2.StructuralTag) -> str:
    return tag.trigger or tag.begin


def _check_schema(field: str, text: str) -> None:
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise invalid_argument(field, f"{field} is nested too deeply") from None
    except ValueError as error:
        raise invalid_argument(field, f"{field} is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise invalid_argument(field, f"{field} must be a JSON object, true or false")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def grammar_of(
    constraint: inference_pb2.OutputConstraint, control_tokens: Mapping[str, int]
) -> str:
    """Return the grammar of a constraint that passed `check_constraint`.

    `control_tokens` are the target's, by their spelling in its tokenizer's files.
    """
    grammar = _Grammar(control_tokens)
    try:
        body = grammar.body(constraint)
        if constraint.HasField("free_text"):
            free = constraint.free_text
            lead = grammar.parts(free.lead) if free.lead else ()
            body = " ".join([grammar.free_text(free), *lead, f"({body})"])
        return grammar.whole(body)
    except (ValueError, TypeError, RecursionError) as error:
        # It is no schema, no Unicode, or nested too deeply, or has a number that JSON has not.
        raise invalid_argument(FIELD, f"{FIELD} holds unusable JSON: {error}") from None


class _Grammar:
    """The rules of the main grammar, and the grammars that they refer to, as they are written."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._control_tokens = control_tokens
        # Longest first: a control token may begin another. Without any, match nothing.
        spellings = sorted(control_tokens, key=len, reverse=True)
        pattern = "|".join(map(re.escape, spellings)) or r"(?!)"
        self._control_pattern = re.compile(f"({pattern})")
        self._rules = [r"TEXT: /(.|\n)*/"]
        self._subgrammars: list[dict[str, Any]] = []

    def whole(self, start: str) -> str:
        """Return the whole grammar, in JSON, of completions that match the expression `start`."""
        main = {"name": "main", "lark_grammar": "\n".join([f"start: {start}", *self._rules])}
        grammar = {"grammars": [main, *self._subgrammars]}
        # Encoding fails on half of a surrogate pair.
        return json.dumps(grammar, allow_nan=False, ensure_ascii=False).encode().decode()

    def body(self, constraint: inference_pb2.OutputConstraint) -> str:
        """Return the expression for the constrained part."""
        match constraint.WhichOneof("kind"):
            case "json_schema":
                return self._schema(json.loads(constraint.json_schema))
            case "json_object":
                return self._schema({"type": "object"})
            case "regex":
                # Only a slash that is not escaped would end it.
                escaped = re.sub(r"\\.|/", _escape, constraint.regex, flags=re.DOTALL)
                return self._subgrammar(lark_grammar=f"start: /{escaped}/")
            case "choice":
                # One lexeme: a text may begin another one.
                return self._rule("CHOICE", " | ".join(map(json.dumps, constraint.choice.texts)))
            case "grammar":
                return self._subgrammar(lark_grammar=constraint.grammar)
            case _:
                return self._tagged(constraint.structural_tags)

    def free_text(self, free: inference_pb2.FreeText) -> str:
        """Return the expression for text that is not restricted, and up to two line breaks."""
        rest = rf'{self._text_until(free.end)} "\n"? "\n"?'
        if not free.begin:
            return rest
        head, *tokens = self.parts(free.begin)
        # Lazy, or else it could be read as the beginning of another text.
        begin = self._rule("begin", head, "[lazy]") if head != _NOTHING else head
        return f"({' '.join([begin, *tokens, rest])})?"

    def _text_until(self, end: str) -> str:
        """Return the expression for text up to the first occurrence of `end`, and with it."""
        head, *tokens = self.parts(end)
        if not tokens:
            return self._rule("until", f"TEXT {head}", "[lazy]")
        # No text can hold a control token, so nothing has to be lazy.
        return " ".join([self._rule("UNTIL", f"TEXT {head}"), *tokens])

    def _tagged(self, structure: inference_pb2.StructuralTags) -> str:
        tags = structure.tags
        if structure.required:
            # A tag that begins with nothing stands in place of all of them.
            answers = [self._tag(tag, "") for tag in tags if not tag.begin]
            calls = [self._tag(tag, "") for tag in tags if tag.begin]
            if not calls:
                return " | ".join(answers)
            rule = self._rule("tag", " | ".join(calls))
            return " | ".join([rule if structure.single else f'{rule} ("\\n" {rule})*', *answers])
        groups: dict[str, list[str]] = {}
        for tag in tags:
            groups.setdefault(_trigger(tag), []).append(self._tag(tag, _trigger(tag)))
        triggered = [
            f"{self._text_until(trigger)} ({' | '.join(group)})"
            for trigger, group in groups.items()
        ]
        rule = self._rule("tag", " | ".join(triggered))
        return f"{rule} | TEXT" if structure.single else f"{rule}* TEXT"

    def _tag(self, tag: inference_pb2.StructuralTag, trigger: str) -> str:
        """Return the expression for a tag after its trigger."""
        begin = self.parts(tag.begin.removeprefix(trigger))
        if not tag.json_schema:
            return " ".join([*begin, self._text_until(tag.end) if tag.end else "TEXT"])
        return " ".join([*begin, self._schema(json.loads(tag.json_schema)), *self.parts(tag.end)])

    def parts(self, text: str) -> Sequence[str]:
        """Return the expressions whose sequence is `text`: strings, and tokens between them.

        The first one is a string, empty where a control token begins the text.
        """
        pieces = self._control_pattern.split(text)
        # The pattern captures, so that odd pieces are control tokens and even ones text.
        return [
            f"<[{self._control_tokens[piece]}]>" if index % 2 else json.dumps(piece)
            for index, piece in enumerate(pieces)
            if piece or not index
        ]

    def _schema(self, schema: Any) -> str:
        return self._subgrammar(json_schema=enforceable(schema))

    def _subgrammar(self, **grammar: Any) -> str:
        name = f"grammar_{len(self._subgrammars)}"
        self._subgrammars.append({"name": name, **grammar})
        return f"@{name}"

    def _rule(self, name: str, definition: str, option: str = "") -> str:
        name = f"{name}_{len(self._rules)}"
        self._rules.append(f"{name}{option}: {definition}")
        return name


def _escape(match: re.Match[str]) -> str:
    return r"\/" if match[0] == "/" else match[0]


def structural_tags(value: object, path: str) -> inference_pb2.StructuralTags:
    """Return the tags of a JSON object at `path` of a request; it may be a text of JSON."""
    fields = Fields(json_value(value, path), path)
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
    structure = inference_pb2.StructuralTags(
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
        structure.tags.add(trigger=trigger, begin=begin, json_schema=schema, end=end)
    fields.finish()
    return structure


def _content_schema(tag: Fields) -> Any:
    tag.only("type", "tag")
    content = tag.inner("content")
    if content.text("type") != "json_schema":
        raise content.unsupported("type")
    schema = content.take("json_schema")
    content.finish()
    return schema
