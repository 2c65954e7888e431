"""Sampling options of a request: names, defaults and ranges, without JAX or NumPy.

The names are those of the public messages, from which `blockdraft_runtime.field_checks` reads the
options. A field's metadata are its range: `holds` tests a number, or each number of a collection,
`expected` says it in words, and a collection has at most `limit` items, called `noun`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Most alternatives reported with a token's log probability.
MAX_LOG_PROBS = 20
# Most tokens of one request that have a bias.
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 32 * 1024
# OpenAI's limits.
MAX_LOGIT_BIAS = 100
MAX_PENALTY = 2


def _range(expected: str, holds: Callable[[float], bool], **size: Any) -> dict[str, Any]:
    return {"expected": expected, "holds": holds, **size}


def _within(low: int, high: int, **size: Any) -> dict[str, Any]:
    return _range(f"in [{low}, {high}]", lambda value: low <= value <= high, **size)


def _at_least(low: int) -> dict[str, Any]:
    return _range(f">= {low}", lambda value: value >= low)


_TEMPERATURE = _range("finite and >= 0", lambda value: 0 <= value < math.inf)
_PROBABILITY = _range("in (0, 1]", lambda value: 0 < value <= 1)
_FACTOR = _range("finite and > 0", lambda value: 0 < value < math.inf)
_PENALTY = _within(-MAX_PENALTY, MAX_PENALTY)
_BIASES = _within(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, limit=MAX_LOGIT_BIASES, noun="biases")
_TOKEN_IDS = {"limit": MAX_ALLOWED_TOKEN_IDS, "noun": "ids"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of choosing tokens; `blockdraft_models.decoder.sampling` has the exact rule."""

    # Randomness; 0 picks the likeliest token.
    temperature: float = field(default=0.0, metadata=_TEMPERATURE)
    # Number of likeliest tokens kept; 0 keeps all.
    top_k: int = field(default=0, metadata=_at_least(0))
    # Probability mass of likeliest tokens kept.
    top_p: float = field(default=1.0, metadata=_PROBABILITY)
    # Least share of the likeliest token's probability kept.
    min_p: float = field(default=0.0, metadata=_within(0, 1))
    seed: int = 0  # seed of the Gumbel noise, any 64-bit integer


@dataclass(frozen=True, slots=True)
class LogitsRules:
    """Changes to the logits before a token is chosen."""

    # Divides positive logits of tokens of prompt and output, and multiplies negative ones.
    repetition_penalty: float = field(default=1.0, metadata=_FACTOR)
    # Subtracted for each time that a token is in the output.
    frequency_penalty: float = field(default=0.0, metadata=_PENALTY)
    # Subtracted from tokens that are in the output.
    presence_penalty: float = field(default=0.0, metadata=_PENALTY)
    # Added to the logits of tokens, by id.
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_BIASES)
    # The only tokens that may be chosen; all if there are none.
    allowed_token_ids: Sequence[int] = field(default=(), metadata=_TOKEN_IDS)
    # Tokens of the output before one that stops.
    min_tokens: int = field(default=0, metadata=_at_least(0))

    @property
    def penalizes(self) -> bool:
        """Whether there is a penalty."""
        penalties = self.repetition_penalty, self.frequency_penalty, self.presence_penalty
        return penalties != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The length of a completion, and what is reported with its tokens."""

    max_output_tokens: int = field(default=128, metadata=_at_least(1))
    # Number of alternatives to report per token, None for no log probabilities.
    log_probs: int | None = field(default=None, metadata=_within(0, MAX_LOG_PROBS))
    # The same for tokens of the prompt.
    prompt_log_probs: int | None = field(default=None, metadata=_within(0, MAX_LOG_PROBS))


GREEDY = Sampling()
NO_RULES = LogitsRules()
