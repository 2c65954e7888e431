"""Checkpoints of a run (orbax): everything a step reads, so that a resumed run is the same run."""

import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from blockdraft_training.errors import TrainingError
from blockdraft_training.loop.step import TrainState
from blockdraft_training.methods.objective import BlockMetrics

_MAX_CHECKPOINTS = 2


class Checkpoints:
    """The checkpoints of one run, newest last."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        """Open a run's checkpoints, or start a run; a directory of another one is refused."""
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check_identity(identity)
        self._manager = ocp.CheckpointManager(
            self.directory / "checkpoints",
            options=ocp.CheckpointManagerOptions(
                max_to_keep=_MAX_CHECKPOINTS, enable_async_checkpointing=False
            ),
        )

    @property
    def latest(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        step: int | None = self._manager.latest_step()
        return step

    def path(self) -> str:
        """Name the newest checkpoint, for messages."""
        if self.latest is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.directory / 'checkpoints' / str(self.latest)}"

    def save(self, state: TrainState) -> None:
        """Write a checkpoint; where it cannot be written, the earlier ones stay."""
        step = int(state.step)
        if step == self.latest:
            return
        try:
            self._manager.save(step, args=ocp.args.StandardSave(_tree(state)))
        except (OSError, ValueError) as error:
            # tensorstore reports a full disk as ValueError.
            raise TrainingError(
                f"checkpoint {step} cannot be written: {error}; {self.path()}"
            ) from error

    def restore(self, like: TrainState) -> TrainState:
        """Return the newest checkpoint, placed as `like` is; there must be one."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _tree(like))
        try:
            tree = self._manager.restore(self.latest, args=ocp.args.StandardRestore(abstract))
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(
                f"checkpoint {self.directory / 'checkpoints' / str(self.latest)} is damaged:"
                f" {error}"
            ) from error
        return TrainState(**{**tree, "metrics": BlockMetrics(**tree["metrics"])})

    def close(self) -> None:
        """Release the directory."""
        self._manager.close()

    def _check_identity(self, identity: dict[str, Any]) -> None:
        path = self.directory / "run.json"
        if not path.exists():
            path.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
            return
        stored_identity = json.loads(path.read_text(encoding="utf-8"))
        different = sorted(
            key
            for key in stored_identity.keys() | identity.keys()
            if stored_identity.get(key) != identity.get(key)
        )
        if different:
            raise TrainingError(
                f"{self.directory} holds a run with other settings ({', '.join(different)});"
                " name another --output, or give the run's own settings to resume it"
            )


def _tree(state: TrainState) -> dict[str, Any]:
    metrics = {name: getattr(state.metrics, name) for name in BlockMetrics.__slots__}
    return {
        "step": state.step,
        "params": state.params,
        "optimizer": state.optimizer,
        "metrics": metrics,
    }
