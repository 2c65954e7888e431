"""Batches of a corpus, the same for every run: batch n depends on the seed and n alone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Int

from blockdraft_training.corpus.rows import CorpusRow

_LENGTH_STEP = 32


def padded_length(tokens: int) -> int:
    """Return a length rounded up, so that few shapes are compiled."""
    return -(-tokens // _LENGTH_STEP) * _LENGTH_STEP


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Padded sequences with the target's features and choices."""

    # Any: NumPy arrays until they are placed on devices.
    token_ids: Any  # Int[Array, "batch length"], prompt and completion, padded at the end
    starts: Any  # Int[Array, "batch"], position of the completion's first token
    ends: Any  # Int[Array, "batch"], tokens of each sequence; 0 for padding rows
    features: Any  # Float[Array, "batch length width"]
    # Int[Array, "batch completion teacher"], the target's likeliest tokens at each position of the
    # completion.
    teacher_ids: Any
    teacher_logits: Any  # Float[Array, "batch completion teacher"]
    # Whether features went through the drafter's first linear map already.
    projected: bool = field(default=False, metadata={"static": True})


jax.tree_util.register_dataclass(SequenceBatch)


@runtime_checkable
class KeptFeatures(Protocol):
    """Features and teacher of every token of some rows, one row after another."""

    @property
    def offsets(self) -> np.ndarray:
        """Index of each row's first token, and at last the number of tokens; int [rows + 1]."""

    def features_of(self, begin: int, end: int) -> np.ndarray:
        """Return the features of some tokens, bfloat16 [tokens, width]."""

    @property
    def teacher_ids(self) -> np.ndarray:
        """The target's likeliest tokens, int32 [tokens, teacher]; teacher is 0 without them."""

    @property
    def teacher_logits(self) -> np.ndarray:
        """Their logits, float16 [tokens, teacher]."""


@dataclass(frozen=True, slots=True)
class BatchBuilder:
    """Puts rows of a corpus side by side."""

    rows: Sequence[CorpusRow]  # the corpus
    length: int  # tokens per sequence; longer rows were cut before, shorter ones are padded
    completion_length: int  # longest completion
    cache: KeptFeatures | None  # features and teacher; None if the step computes them itself
    # Whether those features went through the drafter's first linear map already.
    projected: bool = False

    @classmethod
    def of(cls, rows: Sequence[CorpusRow], cache: KeptFeatures | None) -> "BatchBuilder":
        """Return the builder whose shapes hold every row."""
        length = padded_length(max(len(row.token_ids) for row in rows))
        completion_length = padded_length(max(len(row.response) for row in rows))
        return cls(rows, length, completion_length, cache)

    def __call__(
        self, numbers: Sequence[int], sharding: jax.sharding.Sharding | None = None
    ) -> SequenceBatch:
        """Return the batch of these rows, placed on the devices."""
        cache, batch = self.cache, len(numbers)
        width, teacher = 0, 0
        if cache is not None:
            width, teacher = cache.features_of(0, 0).shape[1], cache.teacher_ids.shape[1]
        token_ids = np.zeros((batch, self.length), np.int32)
        features = np.zeros((batch, self.length, width), ml_dtypes.bfloat16)
        teacher_ids = np.zeros((batch, self.completion_length, teacher), np.int32)
        teacher_logits = np.zeros((batch, self.completion_length, teacher), np.float16)
        for place, number in enumerate(numbers):
            row = self.rows[number]
            token_ids[place, : len(row.token_ids)] = row.token_ids
            if cache is not None:
                begin, end = int(cache.offsets[number]), int(cache.offsets[number + 1])
                completion = begin + len(row.prompt)
                features[place, : end - begin] = cache.features_of(begin, end)
                teacher_ids[place, : end - completion] = cache.teacher_ids[completion:end]
                teacher_logits[place, : end - completion] = cache.teacher_logits[completion:end]
        starts = np.array([len(self.rows[number].prompt) for number in numbers], np.int32)
        ends = np.array([len(self.rows[number].token_ids) for number in numbers], np.int32)
        arrays = (token_ids, starts, ends, features, teacher_ids, teacher_logits)
        built = SequenceBatch(*jax.device_put(arrays, sharding))
        return replace(built, projected=self.projected)


def batch_numbers(
    numbers: Sequence[int], batch_size: int, *, seed: int, step: int
) -> Int[np.ndarray, " batch"]:
    """Return the rows of batch `step`: shuffled epochs, one after another without a gap."""
    places = range(step * batch_size, (step + 1) * batch_size)
    picked = [divmod(place, len(numbers)) for place in places]
    orders = {
        epoch: np.random.default_rng((seed, epoch)).permutation(len(numbers))
        for epoch in {epoch for epoch, _ in picked}
    }
    return np.array([numbers[orders[epoch][index]] for epoch, index in picked])


def batches(
    builder: BatchBuilder,
    numbers: Sequence[int],
    batch_size: int,
    *,
    seed: int,
    steps: range,
    sharding: jax.sharding.Sharding,
) -> Iterator[SequenceBatch]:
    """Yield the batches of some steps on the devices, each prepared while the last one is used."""

    def prepare(step: int) -> SequenceBatch:
        return builder(batch_numbers(numbers, batch_size, seed=seed, step=step).tolist(), sharding)

    with ThreadPoolExecutor(1, thread_name_prefix="batches") as worker:
        coming = worker.submit(prepare, steps.start) if steps else None
        for step in steps:
            assert coming is not None  # set one iteration earlier
            batch = coming.result()
            coming = worker.submit(prepare, step + 1) if step + 1 < steps.stop else None
            yield batch
