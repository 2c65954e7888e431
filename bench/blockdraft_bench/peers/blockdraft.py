"""This project's decoder among its peers: the engine in this process, with drafts or without."""

from collections.abc import Sequence

from blockdraft_bench.common.answers import PLAIN
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.sample_decoder import decode_alone
from blockdraft_bench.peers.answers import BLOCKDRAFT, Limits, TimedAnswer, Variant
from blockdraft_verifier.scheduling.sequence import GenerationRequest

DRAFTED = "drafted"


class BlockdraftPeer:
    """The in-process decoder, one request at a time."""

    def __init__(self, decoder: InProcessDecoder, *, drafted: bool, dtype: str) -> None:
        """Decode with `decoder`, warmed up.

        Args:
            decoder: Target and drafter.
            drafted: Whether to draft, as far as the decoder's policy goes.
            dtype: Of its weights.
        """
        self.variant = Variant(BLOCKDRAFT, DRAFTED if drafted else PLAIN, dtype)
        self._decoder = decoder
        self._max_draft_tokens = None if drafted else 0

    def decode(self, prompt: Sequence[int], limits: Limits) -> TimedAnswer:
        """Answer a prompt, all of it computed."""
        request = GenerationRequest(
            "peers",
            tuple(prompt),
            max_output_tokens=limits.max_tokens,
            stop_token_ids=limits.stop_token_ids,
            max_draft_tokens=self._max_draft_tokens,
        )
        decoded = decode_alone(self._decoder, request)
        return TimedAnswer(
            decoded.answer.token_ids, 1, decoded.ttft_seconds, decoded.decode_seconds
        )
