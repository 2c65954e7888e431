"""A short run in a process of its own: `python -m tests.training.short_run SETTINGS`.

Trains with the pickled settings in the file over all devices of the process, and once more with
a batch of one row less; prints the losses of the first and the refusal of the second as JSON.
"""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

from tests.training.pair import reporter

from blockdraft_training.errors import TrainingError
from blockdraft_training.loop import run
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.settings import DFlashSettings


def main(path: Path) -> None:
    """Train twice."""
    settings: DFlashSettings = pickle.loads(path.read_bytes())
    trained = run.train(DFlashRecipe(settings), reporter())
    odd = replace(
        settings, batch_size=settings.batch_size - 1, output=settings.output.with_name("odd")
    )
    try:
        run.train(DFlashRecipe(odd), reporter())
        refusal = None
    except TrainingError as error:
        refusal = str(error)
    losses = [entry["loss"] for entry in trained.history]
    print(json.dumps({"losses": losses, "refusal": refusal}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
