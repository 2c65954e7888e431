"""Tools for models whose chat template has none: described in words, called in text.

The words and the tags are those that Qwen 2.5 and Hermes learned; other models may follow them, the
more so where a grammar lets them write nothing else.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], role: str = "system"
) -> list[Mapping[str, Any]]:
    """Return messages of system, user and assistant that describe tools, calls and answers.

    The tools go into the first message if it is of `role`, else into a new one before it; models
    without a system message take the user's. Calls are added to the assistant's text; answers that
    follow one another become one message of the user. Other messages stay as they are.
    """
    prompt: list[Mapping[str, Any]] = []
    for answers, group in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        if answers:
            texts = (f"<tool_response>\n{answer['content']}\n</tool_response>" for answer in group)
            prompt.append({"role": "user", "content": "\n".join(texts)})
        else:
            prompt.extend(map(_with_calls, group))
    if not tools:
        return prompt
    words = _TOOLS.format(tools="\n".join(map(_json, tools)))
    if prompt and prompt[0]["role"] == role:
        content = prompt.pop(0)["content"]
        both = (content, words) if role == "system" else (words, content)
        words = "\n\n".join(filter(None, both))
    return [{"role": role, "content": words}, *prompt]


def _with_calls(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    parts = [message["content"]] if message["content"] else []
    return {**message, "content": "\n".join([*parts, *map(_call, calls)])}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{_json(arguments)}\n</tool_call>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
