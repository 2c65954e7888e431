"""What the target chose after tokens that were rejected, as it reaches the drafter.

The drafter here drafts at random, and computes with the target what it must have chosen.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.drafting import SessionLink
from tests.verifier.engine.test_shared_noise import KnowingMethod
from tests.verifier.support import CONFIG, decode, make_engine

from blockdraft_drafter.method import DraftRow, DraftTokens
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.scheduling.sequence import GenerationRequest


class RandomMethod(KnowingMethod):
    """Drafts random tokens among right ones, and checks what comes with the next anchor."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.checked = 0
        self._rng = np.random.default_rng(3)
        self._last: dict[int, tuple[list[int], DraftRow, tuple[int, ...]]] = {}

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        for row in rows:
            if row.context_length == 0:
                self._last.pop(row.slot, None)
        right = super().step(rows)
        drafts = []
        for row, draft in zip(rows, right, strict=True):
            text = [*self._tokens[row.slot], row.anchor_token_id]
            if row.draft_length:
                recycled = self._recycled(row.slot, text)
                assert list(zip(*row.recycled, strict=True)) == recycled
                self.checked += len(recycled)
            tokens = tuple(
                token if self._rng.random() < 0.5 else int(self._rng.integers(CONFIG.vocab_size))
                for token in draft
            )
            if tokens:
                self._last[row.slot] = text, row, tokens
            drafts.append(tokens)
        return drafts

    def _recycled(self, slot: int, text: list[int]) -> list[tuple[int, int, int]]:
        """Return the target's choices after the rejected tokens of the last draft."""
        before, row, drafted = self._last.pop(slot, ([], None, ()))
        if row is None:
            return []
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == text[len(before) + accepted]:
            accepted += 1
        recycled = []
        for index in range(accepted, len(drafted)):
            tokens = [*before, *drafted[: index + 1]]
            [token] = self._chosen(tokens, replace(row, draft_length=1))
            recycled.append((len(tokens), drafted[index], token))
        return recycled


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_what_the_target_chose_after_rejected_tokens(
    decoder: Decoder, temperature: float
) -> None:
    method = RandomMethod(decoder)
    rng = np.random.default_rng(5)
    requests = [
        GenerationRequest(
            f"r{index}",
            tuple(rng.integers(0, CONFIG.vocab_size, 4 + index).tolist()),
            sampling=Sampling(temperature, seed=index),
            prompt_lookup=False,
            max_output_tokens=24,
        )
        for index in range(3)
    ]
    decode(make_engine(decoder, SessionLink(method)), requests)
    assert method.checked > 20
