"""The optimizer of a run: which rule, at which rate, with which memory."""

from typing import Any

import jax
import optax
from optax import contrib

from blockdraft_training.settings import TrainSettings

_CLIP_NORM = 1.0
# Of the peak; the last steps still move.
_FINAL_RATE_SHARE = 0.02
# Few steps, large batches: a short memory of squared gradients follows them better.
_SQUARES_DECAY = 0.95
# Muon's updates are made as large as AdamW's usually are (arXiv 2502.16982, section 2.2), so that
# one rate serves both.
_UPDATE_RMS = 0.2


def cosine(settings: TrainSettings) -> optax.Schedule:
    """Return the rates of a run that ends: a cosine with warm-up (arXiv 2602.06036, app. A.1)."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=max(1, round(settings.steps * settings.warmup_share)),
        decay_steps=max(2, settings.steps),
        end_value=settings.learning_rate * _FINAL_RATE_SHARE,
    )


def make_optimizer(
    settings: TrainSettings, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Return the rule, at rates by step, gradients clipped."""
    decay = settings.weight_decay
    if settings.optimizer == "muon":
        rule = contrib.muon(
            schedule,
            weight_decay=decay,
            adam_b2=_SQUARES_DECAY,
            adam_weight_decay=decay,
            consistent_rms=_UPDATE_RMS,
            muon_weight_dimension_numbers=_matrices,
        )
    else:
        rule = optax.adamw(schedule, b2=_SQUARES_DECAY, weight_decay=decay)
    return optax.chain(optax.clip_by_global_norm(_CLIP_NORM), rule)


def _matrices(params: Any) -> Any:
    """Mark the weights that Muon orthogonalizes; None for the others, which AdamW moves.

    Tables that are looked up by token are no maps between spaces: most of their rows have no
    gradient in a step.
    """

    def mark(path: tuple[Any, ...], weight: jax.Array) -> contrib.MuonDimensionNumbers | None:
        table = any(getattr(key, "key", None) == "markov_head" for key in path)
        return contrib.MuonDimensionNumbers() if weight.ndim == 2 and not table else None

    return jax.tree_util.tree_map_with_path(mark, params)
