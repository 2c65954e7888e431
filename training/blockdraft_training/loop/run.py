"""A training run, from corpus to trained drafter, of whichever draft method."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.precision import compute_dtype
from blockdraft_models.weights.loading import Checkpoint, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.rows import CorpusRow, read_corpus
from blockdraft_training.errors import TrainingError
from blockdraft_training.features.batches import BatchBuilder
from blockdraft_training.features.cache import FeatureCache
from blockdraft_training.features.frozen import (
    Completion,
    HotVocabulary,
    as_cached,
    computed_online,
    freeze,
    frequencies,
)
from blockdraft_training.features.target_pass import FeatureSpec
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.loop.held_out import Acceptance, split_validation
from blockdraft_training.loop.progress import Reporter
from blockdraft_training.loop.trainer import Trainer
from blockdraft_training.methods.recipe import AnyRecipe, with_weights
from blockdraft_training.settings import TrainSettings

# Tokens of one forward pass of the target when features are computed ahead.
_FEATURE_BATCH_TOKENS = 1280


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
    dtype = activation_dtype(settings.dtype)
    numbers, held_out = split_validation(rows, settings.validation_rows)
    if not numbers:
        raise TrainingError(f"{settings.validation_rows} validation rows leave none to train on")
    training = [rows[number] for number in numbers]
    counts = frequencies([row.response for row in training], target.config.vocab_size)
    hot = HotVocabulary.of(counts, settings.hot_vocabulary or target.config.vocab_size)
    draft_ids = np.asarray(hot.ids) if len(hot.ids) < len(counts) else None
    model = recipe.initial_model(decoder, target, draft_ids)
    spec = FeatureSpec(model.config.target_layer_ids)
    checkpoints = Checkpoints(
        settings.output, {**settings.identity(), "target": target.fingerprint}
    )
    if settings.online:
        builder = BatchBuilder.of(rows, None)
        complete: Completion = computed_online(decoder, spec, builder.answer_length)
    else:
        cache = _filled_cache(settings, rows, spec, _in_dtype(decoder, dtype), target, report)
        builder, complete = BatchBuilder.of(rows, cache), as_cached
    frozen = freeze(decoder, hot, online=settings.online)
    del decoder
    trainer = Trainer(recipe, model, builder, numbers, held_out, frozen, complete, dtype)
    try:
        state, history = trainer.run(checkpoints, report)
    finally:
        checkpoints.close()
    return TrainedDrafter(
        model=with_weights(model)(jax.device_get(state.params), jnp.float32),
        draft_ids=draft_ids,
        target=target,
        history=history.entries,
        rows=len(training),
        response_tokens=sum(len(row.response) for row in training),
        sources=dict(Counter(row.source for row in training)),
        acceptance=trainer.validate(state.params, trainer.frozen),
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


def activation_dtype(name: str) -> jnp.dtype:
    """Return the type of activations: bfloat16 on any accelerator, float32 on CPU."""
    if name == "auto" and jax.default_backend() != "cpu":
        name = "bfloat16"
    return compute_dtype(name)


def _in_dtype(decoder: Decoder, dtype: jnp.dtype) -> Decoder:
    """Return the target with weights, and hence activations, of another type."""
    graph, state = nnx.split(decoder)
    return nnx.merge(graph, jax.tree.map(lambda weight: weight.astype(dtype), state))
