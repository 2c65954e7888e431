"""Chat templates: Jinja in a sandbox, with the control tokens of message contents disarmed."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tool_prompt import with_tools_in_words

Message = Mapping[str, Any]
"""A message with its role and content; the template may use further keys."""

_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))


class ChatTemplate:
    """A compiled chat template, as published in `tokenizer_config.json` or GGUF metadata.

    Attributes:
        source: Its text.
        variables: Names of the variables that it takes beside the messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile Jinja text, with special tokens as variables such as `bos_token`."""
        # Imported here: a process that never renders does not need Jinja.
        from jinja2 import TemplateError, meta

        from blockdraft_models.tokenizer.jinja_environment import environment_of_templates

        self.source = source
        environment = environment_of_templates()
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
            builtin_names = {
                "messages",
                "add_generation_prompt",
                *special_tokens,
                *environment.globals,
            }
            self.variables = (
                meta.find_undeclared_variables(environment.parse(source)) - builtin_names
            )
        except TemplateError as error:
            raise TokenizerError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        control_tokens: re.Pattern[str],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Any] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[int, str]]:
        """Render a conversation; every control token in the text comes from the template.

        `arguments` are further variables, all of which the template has to use. Tools are a
        variable too; if the template does not use it, the messages describe them in words.

        A message that contains, say, `<|im_end|>` must not end its own turn. Its control tokens
        are swapped for single private-use characters before rendering, so that the template
        still sees the content (it may trim it, or look for `</think>`), but cannot take it for
        its own control tokens. The second result maps these characters back, for `str.translate`.
        """
        _check(messages)
        variables = dict(arguments or {})
        if "tools" not in self.variables:
            role = "system" if not tools or self._tells_of_system else "user"
            messages = with_tools_in_words(messages, tools, role)
        elif tools:
            variables["tools"] = list(tools)
        for name in variables:
            if name not in self.variables:
                raise TokenizerError(f"the model's chat template does not take {name}")
        values = list(_texts([messages, variables]))
        tokens = dict.fromkeys(token for value in values for token in control_tokens.findall(value))
        stand_ins = dict(zip(tokens, _unused_characters(values), strict=False))
        if len(stand_ins) < len(tokens):
            raise TokenizerError("the messages use every private-use character")

        def disarm(value: Any) -> Any:
            if isinstance(value, str):
                return control_tokens.sub(lambda match: stand_ins[match.group()], value)
            if isinstance(value, Mapping):
                return {disarm(key): disarm(item) for key, item in value.items()}
            if isinstance(value, Sequence):
                return [disarm(item) for item in value]
            return value

        try:
            text = self._rendered(
                list(map(_with_reasoning, disarm(messages))),
                add_generation_prompt,
                disarm(variables),
            )
        except Exception as error:  # a template is code: it can raise anything
            raise TokenizerError(f"the chat template refused the messages: {error}") from error
        return text, {ord(char): token for token, char in stand_ins.items()}

    @cached_property
    def _tells_of_system(self) -> bool:
        """Whether system messages are rendered; some templates refuse them or leave them out."""
        system, question = ({"role": role, "content": role * 2} for role in ("system", "user"))
        # A template is code: it can raise anything.
        with contextlib.suppress(Exception):
            return "systemsystem" in self._rendered([system, question], True, {})
        return False

    def _rendered(self, messages: list[Message], generation: bool, variables: Any) -> str:
        return self._template.render(
            messages=messages,
            add_generation_prompt=generation,
            **self._special_tokens,
            # Templates distinguish None from undefined.
            **{"tools": None, "documents": None, **variables},
        )


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise TokenizerError("a conversation needs at least one message")
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if key not in message:
                raise TokenizerError(f"message {index} has no {key}")
            if not isinstance(message[key], str):
                raise TokenizerError(f"{key} of message {index} is not a string")


def _with_reasoning(message: Message) -> Message:
    # gpt-oss' template has a name of its own for it.
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"thinking": reasoning, **message}


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in a structure of JSON values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _unused_characters(texts: Iterable[str]) -> Iterator[str]:
    used = set().union(*texts)
    return (chr(point) for point in _PRIVATE_USE if chr(point) not in used)
