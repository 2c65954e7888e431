"""The format of a model's completions, judged by its chat template."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.openai.call_readers import Schemas
from blockdraft_server.openai.output_forms import OutputForm, PartKind, output_form

# Qwen, DeepSeek and others; Magistral.
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
# Unicode reserves these code points for use within a program.
_NONCHARACTERS = range(0xFDD0, 0xFDF0)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The parts that completions consist of.

    Attributes:
        reasoning: The tags around the model's reasoning; None without such tags.
        begins_reasoning: Whether the prompt has opened the reasoning.
        ends_reasoning: Whether the prompt has closed it too.
        form: The form of calls and channels; None for one that is not read.
        tools: Schemas of the parameters of the tools that may be called, by name.
    """

    reasoning: tuple[str, str] | None = None
    begins_reasoning: bool = False
    ends_reasoning: bool = False
    form: OutputForm | None = None
    tools: Schemas = field(default_factory=dict)

    @classmethod
    def of(
        cls, template: Any, arguments: Mapping[str, Any] | None = None, tools: Schemas | None = None
    ) -> "OutputFormat":
        """Judge a `ChatTemplate` that gets these arguments and tools; without one, all is text."""
        if template is None:
            return cls()
        source, opened, closed = template.source, False, False
        tags = next((tags for tags in _REASONING if tags[1] in source), None)
        if tags is not None and tags[0] in source:
            question, no_match = [{"role": "user", "content": "?"}], re.compile("(?!)")
            # A template may refuse such a conversation, or the arguments; the request will show it.
            with contextlib.suppress(ValueError):
                text, _ = template.render(
                    question, no_match, add_generation_prompt=True, arguments=arguments
                )
                opened, closed = map(text.rstrip().endswith, tags)
        form, tools = output_form(template), tools or {}
        # Without tools there are no calls, only channels: a tag is text then.
        used = form if tools or (form is not None and form.header is not None) else None
        return cls(tags, opened, closed, used, tools)

    @property
    def free_text(self) -> inference_pb2.FreeText | None:
        """Free text that may precede constrained text; None if none may."""
        if self.form is not None and self.form.free_text is not None:
            return self.form.free_text
        if self.reasoning is None or self.ends_reasoning:
            return None
        begin, end = self.reasoning
        return inference_pb2.FreeText(begin="" if self.begins_reasoning else begin, end=end)

    @property
    def leading(self) -> frozenset[str]:
        """The tags that begin a part only where nothing precedes them."""
        begin = self.reasoning[:1] if self.reasoning else ()
        return frozenset(begin) | (self.form.leading if self.form else frozenset())

    def tags(self, kind: PartKind) -> dict[str, PartKind]:
        """Return the tags that end a part of a kind, and the kinds that follow."""
        tags = dict(self.form.tags.get(kind, {})) if self.form else {}
        if self.reasoning is not None:
            begin, end = self.reasoning
            if kind == "content":
                tags[begin] = "reasoning"
            elif kind == "reasoning":
                tags[end] = "content"
        return tags

    def stand_ins(self, control_tokens: Mapping[str, int]) -> dict[str, str]:
        """Return a character for each control token that separates parts, by its spelling."""
        spellings = [*(self.reasoning or ()), *(self.form.tokens if self.form else ())]
        control = dict.fromkeys(spelling for spelling in spellings if spelling in control_tokens)
        return dict(zip(control, map(chr, _NONCHARACTERS), strict=False))
