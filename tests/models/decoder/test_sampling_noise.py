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


@pytest.mark.parametrize(("vocab", "count"), [(300, 299), (49_152, 8_192), (128_256, 8_191)])
def test_a_draft_vocabulary(vocab: int, count: int) -> None:
    rng = np.random.default_rng(count)
    ids = np.sort(rng.choice(vocab, count, replace=False))
    for choices in (1, 7):
        numbers = [int(rng.integers(2**63)) for _ in range(choices)]
        check(vocab, ids, numbers, list(range(5, 5 + choices)))


def test_the_noise_is_the_one_that_recorded_completions_were_chosen_with() -> None:
    """Another would change every sampled completion."""
    seed = seed_words(0x0123456789ABCDEF)[None]
    noise = some(seed, np.array([77], np.int32), np.arange(6, dtype=np.int32))[0]
    # Of the two words of Threefry-2x32 (Salmon et al. 2011, section 4.2), combined, the upper bits.
    bits = np.array([897_281, 3_101_732, 5_643_987, 3_496_641, 6_368_274, 3_896_213])
    np.testing.assert_allclose(noise, -np.log(-np.log(bits / 2**23)), rtol=1e-5, atol=1e-5)
