"""What a decoder that is compared gives: an answer and when its tokens came."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

# This project among its peers.
BLOCKDRAFT = "blockdraft"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode.

    Attributes:
        peer: The program: "blockdraft", "transformers" or "llama.cpp".
        name: How it decodes, such as "plain" or "prompt_lookup".
        dtype: Of its weights: an element type, or the quantization of a GGUF file.
    """

    peer: str
    name: str
    dtype: str

    def __str__(self) -> str:
        """Return what to call it in tables."""
        return f"{self.peer} {self.name} ({self.dtype})"


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer, decoded alone.

    Attributes:
        token_ids: Its tokens, the stop token included.
        first_tokens: How many of them came first, at once: 1, or more if the peer drafts before
            it has read the prompt.
        ttft_seconds: From the request to these.
        decode_seconds: From these to the last.
    """

    token_ids: tuple[int, ...]
    first_tokens: int
    ttft_seconds: float
    decode_seconds: float

    @property
    def timed_tokens(self) -> int:
        """Tokens that came in `decode_seconds`."""
        return len(self.token_ids) - self.first_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """Where answers end.

    Attributes:
        max_tokens: Most tokens of an answer.
        stop_token_ids: Tokens that end it.
    """

    max_tokens: int
    stop_token_ids: frozenset[int]


@runtime_checkable
class PeerDecoder(Protocol):
    """A program that decodes greedily, one answer at a time."""

    variant: Variant

    def decode(self, prompt: Sequence[int], limits: Limits) -> TimedAnswer:
        """Answer a prompt, all of it computed."""
        ...


class Stopwatch:
    """Counts tokens as they come and notes the time of the first and of the last."""

    def __init__(self, clock_seconds: float) -> None:
        """Start at `clock_seconds`."""
        self._start = clock_seconds
        self._first: tuple[int, float] | None = None
        self._last = clock_seconds

    def came(self, tokens: int, clock_seconds: float) -> None:
        """Note that `tokens` tokens came together."""
        if self._first is None:
            self._first = tokens, clock_seconds
        self._last = clock_seconds

    def answer(self, token_ids: Sequence[int], stop_token_ids: Collection[int]) -> TimedAnswer:
        """Return the answer, cut after its first stop token.

        Args:
            token_ids: All that came; at least one.
            stop_token_ids: Tokens that end an answer. Programs that accept several drafted tokens
                at a time may go on past one.
        """
        assert self._first is not None
        first_tokens, first_time = self._first
        ends = (index for index, token in enumerate(token_ids, 1) if token in stop_token_ids)
        kept = tuple(token_ids[: next(ends, len(token_ids))])
        return TimedAnswer(
            kept, min(first_tokens, len(kept)), first_time - self._start, self._last - first_time
        )
