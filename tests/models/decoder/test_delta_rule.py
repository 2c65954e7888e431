"""The delta rule by chunks, against the rule itself, token by token in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockdraft_models.decoder.delta_rule import CHUNK_TOKENS, DeltaInputs, DeltaWeights, chunk

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS = 2, 4, 8, 12, 4
LEAD = TAPS - 1


def drawn(seed: int, tokens: int) -> tuple[DeltaWeights, DeltaInputs]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    weights = DeltaWeights(
        normal(KEY_HEADS, KEY_DIM, TAPS),
        normal(KEY_HEADS, KEY_DIM, TAPS),
        normal(VALUE_HEADS, VALUE_DIM, TAPS),
        np.log(rng.uniform(0.01, 16, VALUE_HEADS)).astype(np.float32),
        normal(VALUE_HEADS),
    )
    keys = (tokens, KEY_HEADS, KEY_DIM)
    values = normal(tokens, VALUE_HEADS, VALUE_DIM)
    # Some tokens fade hardly, others nearly all.
    decay = normal(tokens, VALUE_HEADS) * 4 - 4
    return weights, DeltaInputs(
        normal(*keys), normal(*keys), values, decay, normal(tokens, VALUE_HEADS)
    )


def recurrence(weights: DeltaWeights, inputs: DeltaInputs) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs and the last state: [tokens, heads, value_dim], [heads, k, v]."""
    taps, arrays = ([np.asarray(array, np.float64) for array in part] for part in (weights, inputs))
    log_decay, bias = taps[3:]
    tokens = len(arrays[0])
    state, outputs = np.zeros((VALUE_HEADS, KEY_DIM, VALUE_DIM)), []

    def convolved(index: int, token: int, head: int) -> np.ndarray:
        x, kernel = arrays[index], taps[index]
        total = np.zeros(x.shape[2])
        for tap in range(TAPS):
            before = token - (TAPS - 1) + tap
            if before >= 0:
                total += kernel[head, :, tap] * x[before, head]
        return np.asarray(total / (1 + np.exp(-total)))

    for token in range(tokens):
        said = []
        for head in range(VALUE_HEADS):
            key_head = head // (VALUE_HEADS // KEY_HEADS)
            query, key = (convolved(index, token, key_head) for index in (0, 1))
            query, key = (x / np.sqrt(x @ x + 1e-6) for x in (query, key))
            value = convolved(2, token, head)
            rate = 1 / (1 + np.exp(-arrays[4][token, head]))
            step = np.log1p(np.exp(arrays[3][token, head] + bias[head]))
            state[head] *= np.exp(-np.exp(log_decay[head]) * step)
            change = rate * (value - key @ state[head])
            state[head] += np.outer(key, change)
            said.append(query @ state[head] / np.sqrt(KEY_DIM))
        outputs.append(said)
    return np.array(outputs), state


def by_chunks(weights: DeltaWeights, inputs: DeltaInputs, tokens: int) -> tuple[Any, Any]:
    """Compute the first tokens; the inputs of those after them are there, too."""
    jitted = jax.jit(chunk)
    state: Any = jnp.zeros((VALUE_HEADS, KEY_DIM, VALUE_DIM))
    padded = jax.tree.map(
        lambda x: np.pad(x, ((LEAD, CHUNK_TOKENS), *((0, 0),) * (x.ndim - 1))), inputs
    )
    outputs = []
    for start in range(0, tokens, CHUNK_TOKENS):
        window = jax.tree.map(lambda x, at=start: x[at : at + LEAD + CHUNK_TOKENS], padded)
        out, state = jitted(weights, state, window)
        outputs.append(out)
    return np.concatenate(outputs)[:tokens], state


@pytest.mark.parametrize("seed", range(3))
def test_chunks_say_what_the_rule_says(seed: int) -> None:
    tokens = 3 * CHUNK_TOKENS
    weights, inputs = drawn(seed, tokens)
    expected, last = recurrence(weights, inputs)
    outputs, state = by_chunks(weights, inputs, tokens)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-5 * np.abs(last).max())


def test_equal_keys_do_not_add_up_errors() -> None:
    """Each token then changes what the one before it wrote, without any fading."""
    tokens = 2 * CHUNK_TOKENS
    weights, inputs = drawn(0, tokens)
    inputs = inputs._replace(
        key=np.broadcast_to(inputs.key[:1], inputs.key.shape),
        decay=np.full_like(inputs.decay, -40.0),
        rate=np.full_like(inputs.rate, 9.0),
    )
    expected, _ = recurrence(weights, inputs)
    outputs, _ = by_chunks(weights, inputs, tokens)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_a_position_has_the_same_bits_whatever_follows() -> None:
    tokens = 2 * CHUNK_TOKENS
    weights, inputs = drawn(4, tokens)
    whole, _ = by_chunks(weights, inputs, tokens)
    # What a sequence that went on otherwise left behind.
    other = jax.tree.map(lambda x: x * np.float32(1e6), drawn(5, tokens)[1])
    for length in range(1, tokens):
        mixed = jax.tree.map(
            lambda mine, rest, at=length: np.concatenate([mine[:at], rest[at:]]), inputs, other
        )
        part, _ = by_chunks(weights, mixed, length)
        np.testing.assert_array_equal(part, whole[:length])
