"""Tells reasoning, calls of tools and content apart in a completion as it arrives."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from blockdraft_server.openai.call_readers import Call
from blockdraft_server.openai.output_format import OutputFormat
from blockdraft_server.openai.output_forms import PartKind


class Part(NamedTuple):
    """A piece of content or reasoning, or a whole call in the form of OpenAI's functions."""

    kind: PartKind
    text: str = ""
    call: Call | None = None


class _Tag(NamedTuple):
    """A tag in a text: where it is, what stands there, how it is spelled, and what it begins."""

    start: int
    mark: str
    spelling: str
    kind: PartKind


class OutputParser:
    """Reads one completion.

    A tag that is a control token comes as one character, its stand-in; what looks like it is text.
    """

    def __init__(self, format: OutputFormat, stand_ins: Mapping[str, str] | None = None) -> None:
        """Begin a completion of this format; `stand_ins` has a character per control token."""
        self._format, self._form = format, format.form
        self._stand_ins = dict(stand_ins or {})
        self._spellings = {ord(mark): tag for tag, mark in self._stand_ins.items()}
        self._channels = self._form is not None and self._form.header is not None
        self._kind: PartKind = "reasoning" if format.begins_reasoning else "content"
        if self._channels:
            self._kind = "header"
        self._opening = ""  # the tag, or the header, that began this part
        self._began = False  # whether anything but white space was in this part
        # White space after a tag is left out. At the beginning of an answer it waits in `_space`:
        # it is left out too if a tag follows, and belongs to the text otherwise.
        self._after_tag = format.begins_reasoning or format.ends_reasoning
        self._space = ""
        self._pending = ""

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """Return the parts that no later text can change; after the last text, all of them."""
        parts: list[Part] = []
        self._pending += text
        fresh = len(text)
        while (tag := self._next_tag(fresh)) is not None:
            before, self._pending = self._pending[: tag.start], self._pending[tag.start :]
            self._pending = self._pending[len(tag.mark) :]
            fresh = len(self._pending)
            self._end(parts, before, tag)
        if last and self._kind == "call":
            parts.extend(self._calls(self._opening + self._spelled(self._pending)))
        elif last and self._kind != "header":
            self._emit(parts, self._pending, last=True)
        elif self._kind in ("content", "reasoning"):
            certain = len(self._pending) - self._tag_beginning()
            self._emit(parts, self._pending[:certain])
            self._pending = self._pending[certain:]
        return parts

    def _end(self, parts: list[Part], text: str, tag: _Tag) -> None:
        """End a part at a tag; `text` is the end of the part."""
        kind, opening = tag.kind, tag.spelling
        if self._kind == "call":
            closing = opening if kind == "content" else ""
            parts.extend(self._calls(f"{self._opening}{self._spelled(text)}{closing}"))
        elif self._kind != "header":
            self._emit(parts, text)
        elif self._form is not None and self._form.header is not None:
            opening = f"{self._spelled(text)}{opening}"
            kind = self._form.header(opening)
            kind = "content" if kind == "call" and not self._format.tools else kind
        self._kind, self._opening = kind, opening
        self._began, self._after_tag, self._space = False, not self._channels, ""

    def _emit(self, parts: list[Part], text: str, *, last: bool = False) -> None:
        """Add text of the current kind; control tokens that are no tags there are left out."""
        text = self._without_control_tokens(text)
        if not self._began and (self._format.reasoning or self._form):
            text = self._space + text
            if self._after_tag:
                text = text.lstrip()
            elif not last and not text.strip():
                self._space, text = text, ""
        if text:
            self._began = True
            parts.append(Part(self._kind, text))

    def _calls(self, text: str) -> Iterator[Part]:
        assert self._form is not None
        try:
            calls = self._form.read(text, self._format.tools)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # No call, whatever it was meant to be; the caller shall see it.
            yield Part("content", text)
        else:
            yield from (Part("call", call=call) for call in calls)

    def _without_control_tokens(self, text: str) -> str:
        return text.translate(dict.fromkeys(self._spellings))

    def _spelled(self, text: str) -> str:
        return text.translate(self._spellings)

    def _tags(self) -> dict[str, tuple[str, PartKind]]:
        """Return the tags that end the current part: mark to spelling and kind of the next part."""
        return {
            self._stand_ins.get(tag, tag): (tag, kind)
            for tag, kind in self._format.tags(self._kind).items()
            if not (self._began and tag in self._format.leading)
        }

    def _next_tag(self, fresh: int) -> _Tag | None:
        """Return the next tag, which ends within the last `fresh` characters."""
        tags = self._tags()
        start = max(0, len(self._pending) - fresh - max(map(len, tags), default=0))
        places = [(place, mark) for mark in tags if (place := self._pending.find(mark, start)) >= 0]
        if self._kind == "call" and not self._stand_ins.keys() >= {tag for tag, _ in tags.values()}:
            # A tag in quotation marks is text. They are read only where there is a tag.
            places = list(self._unquoted(tags)) if places else []
        for place, mark in sorted(places):
            leads = not self._without_control_tokens(self._pending[:place]).strip()
            if leads or tags[mark][0] not in self._format.leading:
                return _Tag(place, mark, *tags[mark])
        return None

    def _unquoted(self, tags: dict[str, tuple[str, PartKind]]) -> Iterator[tuple[int, str]]:
        """Return place and mark of each tag that is not in quoted text."""
        assert self._form is not None
        ends = "|".join(map(re.escape, tags))
        matches = re.finditer(rf"{self._form.quoted}|(?P<end>{ends})", self._pending, re.DOTALL)
        return ((match.start("end"), match["end"]) for match in matches if match["end"])

    def _tag_beginning(self) -> int:
        """Return the length of the longest end of the pending text that may begin a tag."""
        longest = 0
        for mark in self._tags():
            sizes = range(min(len(mark) - 1, len(self._pending)), 0, -1)
            overlaps = (size for size in sizes if self._pending.endswith(mark[:size]))
            longest = max(longest, next(overlaps, 0))
        return longest
