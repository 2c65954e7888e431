"""The weights of a draft module in safetensors, whatever the module is."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike
from safetensors.numpy import save

from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.fingerprint import combined, values_digest

_PREFIX = "model."

Module = TypeVar("Module", bound=nnx.Module)


@dataclass(frozen=True, slots=True)
class DraftTensor:
    """One weight of a drafter.

    Attributes:
        path: Dotted attribute path in the module.
        name: Published name.
        shape: As published and as the module stores it; matrices are [out, in].
    """

    path: str
    name: str
    shape: tuple[int, ...]


def names_by_published(path: Path, stored: Mapping[str, Any]) -> dict[str, str]:
    """Map published names to stored ones, which some repackagers prefix.

    Raises:
        CheckpointError: If a name is there with and without the prefix.
    """
    names = {name.removeprefix(_PREFIX): name for name in stored}
    if len(names) < len(stored):
        twice = sorted(name for name in names if name in stored and _PREFIX + name in stored)
        raise CheckpointError(f"{path} holds tensors twice, also as {_PREFIX}*: {twice[0]}")
    return names


def module_of(
    make: Callable[[], Module],
    tensors: Sequence[DraftTensor],
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: DTypeLike,
) -> Module:
    """Return the module with these weights, given by published name in published layout."""
    graph, state = nnx.split(nnx.eval_shape(make))
    flat = dict(nnx.to_flat_state(state))
    by_path = {tensor.path: tensor for tensor in tensors}
    for key, variable in flat.items():
        tensor = by_path[".".join(map(str, key))]
        weight = np.array(arrays[tensor.name], dtype=jnp.dtype(dtype), order="C")
        flat[key] = variable.replace(jnp.asarray(weight))
    return nnx.merge(graph, nnx.from_flat_state(flat))


def arrays_of(module: nnx.Module, tensors: Sequence[DraftTensor]) -> dict[str, np.ndarray]:
    """Return a module's weights by published name, in published layout and their own dtype."""
    state = {".".join(map(str, key)): v for key, v in nnx.to_flat_state(nnx.state(module))}
    return {tensor.name: np.array(state[tensor.path][...]) for tensor in tensors}


def fingerprint_of(config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Identify a drafter by its configuration and the values of all its tensors."""
    names = sorted(arrays)
    description = json.dumps([config, names], sort_keys=True)
    return combined(description, (values_digest([arrays[name]]) for name in names))


def write_files(
    directory: Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    # Not `save_file`: that makes a file only its owner can read.
    (directory / "model.safetensors").write_bytes(save(dict(arrays), metadata={"format": "pt"}))
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
