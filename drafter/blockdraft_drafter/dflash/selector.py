"""The candidate selector of DFlash 2, which scores likely tokens by the tokens before them.

All tokens of a block come out of one pass, so each is scored without knowing which one was chosen
before it. The selector keeps the likeliest few at each position and adds to the logit of each one
how well it follows each of those before it: a product of low rank, weighted by the hidden state.
All pairs are scored at once; only the walk from the anchor along the best ones is sequential.

Source: z-lab/dflash, `dflash/model.py`.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int, UInt

from blockdraft_drafter.compiled.definition import DraftTensor
from blockdraft_drafter.compiled.packing import PackedBlocks
from blockdraft_drafter.compiled.programs import choose
from blockdraft_models.decoder.linear import Linear, parameter, random_weights
from blockdraft_models.decoder.sampling import gumbel_noise
from blockdraft_models.decoder.sharding import EMBED

# As published; the other codebook starts at zero, so that a new selector changes nothing.
_INITIAL_SIZE = 0.02


class CandidateSelector(nnx.Module):
    """Scores pairs of neighbouring candidates."""

    def __init__(
        self, vocab: int, hidden: int, rank: int, top_k: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        """Start as no change at all; `top_k` tokens are candidates at each position."""
        self.top_k = top_k
        # Whole on every device: a step reads a few rows of them.
        whole = (None, None)
        self.hidden_projection = Linear(
            hidden, rank, ("rank", EMBED), bias=False, dtype=dtype, rngs=rngs
        )
        before = random_weights(rngs, (vocab, rank), _INITIAL_SIZE, dtype)
        self.predecessor_codebook = parameter(before, whole)
        self.successor_codebook = parameter(jnp.zeros((vocab, rank), dtype), whole)

    def pair_scores(
        self,
        hidden: Float[Array, "blocks tokens hidden"],
        before: Int[Array, "blocks tokens before"],
        after: Int[Array, "blocks tokens candidates"],
    ) -> Float[Array, "blocks tokens before candidates"]:
        """Return each position's score of each candidate after each token before it, float32."""
        gate = self.hidden_projection(hidden.reshape(-1, hidden.shape[-1]))
        gate = gate.reshape(*hidden.shape[:2], 1, -1).astype(jnp.float32)
        return jnp.einsum(
            "btpr,btcr->btpc",
            self.predecessor_codebook[...][before].astype(jnp.float32) * gate,
            self.successor_codebook[...][after].astype(jnp.float32),
        )


def draft_along_path(
    selector: CandidateSelector,
    hidden: Float[Array, "blocks tokens hidden"],
    logits: Float[Array, "blocks tokens vocab"],
    blocks: PackedBlocks,
) -> Int[Array, "blocks tokens"]:
    """Draft the tokens of blocks: at each position a candidate that follows the one before it."""
    # On a matrix: with three axes XLA's CPU backend sorts the whole vocabulary.
    likeliest = jax.lax.top_k(logits.reshape(-1, logits.shape[-1]), selector.top_k)
    unary, candidates = (array.reshape(*logits.shape[:2], -1) for array in likeliest)
    # Only the anchor is before the first position, so it takes the place of all candidates there.
    anchors = jnp.broadcast_to(jnp.asarray(blocks.anchors)[:, None, None], candidates[:, :1].shape)
    before = jnp.concatenate([anchors, candidates[:, :-1]], axis=1)
    scores = unary[:, :, None] + selector.pair_scores(hidden, before, candidates)
    sampling = jax.tree.map(jnp.asarray, blocks.sampling)

    def follow(
        last: tuple[Int[Array, " blocks"], Int[Array, " blocks"]],
        here: tuple[Float[Array, "blocks before candidates"], Int[Array, "blocks candidates"]],
    ) -> tuple[tuple[Array, Array], Array]:
        (index, position), (pairs, tokens) = last, here
        position = position + 1
        scored = jnp.take_along_axis(pairs, index[:, None, None], axis=1)[:, 0]
        noise = partial(jax.vmap(_noise), sampling.seed, position, tokens)
        index, _ = choose(scored, noise, sampling)
        return (index, position), jnp.take_along_axis(tokens, index[:, None], axis=1)[:, 0]

    # The anchor's position is the number of positions before it.
    lengths = jnp.asarray(blocks.lengths)
    steps = (jnp.moveaxis(scores, 1, 0), jnp.moveaxis(candidates, 1, 0))
    _, tokens = jax.lax.scan(follow, (jnp.zeros_like(lengths), lengths), steps)
    drafted: Int[Array, "blocks tokens"] = tokens.T
    return drafted


def _noise(
    seed: UInt[Array, "2"], position: Int[Array, ""], tokens: Int[Array, " candidates"]
) -> Float[Array, " candidates"]:
    """Return the target's Gumbel noise of some tokens at a position."""
    noise: Float[Array, " candidates"] = gumbel_noise(seed[None], position[None], tokens)[0]
    return noise


def selector_tensors(vocab: int, hidden: int, rank: int) -> Iterator[DraftTensor]:
    """Yield the weights of a selector."""
    for name, shape in (
        ("hidden_projection.weight", (rank, hidden)),
        ("predecessor_codebook", (vocab, rank)),
        ("successor_codebook", (vocab, rank)),
    ):
        path = f"candidate_selector.{name}"
        yield DraftTensor(path, path, shape)
