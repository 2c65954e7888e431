"""Loading decoders, or the parts of one a drafter shares, from checkpoints.

Weights travel one tensor at a time from a mapped file into an abstract module, so the peak is
the model plus its largest tensor.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.axes import EMBED, VOCAB, Axes
from blockdraft_models.checkpoint import Checkpoint, OpenCheckpoint, open_checkpoint
from blockdraft_models.decoder import Decoder
from blockdraft_models.errors import CheckpointError
from blockdraft_models.layers import project
from blockdraft_models.sharding import Placement
from blockdraft_models.tensor_names import TensorName, embedding_name, head_name, tensor_names

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "EmbeddingAndHead",
    "load_checkpoint_config",
    "load_decoder",
    "load_embedding_and_head",
]


class EmbeddingAndHead(NamedTuple):
    """The target's weights that a drafter uses as its own; a pytree.

    Attributes:
        embedding: Float[Array, "vocab hidden"].
        head: Float[Array, "vocab hidden"], or None when the embedding doubles as head.
    """

    embedding: Array
    head: Array | None

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        """Scores every token with the target's head, in float32."""
        weight = self.embedding if self.head is None else self.head
        return project(hidden, weight, dtype=jnp.float32)


def load_checkpoint_config(path: Path) -> Checkpoint:
    """Identifies a checkpoint, reading little of its weights.

    Args:
        path: A Hugging Face directory or a `.gguf` file.

    Returns:
        Configuration and fingerprint.

    Raises:
        CheckpointError: If the checkpoint is damaged, incomplete or of an unsupported kind.
    """
    with open_checkpoint(path) as source:
        return source.checkpoint


def load_decoder(
    path: Path, *, dtype: DTypeLike, placement: Placement | None = None
) -> tuple[Decoder, Checkpoint]:
    """Loads a decoder.

    Args:
        path: A Hugging Face directory or a `.gguf` file.
        dtype: Of weights and activations; stored weights are converted.
        placement: Where on a mesh each weight goes; the default device when None.

    Returns:
        The decoder and what it was loaded from.

    Raises:
        CheckpointError: If the checkpoint is damaged, incomplete or of an unsupported kind.
    """
    with open_checkpoint(path) as source:
        config = source.checkpoint.config
        abstract = nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=None))
        graph, state = nnx.split(abstract)
        flat = dict(nnx.to_flat_state(state))
        names = {name.path: name for name in tensor_names(config)}
        for key, variable in flat.items():
            name = names.pop(".".join(map(str, key)))
            axes = variable.get_metadata()["out_sharding"]
            flat[key] = variable.replace(_load(source, name, dtype, axes, placement))
        decoder = nnx.merge(graph, nnx.from_flat_state(flat))
    return decoder, source.checkpoint


def load_embedding_and_head(
    path: Path, *, dtype: DTypeLike, placement: Placement | None = None
) -> tuple[EmbeddingAndHead, Checkpoint]:
    """Loads only the embedding and the head of a target.

    Args:
        path: A Hugging Face directory or a `.gguf` file.
        dtype: Of the weights.
        placement: Where on a mesh each weight goes; the default device when None.

    Returns:
        The weights and what they were loaded from.

    Raises:
        CheckpointError: If the checkpoint is damaged, incomplete or of an unsupported kind.
    """
    with open_checkpoint(path) as source:
        config = source.checkpoint.config
        axes = (VOCAB, EMBED)
        table = _load(source, embedding_name(config), dtype, axes, placement)
        untied = head_name(config)
        head = None if untied is None else _load(source, untied, dtype, axes, placement)
    return EmbeddingAndHead(table, head), source.checkpoint


def _load(
    source: OpenCheckpoint,
    name: TensorName,
    dtype: DTypeLike,
    axes: Axes,
    placement: Placement | None,
) -> Array:
    weight = np.asarray(source.read(name), dtype=jnp.dtype(dtype), order="C")
    where = None if placement is None else placement.sharding(axes, source.checkpoint.config)
    placed: Array = jax.device_put(weight, where)
    return placed
