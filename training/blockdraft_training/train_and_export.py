"""End of every command that trains a drafter."""

import json
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockdraft_training.methods.recipe import AnyRecipe


def train_and_export(recipe: "AnyRecipe", *, as_json: bool) -> None:
    """Train; the result goes to stdout, progress to stderr, the drafter to `OUTPUT/drafter`.

    Raises:
        TrainingError: If something about the run is wrong; see `train`.
    """
    from blockdraft_models.executables import keep_executables
    from blockdraft_training.export import export_drafter
    from blockdraft_training.loop.history import plot_history
    from blockdraft_training.loop.progress import progress_reporter
    from blockdraft_training.loop.run import train

    keep_executables()
    settings = recipe.settings
    with progress_reporter() as report:
        trained = train(recipe, report)
    drafter = settings.output / "drafter"
    export_drafter(trained, recipe, drafter, shlex.join(["blockdraft", *sys.argv[1:]]))
    plot_history(trained.history, settings.output / "history.png")
    tau = trained.acceptance.acceptance_length if trained.acceptance is not None else None
    if as_json:
        result = {
            "drafter": str(drafter),
            "steps": settings.steps,
            "loss": trained.history[-1]["loss"] if trained.history else None,
            "acceptance_length": tau,
            "rows": trained.rows,
            "response_tokens": trained.response_tokens,
        }
        print(json.dumps(result))
    else:
        reached = f", held-out τ {tau:.2f}" if tau is not None else ""
        print(f"{drafter}: trained on {trained.rows} answers{reached}")
