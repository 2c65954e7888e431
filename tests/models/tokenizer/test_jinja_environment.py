"""Chat templates find what they find in transformers."""

import json
import re
from typing import Any

import pytest

from blockdraft_models.tokenizer.chat_template import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "<é>"},
    {"role": "assistant", "content": "b", "reasoning_content": "a"},
]


def rendered(template: str, messages: Any = MESSAGES, **options: Any) -> str:
    text, _ = ChatTemplate(template, {"bos_token": "<s>"}).render(
        messages, re.compile("(?!)"), add_generation_prompt=False, **options
    )
    return text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # What the assistant says is marked for training.
        (
            "{% for m in messages %}{% generation %}{% set x = m.content %}"
            "{{ loop.index }}{{ x }}{% endgeneration %}{{ x }};{% endfor %}",
            "1<é>;2b;",
        ),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<é>"}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", r'"\u00e9"'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{{ tools is none and documents is none }}", "True"),
        ("{{ messages[1].thinking }}{{ 'thinking' in messages[0] }}", "aFalse"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{%- set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ dict(a=ns.n) }}", "{'a': 2}"),
    ],
)
def test_what_templates_use(template: str, text: str) -> None:
    assert rendered(template) == text


def test_tools_are_given_where_there_are_some() -> None:
    assert json.loads(rendered("{{ tools | tojson }}", tools=[{"x": 1}])) == [{"x": 1}]
