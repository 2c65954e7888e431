"""Chat templates find what they find in transformers, and conversations have its tokens."""

import json
import re
from collections.abc import Callable
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.hostile import change_json
from tests.models.tiny import CHAT_TEMPLATE, byte_tokenizer
from tests.models.tokenizer.sentencepiece import KINDS, described, write_tokenizer
from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.chat_template import ChatTemplate
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer

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


# Of ChatML, and of the kinds of Llama 3, Qwen 3 and Gemma: what they trim, cut, tell and refuse.
TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "trimming": (
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '<|im_end|>\n\n' + m.content | trim + '<|im_end|>' }}"
        "{% endfor %}"
    ),
    "with tools": (
        "{% if tools %}<|im_start|>system\n  {% for tool in tools %}\n{{ tool | tojson }}\n"
        "  {% endfor %}<|im_end|>\n{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
        "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "refusing": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ bos_token }}{% for m in messages %}"
        "{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "<|im_start|>{{ role }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    ),
}
# Control tokens of templates, as the tokenizers below spell them.
OF_BYTES = {name: f"<|{name}|>" for name in ("im_start", "im_end", "endoftext")}
OF_PIECES = {"im_start": "<|user|>", "im_end": "<|end|>", "endoftext": "<s>"}
SPELLED = [*OF_BYTES.values(), *OF_PIECES.values(), "<unk>", "</s>", "<|im_", "end|>"]
CONTENT = st.lists(
    st.sampled_from([*SPELLED, "</think>", " ", "\n", "he", "hello", "wor", "▁", "é", "\ue000"])
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="⟦⟧"), max_size=4),
    max_size=6,
).map("".join)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
CHATS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENT}), min_size=1, max_size=4)
TOOLS = st.lists(st.fixed_dictionaries({"name": CONTENT, "description": CONTENT}), max_size=2)
Encoder = Callable[[list[dict[str, str]], list[Any], bool], list[int] | None]


def as_transformers(content: dict[str, Any], template: str, bos: str) -> Encoder:
    """Return an encoder of conversations in two steps, or of None where the template refuses.

    It renders in a Jinja environment of its own, and the `tokenizers` library encodes the text.
    Here control tokens have spellings that no message has: in published ones it would take what a
    message says for them.
    """
    control = [token for token in content["added_tokens"] if token["special"]]
    spellings = {token["content"]: f"⟦{token['id']}⟧" for token in control}

    def renamed(text: str) -> str:
        for published, spelling in spellings.items():
            text = text.replace(published, spelling)
        return text

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    compiled = environment.from_string(renamed(template), {"raise_exception": refuse})
    backend = Backend.from_str(renamed(json.dumps(content, ensure_ascii=False)))

    def encode(messages: list[dict[str, str]], tools: list[Any], prompt: bool) -> list[int] | None:
        variables = {"bos_token": renamed(bos), "tools": tools or None}
        try:
            text = compiled.render(messages=messages, add_generation_prompt=prompt, **variables)
        except jinja2.TemplateError:
            return None
        return list(backend.encode(text, add_special_tokens=False).ids)

    return encode


def ours(tokenizer: Tokenizer) -> Encoder:
    def encode(messages: list[dict[str, str]], tools: list[Any], prompt: bool) -> list[int] | None:
        try:
            return tokenizer.encode_chat(messages, tools=tools, add_generation_prompt=prompt)
        except TokenizerError:
            return None

    return encode


def bytes_with_merges() -> dict[str, Any]:
    """A `tokenizer.json` of bytes and pairs of them."""
    content = byte_tokenizer(260)
    merges = [pair.split(" ") for pair in ("h e", "l l", "Ġ h", "he ll", "Ċ Ċ", "| >", "< |")]
    names = [token["content"] for token in content["added_tokens"]] + list(map("".join, merges))
    vocab = content["model"]["vocab"]
    content["model"] |= {
        "merges": merges,
        "vocab": vocab | {n: i for i, n in enumerate(names, 256)},
    }
    return content


@pytest.fixture(scope="module", params=["bytes", *KINDS])
def encoders(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Encoder, Encoder]]:
    """Ours and the reference, by template."""
    of_bytes = request.param == "bytes"
    content = bytes_with_merges() if of_bytes else described(request.param)
    names = OF_BYTES if of_bytes else OF_PIECES
    both = {}
    for number, (name, source) in enumerate(TEMPLATES.items()):
        for published, spelled in zip(OF_BYTES.values(), names.values(), strict=True):
            source = source.replace(published, spelled)
        folder = write_tokenizer(tmp_path_factory.mktemp(f"chats-{number}"), content)
        bos = names["endoftext"]
        change_json(folder / "tokenizer_config.json", chat_template=source, bos_token=bos)
        both[name] = ours(load_tokenizer(folder)), as_transformers(content, source, bos)
    return both


@given(data=st.data(), messages=CHATS, prompt=st.booleans(), tools=TOOLS)
@settings(max_examples=85, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_conversations_have_the_tokens_of_transformers(
    encoders: dict[str, tuple[Encoder, Encoder]],
    data: st.DataObject,
    messages: list[dict[str, str]],
    prompt: bool,
    tools: list[Any],
) -> None:
    name = data.draw(st.sampled_from([*TEMPLATES]))
    # Templates without tools, or answers of them, get words instead.
    if name != "with tools":
        tools = []
        messages = [message for message in messages if message["role"] != "tool"] or [
            {"role": "user", "content": ""}
        ]
    encode, expected = encoders[name]
    assert encode(messages, tools, prompt) == expected(messages, tools, prompt)
