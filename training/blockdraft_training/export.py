"""A trained drafter as others can use it: published tensor names, config.json, a model card."""

from pathlib import Path

from blockdraft_training.card import CARD, model_card
from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.run import TrainedDrafter
from blockdraft_training.methods.recipe import AnyRecipe


def export_drafter(
    trained: TrainedDrafter, recipe: AnyRecipe, directory: Path, command: str
) -> None:
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
        card = model_card(trained, recipe, command)
        (directory / CARD).write_text(card, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"the drafter cannot be written to {directory}: {error}") from error
