"""The forms in which models write calls of tools and channels, by their chat templates.

A form is a table of tags: which of them ends a part of a kind, and the kind of part that it begins.
Tags that are control tokens of the model are seen as such, never in text that looks like them.
Published templates that write these forms: Qwen 2.5 and 3, Hermes 2 and 3, Qwen3-Coder (`HERMES`);
Mistral Small 3.2 and Magistral (`MISTRAL`), Nemo and Mistral 7B v0.3 (`MISTRAL_LIST`); Llama 3.1,
3.2 and 3.3 (`LLAMA`); FunctionGemma (`GEMMA`); gpt-oss (`HARMONY`, OpenAI's harmony format).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.openai import call_readers
from blockdraft_server.openai.call_readers import Call, Schemas

PartKind = Literal["content", "reasoning", "call", "header"]

# A string of JSON, which may hide the end of a call; it ends with the text if it is incomplete.
_STRING = r'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)'
_BEGINS, _ENDS = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of the completions of some models.

    Attributes:
        marks: Texts that the chat templates of these models hold, all of them.
        tags: By the kind of a part, the tags that end it and the kinds that follow.
        read: Reads the text of a call.
        call: The texts before the name, before the arguments and after them in a call that is
            demanded; None if JSON Schema cannot describe it.
        trigger: The beginning of such a call, which tells it from text.
        single: Whether a completion can have one call at most.
        leading: Tags that begin a call only where nothing precedes it.
        quoted: Pattern of quoted text, in which no tag ends a call.
        inner_tokens: Control tokens that `read` needs to see.
        stops: Control tokens that end a completion.
        id_length: Number of characters that the templates expect of a call's id; 0 for any.
        header: Returns the kind of a part by its header; None if parts have none.
        answer: Text that begins the answer proper.
        free_text: The text before a constrained answer, such as reasoning; None if there is none.
    """

    marks: tuple[str, ...]
    tags: Mapping[PartKind, Mapping[str, PartKind]]
    read: Callable[[str, Schemas], list[Call]]
    call: tuple[str, str, str] | None = None
    trigger: str = ""
    single: bool = False
    leading: frozenset[str] = frozenset()
    quoted: str = _STRING
    inner_tokens: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    id_length: int = 0
    header: Callable[[str], PartKind] | None = None
    answer: str = ""
    free_text: inference_pb2.FreeText | None = field(default=None, compare=False)

    @property
    def tokens(self) -> list[str]:
        """All texts that may be control tokens: the tags and the inner tokens."""
        return [*(tag for tags in self.tags.values() for tag in tags), *self.inner_tokens]


def _harmony_kind(header: str) -> PartKind:
    if "to=functions." in header:
        return "call"
    # Tools that the model has of itself are not offered; what it sends them is no answer.
    return "reasoning" if "analysis" in header or "to=" in header else "content"


HERMES = OutputForm(
    marks=("<tool_call>",),
    tags={"content": {"<tool_call>": "call"}, "call": {"</tool_call>": "content"}},
    read=call_readers.hermes_calls,
    call=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    trigger="<tool_call>",
    quoted=rf"{_STRING}|{call_readers.PARAMETER}|<parameter=.*",
)
MISTRAL = OutputForm(
    marks=("[TOOL_CALLS]", "[ARGS]"),
    tags={"content": {"[TOOL_CALLS]": "call"}, "call": {"[TOOL_CALLS]": "call"}},
    read=call_readers.mistral_calls,
    call=("[TOOL_CALLS]", "[ARGS]", ""),
    trigger="[TOOL_CALLS]",
    inner_tokens=("[CALL_ID]", "[ARGS]"),
    id_length=9,
)
MISTRAL_LIST = OutputForm(
    marks=("[TOOL_CALLS]",),
    tags=MISTRAL.tags,
    read=MISTRAL.read,
    call=('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]"),
    trigger="[TOOL_CALLS]",
    single=True,
    id_length=9,
)
LLAMA = OutputForm(
    marks=('{"name": function name, "parameters": dictionary of argument name and its value}',),
    tags={
        "content": {
            "<|python_tag|>": "call",
            '{"name": "': "call",
            '{"type": "function", "': "call",
        }
    },
    read=call_readers.llama_calls,
    call=('{"name": "', '", "parameters": ', "}"),
    trigger='{"name": "',
    single=True,
    leading=frozenset(('{"name": "', '{"type": "function", "')),
)
GEMMA = OutputForm(
    marks=("<start_function_call>", "<escape>"),
    tags={
        "content": {"<start_function_call>": "call"},
        "call": {"<end_function_call>": "content"},
    },
    read=call_readers.gemma_calls,
    quoted=r"<escape>.*?(?:<escape>|\Z)",
    inner_tokens=("<escape>",),
    stops=("<start_function_response>",),
)
_AFTER: Mapping[str, PartKind] = {
    "<|end|>": "header",
    "<|start|>": "header",
    "<|channel|>": "header",
}
HARMONY = OutputForm(
    marks=("<|channel|>", "<|message|>", "<|call|>"),
    tags={
        "header": {"<|message|>": "content"},
        "content": _AFTER,
        "reasoning": _AFTER,
        "call": _AFTER,
    },
    read=call_readers.harmony_calls,
    call=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
    trigger="<|channel|>",
    single=True,
    inner_tokens=("<|constrain|>",),
    stops=("<|return|>", "<|call|>"),
    header=_harmony_kind,
    answer="<|channel|>final<|message|>",
    free_text=inference_pb2.FreeText(begin=_BEGINS, end=_ENDS),
)
FORMS = (HARMONY, MISTRAL, MISTRAL_LIST, LLAMA, GEMMA, HERMES)


def output_form(template: Any) -> OutputForm | None:
    """Return the form that a `ChatTemplate` writes, None where it writes another form of calls."""
    # GLM 4.5 has another notation between the tags of Hermes.
    forms = FORMS if "<arg_key>" not in template.source else ()
    for form in forms:
        if all(mark in template.source for mark in form.marks):
            return form
    # Templates that know of no tools leave it to us to say how they are called.
    return HERMES if "tools" not in template.variables else None
