"""From the text of a call, its tags included, to the names and arguments of what is called. Pure.

A reader raises a `ValueError`, `KeyError`, `TypeError`, `AttributeError` or `RecursionError` for
text that is no call. Beside the text it gets the parameters of the tools, JSON Schemas by name.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

Schemas = Mapping[str, Mapping[str, Any]]
Call = dict[str, str]
"""The name and the arguments, JSON of an object, as in OpenAI's functions."""

_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
PARAMETER = r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>)"
_PARAMETERS = re.compile(PARAMETER, re.DOTALL)
_PYTHON = {"True": True, "False": False, "None": None}
_MISTRAL = re.compile(r"([^\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*({.*)", re.DOTALL)
_HARMONY = re.compile(r"to=functions\.([^\s<]+).*?<\|message\|>(.*)", re.DOTALL)
_GEMMA = re.compile(r"<start_function_call>\s*call:([^{]+)({.*})<end_function_call>", re.DOTALL)
# A text, or a name before a colon.
_GEMMA_WORD = re.compile(r"<escape>(.*?)<escape>|([^\s{}\[\],:]+)(?=\s*:)", re.DOTALL)


def hermes_calls(text: str, schemas: Schemas) -> list[Call]:
    """Read JSON between tags, as of Hermes and Qwen, or XML, as of Qwen3-Coder."""
    body = text.removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
    if not body.startswith("<function="):
        return [_call(_loads(body))]
    function = _FUNCTION.fullmatch(body)
    if function is None:
        raise ValueError("the function has no end")
    name, parameters = function[1].strip(), _PARAMETERS.findall(f"{function[2]}</function>")
    types = schemas.get(name, {}).get("properties", {})
    arguments = {key: _typed(value, types.get(key)) for key, value in parameters}
    return [_call({"name": name, "arguments": arguments})]


def mistral_calls(text: str, schemas: Schemas) -> list[Call]:
    """Read a JSON list, or a name and JSON."""
    body = text.removeprefix("[TOOL_CALLS]").strip()
    if body.startswith("["):
        return list(map(_call, _loads(body)))
    match = _MISTRAL.fullmatch(body)
    if match is None:
        raise ValueError("no name and arguments")
    return [_call({"name": match[1].strip(), "arguments": _loads(match[2])})]


def llama_calls(text: str, schemas: Schemas) -> list[Call]:
    """Read JSON that is not marked as a call: objects that name a tool, with semicolons between."""
    body, calls = text.removeprefix("<|python_tag|>").strip(), []
    while body:
        value, end = _DECODER.raw_decode(body)
        if value["name"] not in schemas:
            raise ValueError("no tool")
        calls.append(_call(value))
        body = body[end:].lstrip("; \n")
    return calls


def harmony_calls(text: str, schemas: Schemas) -> list[Call]:
    """Read the JSON of a message of gpt-oss to a function."""
    match = _HARMONY.search(text)
    if match is None:
        raise ValueError("no recipient")
    return [_call({"name": match[1], "arguments": _loads(match[2])})]


def gemma_calls(text: str, schemas: Schemas) -> list[Call]:
    """Read FunctionGemma's notation: names without quotation marks, texts between `<escape>`."""
    match = _GEMMA.fullmatch(text)
    if match is None:
        raise ValueError("no name and arguments")

    def quoted(word: re.Match[str]) -> str:
        return json.dumps(word[2] if word[1] is None else word[1])

    arguments = _loads(_GEMMA_WORD.sub(quoted, match[2]))
    return [_call({"name": match[1].strip(), "arguments": arguments})]


def _call(value: Any) -> Call:
    # Some models call the arguments `parameters`, as other forms do.
    name, arguments = value["name"], value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("a call has a name and an object")
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _typed(text: str, schema: Any) -> Any:
    """Return the value of a parameter: a string stays one, others are JSON or Python's words."""
    types = _types(schema)
    if "string" in types:
        return None if len(types) > 1 and text in ("null", "None") else text
    try:
        return _PYTHON[text] if text in _PYTHON else _loads(text)
    except ValueError:
        return text


def _types(schema: Any) -> set[str]:
    """Return the types that a schema names; if none, "object" for a reference, else "string"."""
    if not isinstance(schema, Mapping):
        return {"string"}
    names, variants = schema.get("type", []), schema.get("anyOf", schema.get("oneOf", []))
    types = {names} if isinstance(names, str) else set(names)
    return types.union(*map(_types, variants)) or {"object" if "$ref" in schema else "string"}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_loads = _DECODER.decode
