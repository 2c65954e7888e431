"""Penalties, biases and masks as a request asks for them, and their formulas in float64."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from tests.verifier.support import CONFIG

from blockdraft_models.decoder.sampling import gumbel_noise, seed_words
from blockdraft_models.sampling_options import LogitsRules, Sampling
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.scheduling.token_masks import TokenMasks

VOCAB = CONFIG.vocab_size


@dataclass(frozen=True)
class Asked:
    """What a request asks for, as the reference reads it."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stops: tuple[int, ...] = ()

    def masks(self) -> TokenMasks | None:
        masks = TokenMasks(
            VOCAB,
            allowed=self.allowed,
            bad_words=self.bad_words,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stops,
        )
        return masks if self.allowed or self.bad_words or self.min_tokens else None

    def forbidden(self, output: Sequence[int]) -> set[int]:
        banned = set(range(VOCAB)) - set(self.allowed) if self.allowed else set()
        if len(output) < self.min_tokens:
            banned |= set(self.stops)
        single = {word[0] for word in self.bad_words if len(word) == 1}
        several = {
            word[-1]
            for word in self.bad_words
            if len(word) > 1 and tuple(output[1 - len(word) :]) == word[:-1]
        }
        if banned | single | several == set(range(VOCAB)):
            return banned | single
        return banned | single | several


def noise_at(sampling: Sampling, position: int) -> np.ndarray:
    """Return the Gumbel noise of every token; none for a greedy choice."""
    if not sampling.temperature:
        return np.zeros(VOCAB)
    words = jnp.asarray(seed_words(sampling.seed))[None]
    [noise] = np.asarray(gumbel_noise(words, jnp.asarray([position]), jnp.arange(VOCAB)))
    return np.asarray(noise)


def reference(
    logits: np.ndarray, asked: Asked, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    """Apply the formulas one token after another, in float64."""
    found = logits.astype(np.float64).copy()
    for token, value in asked.bias:
        found[token] += value
    for token in asked.forbidden(output):
        found[token] = -np.inf
    for token in {*prompt, *output}:
        found[token] *= asked.repetition if found[token] < 0 else 1 / asked.repetition
    for token in set(output):
        found[token] -= asked.frequency * list(output).count(token) + asked.presence
    return found


def random_asked(rng: random.Random) -> Asked:
    tokens = range(VOCAB)
    some = Asked(
        repetition=rng.choice([1.0, 1.0, 1.3, 0.8, 2.0]),
        frequency=rng.choice([0.0, 0.0, 0.4, -0.3, 2.0]),
        presence=rng.choice([0.0, 0.0, 0.5, -1.5]),
        stops=tuple(rng.sample(tokens, 60)),
    )
    if rng.random() < 0.4:
        biased = rng.sample(tokens, rng.choice([1, 5, 200]))
        some = replace(some, bias=tuple((token, rng.uniform(-3, 3)) for token in biased))
    if rng.random() < 0.4:
        some = replace(some, allowed=tuple(rng.sample(tokens, rng.choice([3, 40, 200]))))
    if rng.random() < 0.4:
        pool = some.allowed[:3] or (1, 2, 3, 4)
        words = [tuple(rng.choices(pool, k=rng.choice([2, 3]))) for _ in range(6)]
        some = replace(some, bad_words=(*words, (rng.randrange(VOCAB),)))
    return replace(some, min_tokens=rng.choice([0, 0, 3, 9]))


def random_case(seed: int) -> tuple[Asked, GenerationRequest]:
    rng = random.Random(seed)
    while True:
        asked = random_asked(rng)
        try:
            masks = asked.masks()
            break
        except ValueError:
            continue  # Nothing was left.
    sampling = Sampling() if seed % 2 else Sampling(1.0, seed=rng.randrange(2**63))
    return asked, GenerationRequest(
        f"r{seed}",
        # Few different tokens, so that there is something to penalize.
        tuple(rng.choices(range(20), k=rng.randint(1, 30))),
        sampling=sampling,
        rules=LogitsRules(asked.repetition, asked.frequency, asked.presence, dict(asked.bias)),
        masks=masks,
        stop_token_ids=frozenset(asked.stops),
        max_output_tokens=rng.randint(1, 16),
    )
