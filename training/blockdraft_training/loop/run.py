"""A training run, from corpus to trained drafter, of whichever draft method."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.precision import compute_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.batches import BatchBuilder, batches
from blockdraft_training.corpus.rows import CorpusRow, read_corpus
from blockdraft_training.errors import DivergedError, TrainingError
from blockdraft_training.feature_cache import FeatureCache
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.loop.held_out import Acceptance, make_validation, split_validation
from blockdraft_training.loop.records import History, Reading, Reporter, Throughput
from blockdraft_training.loop.step import (
    TrainState,
    cosine,
    initial_state,
    make_optimizer,
    make_step,
)
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.settings import TrainSettings
from blockdraft_training.target import (
    CompleteBatch,
    FeatureSpec,
    Frozen,
    HotVocabulary,
    as_cached,
    computed_online,
    freeze,
    frequencies,
)


@dataclass(frozen=True, slots=True)
class TrainedDrafter:
    """The result of a run."""

    model: DraftModel  # the drafter
    draft_ids: np.ndarray | None  # target ids it can draft, or None for all
    target: Checkpoint  # the target it drafts for
    history: Sequence[dict[str, Any]]  # every reading
    rows: int  # rows trained on
    response_tokens: int  # tokens of their completions
    sources: dict[str, int]  # rows of each source of prompts
    acceptance: Acceptance | None  # on held-out completions, at the end

    @property
    def weight_count(self) -> int:
        """Number of the model's weights."""
        return sum(weight.size for weight in jax.tree.leaves(nnx.state(self.model)))

    @property
    def loss(self) -> float | None:
        """The loss at the end, or None if there was no step."""
        return self.history[-1]["loss"] if self.history else None


def train(recipe: AnyRecipe, report: Reporter) -> TrainedDrafter:
    """Train a drafter; continues the run in the output directory if there is one.

    Settings that do not fit, and a full disk, are a `TrainingError`; a target or a drafter that
    cannot be loaded is a `ModelError`.
    """
    settings = recipe.settings
    decoder, target = load_decoder(resolve_target(settings.target), dtype=jnp.float32)
    rows = _rows(settings, target)
    dtype = activation_dtype(settings.dtype)
    numbers, held_out = split_validation(rows, settings.validation_rows)
    if not numbers:
        raise TrainingError(f"{settings.validation_rows} validation rows leave none to train on")
    training = [rows[number] for number in numbers]
    counts = frequencies([row.response for row in training], target.config.vocab_size)
    hot = HotVocabulary.of(counts, settings.hot_vocabulary)
    model = recipe.initial_model(decoder, target, hot.draft_ids)
    spec = FeatureSpec(model.config.target_layer_ids)
    checkpoints = Checkpoints(
        settings.output, {**settings.identity(), "target": target.fingerprint}
    )
    if settings.online:
        decoder = _in_dtype(decoder, dtype)
        builder = BatchBuilder.of(rows, None)
        complete: CompleteBatch = computed_online(decoder, spec, builder.completion_length)
    else:
        cache = FeatureCache(
            settings.features or settings.output / "features",
            rows,
            spec,
            hidden_size=target.config.hidden_size,
            fingerprint=target.fingerprint,
        )
        cache.fill(_in_dtype(decoder, dtype), report.features)
        builder, complete = BatchBuilder.of(rows, cache), as_cached
    frozen = freeze(decoder, hot, online=settings.online)
    del decoder
    trainer = _Trainer(recipe, model, builder, numbers, held_out, frozen, complete, dtype)
    try:
        state, history = trainer.run(checkpoints, report)
    finally:
        checkpoints.close()
    return TrainedDrafter(
        model=with_weights(model)(jax.device_get(state.params), jnp.float32),
        draft_ids=hot.draft_ids,
        target=target,
        history=history.entries,
        rows=len(training),
        response_tokens=sum(len(row.response) for row in training),
        sources=dict(Counter(row.source for row in training)),
        acceptance=trainer.validate(state.params, trainer.frozen),
    )


class _Trainer:
    """The compiled parts of a run and the loop over them.

    `frozen` has the parts of the target that steps read, on all devices; `validate` measures
    acceptance on the held-out rows, given weights and `frozen`.
    """

    def __init__(
        self,
        recipe: AnyRecipe,
        model: DraftModel,
        builder: BatchBuilder,
        training: Sequence[int],
        held_out: Sequence[int],
        frozen: Frozen,
        complete: CompleteBatch,
        dtype: jnp.dtype,
    ) -> None:
        """Put everything onto the devices; `training` and `held_out` are numbers of rows."""
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
        optimizer = make_optimizer(settings, cosine(settings))
        self._step = make_step(recipe, model, optimizer, complete=complete, dtype=dtype)
        self._initial: TrainState = jax.device_put(initial_state(model, optimizer), everywhere)
        self._slots = model.config.block_size - 1
        self.validate = make_validation(
            recipe, model, builder, held_out, complete=complete, dtype=dtype
        )

    def run(self, checkpoints: Checkpoints, report: Reporter) -> tuple[TrainState, History]:
        """Make the steps that are left; return the state and the history after them."""
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
        compiled: Any = None
        began = read = time.perf_counter()
        read_step = step
        for batch in stream:
            if compiled is None:
                compiled = self._step.lower(state, self.frozen, batch).compile()
                read = time.perf_counter()
            state = compiled(state, self.frozen, batch)
            step += 1
            saving = step == settings.steps or step % settings.checkpoint_every == 0
            if not (saving or step % settings.report_every == 0):
                continue
            metrics: BlockMetrics = jax.block_until_ready(state.metrics)
            now = time.perf_counter()
            tokens = (step - read_step) * settings.batch_size * self._builder.length
            speed = Throughput(
                positions_per_second=float(metrics.seen.sum()) / (now - read),
                tokens_per_second=tokens / (now - read),
            )
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
        raise TrainingError(f"no row has two tokens of a completion within {longest} tokens")
    return cut


def activation_dtype(name: str) -> jnp.dtype:
    """Return the type of activations: bfloat16 on any accelerator, float32 on CPU."""
    if name == "auto" and jax.default_backend() != "cpu":
        name = "bfloat16"
    return compute_dtype(name)


def _in_dtype(decoder: Decoder, dtype: jnp.dtype) -> Decoder:
    """Return the target with weights, and hence activations, of another type."""
    graph, state = nnx.split(decoder)
    return nnx.merge(graph, jax.tree.map(lambda weight: weight.astype(dtype), state))
