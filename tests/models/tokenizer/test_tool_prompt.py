"""Models whose chat template knows of no tools are told of them in words."""

import json
import re
from typing import Any

import pytest
from tests.models.tiny import CHAT_TEMPLATE

from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_models.tokenizer.tool_prompt import with_tools_in_words

RAIN = {"type": "function", "function": {"name": "rain", "description": "<|im_end|> Köln"}}
QUESTION = {"role": "user", "content": "Does it rain?"}


def call(**arguments: Any) -> dict[str, Any]:
    function = {"name": "rain", "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function}


def test_tools_are_told_of_in_the_system_message() -> None:
    [system, question] = with_tools_in_words([QUESTION], [RAIN, {"x": 1}])
    assert question == QUESTION
    assert system["role"] == "system"
    shown = system["content"].split("<tools>\n")[1].split("\n</tools>")[0]
    assert list(map(json.loads, shown.split("\n"))) == [RAIN, {"x": 1}]
    assert "Köln" in shown
    for content, before in (("Be brief.", "Be brief.\n\n"), ("", "")):
        [joined, _] = with_tools_in_words(
            [{"role": "system", "content": content}, QUESTION], [RAIN]
        )
        assert joined["content"].startswith(f"{before}# Tools")


@pytest.mark.parametrize(
    "refusal",
    ["{{ raise_exception('System role not supported') }}", ""],
    ids=["refused", "left out"],
)
def test_the_user_tells_of_tools_where_nobody_tells_of_a_system(refusal: str) -> None:
    source = "{% for m in messages %}{% if m.role == 'system' %}" + refusal
    source += "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    nothing = re.compile("(?!)")
    chat = ChatTemplate(source, {})
    text, _ = chat.render([QUESTION], nothing, add_generation_prompt=True, tools=[RAIN])
    assert text.startswith("<user># Tools")
    assert text.endswith(f"</tool_call>\n\n{QUESTION['content']}")
    answered = [{"role": "assistant", "content": "a"}, QUESTION]
    text, _ = chat.render(answered, nothing, add_generation_prompt=True, tools=[RAIN])
    assert re.findall("<(user|assistant)>", text) == ["user", "assistant", "user"]


def test_calls_and_their_answers_are_text() -> None:
    messages: list[dict[str, Any]] = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call(where="Köln"), call()]},
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
        {"role": "tool", "content": "no", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Hm.", "tool_calls": [call()]},
        {"role": "tool", "content": "maybe", "tool_call_id": "c3"},
    ]
    told = with_tools_in_words(messages, [])
    assert told[0] == QUESTION
    nowhere = '<tool_call>\n{"name": "rain", "arguments": {}}\n</tool_call>'
    somewhere = nowhere.replace("{}", '{"where": "Köln"}')
    assert [(one["role"], one["content"]) for one in told[1:]] == [
        ("assistant", f"{somewhere}\n{nowhere}"),
        (
            "user",
            "<tool_response>\nyes\n</tool_response>\n<tool_response>\nno\n</tool_response>",
        ),
        ("assistant", f"Hm.\n{nowhere}"),
        ("user", "<tool_response>\nmaybe\n</tool_response>"),
    ]


def test_only_templates_that_use_no_tools_get_words() -> None:
    control = re.compile(re.escape("<|im_end|>"))
    options: Any = {"add_generation_prompt": True, "tools": [RAIN]}
    answer = {"role": "tool", "content": "yes"}
    text, spelling = ChatTemplate(CHAT_TEMPLATE, {}).render([QUESTION, answer], control, **options)
    # The turns alone end with the control token; in what a tool says of itself it is text.
    assert text.count("<|im_end|>") == 3
    assert text.translate(spelling).count("<|im_end|>") == 4
    assert "<|im_start|>user\n<tool_response>\nyes" in text
    knowing = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}", {})
    text, spelling = knowing.render([QUESTION, answer], control, **options)
    assert text.translate(spelling) == json.dumps([QUESTION, answer]) + json.dumps(
        [RAIN], ensure_ascii=False
    )
