"""A training run, from corpus to trained drafter, of whichever draft method."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from blockdraft_models.decoder.dtypes import compute_dtype
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.rows import CorpusRow, read_corpus
from blockdraft_training.errors import DivergedError, TrainingError
from blockdraft_training.features.batches import BatchBuilder, batches, split_validation
from blockdraft_training.features.features import FeatureCache, FeatureSpec
from blockdraft_training.features.frozen import (
    Completion,
    Frozen,
    as_cached,
    computed_online,
    freeze,
)
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.loop.held_out import Acceptance, make_validation
from blockdraft_training.loop.history import History, Reading
from blockdraft_training.loop.optimizer import make_optimizer
from blockdraft_training.loop.step import Objective, TrainState, initial_state, make_step
from blockdraft_training.loop.throughput import Throughput, matmul_peak
from blockdraft_training.methods.objective import (
    BlockMetrics,
    HotVocabulary,
    frequencies,
)
from blockdraft_training.methods.recipe import DraftModel, Recipe
from blockdraft_training.settings import TrainSettings

# Tokens of one forward pass of the target when features are computed ahead.
_FEATURE_BATCH_TOKENS = 1280


@dataclass(frozen=True, slots=True)
class Reporter:
    """What a run tells while it goes on.

    Attributes:
        features: Called with tokens done and in all while features are computed.
        reading: Called with each reading and the steps in all.
    """

    features: Callable[[int, int], None]
    reading: Callable[[Reading, int], None]


@dataclass(frozen=True, slots=True)
class TrainedDrafter:
    """What a run made.

    Attributes:
        model: The drafter.
        draft_ids: Target ids it can propose, or None for all.
        target: What it drafts for.
        history: Every reading.
        rows: Rows trained on.
        response_tokens: Tokens of their answers.
        sources: Rows of each source of prompts.
        acceptance: On held-out answers, at the end.
    """

    model: DraftModel
    draft_ids: np.ndarray | None
    target: Checkpoint
    history: Sequence[dict[str, Any]]
    rows: int
    response_tokens: int
    sources: dict[str, int]
    acceptance: Acceptance | None


def train(recipe: Recipe, report: Reporter) -> TrainedDrafter:
    """Train a drafter; continues the run in the output directory if there is one.

    Args:
        recipe: The method and its settings.
        report: Hears how far it is.

    Raises:
        TrainingError: If the corpus, the directory or the settings do not fit, or the disk is
            full.
        DivergedError: If the loss is no longer a number.
        ModelError: If the target or the drafter to start from cannot be loaded.
    """
    settings = recipe.settings
    decoder, target = load_decoder(resolve_target(settings.target), dtype=jnp.float32)
    rows = _rows(settings, target)
    dtype = _activation_dtype(settings.dtype)
    training, held_out = split_validation(rows, settings.validation_rows)
    if not training:
        raise TrainingError(f"{settings.validation_rows} validation rows leave none to train on")
    counts = frequencies([rows[number].response for number in training], target.config.vocab_size)
    hot = HotVocabulary.of(counts, settings.hot_vocabulary or target.config.vocab_size)
    draft_ids = np.asarray(hot.ids) if len(hot.ids) < len(counts) else None
    model = recipe.initial_model(decoder, target, draft_ids)
    spec = FeatureSpec(model.config.target_layer_ids)
    run = Checkpoints(settings.output, {**settings.identity(), "target": target.fingerprint})
    cache = None
    if not settings.online:
        cache = _filled_cache(settings, rows, spec, _in_dtype(decoder, dtype), target, report)
    builder = BatchBuilder.of(rows, cache)
    complete: Completion = as_cached
    if settings.online:
        complete = computed_online(decoder, spec, builder.answer_length)
    frozen = freeze(decoder, hot, online=settings.online)
    del decoder
    loop = _Loop(recipe, model, builder, training, held_out, frozen, complete, dtype)
    try:
        state, history = loop.run(run, report)
    finally:
        run.close()
    nnx.update(model, _as_state(model, state.params))
    sources: dict[str, int] = {}
    for number in training:
        sources[rows[number].source] = sources.get(rows[number].source, 0) + 1
    return TrainedDrafter(
        model=model,
        draft_ids=draft_ids,
        target=target,
        history=history.entries,
        rows=len(training),
        response_tokens=sum(len(rows[number].response) for number in training),
        sources=sources,
        acceptance=loop.validate(state.params, loop.frozen),
    )


class _Loop:
    """The compiled parts of a run and the loop over them."""

    def __init__(
        self,
        recipe: Recipe,
        model: DraftModel,
        builder: BatchBuilder,
        training: Sequence[int],
        held_out: Sequence[int],
        frozen: Frozen,
        complete: Completion,
        dtype: jnp.dtype,
    ) -> None:
        settings = recipe.settings
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
        if settings.batch_size % mesh.size:
            raise TrainingError(
                f"batch_size {settings.batch_size} cannot be split over {mesh.size} devices"
            )
        self._settings, self._builder, self._training = settings, builder, training
        self._by_row = NamedSharding(mesh, PartitionSpec("data"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self.frozen: Frozen = jax.device_put(frozen, everywhere)
        block_size = model.config.block_size
        objective = Objective(
            settings.blocks_per_sequence,
            settings.decay or recipe.default_decay(block_size),
            settings.distillation,
        )
        optimizer = make_optimizer(
            learning_rate=settings.learning_rate,
            steps=settings.steps,
            warmup_share=settings.warmup_share,
            weight_decay=settings.weight_decay,
        )
        self._step = make_step(recipe, model, optimizer, objective, complete=complete, dtype=dtype)
        self._initial: TrainState = jax.device_put(initial_state(model, optimizer), everywhere)
        self._slots = block_size - 1
        self._peak = matmul_peak(dtype)
        self.validate = make_validation(
            recipe, model, builder, held_out, complete=complete, dtype=dtype
        )

    def run(self, checkpoints: Checkpoints, report: Reporter) -> tuple[TrainState, History]:
        """Make all steps that are not made yet."""
        settings, state = self._settings, self._initial
        if checkpoints.latest is not None:
            state = checkpoints.restore(state)
        step = int(state.step)
        history = History(settings.output, step)
        stream = batches(
            self._builder,
            self._training,
            settings.batch_size,
            seed=settings.seed,
            steps=range(step, settings.steps),
            sharding=self._by_row,
        )
        flops = 0.0
        compiled: Any = None
        began = read = time.perf_counter()
        read_step = step
        for batch in stream:
            if compiled is None:
                compiled = self._step.lower(state, self.frozen, batch).compile()
                flops = float((compiled.cost_analysis() or {}).get("flops", 0.0))
                read = time.perf_counter()
            state = compiled(state, self.frozen, batch)
            step += 1
            last = step == settings.steps
            saving = last or step % settings.checkpoint_every == 0
            if not (saving or step % settings.report_every == 0):
                continue
            metrics: BlockMetrics = jax.block_until_ready(state.metrics)
            now = time.perf_counter()
            speed = self._throughput(metrics, step - read_step, now - read, flops)
            reading = Reading.of(step, metrics, now - began, speed)
            if not math.isfinite(float(metrics.gradient_norm)) or not math.isfinite(reading.loss):
                raise DivergedError(
                    f"the loss is not a number at step {step}; {checkpoints.path()};"
                    " start again with a lower --learning-rate and another --output"
                )
            state = replace(state, metrics=BlockMetrics.zero(self._slots))
            if saving:
                checkpoints.save(state)
                reading = replace(reading, validation=self.validate(state.params, self.frozen))
            history.add(reading)
            report.reading(reading, settings.steps)
            read, read_step = time.perf_counter(), step
        return state, history

    def _throughput(
        self, metrics: BlockMetrics, steps: int, seconds: float, flops: float
    ) -> Throughput:
        tokens = steps * self._settings.batch_size * self._builder.length
        return Throughput(
            positions_per_second=float(metrics.seen.sum()) / seconds,
            tokens_per_second=tokens / seconds,
            flops_per_second=flops * steps / seconds,
            peak_share=flops * steps / seconds / self._peak,
        )


def _rows(settings: TrainSettings, target: Checkpoint) -> list[CorpusRow]:
    rows = read_corpus(
        settings.corpus, vocab_size=target.config.vocab_size, fingerprint=target.fingerprint
    )
    longest = settings.max_length
    if longest is None:
        return rows
    cut = [
        replace(row, response=row.response[: longest - len(row.prompt)])
        for row in rows
        if len(row.prompt) + 2 <= longest
    ]
    if not cut:
        raise TrainingError(f"no row has two tokens of an answer within {longest} tokens")
    return cut


def _filled_cache(
    settings: TrainSettings,
    rows: Sequence[CorpusRow],
    spec: FeatureSpec,
    decoder: Decoder,
    target: Checkpoint,
    report: Reporter,
) -> FeatureCache:
    cache = FeatureCache(
        settings.features or settings.output / "features",
        rows,
        spec,
        hidden_size=target.config.hidden_size,
        fingerprint=target.fingerprint,
    )
    cache.fill(decoder, batch_tokens=_FEATURE_BATCH_TOKENS, report=report.features)
    return cache


def _activation_dtype(name: str) -> jnp.dtype:
    """Return the type of activations: bfloat16 on any accelerator, float32 on CPU."""
    if name == "auto" and jax.default_backend() != "cpu":
        name = "bfloat16"
    return compute_dtype(name)


def _in_dtype(decoder: Decoder, dtype: jnp.dtype) -> Decoder:
    """Return the target with weights, and hence activations, of another type."""
    graph, state = nnx.split(decoder)
    return nnx.merge(graph, jax.tree.map(lambda weight: weight.astype(dtype), state))


def _as_state(model: DraftModel, params: Any) -> Any:
    state = nnx.state(model)
    nnx.replace_by_pure_dict(state, jax.device_get(params))
    return state
