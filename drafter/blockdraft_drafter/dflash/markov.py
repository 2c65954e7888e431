"""A bias on each drafted token by the one before it: what a block in one pass cannot know.

All tokens of a block come out of one pass, so each is drafted without knowing which one was
chosen before it. A Markov head adds to its logits a matrix of low rank, looked up by that token;
only this sum, not the pass, is made one token after another.

Source: DSpark (arXiv 2607.05147, section 3), head type "vanilla".
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from blockdraft_drafter.compiled.choice import draft_tokens
from blockdraft_drafter.compiled.packing import PackedBlocks
from blockdraft_models.decoder.layer import parameter, random_weights
from blockdraft_models.decoder.products import project


class MarkovHead(nnx.Module):
    """Logits of the next token by the token before it.

    Attributes:
        markov_w1: Float[Array, "vocab rank"], by the token before, one of the target's.
        markov_w2: Float[Array, "draft rank"], by the token to draft, one of the draft vocabulary.
    """

    def __init__(
        self, vocab: int, draft_vocab: int, rank: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        """Start as no bias at all, yet with a gradient: the second factor is zero."""
        # Whole on every device: they are small, and a step reads one row of the first.
        whole = (None, None)
        self.markov_w1 = parameter(random_weights(rngs, (vocab, rank), rank**-0.5, dtype), whole)
        self.markov_w2 = parameter(jnp.zeros((draft_vocab, rank), dtype), whole)

    def widen(self) -> None:
        """Turn the factors into float32.

        XLA's CPU backend converts all of the first one to look up rows of bfloat16 in a loop, and
        multiplies one row of bfloat16 by converting the second one for every token: seven tokens of
        a draft vocabulary of 8,192 took 1.5 ms, and take 0.4 in float32.
        """
        for factor in (self.markov_w1, self.markov_w2):
            factor.set_value(factor[...].astype(jnp.float32))

    def __call__(self, previous: Int[Array, " rows"]) -> Float[Array, "rows draft"]:
        """Return what to add to the logits of the token after each of `previous`, float32."""
        return project(self.markov_w1[...][previous], self.markov_w2[...], dtype=jnp.float32)


def draft_in_turn(
    head: MarkovHead,
    logits: Float[Array, "blocks tokens draft"],
    blocks: PackedBlocks,
    draft_ids: Int[Array, " draft"] | None,
) -> Int[Array, "blocks tokens"]:
    """Draft the tokens of blocks one after another, as target ids.

    Args:
        head: The bias.
        logits: Of the one pass, without it.
        blocks: The blocks; each one's first token follows its anchor.
        draft_ids: Target ids of the draft vocabulary; None for all.
    """
    sampling = jax.tree.map(jnp.asarray, blocks.sampling)

    def draft(
        before: tuple[Int[Array, " blocks"], Int[Array, " blocks"]],
        logits: Float[Array, "blocks draft"],
    ) -> tuple[tuple[Array, Array], Array]:
        previous, position = before
        biased = logits + head(previous)
        token, _ = draft_tokens(biased, position + 1, sampling, draft_ids)
        return (token, position + 1), token

    # The anchor's position is the number of positions before it.
    before = jnp.asarray(blocks.anchors), jnp.asarray(blocks.lengths)
    _, tokens = jax.lax.scan(draft, before, jnp.swapaxes(logits, 0, 1))
    drafted: Int[Array, "blocks tokens"] = tokens.T
    return drafted
