"""The compiled steps of the target: compile every shape beforehand, then only run."""

import functools
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
from flax import nnx

from blockdraft_models.decoder import Decoder
from blockdraft_models.dtypes import compute_dtype
from blockdraft_verifier.buckets import Bucket, all_buckets, bucket_for
from blockdraft_verifier.config import EngineConfig
from blockdraft_verifier.packing import pack
from blockdraft_verifier.paged_cache import allocate_kv
from blockdraft_verifier.scheduler import Row, RowResult
from blockdraft_verifier.step import StepInputs, StepOutputs, run_step

logger = logging.getLogger(__name__)

FEATURE_DTYPE = np.dtype(ml_dtypes.bfloat16)
TIMED_RUNS = 3


@dataclass(frozen=True, slots=True)
class RankedLogProbs:
    """Log probabilities at one position: of the chosen token and of the likeliest ones."""

    chosen: float
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed, row by row.

    Attributes:
        rows: Acceptance of each row.
        features: Features of each row's final positions, `[positions, width]`.
        log_probs: For each row, one entry per gained token; empty unless some row wants them.
        seconds: Wall time of the step on the device.
    """

    rows: list[RowResult]
    features: list[np.ndarray]
    log_probs: list[list[RankedLogProbs]]
    seconds: float


class ModelRunner:
    """Holds weights and cache on the device and runs compiled steps over them."""

    def __init__(self, decoder: Decoder, config: EngineConfig) -> None:
        """Allocate the cache; `warm_up` must follow before `run`."""
        self._graph, self._weights = nnx.split(decoder)
        self._model = decoder.config
        self._config = config
        self._caches: list[Any] = allocate_kv(
            decoder.config, config.num_pages, config.page_size, compute_dtype(config.dtype)
        )
        self._max_pages = -(-config.scheduler.max_context_tokens // config.page_size)
        self._buckets: tuple[Bucket, ...] = ()
        self._steps: dict[Bucket, Any] = {}
        self._capture: tuple[int, ...] = ()
        self._max_block = 0

    @property
    def feature_width(self) -> int:
        """Elements of one feature; 0 when nothing is captured."""
        return len(self._capture) * self._model.hidden_size

    def compiled_for(self, capture: tuple[int, ...], max_block: int) -> bool:
        """Return whether `warm_up` has compiled for these features and blocks of this size."""
        return self._capture == capture and self._max_block >= max_block

    def warm_up(
        self,
        capture: tuple[int, ...],
        max_block: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[Bucket, float]:
        """Compile the step for every bucket and time each one.

        Args:
            capture: Target layers whose outputs make a feature; empty for none.
            max_block: Most tokens of a decoding row, the anchor included.
            progress: Told how many of how many buckets are done.

        Returns:
            Seconds of one step in each bucket; the measured verification cost.
        """
        limits = self._config.scheduler
        self._capture, self._max_block = capture, max_block
        self._buckets = all_buckets(limits.max_sequences, limits.max_step_tokens, max_block)
        step = jax.jit(
            functools.partial(
                _step,
                self._graph,
                capture=capture,
                max_drafts=max(1, max_block - 1),
                feature_dtype=FEATURE_DTYPE,
            ),
            donate_argnums=(1,),
        )
        self._steps = {}
        # XLA compiles outside the interpreter lock, so two at a time keep two cores busy.
        with ThreadPoolExecutor(max_workers=2) as executor:
            compiled = executor.map(functools.partial(self._compile, step), self._buckets)
            for done, (bucket, executable) in enumerate(
                zip(self._buckets, compiled, strict=True), start=1
            ):
                self._steps[bucket] = executable
                progress(done, len(self._buckets))
        return {bucket: self._time(bucket) for bucket in self._buckets}

    def run(self, rows: Sequence[Row]) -> StepResult:
        """Run one step over `rows`.

        Raises:
            ValueError: If the rows fit no compiled shape.
        """
        started = time.perf_counter()
        bucket = bucket_for(self._buckets, len(rows), sum(len(row.token_ids) for row in rows))
        outputs = self._execute(bucket, self._pack(rows, bucket))
        accepted = np.asarray(outputs.accepted)
        bonus = np.asarray(outputs.bonus)
        seconds = time.perf_counter() - started
        results = [RowResult(int(accepted[i]), int(bonus[i])) for i in range(len(rows))]
        return StepResult(
            results,
            _split_features(rows, results, outputs),
            _split_log_probs(rows, results, outputs),
            seconds,
        )

    def _compile(self, step: Any, bucket: Bucket) -> Any:
        shapes = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
            (self._weights, self._caches, self._pack((), bucket)),
        )
        return step.lower(*shapes).compile()

    def _pack(self, rows: Sequence[Row], bucket: Bucket) -> StepInputs:
        return pack(
            rows,
            bucket,
            page_size=self._config.page_size,
            num_pages=self._config.num_pages,
            max_pages=self._max_pages,
        )

    def _execute(self, bucket: Bucket, inputs: StepInputs) -> StepOutputs:
        outputs: StepOutputs
        outputs, self._caches = self._steps[bucket](self._weights, self._caches, inputs)
        return outputs

    def _time(self, bucket: Bucket) -> float:
        """Return the median seconds of a step of padding; it writes nothing to the cache."""
        samples = []
        inputs = self._pack((), bucket)
        for _ in range(TIMED_RUNS):
            started = time.perf_counter()
            jax.block_until_ready(self._execute(bucket, inputs).bonus)
            samples.append(time.perf_counter() - started)
        return statistics.median(samples)


def _step(
    graph: nnx.GraphDef[Decoder],
    weights: Any,
    caches: list[Any],
    inputs: StepInputs,
    **static: Any,
) -> tuple[StepOutputs, list[Any]]:
    return run_step(nnx.merge(graph, weights), caches, inputs, **static)


def _split_features(
    rows: Sequence[Row], results: Sequence[RowResult], outputs: StepOutputs
) -> list[np.ndarray]:
    """Cut the gap-free features of a step into one array per row."""
    features = np.asarray(outputs.features)
    counts = [row.known_count + result.accepted for row, result in zip(rows, results, strict=True)]
    ends = np.cumsum(counts)
    return [features[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _split_log_probs(
    rows: Sequence[Row], results: Sequence[RowResult], outputs: StepOutputs
) -> list[list[RankedLogProbs]]:
    """Return the log probabilities of every gained token of every row that wants them."""
    if all(row.sequence.request.log_probs is None for row in rows):
        return [[] for _ in rows]
    chosen, top_ids, top = (np.asarray(array) for array in outputs.log_probs)
    split: list[list[RankedLogProbs]] = []
    first = 0
    for row, result in zip(rows, results, strict=True):
        count = row.sequence.request.log_probs
        split.append([])
        for choice in range(first, first + result.accepted + 1) if count is not None else ():
            ids = tuple(int(token) for token in top_ids[choice, :count])
            values = tuple(float(value) for value in top[choice, :count])
            split[-1].append(RankedLogProbs(float(chosen[choice]), ids, values))
        first += row.draft_count + 1
    return split
