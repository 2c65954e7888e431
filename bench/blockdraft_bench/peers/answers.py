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


def answer_of(
    token_ids: Sequence[int], seconds: Sequence[float], stop_token_ids: Collection[int]
) -> Answer:
    """Return an answer, cut after its first stop token.

    Args:
        token_ids: All that came; at least one.
        seconds: When each came, counted from the request; the same for those that came together.
        stop_token_ids: Tokens that end an answer. Programs that accept several drafted tokens at a
            time may go on past one.
    """
    ends = (index for index, token in enumerate(token_ids, 1) if token in stop_token_ids)
    kept = tuple(token_ids[: next(ends, len(token_ids))])
    times = seconds[: len(kept)]
    return Answer(
        kept,
        steps=(),
        stopped=kept[-1] in stop_token_ids,
        ttft_seconds=times[0],
        decode_seconds=times[-1] - times[0],
        first_tokens=list(times).count(times[0]),
    )
