"""Which folder a command is about."""

from pathlib import Path

from blockdraft_training.online.settings import FolderSettings


def folder(settings: FolderSettings) -> Path:
    """Return the folder that is named, or that of the target.

    Raises:
        ModelError: If the target is not found.
    """
    if settings.directory is not None:
        return settings.directory
    # Imported here: `--help` must not wait for jax.
    from blockdraft_models.weights.loading import load_checkpoint_config
    from blockdraft_models.weights.resolve import resolve_target

    target = load_checkpoint_config(resolve_target(settings.target))
    return settings.directory_for(target.fingerprint)
