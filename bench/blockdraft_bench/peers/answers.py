"""What takes part in the comparison, and when its tokens came."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from blockdraft_bench.common.answers import Answer

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

    def answer(self, token_ids: Sequence[int], stop_token_ids: Collection[int]) -> Answer:
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
        return Answer(
            kept,
            steps=(),
            stopped=kept[-1] in stop_token_ids,
            ttft_seconds=first_time - self._start,
            decode_seconds=self._last - first_time,
            first_tokens=min(first_tokens, len(kept)),
        )
