"""Requests too large to be decoded, judged by their encoded bytes and the limits of the model.

Decoding holds the event loop, and so does everything that looks at each element of a list: four
million token ids, or half a million empty messages, fit into a few megabytes. So the bytes are
walked first, no further than a request of a sensible size goes. Pure.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blockdraft_runtime.status import invalid_argument, malformed
from blockdraft_server.constraints import MAX_CONSTRAINT_BYTES, constraint_too_large
from blockdraft_server.request import ModelLimits, prompt_too_long

# `Tokenize` lists no more tokens: encoding the response holds the event loop.
MAX_LISTED_TOKENS = 256 * 1024
# Most fields of a request: a message of a conversation takes three.
MAX_FIELDS = 4096
# Shorter requests cannot hold up others.
_UNCHECKED_BYTES = 4096
# Most bytes of all but the prompt and a constraint: stop sequences, stop tokens, names.
_MAX_OTHER_BYTES = 64 * 1024
# Normalizing may shorten a text before it is tokenized: a syllable of three letters becomes one.
_SHRINKING = 4
# An encoded token id has at most four bytes: all vocabularies are below 2^28. Five is safe.
_BYTES_PER_ID = 5

# Fields of a request, of `Prompt`, and of the messages in it.
_PROMPT = 2
_PROMPT_TEXT = 3  # of vLLM's requests
_TEXT, _TOKEN_IDS, _CONVERSATION = 1, 2, 3
_VALUES, _MESSAGES, _CONTENT = 1, 1, 2
# Of the options, and those of a constraint that hold lists.
_SAMPLING, _CONSTRAINT, _LISTS = 3, 19, (4, 5)
# The same of vLLM's requests, where several fields are constraints and one of them a list.
_VLLM_SAMPLING, _VLLM_TEXTS, _VLLM_LIST = 4, (16, 17, 18, 19), 21
# Wire types of protobuf.
_VARINT, _FIXED_64, _BYTES, _GROUP, _GROUP_END, _FIXED_32 = range(6)


def check_size(
    method: str, data: bytes, max_prompt_bytes: int, limits: ModelLimits | None, longest_token: int
) -> None:
    """Refuse an encoded request that is too large, without decoding it.

    `max_prompt_bytes` bounds a prompt's text, or its encoded token ids. `limits` are None while
    unknown. `longest_token` is the number of bytes of the longest token.
    """
    if len(data) <= _UNCHECKED_BYTES:
        return
    size = _checked(encoded_size, data, max_prompt_bytes, "prompt", "sampling")
    min_tokens = -(-size.id_bytes // _BYTES_PER_ID)
    if method == "Tokenize":
        limit = MAX_LISTED_TOKENS
    elif limits is not None:
        limit = limits.max_context_tokens
        min_tokens = max(min_tokens, -(-size.text_bytes // (_SHRINKING * longest_token)))
    else:
        return
    if min_tokens >= limit:
        raise prompt_too_long(min_tokens, limit)


def check_tokenized_size(data: bytes, max_prompt_bytes: int, limits: ModelLimits | None) -> None:
    """Refuse an encoded request of vLLM's protocol that is too large, without decoding it.

    Its prompt is field 2, a text for reference and token ids, or field 3, a text.
    """
    if len(data) <= _UNCHECKED_BYTES:
        return
    size = _checked(_tokenized_size, data, max_prompt_bytes, "tokenized", "sampling_params")
    min_tokens = -(-size.id_bytes // _BYTES_PER_ID)
    if limits is not None and min_tokens >= limits.max_context_tokens:
        raise prompt_too_long(min_tokens, limits.max_context_tokens)


def _checked(
    measure: Callable[[bytes], "EncodedSize"],
    data: bytes,
    max_prompt_bytes: int,
    prompt: str,
    options: str,
) -> "EncodedSize":
    """Return the size of a request; errors name the fields `prompt` and `options`."""
    try:
        size = measure(data)
    except TooManyFieldsError:
        message = f"the request has more than {MAX_FIELDS} fields; token ids have to be packed"
        raise invalid_argument(prompt, message, limit=MAX_FIELDS) from None
    except ValueError:
        raise malformed() from None
    if size.constraint_bytes > MAX_CONSTRAINT_BYTES:
        raise constraint_too_large(size.constraint_bytes)
    if size.other_bytes > _MAX_OTHER_BYTES:
        message = f"all but the prompt has {size.other_bytes} bytes, at most {_MAX_OTHER_BYTES} may"
        raise invalid_argument(options, message, bytes=size.other_bytes, limit=_MAX_OTHER_BYTES)
    prompt_bytes = max(size.text_bytes, size.id_bytes)
    if prompt_bytes > max_prompt_bytes:
        message = f"the prompt has {prompt_bytes} bytes, at most {max_prompt_bytes} are allowed"
        raise invalid_argument(prompt, message, bytes=prompt_bytes, limit=max_prompt_bytes)
    return size


class TooManyFieldsError(ValueError):
    """A request has more than `MAX_FIELDS` fields."""


@dataclass(slots=True)
class EncodedSize:
    """The parts of an encoded request that has a `Prompt` in field 2."""

    text_bytes: int = 0  # text of the prompt, of all messages of a conversation together
    # Token ids of the prompt; each takes one to five bytes, or ten if it is negative.
    id_bytes: int = 0
    other_bytes: int = 0  # all but the prompt and a constraint
    constraint_bytes: int = 0  # part of `other_bytes` if it has too many fields

    def add_constraint(self, start: int, end: int) -> None:
        """Count the bytes of a constraint, which were counted as others before."""
        self.constraint_bytes += end - start
        self.other_bytes -= end - start


def encoded_size(data: bytes) -> EncodedSize:
    """Return the size of an encoded request to generate or to tokenize.

    `TooManyFieldsError`, or another `ValueError` if it is no encoded message.
    """
    size = EncodedSize(other_bytes=len(data))
    walk = _Walk(data)
    for number, kind, start, end in walk.fields(0, len(data)):
        if (number, kind) == (_PROMPT, _BYTES):
            size.other_bytes -= end - start
            _add_prompt(size, walk, start, end)
        elif (number, kind) == (_SAMPLING, _BYTES):
            options = _Walk(data)
            with contextlib.suppress(TooManyFieldsError):
                for place in options.messages(start, end, _CONSTRAINT):
                    for holder in options.messages(*place, *_LISTS):
                        options.count(*holder)
                    size.add_constraint(*place)
    return size


def _add_prompt(size: EncodedSize, walk: "_Walk", start: int, end: int) -> None:
    for number, kind, inner, inner_end in walk.fields(start, end):
        if kind != _BYTES:
            continue
        if number == _TEXT:
            size.text_bytes += inner_end - inner
        elif number == _TOKEN_IDS:
            for field, _, first, last in walk.fields(inner, inner_end):
                # Ids that are not packed are fields of their own.
                size.id_bytes += (last - first) * (field == _VALUES)
        elif number == _CONVERSATION:
            for message in walk.fields(inner, inner_end):
                if message[:2] == (_MESSAGES, _BYTES):
                    for field, _, first, last in walk.fields(*message[2:]):
                        size.text_bytes += (last - first) * (field == _CONTENT)


def _tokenized_size(data: bytes) -> EncodedSize:
    """Return the size of a request of vLLM's protocol; a text's length is checked where it is used.

    Errors are those of `encoded_size`.
    """
    size = EncodedSize(other_bytes=len(data))
    walk = _Walk(data)
    for number, kind, start, end in walk.fields(0, len(data)):
        if kind == _BYTES and number in (_PROMPT, _PROMPT_TEXT):
            size.other_bytes -= end - start
            if number == _PROMPT:
                for inner, _, first, last in walk.fields(start, end):
                    size.id_bytes += (last - first) * (inner == _TOKEN_IDS)
        elif (number, kind) == (_VLLM_SAMPLING, _BYTES):
            options = _Walk(data)
            with contextlib.suppress(TooManyFieldsError):
                for place in options.messages(start, end, *_VLLM_TEXTS):
                    size.add_constraint(*place)
                for holder in options.messages(start, end, _VLLM_LIST):
                    options.count(*holder)
                    size.add_constraint(*holder)
    return size


class _Walk:
    """Walks over the fields of encoded messages, and counts them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields = 0

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type, and start and end of the value of each field.

        Fields in a group count as fields of the message around it.
        """
        while start < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise TooManyFieldsError
            tag, start = self._varint(start, end)
            kind, value_end = tag & 7, start
            if kind == _VARINT:
                _, value_end = self._varint(start, end)
            elif kind == _BYTES:
                length, start = self._varint(start, end)
                value_end = start + length
            elif kind in (_FIXED_32, _FIXED_64):
                value_end = start + (4 if kind == _FIXED_32 else 8)
            elif kind not in (_GROUP, _GROUP_END):
                raise ValueError("unknown wire type")
            if value_end > end:
                raise ValueError("a field goes beyond its message")
            yield tag >> 3, kind, start, value_end
            start = value_end

    def messages(self, start: int, end: int, *numbers: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the values of these fields, if they are messages or texts."""
        for number, kind, first, last in self.fields(start, end):
            if number in numbers and kind == _BYTES:
                yield first, last

    def count(self, start: int, end: int) -> None:
        """Count the fields of a message, and read none of them."""
        for _ in self.fields(start, end):
            pass

    def _varint(self, start: int, end: int) -> tuple[int, int]:
        value = 0
        for index in range(start, min(start + 10, end)):
            byte = self._data[index]
            value |= (byte & 0x7F) << (7 * (index - start))
            if byte < 0x80:
                return value, index + 1
        raise ValueError("a number does not end")
