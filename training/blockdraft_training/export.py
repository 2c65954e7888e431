"""A trained drafter as others can use it: published tensor names, config.json, a model card."""

from pathlib import Path

import jax
from flax import nnx

from blockdraft_training.card import CARD, DrafterFacts, model_card
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.run import TrainedDrafter
from blockdraft_training.methods.recipe import Recipe


def export_drafter(trained: TrainedDrafter, recipe: Recipe, directory: Path, command: str) -> None:
    """Write the drafter in bfloat16 with its card; the directory is created if needed.

    Args:
        trained: What the run made.
        recipe: How.
        directory: Where to; existing files are replaced.
        command: The command line, for the card.

    Raises:
        TrainingError: If it cannot be written.
    """
    try:
        recipe.save(trained.model, directory, trained.draft_ids)
        card = model_card(_facts(trained, recipe, command))
        (directory / CARD).write_text(card, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"the drafter cannot be written to {directory}: {error}") from error


def _facts(trained: TrainedDrafter, recipe: Recipe, command: str) -> DrafterFacts:
    config, acceptance = trained.model.config, trained.acceptance
    held_out = {}
    if acceptance is not None:
        held_out = {**acceptance.by_source, "all": acceptance.acceptance_length}
    return DrafterFacts(
        target=trained.target.config.name,
        fingerprint=trained.target.fingerprint,
        weights=sum(weight.size for weight in jax.tree.leaves(nnx.state(trained.model))),
        layers=config.decoder.num_layers,
        drafted=config.block_size - 1,
        feature_layers=config.target_layer_ids,
        rows=trained.rows,
        response_tokens=trained.response_tokens,
        sources=trained.sources,
        command=command,
        method=recipe.title,
        idea=recipe.idea,
        recipe=recipe.settings.identity(),
        steps=recipe.settings.steps,
        loss=trained.history[-1]["loss"] if trained.history else None,
        held_out=held_out,
    )
