"""Weights of a Hugging Face directory: safetensors, in one file or sharded."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.files import check_name, check_regular, read_json

Index = tuple[slice, ...]
"""A part of a tensor: one slice along each axis, of step one."""

_ALL = slice(None)
_FLOAT8 = "F8_E4M3"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
# Parsing takes several times this; ten thousand tensors have a header of a megabyte.
_MOST_HEADER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Stored:
    """Shape, element type and location of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    path: Path
    shard: Any
    start: int  # of its bytes in the file


class SafetensorsWeights:
    """The tensors of a Hugging Face directory, read one at a time from mapped shards."""

    def __init__(self, directory: Path, single: str = _SINGLE) -> None:
        """Open every shard and read its header; `single` is the file that may hold all tensors."""
        self._stack = ExitStack()
        self._tensors: dict[str, _Stored] = {}
        try:
            weight_map = _weight_map(directory, single)
            for shard in _shard_files(directory, weight_map, single):
                self._open(shard)
            self._check_index(directory, weight_map)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "SafetensorsWeights":
        """Return self."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the shards."""
        self._tensors.clear()
        self._stack.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by name, in the order in which the files hold them."""
        return {name: stored.shape for name, stored in self._tensors.items()}

    def dtype(self, name: str) -> str:
        """Return the stored element type of a tensor, such as BF16."""
        return self._tensors[name].dtype

    def files(self) -> list[Path]:
        """Return the shards."""
        return sorted({stored.path for stored in self._tensors.values()})

    def check_floats(self, names: Iterable[str]) -> None:
        """Check that some tensors hold floating-point numbers of at least 16 bits."""
        for name in names:
            stored = self._tensors[name]
            if stored.dtype not in _FLOATS:
                raise CheckpointError(
                    f"{stored.path}: {name} is stored as {stored.dtype}, which is not supported "
                    f"(supported: {', '.join(_FLOATS)})"
                )

    def read(self, name: str, rows: slice = _ALL) -> Any:
        """Read rows of a tensor, with step one, into a fresh array.

        It has the stored dtype, bfloat16 by ml_dtypes.
        """
        stored = self._tensors[name]
        if stored.dtype == _FLOAT8:
            return _float8(stored)[rows].copy()
        shard = stored.shard
        return shard.get_tensor(name) if rows == _ALL else shard.get_slice(name)[rows]

    def read_part(self, name: str, index: Index) -> Any:
        """Read a part of a tensor, and only that, as `read` does."""
        stored = self._tensors[name]
        whole = all(
            part.indices(size) == (0, size, 1)
            for part, size in zip(index, stored.shape, strict=True)
        )
        return self.read(name) if whole else stored.shard.get_slice(name)[index]

    def _open(self, path: Path) -> None:
        import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
        from safetensors import SafetensorError, safe_open

        try:
            with path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                if header_bytes > _MOST_HEADER_BYTES:
                    raise CheckpointError(f"cannot read {path}: a header of {header_bytes} bytes")
                raw = file.read(header_bytes)
            # Checks that the tensors cover the file, without gaps and without overlap.
            shard = self._stack.enter_context(safe_open(path, framework="numpy"))
            header = json.loads(raw)
            for name in shard.offset_keys():
                check_name(path, name)
                if name in self._tensors:
                    first = self._tensors[name].path.name
                    raise CheckpointError(f"{path}: tensor {name} is in {first} already")
                tensor = shard.get_slice(name)
                shape = tuple(tensor.get_shape())
                start = 8 + header_bytes + header[name]["data_offsets"][0]
                self._tensors[name] = _Stored(shape, tensor.get_dtype(), path, shard, start)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    def _check_index(self, directory: Path, weight_map: Mapping[str, str] | None) -> None:
        for name, shard in (weight_map or {}).items():
            if name not in self._tensors or self._tensors[name].path.name != shard:
                raise CheckpointError(
                    f"{directory / _INDEX} says that {name} is in {shard}, but it is not"
                )


def _float8(stored: _Stored) -> Any:
    """Return a mapped tensor; the library would ask NumPy for a type that it does not have."""
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.float8_e4m3fn)
    return np.memmap(stored.path, dtype, mode="r", offset=stored.start, shape=stored.shape)


def _weight_map(directory: Path, single: str) -> dict[str, str] | None:
    """Return the shard of each tensor; None without an index, or with all in one file.

    As in transformers, an index beside that file counts as the remains of another model.
    """
    if (directory / single).exists():
        return None
    index = read_json(directory / _INDEX)
    if not index and not (directory / _INDEX).exists():
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{directory / _INDEX} has no weight_map")
    return {name: str(shard) for name, shard in weight_map.items()}


def _shard_files(directory: Path, weight_map: Mapping[str, str] | None, single: str) -> list[Path]:
    if weight_map is not None:
        names = sorted(set(weight_map.values()))
    elif (directory / single).exists():
        names = [single]
    elif any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        raise CheckpointError(
            f"{directory} has only pickled weights, which may run code when loaded; "
            "convert them to safetensors"
        )
    else:
        raise CheckpointError(f"{directory} has neither {single} nor {_INDEX}")
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"index of {directory} names {name!r}, not a shard beside it")
        if not (directory / name).exists():
            raise CheckpointError(f"{directory} lacks the shard {name}")
        check_regular(directory / name)
    return [directory / name for name in names]
