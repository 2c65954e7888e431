"""Batches depend on seed and number alone."""

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft_training.batches import (
    BatchBuilder,
    SequenceBatch,
    batch_numbers,
    batches,
)
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.feature_cache import FeatureCache
from blockdraft_training.target import FeatureSpec

FIELDS = ("token_ids", "starts", "ends", "features", "teacher_ids", "teacher_logits")
HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@pytest.fixture
def builder(tmp_path: Path) -> BatchBuilder:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 40, (7, 2)).tolist()

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(1, 60, count).tolist())

    rows = [
        CorpusRow(f"r{number}", "math", 0.0, ids(prompt), ids(response))
        for number, (prompt, response) in enumerate(sizes)
    ]
    cache = FeatureCache(tmp_path, rows, FeatureSpec((0,), 3), hidden_size=4, fingerprint="f")
    cache.features[:] = rng.standard_normal(cache.features.shape)
    cache.teacher_ids[:] = rng.integers(0, 60, cache.teacher_ids.shape)
    cache.teacher_logits[:] = rng.standard_normal(cache.teacher_logits.shape)
    return BatchBuilder.of(rows, cache)


def test_a_batch_holds_its_rows_and_what_is_known_of_them(builder: BatchBuilder) -> None:
    cache = builder.cache
    assert cache is not None
    batch = builder([5, 0, 5])
    assert builder.length % 32 == 0
    assert batch.token_ids.shape == (3, builder.length)
    for place, number in enumerate([5, 0, 5]):
        row = builder.rows[number]
        prompt, end = len(row.prompt), len(row.token_ids)
        assert (batch.starts[place], batch.ends[place]) == (prompt, end)
        assert tuple(batch.token_ids[place, :end]) == row.token_ids
        begin = int(cache.offsets[number])
        np.testing.assert_array_equal(
            batch.features[place, :end], cache.features_of(begin, begin + end)
        )
        # Teacher positions count from the completion's first token.
        completion = slice(begin + prompt, begin + end)
        for ours, kept in (
            (batch.teacher_ids, cache.teacher_ids),
            (batch.teacher_logits, cache.teacher_logits),
        ):
            np.testing.assert_array_equal(ours[place, : end - prompt], kept[completion])
        for padding in (batch.token_ids[place, end:], batch.features[place, end:]):
            assert not np.asarray(padding, np.float32).any()


def test_without_a_cache_a_batch_has_tokens_only(builder: BatchBuilder) -> None:
    batch = BatchBuilder.of(builder.rows, None)([1, 2])
    assert batch.features.shape == (2, builder.length, 0)
    assert batch.teacher_ids.shape[-1] == batch.teacher_logits.shape[-1] == 0


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 1000))
def test_every_row_once_an_epoch(rows: int, batch_size: int, seed: int) -> None:
    numbers = list(range(100, 100 + rows))
    steps = -(-3 * rows // batch_size)
    drawn = np.concatenate(
        [batch_numbers(numbers, batch_size, seed=seed, step=step) for step in range(steps)]
    )
    for epoch in range(3):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows].tolist()) == numbers
    again = batch_numbers(numbers, batch_size, seed=seed, step=steps - 1)
    assert again.tolist() == drawn[-batch_size:].tolist()


def test_epochs_and_seeds_differ() -> None:
    numbers = list(range(50))
    orders = [
        batch_numbers(numbers, 50, seed=seed, step=step).tolist()
        for seed in (0, 1)
        for step in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_batches_come_in_order_and_as_if_made_directly(builder: BatchBuilder) -> None:
    numbers = [0, 2, 3, 6]
    prefetched = list(batches(builder, numbers, 3, seed=4, steps=range(2, 7), sharding=HERE))
    assert len(prefetched) == 5
    for step, batch in zip(range(2, 7), prefetched, strict=True):
        direct = builder(batch_numbers(numbers, 3, seed=4, step=step).tolist())
        for field in FIELDS:
            value = getattr(batch, field)
            assert isinstance(value, jax.Array)
            np.testing.assert_array_equal(np.asarray(value), getattr(direct, field))
    assert list(batches(builder, [0], 1, seed=0, steps=range(3, 3), sharding=HERE)) == []


def test_what_fails_beside_the_training_fails_in_it(builder: BatchBuilder) -> None:
    stream = batches(builder, [0, 99], 1, seed=0, steps=range(9), sharding=HERE)
    with pytest.raises(IndexError):
        assert all(isinstance(batch, SequenceBatch) for batch in stream)
