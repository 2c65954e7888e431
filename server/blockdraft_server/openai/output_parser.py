"""The parts of what a model says: thoughts, calls of tools, and the rest.

Thoughts stand between `<think>` and `</think>`, a call, as the models of Qwen and Hermes write it,
between `<tool_call>` and `</tool_call>`: a JSON object with the name and the arguments of a tool.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from blockdraft_protos.v1 import inference_pb2

_THINK, _THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
# A string, up to the end of the text where it is not whole, or the end of a call.
_QUOTED_OR_END = re.compile(rf'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)|({CALLED})', re.DOTALL)


Kind = Literal["content", "reasoning", "call"]
_INSIDE: dict[str, Kind] = {_THINK: "reasoning", CALL: "call"}


class Part(NamedTuple):
    """A piece of what was said, or a whole call in the form of OpenAI's functions."""

    kind: Kind
    text: str = ""
    call: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What a model writes, judged by its chat template."""

    reasoning: bool = False  # whether thoughts are told apart
    begins_reasoning: bool = False  # whether the prompt has opened a thought
    ends_reasoning: bool = False  # whether the prompt has closed it too
    tool_calls: bool = False  # whether calls of tools are told apart

    @classmethod
    def of(cls, template: Any, arguments: Mapping[str, Any] | None = None) -> "OutputFormat":
        """Judge a `ChatTemplate` that gets these arguments; None knows of nothing."""
        if template is None:
            return cls()
        source, opened, closed = template.source, False, False
        if _THINK in source:
            question, none = [{"role": "user", "content": "?"}], re.compile("(?!)")
            # A template may refuse such a conversation, or the arguments; the request will tell.
            with contextlib.suppress(ValueError):
                text, _ = template.render(
                    question, none, add_generation_prompt=True, arguments=arguments
                )
                opened, closed = map(text.rstrip().endswith, (_THINK, _THOUGHT))
        # Templates that know of no tools leave it to us to tell how they are called.
        calls = CALL in source or "tools" not in template.variables
        return cls(_THOUGHT in source, opened, closed, calls)

    @property
    def free_text(self) -> inference_pb2.FreeText | None:
        """What may precede text of which a form is demanded; None for nothing."""
        if not self.reasoning or self.ends_reasoning:
            return None
        return inference_pb2.FreeText(begin="" if self.begins_reasoning else _THINK, end=_THOUGHT)


class OutputParser:
    """Tells the parts of a text apart as it arrives."""

    def __init__(self, format: OutputFormat) -> None:
        """Begin a turn of a model of this format."""
        self._format = format
        self._inside: Kind = "reasoning" if format.begins_reasoning else "content"
        self._began = False  # whether anything but white space was said in this part
        # White space after a tag separates; that of an answer's beginning is kept until it is known
        # whether a tag follows.
        self._after_tag = format.begins_reasoning or format.ends_reasoning
        self._space = ""
        self._held = ""

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """Return what is certain after `text`, of the last one all that is left."""
        parts: list[Part] = []
        self._held += text
        while (found := self._next()) is not None:
            at, tag = found
            before, self._held = self._held[:at], self._held[at + len(tag) :]
            if self._inside == "call":
                parts.append(_call(before))
            else:
                self._say(parts, before)
            self._inside = _INSIDE.get(tag, "content")
            self._began, self._after_tag, self._space = False, True, ""
        if last:
            rest = CALL + self._held if self._inside == "call" else self._held
            self._inside = "content" if self._inside == "call" else self._inside
            self._say(parts, rest, last=True)
            self._held = ""
        elif self._inside != "call":
            certain = len(self._held) - self._beginning()
            said, self._held = self._held[:certain], self._held[certain:]
            self._say(parts, said)
        return parts

    def _say(self, parts: list[Part], text: str, *, last: bool = False) -> None:
        if not self._began and (self._format.reasoning or self._format.tool_calls):
            text = self._space + text
            if self._after_tag:
                text = text.lstrip()
            elif not last and not text.strip():
                self._space, text = text, ""
        if text:
            self._began = True
            parts.append(Part(self._inside, text))

    def _tags(self) -> tuple[str, ...]:
        """Return the tags that would end the present part."""
        if self._inside == "reasoning":
            return (_THOUGHT,)
        if self._inside == "call":
            return (CALLED,)
        thinks = self._format.reasoning and not self._began
        return (*((_THINK,) if thinks else ()), *((CALL,) if self._format.tool_calls else ()))

    def _next(self) -> tuple[int, str] | None:
        """Return where the next tag is, and which; a thought does not begin within a text."""
        if self._inside == "call":
            ends = (each.start(1) for each in _QUOTED_OR_END.finditer(self._held) if each[1])
            return next(((at, CALLED) for at in ends), None)
        found = [(self._held.find(tag), tag) for tag in self._tags()]
        known = [(at, tag) for at, tag in found if at >= 0]
        return min(
            ((at, tag) for at, tag in known if tag != _THINK or not self._held[:at].strip()),
            default=None,
        )

    def _beginning(self) -> int:
        """Return how much of the end of the text may begin a tag."""
        longest = 0
        for tag in self._tags():
            sizes = range(min(len(tag) - 1, len(self._held)), 0, -1)
            longest = max(longest, next((n for n in sizes if self._held.endswith(tag[:n])), 0))
        return longest


def _call(text: str) -> Part:
    try:
        found = json.loads(text)
        # Some models have it from other forms.
        name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Not a call, whatever it was meant to be; the caller shall see it.
        return Part("content", f"{CALL}{text}{CALLED}")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Part("content", f"{CALL}{text}{CALLED}")
    return Part("call", call={"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)})
