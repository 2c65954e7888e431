"""Sampling options of a request: plain data, without JAX or NumPy."""

from dataclasses import dataclass

# Most alternatives reported with a token's log probability.
MAX_LOG_PROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of choosing tokens; `blockdraft_models.decoder.sampling` has the exact rule."""

    temperature: float = 0.0  # randomness, >= 0; 0 picks the likeliest token
    top_k: int = 0  # number of likeliest tokens kept; 0 keeps all
    top_p: float = 1.0  # probability mass of likeliest tokens kept, in (0, 1]
    min_p: float = 0.0  # least share of the likeliest token's probability kept, in [0, 1]
    seed: int = 0  # seed of the Gumbel noise, any 64-bit integer


GREEDY = Sampling()
