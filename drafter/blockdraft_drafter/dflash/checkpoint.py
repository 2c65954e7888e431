"""DFlash drafters on disk, as they are published: safetensors and config.json."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flax import nnx
from jaxtyping import DTypeLike, Int

from blockdraft_drafter.compiled.vocabulary import (
    DRAFT_TO_TARGET,
    TARGET_TO_DRAFT,
    draft_offsets,
    read_draft_ids,
)
from blockdraft_drafter.config.dflash import DFlashConfig
from blockdraft_drafter.config.eagle3 import Eagle3Config
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.files.tensors import (
    DraftTensor,
    arrays_of,
    check_tensors,
    fingerprint_of,
    module_of,
    names_by_published,
    write_files,
)
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.huggingface import SafetensorsWeights, read_json
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_models.weights.tensor_names import tensor_names

_PREFIX = "model."


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


def draft_tensors(config: DFlashConfig) -> Iterator[DraftTensor]:
    """Yield every weight of a drafter, each once, in a fixed order; 58 for five layers.

    A Markov head has two more, named as in DSpark checkpoints.
    """
    hidden = config.decoder.hidden_size
    yield DraftTensor("fc.weight", "fc.weight", (hidden, config.feature_width))
    yield DraftTensor("hidden_norm.scale", "hidden_norm.weight", (hidden,))
    for name in tensor_names(config.decoder):
        # Embedding and head are the target's; the rest is named as in any Qwen3 model.
        if name.path.startswith(("layers.", "norm.")):
            published = name.hf.removeprefix(_PREFIX)
            yield DraftTensor(name.path, published, name.shape)
    if config.markov_rank:
        vocab, rank = config.decoder.vocab_size, config.markov_rank
        for factor, rows in (("markov_w1", vocab), ("markov_w2", config.draft_vocab_size or vocab)):
            path = f"markov_head.{factor}"
            yield DraftTensor(path, f"{path}.weight", (rows, rank))


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
    published = read_json(path / "config.json", required=True)
    try:
        config = DFlashConfig.from_hf(published)
        check_fits(config, target)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    with SafetensorsWeights(path) as weights:
        names = names_by_published(path, weights.shapes())
        _check_tensors(path, config, {name: weights.shapes()[names[name]] for name in names})
        weights.check_floats(names[tensor.name] for tensor in draft_tensors(config))
        draft_ids = None
        if config.draft_vocab_size is not None:
            draft_ids = read_draft_ids(path, weights, names, config.decoder.vocab_size)
        arrays = {}
        for tensor in draft_tensors(config):
            stored = weights.read(names[tensor.name])
            arrays[tensor.name] = np.asarray(stored, dtype=np.float32)
    model = build(config, arrays, dtype=dtype)
    return Drafter(model, fingerprint(config, arrays), draft_ids)


def build(config: DFlashConfig, arrays: Mapping[str, np.ndarray], *, dtype: DTypeLike) -> DFlash:
    """Return the model with these weights, given by published name in published layout."""
    tensors = list(draft_tensors(config))
    return module_of(
        lambda: DFlash(config, dtype=dtype, rngs=nnx.Rngs(0)), tensors, arrays, dtype=dtype
    )


def published_arrays(model: DFlash) -> dict[str, np.ndarray]:
    """Return a model's weights by published name, in published layout and their own dtype."""
    return arrays_of(model, list(draft_tensors(model.config)))


def save_drafter(
    model: DFlash, directory: Path, draft_ids: Int[np.ndarray, " draft"] | None = None
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed.

    Args:
        model: The drafter.
        directory: Where to.
        draft_ids: Target ids it can propose, `draft_vocab_size` of them if that is set.
    """
    arrays = published_arrays(model)
    if draft_ids is not None:
        arrays[DRAFT_TO_TARGET] = draft_offsets(draft_ids)
    write_files(directory, arrays, model.config.to_hf())


def fingerprint(config: DFlashConfig, arrays: Mapping[str, np.ndarray]) -> str:
    """Identify a drafter by its configuration and a part of its weights."""
    return fingerprint_of(config.to_hf(), list(draft_tensors(config)), arrays)


def check_fits(config: DFlashConfig | Eagle3Config, target: Checkpoint) -> None:
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


def _check_tensors(path: Path, config: DFlashConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    expected = {tensor.name: tensor.shape for tensor in draft_tensors(config)}
    # DSpark checkpoints also guess how far a draft will be accepted; here that is measured.
    found = {n: shape for n, shape in found.items() if not n.startswith("confidence_head.")}
    if config.draft_vocab_size is not None:
        expected[DRAFT_TO_TARGET] = (config.draft_vocab_size,)
        # Its inverse, which some checkpoints carry as well, says nothing new.
        found = {name: shape for name, shape in found.items() if name != TARGET_TO_DRAFT}
    check_tensors(path, expected, found)
