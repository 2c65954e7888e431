"""EAGLE-3 drafters on disk, in the format in which they are published."""

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
from blockdraft_drafter.config.eagle3 import Eagle3Config
from blockdraft_drafter.dflash.checkpoint import check_fits
from blockdraft_drafter.eagle3.model import Eagle3
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

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Eagle3Drafter:
    """A draft model, identified.

    Attributes:
        model: The model.
        fingerprint: 16 hexadecimal digits over the configuration, the norms and a part of `fc`.
        draft_ids: Int[ndarray, "draft"], target ids the drafter can propose; None for all.
        embedding: Float[ndarray, "vocab hidden"], its own embedding; None for the target's.
        head: Float[ndarray, "draft hidden"], its own head; None for the target's.
    """

    model: Eagle3
    fingerprint: str
    draft_ids: np.ndarray | None = None
    embedding: np.ndarray | None = None
    head: np.ndarray | None = None


def eagle3_tensors(config: Eagle3Config) -> Iterator[DraftTensor]:
    """Yield every weight of the draft model, each once, in a fixed order."""
    decoder = config.decoder
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    q_width, kv_width = (
        heads * decoder.head_dim for heads in (decoder.num_heads, decoder.num_kv_heads)
    )
    yield DraftTensor("fc.weight", "fc.weight", (hidden, config.feature_width))
    for path, name in (
        ("embedding_norm", "midlayer.input_layernorm"),
        ("hidden_norm", "midlayer.hidden_norm"),
        ("mlp_norm", "midlayer.post_attention_layernorm"),
        ("norm", "norm"),
    ):
        yield DraftTensor(f"{path}.scale", f"{name}.weight", (hidden,))
    for path, name, shape in (
        ("attention.query", "self_attn.q_proj", (q_width, 2 * hidden)),
        ("attention.key", "self_attn.k_proj", (kv_width, 2 * hidden)),
        ("attention.value", "self_attn.v_proj", (kv_width, 2 * hidden)),
        ("attention.output", "self_attn.o_proj", (hidden, q_width)),
        ("mlp.gate", "mlp.gate_proj", (inner, hidden)),
        ("mlp.up", "mlp.up_proj", (inner, hidden)),
        ("mlp.down", "mlp.down_proj", (hidden, inner)),
    ):
        yield DraftTensor(f"{path}.weight", f"midlayer.{name}.weight", shape)
        if decoder.attention_bias and path.startswith("attention."):
            yield DraftTensor(f"{path}.bias", f"midlayer.{name}.bias", shape[:1])


def load_eagle3(
    path: Path, target: Checkpoint, *, block_size: int, dtype: DTypeLike
) -> Eagle3Drafter:
    """Load a drafter for a target.

    Args:
        path: Directory with `config.json` and safetensors, names with or without `model.`.
        target: The target it shall draft for.
        block_size: Tokens per block if the configuration does not say.
        dtype: Of weights and activations; stored weights are converted.

    Raises:
        CheckpointError: If the files are damaged, tensors are missing, unexpected or of the wrong
            shape, or the drafter does not fit the target.
    """
    published = read_json(path / "config.json", required=True)
    try:
        config = Eagle3Config.from_hf(
            published,
            num_target_layers=target.config.num_layers,
            block_size=block_size,
        )
        check_fits(config, target)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    with SafetensorsWeights(path) as weights:
        names = names_by_published(path, weights.shapes())
        _check(path, config, {name: weights.shapes()[names[name]] for name in names})
        others = {DRAFT_TO_TARGET, TARGET_TO_DRAFT}
        weights.check_floats(names[name] for name in names if name not in others)
        draft_ids = None
        if config.draft_vocab_size is not None:
            draft_ids = read_draft_ids(path, weights, names, config.decoder.vocab_size)

        def read(name: str) -> np.ndarray:
            return np.asarray(weights.read(names[name]), dtype=np.float32)

        arrays = {tensor.name: read(tensor.name) for tensor in eagle3_tensors(config)}
        embedding = read(_EMBEDDING) if _EMBEDDING in names else None
        head = read(_HEAD) if _HEAD in names else None
    if embedding is not None and not embedding.any():
        embedding = None  # published as zeros, to be filled in from the target
    model = build_eagle3(config, arrays, dtype=dtype)
    return Eagle3Drafter(model, fingerprint(config, arrays), draft_ids, embedding, head)


def build_eagle3(
    config: Eagle3Config, arrays: Mapping[str, np.ndarray], *, dtype: DTypeLike
) -> Eagle3:
    """Return the model with these weights, given by published name in published layout."""
    tensors = list(eagle3_tensors(config))
    return module_of(
        lambda: Eagle3(config, dtype=dtype, rngs=nnx.Rngs(0)), tensors, arrays, dtype=dtype
    )


def published_arrays(model: Eagle3) -> dict[str, np.ndarray]:
    """Return a model's weights by published name, in published layout and their own dtype."""
    return arrays_of(model, list(eagle3_tensors(model.config)))


def save_eagle3(
    model: Eagle3, directory: Path, draft_ids: Int[np.ndarray, " draft"] | None = None
) -> None:
    """Write `model.safetensors` and `config.json`; the directory is created if needed.

    Args:
        model: The drafter, which uses the target's embedding and head.
        directory: Where to.
        draft_ids: Target ids it can propose, `draft_vocab_size` of them if that is set.
    """
    arrays = published_arrays(model)
    if draft_ids is not None:
        arrays[DRAFT_TO_TARGET] = draft_offsets(draft_ids)
    write_files(directory, arrays, model.config.to_hf())


def fingerprint(config: Eagle3Config, arrays: Mapping[str, np.ndarray]) -> str:
    """Identify a drafter by its configuration and a part of its weights."""
    return fingerprint_of(config.to_hf(), list(eagle3_tensors(config)), arrays)


def _check(path: Path, config: Eagle3Config, found: Mapping[str, tuple[int, ...]]) -> None:
    vocab, hidden = config.decoder.vocab_size, config.decoder.hidden_size
    draft_vocab = config.draft_vocab_size or vocab
    expected = {tensor.name: tensor.shape for tensor in eagle3_tensors(config)}
    if config.draft_vocab_size is not None:
        expected[DRAFT_TO_TARGET] = (draft_vocab,)
    # The target's take their place where they are absent.
    for name, shape in ((_EMBEDDING, (vocab, hidden)), (_HEAD, (draft_vocab, hidden))):
        if name in found:
            expected[name] = shape
    found = {
        name: shape
        for name, shape in found.items()
        if name != TARGET_TO_DRAFT and (name != DRAFT_TO_TARGET or name in expected)
    }
    check_tensors(path, expected, found)
