"""Whether what `serve --learn` needs is installed."""

import importlib.util

# Looked for, never imported: what serves does without them.
_NEEDED = ("blockdraft_training", "optax", "orbax")


def require_training() -> None:
    """Raise unless the trainer can be started.

    Raises:
        ValueError: Saying what to install.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--learn needs {package}, which is not installed: pip install 'blockdraft[train]'"
            )
