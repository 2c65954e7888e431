"""From our messages to OpenAI's JSON: whole answers, and the pieces of a stream."""

import abc
import codecs
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from blockdraft_models.tokenizer.text_decoder import TokenBytes
from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.completion import FINISH_NAMES
from blockdraft_server.openai.acceptance import acceptance
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_parser import OutputParser

Json = dict[str, Any]
Message = inference_pb2.StreamGenerateResponse


_SOURCE_NAMES: dict[int, str] = {
    inference_pb2.TOKEN_SOURCE_TARGET: "target",
    inference_pb2.TOKEN_SOURCE_DRAFTER: "drafter",
    inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP: "prompt_lookup",
    inference_pb2.TOKEN_SOURCE_GRAMMAR: "grammar",
}


@dataclass(slots=True)
class _Choice:
    """One completion, as far as it has come."""

    texts: list[str] = field(default_factory=list)
    log_probs: list[inference_pb2.TokenLogProbs] = field(default_factory=list)
    last: Message = field(default_factory=Message)
    begun: bool = False
    tokens: int = 0  # number of tokens whose log probabilities were sent
    length: int = 0  # characters of their text
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )


class Answer(abc.ABC):
    """The answer to one request, `count` completions of each of its prompts."""

    kind: str
    kind_of_piece: str
    prefix: str

    def __init__(
        self,
        model: str,
        prompts: int,
        count: int,
        wants_log_probs: bool,
        token_bytes: TokenBytes | None = None,
        details: bool = False,
    ) -> None:
        """Begin an answer; with `token_bytes`, pieces say where each token comes from.

        With `details`, the usage says how many drafted tokens were accepted.
        """
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._count = count
        self._wants_log_probs = wants_log_probs
        self._token_bytes, self._details = token_bytes, details
        self._choices = [_Choice() for _ in range(prompts * count)]
        self._usage: dict[int, inference_pb2.Usage] = {}

    def pieces(self, index: int, message: Message) -> list[Json]:
        """Return the pieces of a stream for a message of completion number `index`."""
        choice = self._choices[index]
        content = self._piece(index, message, first=not choice.begun)
        choice.begun = True
        piece = self._choice(index, message, message.log_probs, content)
        if self._token_bytes is not None:
            piece["token_sources"] = list(_sources(message, self._token_bytes))
        return [{**self._head, "object": self.kind_of_piece, "choices": [piece]}]

    def keep(self, index: int, message: Message) -> None:
        """Keep a message of an answer that is sent as a whole."""
        choice = self._choices[index]
        choice.texts.append(message.text)
        choice.log_probs.extend(message.log_probs)
        choice.last, choice.begun = message, True

    def whole(self) -> Json:
        """Return the whole answer."""
        choices = []
        for index, choice in enumerate(self._choices):
            content = self._whole(index, "".join(choice.texts))
            choices.append(self._choice(index, choice.last, choice.log_probs, content))
        return {**self._head, "object": self.kind, "choices": choices, **self._statistics()}

    def usage_piece(self) -> Json:
        """Return the piece of a stream that has only the usage."""
        head = {**self._head, "object": self.kind_of_piece}
        return {**head, "choices": [], **self._statistics()}

    def _statistics(self) -> Json:
        details = acceptance(list(self._usage.values())) if self._details else {}
        return {"usage": self.usage(), **details}

    def usage(self) -> Json:
        """Return the usage of all completions; a prompt counts once."""
        used = self._usage
        firsts = [usage for index, usage in used.items() if index % self._count == 0]
        prompt, output = _sum(firsts, "prompt_tokens"), _sum(used.values(), "output_tokens")
        accepted = _sum(used.values(), "accepted_tokens")
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": _sum(firsts, "cached_prompt_tokens")},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": _sum(used.values(), "drafted_tokens") - accepted,
            },
        }

    def _choice(
        self,
        index: int,
        message: Message,
        tokens: Sequence[inference_pb2.TokenLogProbs],
        content: Json,
    ) -> Json:
        choice = self._choices[index] if self._wants_log_probs else None
        return {
            "index": index,
            "finish_reason": self._reason(index, message),
            "logprobs": None if choice is None else self._log_probs(choice, tokens),
            **content,
        }

    def _reason(self, index: int, message: Message) -> str | None:
        """Return the finish reason if this message ends the completion, and note the usage."""
        if message.HasField("usage"):
            self._usage[index] = message.usage
        return FINISH_NAMES.get(message.finish_reason)

    @abc.abstractmethod
    def _piece(self, index: int, message: Message, *, first: bool) -> Json:
        """Return the field of a piece that holds the content of a message."""

    @abc.abstractmethod
    def _whole(self, index: int, text: str) -> Json:
        """Return the field of a choice that holds the whole text."""

    @abc.abstractmethod
    def _log_probs(self, choice: _Choice, tokens: Sequence[inference_pb2.TokenLogProbs]) -> Json:
        """Return the log probabilities of tokens."""


