"""What a drafter drafts for a sampled sequence, in float64 NumPy; only Gumbel noise is shared."""

import random

import jax
import numpy as np
from numpy.typing import NDArray

from blockdraft_drafter.compiled.programs import NOISY_ODDS
from blockdraft_models.decoder.sampling import gumbel_noise, seed_words
from blockdraft_models.sampling_options import GREEDY, Sampling

_noise = jax.jit(gumbel_noise)


def random_sampling(rng: random.Random) -> Sampling:
    """Greedy now and then, else with any mixture of filters."""
    if rng.random() < 0.2:
        return GREEDY
    return Sampling(
        temperature=rng.choice([0.3, 1.0, 2.5]),
        top_k=rng.choice([0, 0, 1, 3, 9, 1000]),
        top_p=rng.choice([1.0, 1.0, 0.5, 0.93]),
        min_p=rng.choice([0.0, 0.0, 0.07, 1.0]),
        seed=rng.randrange(2**64),
    )


def reference_scores(
    logits: NDArray[np.float64],
    position: int,
    sampling: Sampling,
    ids: NDArray[np.int64],
    vocab: int,
    sharpness: float,
) -> NDArray[np.float64]:
    """Return the scores of which the greatest is drafted.

    Args:
        logits: Of the draft vocabulary.
        position: Absolute position of the token.
        sampling: How the target will choose.
        ids: Target ids of the draft vocabulary.
        vocab: Tokens of the target.
        sharpness: What logits are multiplied by.
    """
    if sampling.temperature == 0.0:
        return logits
    scaled = (logits - logits.max()) / sampling.temperature
    kept = np.ones(len(scaled), bool)
    order = np.argsort(-scaled)
    if sampling.top_k:
        kept[order[sampling.top_k :]] = False
    probabilities = np.where(kept, np.exp(scaled), 0.0)
    probabilities /= probabilities.sum()
    if sampling.top_p < 1.0:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        kept[order[before >= sampling.top_p]] = False
    kept &= probabilities >= sampling.min_p * probabilities.max()
    words = seed_words(sampling.seed)[None]
    every = np.arange(vocab, dtype=np.int32)
    noise = np.asarray(_noise(words, np.array([position], np.int32), every), np.float64)[0, ids]
    return np.where(kept, sharpness * scaled + noise, -np.inf)


def log_chance(scores: NDArray[np.float64], sampling: Sampling) -> float:
    """Return the logarithm of the greatest score's softmax, to a power with Gumbel noise."""
    power = NOISY_ODDS if sampling.temperature > 0 else 1.0
    return float(-power * np.log(np.exp(scores - scores.max()).sum()))
