"""The installed version."""

import importlib.metadata


def version() -> str:
    """Return the version of the installed package; "unknown" in a bare checkout."""
    try:
        return importlib.metadata.version("blockdraft")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
