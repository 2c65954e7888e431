"""From what a user calls a target to the checkpoint on disk."""

import re
from collections.abc import Callable
from pathlib import Path

from blockdraft_models.errors import ResolveError
from blockdraft_models.weights import default_target

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights only as safetensors: pickles can run code when loaded.
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


def resolve_target(spec: str, *, progress: Callable[[int, int], None] | None = None) -> Path:
    """Find the checkpoint a name stands for, downloading it if needed.

    Args:
        spec: A Hugging Face directory, a `.gguf` file, `smollm2-135m` (the default target), or
            a hub id `org/name`. What exists on disk wins.
        progress: Called with bytes done and bytes in all while the default is downloaded.

    Returns:
        A directory or `.gguf` file.

    Raises:
        ResolveError: If it is none of these, or the download fails.
    """
    path = Path(spec).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ResolveError(f"{path} is a file but not a .gguf file")
    if spec == default_target.NAME:
        return default_target.fetch(progress=progress)
    if _HUB_ID.fullmatch(spec) and not spec.endswith(".gguf"):
        return _from_hub(spec)
    raise ResolveError(
        f"{spec!r} is no directory, .gguf file or hub id (org/name), nor {default_target.NAME!r}"
    )


def _from_hub(repository: str) -> Path:
    # Imported here: the default target needs neither the hub client nor its start-up time.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=_HUB_FILES))
    except Exception as error:  # many kinds: HTTP, offline, permission, unknown repository
        raise ResolveError(f"cannot download {repository!r} from the hub: {error}") from error
