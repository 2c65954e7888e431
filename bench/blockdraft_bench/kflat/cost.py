"""How much arithmetic and memory traffic one step of a decoder needs, counted by hand.

With H hidden, I intermediate, V vocabulary, L layers, A and G query and KV heads of width D, a
step over B sequences of context C with n new tokens each (T = B n) needs

* weights W = L (H D (2 A + 2 G) + 3 H I) + H V, each for one multiplication and one addition a
  token: 2 T W operations, read once whatever T is. Every token's logits are wanted.
* attention: each new token looks at its context, itself and the new ones before it, P =
  B (n C + n (n + 1) / 2) pairs, with 4 A D operations a layer (scores and mixture).
* K/V of B (C + n) positions read and of T written, 2 G D elements a layer each.

Left out is what the rest amounts to: norms, rotation, softmax, residuals, biases, and every
intermediate result, which a perfect implementation keeps on the chip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step to be timed.

    Each of `batch` sequences has `context_tokens` tokens in the cache; `tokens` new ones of all
    sequences together are split evenly.
    """

    batch: int
    context_tokens: int
    tokens: int

    @property
    def tokens_per_sequence(self) -> int:
        """New tokens of each sequence."""
        return self.tokens // self.batch


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step needs at least: floating point operations, and bytes from and to memory."""

    flops: float
    bytes: float


def step_cost(config: DecoderConfig, shape: StepShape, bytes_per_element: int) -> StepCost:
    """Return the cost of verifying the tokens of a step; weights and cache have elements alike."""
    batch, new = shape.batch, shape.tokens_per_sequence
    pairs = batch * (new * shape.context_tokens + new * (new + 1) // 2)
    positions = batch * (shape.context_tokens + new) + shape.tokens
    kv_elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    heads_width = config.num_heads * config.head_dim
    weights = weight_count(config)
    return StepCost(
        flops=2.0 * shape.tokens * weights + 4.0 * config.num_layers * heads_width * pairs,
        bytes=float(bytes_per_element) * (weights + kv_elements * positions),
    )


def weight_count(config: DecoderConfig) -> int:
    """Return the weights that every token is multiplied with, the head's included."""
    projections = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (projections + 3 * config.intermediate_size)
    return config.num_layers * layer + config.hidden_size * config.vocab_size


def step_shapes(
    batches: Sequence[int], contexts: Sequence[int], max_tokens: int
) -> tuple[StepShape, ...]:
    """Return every step to be timed: 1, 2, 4, ... tokens where they split evenly."""
    sizes = [1 << power for power in range(max_tokens.bit_length())]
    return tuple(
        StepShape(batch, context, tokens)
        for batch in batches
        for context in contexts
        for tokens in sizes
        if tokens % batch == 0
    )
