"""Batches of a corpus, the same for every run: batch n depends on the seed and n alone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Int

from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.features.features import LENGTH_STEP, FeatureCache
from blockdraft_training.methods.blocks import SequenceBatch


@dataclass(frozen=True, slots=True)
class BatchBuilder:
    """Puts rows of a corpus side by side.

    Attributes:
        rows: The corpus.
        length: Tokens per sequence; longer rows were cut before, shorter ones are padded.
        answer_length: Longest answer.
        cache: Features and teacher; None if the step computes them itself.
    """

    rows: Sequence[CorpusRow]
    length: int
    answer_length: int
    cache: FeatureCache | None

    @classmethod
    def of(cls, rows: Sequence[CorpusRow], cache: FeatureCache | None) -> "BatchBuilder":
        """Return the builder whose shapes hold every row."""
        length = max(len(row.token_ids) for row in rows)
        answer = max(len(row.response) for row in rows)
        length, answer = (-(-size // LENGTH_STEP) * LENGTH_STEP for size in (length, answer))
        return cls(rows, length, answer, cache)

    def __call__(
        self, numbers: Sequence[int], sharding: jax.sharding.Sharding | None = None
    ) -> SequenceBatch:
        """Return the batch of these rows, placed on the devices."""
        cache, batch = self.cache, len(numbers)
        width, teacher = (
            (cache.features.shape[1], cache.spec.teacher_size) if cache is not None else (0, 0)
        )
        token_ids = np.zeros((batch, self.length), np.int32)
        features = np.zeros((batch, self.length, width), ml_dtypes.bfloat16)
        teacher_ids = np.zeros((batch, self.answer_length, teacher), np.int32)
        teacher_logits = np.zeros((batch, self.answer_length, teacher), np.float16)
        for place, number in enumerate(numbers):
            row = self.rows[number]
            token_ids[place, : len(row.token_ids)] = row.token_ids
            if cache is not None:
                begin, end = int(cache.offsets[number]), int(cache.offsets[number + 1])
                answer = begin + len(row.prompt)
                features[place, : end - begin] = cache.features[begin:end]
                teacher_ids[place, : end - answer] = cache.teacher_ids[answer:end]
                teacher_logits[place, : end - answer] = cache.teacher_logits[answer:end]
        starts = np.array([len(self.rows[number].prompt) for number in numbers], np.int32)
        ends = np.array([len(self.rows[number].token_ids) for number in numbers], np.int32)
        arrays = (token_ids, starts, ends, features, teacher_ids, teacher_logits)
        return SequenceBatch(*jax.device_put(arrays, sharding))


def batch_numbers(
    numbers: Sequence[int], batch_size: int, *, seed: int, step: int
) -> Int[np.ndarray, " batch"]:
    """Return the rows of batch `step`: shuffled epochs, one after another without a gap."""
    first = step * batch_size
    picked = []
    for place in range(first, first + batch_size):
        epoch, index = divmod(place, len(numbers))
        picked.append((epoch, index))
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


def split_validation(rows: Sequence[CorpusRow], count: int) -> tuple[list[int], list[int]]:
    """Return the row numbers to train on and those held out, spread over the sources.

    Rows are held out by a digest of their prompt, so that adding rows moves none of them to the
    other side, and two answers to one prompt are never split.
    """

    def digest(number: int) -> bytes:
        return sha256(np.asarray(rows[number].prompt, "<i4").tobytes()).digest()

    by_source: dict[str, list[int]] = {}
    for number in sorted(range(len(rows)), key=digest):
        by_source.setdefault(rows[number].source, []).append(number)
    held: set[int] = set()
    share = count / len(rows)
    for members in by_source.values():
        held.update(members[: round(share * len(members))])
    held_prompts = {rows[number].prompt for number in held}
    held.update(n for n in range(len(rows)) if rows[n].prompt in held_prompts)
    return [n for n in range(len(rows)) if n not in held], sorted(held)
