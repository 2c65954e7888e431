"""Drafters on disk, as they are published: safetensors and config.json, whatever the method."""

import json
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike, Int
from safetensors.numpy import save

from blockdraft_drafter.compiled.definition import (
    DEFAULT_BLOCK_SIZE,
    DRAFT_TO_TARGET,
    DraftConfig,
    Drafter,
    DraftModel,
    MethodDefinition,
    Model,
)
from blockdraft_drafter.speculators import publishers_form, publishers_name
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.checkpoint import check_tensors
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.fingerprint import combined, values_digest
from blockdraft_models.weights.huggingface import SafetensorsWeights
from blockdraft_models.weights.loading import Checkpoint

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"
# Some repackagers put this before every name.
_PREFIX = "model."


def load_drafter(
    method: MethodDefinition[Model],
    path: Path,
    target: Checkpoint,
    *,
    dtype: DTypeLike,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Drafter[Model]:
    """Load a drafter for a target; weights are converted to `dtype`.

    `block_size` is for a configuration without one. Raises CheckpointError if the files
    are damaged, tensors are missing, unexpected or of the wrong shape, or the drafter does not fit
    the target.
    """
    written = read_json(path / "config.json", required=True)
    try:
        published = publishers_form(written, target.config.num_layers)
        config = method.config_type.from_hf(published, target.config, block_size=block_size)
        _check_fits(config, target)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {' '.join(str(error).split())}") from error
    with SafetensorsWeights(path) as weights:
        stored = weights.shapes()
        names: dict[str, str] = {}
        for name in sorted(stored):
            published_name = publishers_name(name.removeprefix(_PREFIX), written)
            if published_name in names:
                raise CheckpointError(
                    f"{path} holds a tensor twice, as {names[published_name]} and {name}"
                )
            names[published_name] = name
        _check_tensors(path, config, {name: stored[names[name]] for name in names})
        tensor_names = [tensor.name for tensor in config.tensors()]
        tensor_names += [name for name in (_EMBEDDING, _HEAD) if name in names]
        weights.check_floats(names[name] for name in tensor_names)
        draft_ids = None
        if config.draft_vocab_size is not None:
            offsets = weights.read(names[DRAFT_TO_TARGET])
            draft_ids = _draft_ids(path, offsets, config.decoder.vocab_size)
        arrays = {
            name: np.asarray(weights.read(names[name]), dtype=np.float32) for name in tensor_names
        }
    if _EMBEDDING in arrays and not arrays[_EMBEDDING].any():
        del arrays[_EMBEDDING]  # published as zeros, to be filled in from the target
    identity = fingerprint(config, arrays, draft_ids)
    embedding, head = arrays.pop(_EMBEDDING, None), arrays.pop(_HEAD, None)
    model = build(method, config, arrays, dtype=dtype)
    return Drafter(method, model, identity, draft_ids, embedding, head)


def build(
    method: MethodDefinition[Model],
    config: DraftConfig,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: DTypeLike,
) -> Model:
    """Return the model with these weights, given by published name in published layout."""
    empty = nnx.eval_shape(lambda: method.module(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(empty)
    flat = dict(nnx.to_flat_state(state))
    names = {tensor.path: tensor.name for tensor in config.tensors()}
    for key, variable in flat.items():
        weight = arrays[names[".".join(map(str, key))]]
        flat[key] = variable.replace(
            jnp.asarray(np.array(weight, dtype=jnp.dtype(dtype), order="C"))
        )
    return nnx.merge(graph, nnx.from_flat_state(flat))


def published_arrays(model: DraftModel) -> dict[str, np.ndarray]:
    """Return a model's weights by published name, in published layout and their own dtype."""
    state = {".".join(map(str, key)): v for key, v in nnx.to_flat_state(nnx.state(model))}
    return {tensor.name: np.array(state[tensor.path][...]) for tensor in model.config.tensors()}


def save_drafter(
    model: DraftModel, directory: Path, draft_ids: Int[np.ndarray, " draft"] | None = None
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed.

    The drafter uses the target's embedding and head; `draft_ids` are the target ids that it can
    draft, `draft_vocab_size` of them if that is set.
    """
    arrays = published_arrays(model)
    if draft_ids is not None:
        arrays[DRAFT_TO_TARGET] = _offsets(draft_ids)
    directory.mkdir(parents=True, exist_ok=True)
    # Not `save_file`: that makes a file only its owner can read.
    (directory / "model.safetensors").write_bytes(save(arrays, metadata={"format": "pt"}))
    text = json.dumps(model.config.to_hf(), indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def fingerprint(
    config: DraftConfig,
    arrays: Mapping[str, np.ndarray],
    draft_ids: Int[np.ndarray, " draft"] | None = None,
) -> str:
    """Identify a drafter by everything that its drafts depend on.

    `arrays` are all its weights by published name, embedding and head if they are its own.
    """
    tensors = dict(arrays)
    if draft_ids is not None:
        tensors[DRAFT_TO_TARGET] = _offsets(draft_ids)
    names = sorted(tensors)
    description = json.dumps([config.to_hf(), names], sort_keys=True)
    return combined(description, (values_digest([tensors[name]]) for name in names))


def _offsets(draft_ids: Int[np.ndarray, " draft"]) -> Int[np.ndarray, " draft"]:
    """Return the published form of a draft vocabulary."""
    offsets: np.ndarray = draft_ids.astype(np.int64) - np.arange(len(draft_ids))
    return offsets


def _draft_ids(path: Path, offsets: np.ndarray, vocab_size: int) -> Int[np.ndarray, " draft"]:
    """Return the distinct target ids of published offsets."""
    if offsets.dtype.kind not in "iu":
        raise CheckpointError(f"{path}: {DRAFT_TO_TARGET} holds {offsets.dtype}, not whole numbers")
    ids = np.arange(len(offsets)) + np.asarray(offsets, np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
        raise CheckpointError(
            f"{path}: {DRAFT_TO_TARGET} does not name distinct tokens of a vocabulary"
            f" of {vocab_size}"
        )
    return ids.astype(np.int32)


def _check_fits(config: DraftConfig, target: Checkpoint) -> None:
    """Check that a drafter can draft for a target."""
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


def _check_tensors(
    path: Path,
    config: DraftConfig,
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    expected = {tensor.name: tensor.shape for tensor in config.tensors()}
    vocab, hidden = config.decoder.vocab_size, config.decoder.hidden_size
    draft_vocab = config.draft_vocab_size or vocab
    if config.draft_vocab_size is not None:
        expected[DRAFT_TO_TARGET] = (draft_vocab,)
    # Where they are absent, the target's take their place.
    for name, shape in ((_EMBEDDING, (vocab, hidden)), (_HEAD, (draft_vocab, hidden))):
        if name in shapes:
            expected[name] = shape
    drafter_shapes = {name: shape for name, shape in shapes.items() if not config.ignores(name)}
    check_tensors(path, expected, drafter_shapes)
