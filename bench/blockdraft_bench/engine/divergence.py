"""The first differences from plain decoding, and the margins of the target's choices there.

The target chooses the token with the highest score, `logit + temperature * gumbel noise` of the
request's seed and the position; at temperature 0 that is the logit. The margin of a choice is the
highest score less the second highest, in units of logits: scores must change by as much for another
token to be chosen. Rounding explains a divergence where the margin is tiny, and no other.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from blockdraft_bench.completions import PLAIN, divergences
from blockdraft_bench.engine.samples import Answered
from blockdraft_bench.result import ResultRow
from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import gumbel_noise, pack_sampling
from blockdraft_models.executables import next_power_of_two
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# The margin of the choice that follows these tokens of a request's completion.
Margin = Callable[[GenerationRequest, Sequence[int]], float]


class ChoiceMargin:
    """Computes margins by one plain forward pass of the target, without cache and drafts."""

    def __init__(self, decoder: Decoder) -> None:
        """Use the weights of `decoder`."""
        self._graph, self._weights = nnx.split(decoder)

    def __call__(self, request: GenerationRequest, completion: Sequence[int]) -> float:
        """Return the margin of the choice that follows `completion`; the request has no filters."""
        tokens = np.array([*request.prompt, *completion], np.int32)
        # Padding at the end changes nothing before it, and saves compiling for every length.
        padded = np.zeros(next_power_of_two(len(tokens)), np.int32)
        padded[: len(tokens)] = tokens
        last = jnp.asarray(np.int32(len(tokens) - 1))
        logits = _logits_after(self._graph, self._weights, jnp.asarray(padded), last)
        noise = gumbel_noise(
            jnp.asarray(pack_sampling([request.sampling], 1).seed),
            jnp.asarray(np.array([len(tokens)], np.int32)),
            jnp.arange(logits.shape[0]),
        )[0]
        # In float64, so that the difference of two close scores is that of the float32 logits.
        scores = np.asarray(logits, np.float64)
        scores += request.sampling.temperature * np.asarray(noise, np.float64)
        second, first = np.partition(scores, -2)[-2:]
        return float(first - second)


def find_divergences(answered: Answered, method: str, margin: Margin) -> list[ResultRow]:
    """Return the first difference of each completion from plain decoding; positions from 0."""
    plain = answered.completions[PLAIN]
    return [
        {
            "sample": request.request_id,
            "position": position,
            "logit_margin": margin(request, plain[index].token_ids[:position]),
            "temperature": answered.temperature,
        }
        for index, position in divergences(answered.completions[method], plain)
        for request in [answered.requests[index]]
    ]


@functools.partial(jax.jit, static_argnums=0)
def _logits_after(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    token_ids: Int[Array, " tokens"],
    last: Int[Array, ""],
) -> Float[Array, " vocab"]:
    """Return the logits after token `last` of one sequence, computed without a cache."""
    decoder = nnx.merge(graph, weights)
    length = token_ids.shape[0]
    positions = jnp.arange(length, dtype=jnp.int32)
    caches = [None] * decoder.cache_count
    hidden: Array = decoder(token_ids, positions, caches, DenseAttend(1, length)).hidden
    logits: Float[Array, " vocab"] = decoder.logits(hidden[last][None])[0]
    return logits
