"""The optimizer: AdamW, cosine with warm-up, gradients clipped (arXiv 2602.06036, app. A.1)."""

import optax

_CLIP_NORM = 1.0
# Of the peak; the last steps still move.
_FINAL_SHARE = 0.02


def make_optimizer(
    *, learning_rate: float, steps: int, warmup_share: float, weight_decay: float
) -> optax.GradientTransformation:
    """Return the optimizer of a run of `steps` steps."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=learning_rate,
        warmup_steps=max(1, round(steps * warmup_share)),
        decay_steps=max(2, steps),
        end_value=learning_rate * _FINAL_SHARE,
    )
    return optax.chain(
        optax.clip_by_global_norm(_CLIP_NORM),
        # Few steps, large batches: a short memory of squared gradients follows them better.
        optax.adamw(schedule, b2=0.95, weight_decay=weight_decay),
    )
