"""Features and the target's choices for every token of a corpus, kept on disk.

Computing them costs one forward pass of the target over the corpus, so they are computed once, in
batches of equal padded length: bfloat16, as the verifier sends them. An interrupted computation
goes on where it stopped.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from blockdraft_models.cache import write_at_once
from blockdraft_models.decoder.model import Decoder
from blockdraft_training.batches import padded_length
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.errors import CorpusError, TrainingError
from blockdraft_training.target import FeatureSpec, target_pass

_SHUFFLE_SEED = 0
# Tokens of one forward pass of the target, padding included.
_BATCH_TOKENS = 1280
# A greedy completion of this target agrees with it but for rounding; another target's seldom does.
_MIN_GREEDY_AGREEMENT = 0.9


class FeatureCache:
    """The `KeptFeatures` of a corpus, in memory-mapped files.

    The folder may hold more layers than `spec` asks for, so that drafters that read different
    layers can share it. `features` has all of them, [tokens, layers, hidden].
    """

    def __init__(
        self,
        directory: Path,
        rows: Sequence[CorpusRow],
        spec: FeatureSpec,
        *,
        hidden_size: int,
        fingerprint: str,
    ) -> None:
        """Open the cache of these rows, or make an empty one and reserve its space on disk."""
        self._directory = directory
        self._rows = rows
        self.offsets = np.concatenate([[0], np.cumsum([len(row.token_ids) for row in rows])])
        self._identity = {
            "target_fingerprint": fingerprint,
            "corpus_digest": _digest(rows),
            "teacher_size": spec.teacher_size,
            "hidden_size": hidden_size,
        }
        directory.mkdir(parents=True, exist_ok=True)
        layers, self._finished_batches = self._read_progress(spec.layer_ids)
        self.spec = replace(spec, layer_ids=layers)
        if not self._progress_path.exists():
            self._write_progress(0)
        self._places = [layers.index(layer) for layer in spec.layer_ids]
        tokens = int(self.offsets[-1])
        self.features = self._map(
            "features.bfloat16", "<u2", (tokens, len(layers), hidden_size)
        ).view(ml_dtypes.bfloat16)
        teacher = (tokens, spec.teacher_size)
        self.teacher_ids = self._map("teacher_ids.int32", "<i4", teacher)
        self.teacher_logits = self._map("teacher_logits.float16", "<f2", teacher)

    def features_of(self, begin: int, end: int) -> np.ndarray:
        """Return the requested layers' features of some tokens, bfloat16 [tokens, width]."""
        features: np.ndarray = self.features[begin:end, self._places]
        return features.reshape(end - begin, len(self._places) * features.shape[2])

    def fill(self, decoder: Decoder, report: Callable[[int, int], None]) -> None:
        """Compute the missing features; after each pass, `report` gets finished and total tokens.

        `CorpusError` if the greedy completions are not this target's.
        """
        graph, state = nnx.split(decoder)

        @partial(jax.jit, static_argnames="completion_length")
        def run(
            state: Any, ids: Int[Array, "batch length"], starts: Array, completion_length: int
        ) -> tuple[Array, Array, Array]:
            return target_pass(nnx.merge(graph, state), ids, starts, completion_length, self.spec)

        token_count, rows = 0, self._rows
        for number, (batch, length) in enumerate(length_batches(rows)):
            token_count += sum(len(rows[row].token_ids) for row in batch)
            if number < self._finished_batches:
                continue
            token_ids = np.zeros((len(batch), length), np.int32)
            for index, row in enumerate(batch):
                token_ids[index, : len(rows[row].token_ids)] = rows[row].token_ids
            starts = np.array([len(rows[row].prompt) for row in batch], np.int32)
            completion_length = padded_length(max(len(rows[row].response) for row in batch))
            computed, *teacher = run(state, token_ids, starts, completion_length)
            features = np.asarray(computed.astype(jnp.bfloat16))
            ids, logits = map(np.asarray, teacher)
            for index, row in enumerate(batch):
                begin, end = int(self.offsets[row]), int(self.offsets[row + 1])
                row_features = features[index, : end - begin]
                self.features[begin:end] = row_features.reshape(self.features[begin:end].shape)
                completion = begin + starts[index]
                self.teacher_ids[completion:end] = ids[index, : end - completion]
                self.teacher_logits[completion:end] = logits[index, : end - completion]
            self._check_agreement(batch)
            self._write_progress(number + 1)
            report(token_count, int(self.offsets[-1]))

    def _check_agreement(self, batch: Sequence[int]) -> None:
        greedy = [row for row in batch if self._rows[row].temperature == 0]
        agreeing = total = 0
        for row in greedy:
            start = int(self.offsets[row]) + len(self._rows[row].prompt)
            choices = self.teacher_ids[start : int(self.offsets[row + 1]), 0]
            agreeing += int((choices == np.array(self._rows[row].response)).sum())
            total += len(choices)
        if total and agreeing / total < _MIN_GREEDY_AGREEMENT:
            raise CorpusError(
                f"only {agreeing / total:.0%} of the greedy completions' tokens (row"
                f" {self._rows[greedy[0]].id} and others) are this target's choice:"
                " the corpus was made with another target"
            )

    def _map(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
        path = self._directory / name
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not path.exists() or path.stat().st_size != size:
            if self._finished_batches:
                raise TrainingError(
                    f"{path} is damaged; delete {self._directory} to compute the features again"
                )
            # Reserves the space now: a full disk is an error here, not a bus error later.
            try:
                with path.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise TrainingError(f"no space for {size:,} bytes of {path}: {error}") from error
        return np.memmap(path, dtype=dtype, mode="r+", shape=shape)

    @property
    def _progress_path(self) -> Path:
        return self._directory / "features.json"

    def _read_progress(self, layer_ids: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the layers of the folder and the number of finished batches."""
        if not self._progress_path.exists():
            return tuple(layer_ids), 0
        progress = json.loads(self._progress_path.read_text(encoding="utf-8"))
        finished_batches, layers = progress.pop("batches_done"), tuple(progress.pop("layer_ids"))
        if progress != self._identity or not set(layer_ids) <= set(layers):
            raise TrainingError(
                f"{self._directory} holds features of another corpus, target or choice of layers;"
                " name another directory"
            )
        return layers, int(finished_batches)

    def _write_progress(self, finished_batches: int) -> None:
        self._finished_batches = finished_batches
        progress = {
            **self._identity,
            "layer_ids": self.spec.layer_ids,
            "batches_done": finished_batches,
        }
        write_at_once(self._progress_path, json.dumps(progress).encode())


def length_batches(rows: Sequence[CorpusRow]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield batches of row numbers of similar length with their padded length, shuffled."""
    by_length: dict[int, list[int]] = {}
    for row in sorted(range(len(rows)), key=lambda row: len(rows[row].token_ids)):
        by_length.setdefault(padded_length(len(rows[row].token_ids)), []).append(row)
    batches = [
        (tuple(same[start : start + size]), length)
        for length, same in by_length.items()
        for size in [max(1, _BATCH_TOKENS // length)]
        for start in range(0, len(same), size)
    ]
    shuffled = np.random.default_rng(_SHUFFLE_SEED).permutation(len(batches))
    yield from (batches[index] for index in shuffled)


def _digest(rows: Sequence[CorpusRow]) -> str:
    digest = sha256()
    for row in rows:
        digest.update(np.asarray((len(row.prompt), *row.token_ids), dtype="<i4").tobytes())
    return digest.hexdigest()[:16]
