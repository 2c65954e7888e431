"""Seeds keep all their bits, and Gumbel noise of some tokens is what JAX draws for all of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_models.decoder.sampling import (
    gumbel_noise,
    pack_sampling,
    seed_words,
)
from blockdraft_models.sampling_options import Sampling

some = jax.jit(gumbel_noise)

seeds = st.one_of(st.sampled_from((0, 1, 2**32 - 1, 2**32, 2**64 - 1)), st.integers(0, 2**64 - 1))
positions = st.one_of(st.sampled_from((0, 1, 2**31 - 1)), st.integers(0, 2**31 - 1))


def test_seeds_of_64_bits_are_taken_as_two_halves() -> None:
    halves = {
        0: [0, 0],
        2**32 + 5: [5, 1],
        2**63 + 2**31: [2**31, 2**31],
        2**64 - 1: [2**32 - 1, 2**32 - 1],
        -1: [2**32 - 1, 2**32 - 1],
        -(2**63) + 7: [7, 2**31],
    }
    packed = pack_sampling([Sampling(seed=seed) for seed in halves], len(halves) + 1).seed
    assert packed.dtype == np.uint32
    assert packed.tolist() == [*halves.values(), [0, 0]]
    for seed, words in halves.items():
        if seed >= 0:
            assert seed_words(seed).tolist() == words
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="a seed must be from 0"):
            seed_words(seed)


@partial(jax.jit, static_argnums=2)
@partial(jax.vmap, in_axes=(0, 0, None))
def whole(words: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), position)
    return jax.random.gumbel(key, (vocab,), jnp.float32)


def check(
    vocab: int, ids: np.ndarray, choice_seeds: list[int], choice_positions: list[int]
) -> None:
    seed = np.stack([seed_words(one) for one in choice_seeds])
    position = np.array(choice_positions, np.int32)
    expected = np.asarray(whole(seed, position, vocab))[:, ids]
    found = np.asarray(some(seed, position, ids.astype(np.int32)))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("vocab", [7, 300, 49_152])
@settings(max_examples=40)
@given(data=st.data())
def test_any_token_at_any_place(vocab: int, data: st.DataObject) -> None:
    # Few shapes, so that few programs are compiled.
    ids = data.draw(st.lists(st.integers(0, vocab - 1), min_size=7, max_size=7))
    chosen = [data.draw(st.tuples(seeds, positions)) for _ in range(3)]
    check(vocab, np.array(ids), [seed for seed, _ in chosen], [at for _, at in chosen])


@pytest.mark.parametrize(
    ("vocab", "count"), [(300, 299), (49_152, 8_192), (49_152, 8_191), (128_256, 8_192)]
)
def test_a_draft_vocabulary(vocab: int, count: int) -> None:
    rng = np.random.default_rng(count)
    ids = np.sort(rng.choice(vocab, count, replace=False))
    for choices in (1, 7):
        numbers = [int(rng.integers(2**63)) for _ in range(choices)]
        check(vocab, ids, numbers, list(range(5, 5 + choices)))


def test_other_tokens_have_other_noise() -> None:
    seed, position = seed_words(3)[None], np.array([4], np.int32)
    noise = np.asarray(some(seed, position, np.arange(300, dtype=np.int32)))
    assert len(np.unique(noise)) > 290


def test_the_noise_is_the_one_that_recorded_completions_were_chosen_with() -> None:
    """Another would change every sampled completion. From the published cipher, in float64."""
    seed, position, vocab = 0x0123456789ABCDEF, 77, 50
    low, high = (int(word) for word in seed_words(seed))
    key = _threefry(low, high, 0, position)
    words = [_threefry(*key, 0, token) for token in range(vocab)]
    mantissa = np.array([(a ^ b) >> 9 for a, b in words], np.float64)
    expected = -np.log(-np.log(np.maximum(mantissa / 2**23, np.finfo(np.float32).tiny)))
    place = np.array([position], np.int32)
    every = np.arange(vocab, dtype=np.int32)
    found = np.asarray(some(seed_words(seed)[None], place, every))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def _threefry(key0: int, key1: int, x0: int, x1: int) -> tuple[int, int]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011, section 4.2)."""
    mask = 0xFFFFFFFF
    keys = (key0, key1, key0 ^ key1 ^ 0x1BD11BDA)
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = (x0 + keys[0]) & mask, (x1 + keys[1]) & mask
    for group in range(5):
        for turn in rotations[group % 2]:
            x0 = (x0 + x1) & mask
            x1 = ((x1 << turn) | (x1 >> (32 - turn))) & mask
            x1 ^= x0
        x0 = (x0 + keys[(group + 1) % 3]) & mask
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & mask
    return x0, x1