class ChatAnswer(Answer):
    """The next messages of a conversation, with reasoning and calls of tools apart."""

    kind, kind_of_piece, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self, *arguments: Any, format: OutputFormat, stand_ins: Mapping[str, str], named: bool
    ) -> None:
        """Begin an answer in this format; `named` if the caller demanded a call by its name.

        In the text, characters of `stand_ins` replace control tokens. `arguments` are `Answer`'s.
        """
        super().__init__(*arguments)
        self._format, self._named = format, named
        self._parsers = [OutputParser(format, stand_ins) for _ in self._choices]
        self._calls = [0] * len(self._choices)

    def pieces(self, index: int, message: Message) -> list[Json]:
        """Return pieces; the finish reason comes in a piece after that of calls, as from OpenAI.

        Its clients take a call for complete at the piece after it, and would miss one that comes
        with the finish reason.
        """
        [piece] = super().pieces(index, message)
        [choice] = piece["choices"]
        if choice["finish_reason"] is None or "tool_calls" not in choice["delta"]:
            return [piece]
        called = choice | {"finish_reason": None}
        end = {name: choice[name] for name in ("index", "finish_reason")}
        end |= {"delta": {}, "logprobs": None}
        return [piece | {"choices": [part]} for part in (called, end)]

    def _piece(self, index: int, message: Message, *, first: bool) -> Json:
        begin = {"role": "assistant", "content": ""} if first else {}
        return {"delta": begin | self._parts(index, message.text, bool(message.finish_reason))}

    def _whole(self, index: int, text: str) -> Json:
        message = {"role": "assistant", "content": None, "refusal": None}
        content = self._parts(index, text, last=True)
        if "tool_calls" not in content:
            message["content"] = ""
        for call in content.get("tool_calls", ()):
            del call["index"]
        return {"message": {**message, **content}}

    def _reason(self, index: int, message: Message) -> str | None:
        reason = super()._reason(index, message)
        # As OpenAI and vLLM, who say "stop" where the caller knows what is called.
        called = bool(self._calls[index]) and not self._named
        return "tool_calls" if reason == "stop" and called else reason

    def _parts(self, index: int, text: str, last: bool) -> Json:
        """Return the fields of a message or of a delta that `text` adds."""
        fields: Json = {}
        for part in self._parsers[index].push(text, last=last):
            if part.call is not None:
                call = {"index": self._calls[index], "id": self._call_id()}
                self._calls[index] += 1
                calls = fields.setdefault("tool_calls", [])
                calls.append({**call, "type": "function", "function": part.call})
            else:
                name = "content" if part.kind == "content" else "reasoning_content"
                fields[name] = fields.get(name, "") + part.text
        return fields

    def _call_id(self) -> str:
        name, form = uuid.uuid4().hex, self._format.form
        return name[: form.id_length] if form is not None and form.id_length else f"call_{name}"

    def _log_probs(self, choice: _Choice, tokens: Sequence[inference_pb2.TokenLogProbs]) -> Json:
        content = [
            {**_token(token.chosen), "top_logprobs": list(map(_token, token.alternatives))}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class TextAnswer(Answer):
    """Continuations of texts."""

    kind, kind_of_piece, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(
        self, *arguments: Any, echoed: Sequence[str | None] = (), bare: bool = False
    ) -> None:
        """Begin; `echoed` are the texts of the prompts, None for that in the first message.

        Nothing follows a `bare` prompt. `arguments` are `Answer`'s.
        """
        super().__init__(*arguments)
        self._echoed, self._bare = echoed, bare

    def pieces(self, index: int, message: Message) -> list[Json]:
        """Return a piece; the first one begins with the prompt if it is echoed."""
        return super().pieces(index, self._with_prompt(index, message))

    def keep(self, index: int, message: Message) -> None:
        """Keep a message, and the prompt before the first one if it is echoed."""
        super().keep(index, self._with_prompt(index, message))

    def _with_prompt(self, index: int, message: Message) -> Message:
        if self._bare:
            for name in ("text", "log_probs"):
                message.ClearField(name)
            if message.finish_reason:
                message.finish_reason = inference_pb2.FINISH_REASON_LENGTH
                message.usage.output_tokens = 0
        if not self._echoed or self._choices[index].begun:
            return message
        entries = list(message.prompt_log_probs)
        text = self._echoed[index // self._count]
        if text is None:
            text = b"".join(entry.chosen.token for entry in entries).decode(errors="replace")
        echo = Message()
        echo.CopyFrom(message)
        echo.text = text + message.text
        if self._wants_log_probs:
            echo.ClearField("log_probs")
            echo.log_probs.extend([*entries, *message.log_probs])
        return echo

    def _piece(self, index: int, message: Message, *, first: bool) -> Json:
        return {"text": message.text}

    def _whole(self, index: int, text: str) -> Json:
        return {"text": text}

    def _log_probs(self, choice: _Choice, tokens: Sequence[inference_pb2.TokenLogProbs]) -> Json:
        # Nothing precedes the first token of a prompt.
        unknown = 1 if self._echoed and not choice.tokens else 0
        # As from OpenAI, the chosen token is there also where it is none of the likeliest.
        ranked = [
            {_named(rival): rival.log_prob for rival in (token.chosen, *token.alternatives)}
            for token in tokens
        ]
        log_probs = [token.chosen.log_prob for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(choice.length)
            choice.length += len(choice.decoder.decode(token.chosen.token))
        choice.tokens += len(tokens)
        return {
            "tokens": [_named(token.chosen) for token in tokens],
            "token_logprobs": [None] * unknown + log_probs[unknown:],
            "top_logprobs": [None] * unknown + ranked[unknown:],
            "text_offset": offsets,
        }


def _sources(message: Message, token_bytes: TokenBytes) -> Iterator[Json]:
    """Yield the bytes and the source of each token; older verifiers do not say the latter."""
    for token_id, source in zip_longest(message.token_ids, message.token_sources, fillvalue=0):
        yield {"bytes": list(token_bytes(token_id)), "source": _SOURCE_NAMES.get(source, "unknown")}


def _token(token: inference_pb2.TokenLogProb) -> Json:
    return {"token": _shown(token), "logprob": token.log_prob, "bytes": list(token.token)}


def _shown(token: inference_pb2.TokenLogProb) -> str:
    return token.token.decode(errors="replace")


def _named(token: inference_pb2.TokenLogProb) -> str:
    """Return a unique name of a token: not all tokens are text, or whole characters."""
    if not token.token:
        return f"token_id:{token.token_id}"
    try:
        return token.token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.token)


def _sum(usages: Any, name: str) -> int:
    return sum(getattr(usage, name) for usage in usages)
