"""The logits after every token of a given answer, by one forward pass over all of it."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder


def plain_pass(decoder: Decoder, token_ids: Int[Array, " tokens"]) -> Float[Array, "tokens hidden"]:
    """Return the final hidden state of every token of one sequence, without a cache."""
    length = token_ids.shape[0]
    positions = jnp.arange(length, dtype=jnp.int32)
    caches = [None] * decoder.cache_count
    hidden: Array = decoder(token_ids, positions, caches, DenseAttend(1, length)).hidden
    return hidden


class TeacherForcing:
    """A decoder over whole sequences, padded so that it is compiled once."""

    def __init__(self, decoder: Decoder, max_tokens: int, max_answer_tokens: int) -> None:
        """Use the weights of `decoder`.

        Args:
            decoder: The target.
            max_tokens: Most tokens of a prompt and its answer.
            max_answer_tokens: Most tokens of an answer.
        """
        self._graph, self._weights = nnx.split(decoder)
        self._max_tokens, self._max_answer_tokens = max_tokens, max_answer_tokens

    @property
    def weight_bytes(self) -> int:
        """Bytes of the decoder's weights."""
        return sum(weight.nbytes for weight in jax.tree.leaves(self._weights))

    def hidden(
        self, prompt: Sequence[int], answer: Sequence[int]
    ) -> Float[np.ndarray, "choices hidden"]:
        """Return the hidden states that each token of the answer is chosen by."""
        tokens = np.zeros(self._max_tokens, np.int32)
        tokens[: len(prompt) + len(answer)] = [*prompt, *answer]
        # The first token of the answer follows the last one of the prompt.
        choices = len(prompt) - 1 + np.arange(self._max_answer_tokens, dtype=np.int32)
        rows = np.minimum(choices, self._max_tokens - 1)
        hidden = _hidden_after(self._graph, self._weights, jnp.asarray(tokens), jnp.asarray(rows))
        return np.asarray(hidden)[: len(answer)]

    def logits(
        self, hidden: Float[np.ndarray, "choices hidden"]
    ) -> Float[np.ndarray, "choices vocab"]:
        """Return the logits of hidden states, by this decoder's head."""
        padding = self._max_answer_tokens - len(hidden)
        padded = np.pad(hidden, ((0, padding), (0, 0)))
        logits = _logits_of(self._graph, self._weights, jnp.asarray(padded))
        return np.asarray(logits)[: len(hidden)]


@functools.partial(jax.jit, static_argnums=0)
def _hidden_after(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    token_ids: Int[Array, " tokens"],
    rows: Int[Array, " choices"],
) -> Float[Array, "choices hidden"]:
    """Return the final hidden states after the tokens `rows` of one sequence."""
    return plain_pass(nnx.merge(graph, weights), token_ids)[rows]


@functools.partial(jax.jit, static_argnums=0)
def _logits_of(
    graph: nnx.GraphDef[Decoder], weights: Any, hidden: Float[Array, "choices hidden"]
) -> Float[Array, "choices vocab"]:
    logits: Float[Array, "choices vocab"] = nnx.merge(graph, weights).logits(hidden)
    return logits
