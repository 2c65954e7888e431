"""Drafts made with shared Gumbel noise, by a drafter that knows all that the target knows.

It computes the target's logits and chooses by the drafter's own code, so whatever is not accepted
was drafted with the wrong Gumbel noise: that of another position, seed, temperature or filter.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float, Int
from tests.fakes.drafting import ScriptedMethod, SessionLink
from tests.verifier.support import (
    CONFIG,
    LAYER_IDS,
    PADDED_LENGTH,
    Outcome,
    decode,
    make_engine,
)

from blockdraft_drafter.compiled.programs import draft_tokens
from blockdraft_drafter.method import DraftRow, DraftTokens
from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import pack_sampling
from blockdraft_models.sampling_options import GREEDY, Sampling
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

BLOCK_SIZE = 4
SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0),
    "hot": Sampling(temperature=3.0),
    "top-k": Sampling(temperature=1.0, top_k=5),
    "top-p": Sampling(temperature=0.7, top_p=0.9),
    "min-p": Sampling(temperature=1.5, min_p=0.1),
    "all": Sampling(temperature=1.2, top_k=40, top_p=0.8, min_p=0.02),
}
draft = jax.jit(draft_tokens, static_argnames="sharpness")


@nnx.jit
def logits_after(
    decoder: Decoder, tokens: Int[Array, " tokens"], last: Int[Array, ""]
) -> Float[Array, "1 vocab"]:
    positions = jnp.arange(PADDED_LENGTH, dtype=jnp.int32)
    attend = DenseAttend(1, PADDED_LENGTH)
    hidden = decoder(tokens, positions, [None] * CONFIG.num_layers, attend).hidden
    return decoder.logits(jax.lax.dynamic_slice_in_dim(hidden, last, 1))


class KnowingMethod(ScriptedMethod):
    """A draft method whose drafter is the target."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(
            lambda position, anchor, length: [],
            layer_ids=LAYER_IDS,
            hidden_size=CONFIG.hidden_size,
            vocab_size=CONFIG.vocab_size,
            block_size=BLOCK_SIZE,
        )
        self.told = True
        self._decoder = decoder
        self._tokens: dict[int, list[int]] = {}

    def step(self, rows: Sequence[DraftRow]) -> list[DraftTokens]:
        drafts = []
        for row in rows:
            known = self._tokens.get(row.slot, [])[: row.context_length]
            self._tokens[row.slot] = known = [*known, *row.token_ids]
            text = [*known, row.anchor_token_id]
            drafts.append(self._chosen(text, row))
        return drafts

    def _chosen(self, text: Sequence[int], row: DraftRow) -> tuple[int, ...]:
        """Return the tokens that the target chooses after a text, one after another."""
        known, text = len(text), list(text)
        options = pack_sampling([row.sampling if self.told else GREEDY], 1)
        for _ in range(row.draft_length):
            padded = np.zeros(PADDED_LENGTH, np.int32)
            padded[: len(text)] = text
            logits = logits_after(self._decoder, jnp.asarray(padded), jnp.asarray(len(text) - 1))
            # The position of the token to be drafted, as the compiled steps count it.
            position = np.array([len(text)], np.int32)
            token, _ = draft(logits, position, options, None, sharpness=1.0)
            text.append(int(token[0]))
        return tuple(text[known:])


@pytest.fixture(scope="module")
def method(decoder: Decoder) -> KnowingMethod:
    return KnowingMethod(decoder)


@pytest.fixture(scope="module")
def drafting(decoder: Decoder, method: KnowingMethod) -> Engine:
    return make_engine(decoder, SessionLink(method))


def requests(sampling: Sampling) -> list[GenerationRequest]:
    rng = np.random.default_rng(11)
    return [
        GenerationRequest(
            f"r{index}",
            tuple(int(token) for token in rng.integers(0, CONFIG.vocab_size, 3 + 5 * index)),
            sampling=replace(sampling, seed=seed),
            max_output_tokens=13,
        )
        for index, seed in enumerate((0, -1, 2**63 - 1))
    ]


def shares(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return how many tokens were drafted and how many of them accepted."""
    events = [event for outcome in outcomes for event in outcome.events]
    return sum(event.drafted for event in events), sum(event.accepted for event in events)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_draft_is_accepted(
    plain: Engine, drafting: Engine, method: KnowingMethod, name: str
) -> None:
    asked = requests(SAMPLINGS[name])
    method.told = True
    outcomes = decode(drafting, asked)
    expected = [outcome.tokens for outcome in decode(plain, asked)]
    assert [outcome.tokens for outcome in outcomes] == expected
    drafted, accepted = shares(outcomes)
    # At most 27: the first token follows the prompt, then there are three blocks with a bonus each.
    assert drafted == accepted >= 18


def test_a_drafter_that_does_not_listen_is_only_accepted_less(
    plain: Engine, drafting: Engine, method: KnowingMethod
) -> None:
    asked = requests(SAMPLINGS["hot"])
    method.told = False
    outcomes = decode(drafting, asked)
    assert [o.tokens for o in outcomes] == [o.tokens for o in decode(plain, asked)]
    drafted, accepted = shares(outcomes)
    assert accepted < drafted / 4
