"""Drafters on disk, in the format in which they are published: safetensors and config.json."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike, Int
from safetensors.numpy import save

from blockdraft_drafter.config import DFlashConfig
from blockdraft_drafter.dflash import DFlash
from blockdraft_drafter.vocabulary import DRAFT_TO_TARGET, draft_ids_of, draft_offsets
from blockdraft_models.errors import CheckpointError
from blockdraft_models.huggingface import SafetensorsWeights, read_json
from blockdraft_models.loading import Checkpoint
from blockdraft_models.tensor_names import tensor_names

_PREFIX = "model."
_FINGERPRINT_ROWS = 64
_FINGERPRINT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft model, identified.

    Attributes:
        model: The model.
        fingerprint: 16 hexadecimal digits over the configuration, the norms and a part of `fc`.
        draft_ids: Int[ndarray, "draft"], target ids the drafter can propose; None for all.
    """

    model: DFlash
    fingerprint: str
    draft_ids: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class DraftTensor:
    """One weight of a drafter.

    Attributes:
        path: Dotted attribute path in `DFlash`.
        name: Published name.
        shape: As published and as `DFlash` stores it; matrices are [out, in].
    """

    path: str
    name: str
    shape: tuple[int, ...]


def draft_tensors(config: DFlashConfig) -> Iterator[DraftTensor]:
    """Yield every weight of a drafter, each once, in a fixed order; 58 for five layers."""
    hidden = config.decoder.hidden_size
    yield DraftTensor("fc.weight", "fc.weight", (hidden, config.feature_width))
    yield DraftTensor("hidden_norm.scale", "hidden_norm.weight", (hidden,))
    for name in tensor_names(config.decoder):
        # Embedding and head are the target's; the rest is named as in any Qwen3 model.
        if name.path.startswith(("layers.", "norm.")):
            published = name.hf.removeprefix(_PREFIX)
            yield DraftTensor(name.path, published, name.shape)


def load_drafter(path: Path, target: Checkpoint, *, dtype: DTypeLike) -> Drafter:
    """Load a drafter for a target.

    Args:
        path: Directory with `config.json` and safetensors, names with or without `model.`.
        target: The target it shall draft for.
        dtype: Of weights and activations; stored weights are converted.

    Raises:
        CheckpointError: If the files are damaged, tensors are missing, unexpected or of the wrong
            shape, or the drafter does not fit the target.
    """
    try:
        config = DFlashConfig.from_hf(read_json(path / "config.json", required=True))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    check_fits(config, target)
    with SafetensorsWeights(path) as weights:
        names = _names_by_published(weights.shapes())
        _check_tensors(path, config, {name: weights.shapes()[names[name]] for name in names})
        arrays = {}
        for tensor in draft_tensors(config):
            stored = weights.read(names[tensor.name])
            arrays[tensor.name] = np.asarray(stored, dtype=np.float32)
        draft_ids = None
        if config.draft_vocab_size is not None:
            offsets = np.asarray(weights.read(names[DRAFT_TO_TARGET]))
            draft_ids = draft_ids_of(offsets, config.decoder.vocab_size)
    model = build(config, arrays, dtype=dtype)
    return Drafter(model, fingerprint(config, arrays), draft_ids)


def build(config: DFlashConfig, arrays: Mapping[str, np.ndarray], *, dtype: DTypeLike) -> DFlash:
    """Return the model with these weights, given by published name in published layout."""
    abstract = nnx.eval_shape(lambda: DFlash(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    flat = dict(nnx.to_flat_state(state))
    tensors = {tensor.path: tensor for tensor in draft_tensors(config)}
    for key, variable in flat.items():
        tensor = tensors[".".join(map(str, key))]
        weight = np.array(arrays[tensor.name], dtype=jnp.dtype(dtype), order="C")
        flat[key] = variable.replace(jnp.asarray(weight))
    return nnx.merge(graph, nnx.from_flat_state(flat))


def published_arrays(model: DFlash) -> dict[str, np.ndarray]:
    """Return a model's weights by published name, in published layout and their own dtype."""
    state = {".".join(map(str, key)): v for key, v in nnx.to_flat_state(nnx.state(model))}
    return {
        tensor.name: np.array(state[tensor.path][...]) for tensor in draft_tensors(model.config)
    }


def save_drafter(
    model: DFlash, directory: Path, draft_ids: Int[np.ndarray, " draft"] | None = None
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed.

    Args:
        model: The drafter.
        directory: Where to.
        draft_ids: Target ids it can propose, `draft_vocab_size` of them if that is set.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arrays = published_arrays(model)
    if draft_ids is not None:
        arrays[DRAFT_TO_TARGET] = draft_offsets(draft_ids)
    # Not `save_file`: that makes a file only its owner can read.
    (directory / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))
    config = json.dumps(model.config.to_hf(), indent=2) + "\n"
    (directory / "config.json").write_text(config, encoding="utf-8")


def fingerprint(config: DFlashConfig, arrays: Mapping[str, np.ndarray]) -> str:
    """Identify a drafter by its configuration, its norms and the first rows of `fc`.

    The norms alone would not tell random initializations apart: they all start at one.
    """
    digest = hashlib.sha256(json.dumps(config.to_hf(), sort_keys=True).encode())
    for tensor in draft_tensors(config):
        if tensor.name.endswith("norm.weight") or tensor.name == "fc.weight":
            array = arrays[tensor.name]
            rows = array[:_FINGERPRINT_ROWS] if array.ndim == 2 else array
            digest.update(np.ascontiguousarray(rows, dtype="<f4").tobytes())
    return digest.hexdigest()[:_FINGERPRINT_LENGTH]


def check_fits(config: DFlashConfig, target: Checkpoint) -> None:
    """Check that a drafter can draft for a target.

    Raises:
        CheckpointError: If a shape differs, or it was trained for another target.
    """
    shapes = (
        ("hidden_size", config.decoder.hidden_size, target.config.hidden_size),
        ("vocab_size", config.decoder.vocab_size, target.config.vocab_size),
        ("num_target_layers", config.num_target_layers, target.config.num_layers),
    )
    for field, ours, theirs in shapes:
        if ours != theirs:
            raise CheckpointError(f"the drafter's {field} is {ours}, the target has {theirs}")
    recorded = config.target_fingerprint
    if recorded is not None and recorded != target.fingerprint:
        raise CheckpointError(
            f"the drafter was made for target {recorded}, not for {target.fingerprint}"
        )


def _names_by_published(stored: Mapping[str, Any]) -> dict[str, str]:
    """Map published names to stored ones, which some repackagers prefix."""
    return {name.removeprefix(_PREFIX): name for name in stored}


def _check_tensors(path: Path, config: DFlashConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    expected = {tensor.name: tensor.shape for tensor in draft_tensors(config)}
    if config.draft_vocab_size is not None:
        expected[DRAFT_TO_TARGET] = (config.draft_vocab_size,)
        # Its inverse, which some checkpoints carry as well, says nothing new.
        found = {name: shape for name, shape in found.items() if name != "t2d"}
    misshapen = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{what}: {', '.join(names)}"
        for what, names in (
            ("missing", sorted(expected.keys() - found.keys())),
            ("unexpected", sorted(found.keys() - expected.keys())),
            ("shape", misshapen),
        )
        if names
    ]
    if problems:
        raise CheckpointError(f"tensors of {path} do not fit its config: {'; '.join(problems)}")
