"""Many blocks in one pass are each what they would be alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafter.builders import ARCHITECTURES, drafter_config, random_drafter, target_parts
from tests.training.drafting import drafted_hidden, random_batch, reference_hidden

from blockdraft_drafter.dflash.model import DFlash
from blockdraft_training.batches import SequenceBatch
from blockdraft_training.methods.objective import sample_anchors

LENGTH = 12
# The first block of a row has no context; the second row's last anchor is its last token.
ANCHORS = np.array([[0, 1, 5, 9, 6], [3, 7, 7, 2, 11]], np.int32)
ROWS, ANCHOR_LENGTH, BLOCKS = 4, 24, 8

embedding = target_parts().embedding
draw = jax.jit(sample_anchors, static_argnums=(3, 4))


@pytest.fixture(params=[False, True], ids=["published", "sample_from_anchor"])
def from_anchor(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def make(architecture: str, from_anchor: bool) -> tuple[DFlash, SequenceBatch]:
    config = drafter_config(**ARCHITECTURES[architecture], sample_from_anchor=from_anchor)
    vocab_size, width = config.decoder.vocab_size, config.feature_width
    rng = np.random.default_rng(3)
    batch = random_batch(rng, 2, LENGTH, width=width, vocab_size=vocab_size)
    return random_drafter(config).model, batch


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_blocks_together_equal_each_alone(architecture: str, from_anchor: bool) -> None:
    model, batch = make(architecture, from_anchor)
    expected = reference_hidden(model, embedding, batch, ANCHORS)
    hidden = drafted_hidden(model, embedding, batch, ANCHORS)
    assert hidden.shape == (2, 5, model.config.block_size - 1, 32)
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4)


def test_anchors_that_stand_for_none_do_no_harm(from_anchor: bool) -> None:
    model, batch = make("sliding", from_anchor)
    padded = np.array(ANCHORS)
    padded[:, 2:] = LENGTH
    hidden = drafted_hidden(model, embedding, batch, padded)
    assert np.isfinite(hidden).all()
    before = drafted_hidden(model, embedding, batch, ANCHORS)
    np.testing.assert_allclose(hidden[:, :2], before[:, :2], rtol=1e-5, atol=1e-6)


@settings(max_examples=60)
@given(
    st.integers(0, 2**31 - 1),
    st.lists(
        st.tuples(st.integers(1, ANCHOR_LENGTH), st.integers(0, ANCHOR_LENGTH)),
        min_size=ROWS,
        max_size=ROWS,
    ),
)
def test_anchors_are_distinct_positions_with_a_token_after(
    seed: int, completions: list[tuple[int, int]]
) -> None:
    starts, ends = (jnp.asarray(part, jnp.int32) for part in zip(*completions, strict=True))
    key = jax.random.key(seed)
    anchors = np.asarray(draw(key, starts, ends, BLOCKS, ANCHOR_LENGTH))
    assert (anchors == np.asarray(draw(key, starts, ends, BLOCKS, ANCHOR_LENGTH))).all()
    for (start, end), row in zip(completions, anchors.tolist(), strict=True):
        candidates = range(start, end - 1)
        drawn = [anchor for anchor in row if anchor != ANCHOR_LENGTH]
        assert len(drawn) == len(set(drawn)) == min(BLOCKS, len(candidates))
        assert set(drawn) <= set(candidates)


def test_every_position_is_drawn_equally_often() -> None:
    starts, ends = jnp.array([4]), jnp.array([14])
    keys = jax.random.split(jax.random.key(0), 2000)
    anchors = jax.vmap(lambda key: sample_anchors(key, starts, ends, 3, ANCHOR_LENGTH))(keys)
    positions, counts = np.unique(np.asarray(anchors), return_counts=True)
    assert positions.tolist() == list(range(4, 13))
    assert np.abs(counts / 2000 - 3 / 9).max() < 0.05


def test_more_blocks_than_positions_are_as_many_as_there_are() -> None:
    anchors = draw(jax.random.key(0), jnp.array([0]), jnp.array([5]), 9, 5)
    assert sorted(anchors[0].tolist()) == [0, 1, 2, 3, 5]


def test_projected_features_are_not_projected_again(from_anchor: bool) -> None:
    model, batch = make("published", from_anchor)
    features = jnp.asarray(batch.features)
    projected = model.projection(features.reshape(-1, features.shape[-1]))
    given = replace(batch, features=projected.reshape(*features.shape[:2], -1), projected=True)
    hidden = drafted_hidden(model, embedding, given, ANCHORS)
    np.testing.assert_allclose(
        hidden, drafted_hidden(model, embedding, batch, ANCHORS), rtol=1e-5, atol=1e-5
    )
