"""Weights of a Hugging Face directory: safetensors, in one file or sharded."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from blockdraft_models.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: The file.
        required: Whether its absence is an error.

    Returns:
        The object; empty if the file is absent.

    Raises:
        CheckpointError: If the file is required and absent, or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise CheckpointError(f"{path.parent} has no {path.name}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


class SafetensorsWeights:
    """The tensors of a Hugging Face directory, read one at a time from mapped shards."""

    def __init__(self, directory: Path) -> None:
        """Opens every shard and reads its header.

        Raises:
            CheckpointError: If the files are missing or damaged, the index names a file outside
                the directory, or the weights exist only as pickles (which can run code).
        """
        self._stack = ExitStack()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._shards: dict[str, Any] = {}
        try:
            for shard in _shard_files(directory):
                self._open(shard)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "SafetensorsWeights":
        """Returns self."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the shards."""
        self._shards.clear()
        self._stack.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor by name."""
        return dict(self._shapes)

    def read(self, name: str, rows: int | None = None) -> Any:
        """Reads a tensor.

        Args:
            name: One of `shapes()`.
            rows: How many leading rows to read; all of them when None.

        Returns:
            A fresh array in the stored dtype (bfloat16 by ml_dtypes).
        """
        shard = self._shards[name]
        return shard.get_tensor(name) if rows is None else shard.get_slice(name)[:rows]

    def _open(self, path: Path) -> None:
        import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
        from safetensors import SafetensorError, safe_open

        try:
            shard = self._stack.enter_context(safe_open(path, framework="numpy"))
            for name in shard.keys():  # noqa: SIM118  (not a mapping)
                if name in self._shards:
                    raise CheckpointError(f"tensor {name} is in two shards")
                self._shapes[name] = tuple(shard.get_slice(name).get_shape())
                self._shards[name] = shard
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error


def _shard_files(directory: Path) -> list[Path]:
    if (directory / _INDEX).exists():
        weight_map = read_json(directory / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{directory / _INDEX} has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
    elif (directory / _SINGLE).exists():
        names = [_SINGLE]
    elif any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        raise CheckpointError(
            f"{directory} has only pickled weights, which may run code when loaded; "
            "convert them to safetensors"
        )
    else:
        raise CheckpointError(f"{directory} has neither {_SINGLE} nor {_INDEX}")
    for name in names:
        # Hub snapshots link to blobs elsewhere, so the name is judged, not where a link leads.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"index of {directory} names {name!r}, not a shard beside it")
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory} lacks the shard {name}")
    return [directory / name for name in names]
