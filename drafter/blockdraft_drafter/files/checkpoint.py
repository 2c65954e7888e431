"""Drafters on disk, as they are published: safetensors and config.json, whatever the method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import DTypeLike, Int

from blockdraft_drafter.compiled.definition import Config, Drafter, MethodDefinition, Model
from blockdraft_drafter.compiled.vocabulary import DRAFT_TO_TARGET, draft_offsets, read_draft_ids
from blockdraft_drafter.config import DEFAULT_BLOCK_SIZE, DraftConfig
from blockdraft_drafter.files.tensors import (
    arrays_of,
    fingerprint_of,
    module_of,
    names_by_published,
    write_files,
)
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.checkpoint import check_tensors
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.huggingface import SafetensorsWeights
from blockdraft_models.weights.loading import Checkpoint

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


def load_drafter(
    method: MethodDefinition[Config, Model],
    path: Path,
    target: Checkpoint,
    *,
    dtype: DTypeLike,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Drafter[Model]:
    """Load a drafter for a target.

    Args:
        method: Its method.
        path: Directory with `config.json` and safetensors, names with or without `model.`.
        target: The target it shall draft for.
        dtype: Of weights and activations; stored weights are converted.
        block_size: Tokens per block if the configuration does not say.

    Raises:
        CheckpointError: If the files are damaged, tensors are missing, unexpected or of the wrong
            shape, or the drafter does not fit the target.
    """
    published = read_json(path / "config.json", required=True)
    try:
        config = method.config_from_hf(published, target.config, block_size)
        check_fits(config, target)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {' '.join(str(error).split())}") from error
    with SafetensorsWeights(path) as weights:
        names = names_by_published(path, weights.shapes())
        found = {name: weights.shapes()[names[name]] for name in names}
        _check_tensors(path, method, config, found)
        wanted = [tensor.name for tensor in method.draft_tensors(config)]
        if method.own_matrices:
            wanted += [name for name in (_EMBEDDING, _HEAD) if name in names]
        weights.check_floats(names[name] for name in wanted)
        draft_ids = None
        if config.draft_vocab_size is not None:
            draft_ids = read_draft_ids(path, weights, names, config.decoder.vocab_size)
        arrays = {name: np.asarray(weights.read(names[name]), dtype=np.float32) for name in wanted}
    if _EMBEDDING in arrays and not arrays[_EMBEDDING].any():
        del arrays[_EMBEDDING]  # published as zeros, to be filled in from the target
    identity = fingerprint(method, config, arrays, draft_ids)
    embedding, head = arrays.pop(_EMBEDDING, None), arrays.pop(_HEAD, None)
    model = build(method, config, arrays, dtype=dtype)
    return Drafter(method, model, identity, draft_ids, embedding, head)


def build(
    method: MethodDefinition[Config, Model],
    config: Config,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: DTypeLike,
) -> Model:
    """Return the model with these weights, given by published name in published layout."""
    return module_of(
        lambda: method.module(config, dtype=dtype, rngs=nnx.Rngs(0)),
        list(method.draft_tensors(config)),
        arrays,
        dtype=dtype,
    )


def published_arrays(method: MethodDefinition[Any, Model], model: Model) -> dict[str, np.ndarray]:
    """Return a model's weights by published name, in published layout and their own dtype."""
    return arrays_of(model, list(method.draft_tensors(model.config)))


def save_drafter(
    method: MethodDefinition[Any, Model],
    model: Model,
    directory: Path,
    draft_ids: Int[np.ndarray, " draft"] | None = None,
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed.

    Args:
        method: The drafter's.
        model: The drafter, which uses the target's embedding and head.
        directory: Where to.
        draft_ids: Target ids it can propose, `draft_vocab_size` of them if that is set.
    """
    arrays = published_arrays(method, model)
    if draft_ids is not None:
        arrays[DRAFT_TO_TARGET] = draft_offsets(draft_ids)
    write_files(directory, arrays, method.config_to_hf(model.config))


def fingerprint(
    method: MethodDefinition[Config, Any],
    config: Config,
    arrays: Mapping[str, np.ndarray],
    draft_ids: Int[np.ndarray, " draft"] | None = None,
) -> str:
    """Identify a drafter by everything that decides what it proposes for its target.

    Args:
        method: The drafter's.
        config: The drafter's.
        arrays: All its weights by published name, embedding and head if they are its own.
        draft_ids: Target ids it can propose; None for all.
    """
    tensors = dict(arrays)
    if draft_ids is not None:
        tensors[DRAFT_TO_TARGET] = draft_offsets(draft_ids)
    return fingerprint_of(method.config_to_hf(config), tensors)


def check_fits(config: DraftConfig, target: Checkpoint) -> None:
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


def _check_tensors(
    path: Path,
    method: MethodDefinition[Config, Any],
    config: Config,
    found: Mapping[str, tuple[int, ...]],
) -> None:
    expected = {tensor.name: tensor.shape for tensor in method.draft_tensors(config)}
    vocab, hidden = config.decoder.vocab_size, config.decoder.hidden_size
    draft_vocab = config.draft_vocab_size or vocab
    if config.draft_vocab_size is not None:
        expected[DRAFT_TO_TARGET] = (draft_vocab,)
    if method.own_matrices:
        # The target's take their place where they are absent.
        for name, shape in ((_EMBEDDING, (vocab, hidden)), (_HEAD, (draft_vocab, hidden))):
            if name in found:
                expected[name] = shape
    kept = {name: shape for name, shape in found.items() if not method.ignores(config, name)}
    check_tensors(path, expected, kept)
