"""Loading decoders, or the parts of one a drafter shares, from checkpoints.

Weights travel one tensor at a time from mapped files to their devices (`streaming.py`) and into an
abstract module: the host never holds more than two of them.
"""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.sharding import EMBED, VOCAB, Placement
from blockdraft_models.errors import CheckpointError
from blockdraft_models.weights.checkpoint import Checkpoint, open_checkpoint
from blockdraft_models.weights.progress import Progress
from blockdraft_models.weights.quantization import WeightFormat, hold_int8
from blockdraft_models.weights.streaming import stream_weights
from blockdraft_models.weights.tensor_names import embedding_name, head_name, tensor_names

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
        """Score every token with the target's head, in float32."""
        weight = self.embedding if self.head is None else self.head
        return project(hidden, weight, dtype=jnp.float32)


def load_checkpoint_config(path: Path) -> Checkpoint:
    """Identify a checkpoint, of which all weights are read unless its fingerprint is remembered.

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
    path: Path,
    *,
    dtype: DTypeLike,
    weights: WeightFormat = "float",
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> tuple[Decoder, Checkpoint]:
    """Load a decoder.

    Args:
        path: A Hugging Face directory or a `.gguf` file.
        dtype: Of weights and activations; stored weights are converted.
        weights: "int8" quantizes the matrices of the layers, each as it is read.
        placement: Where on a mesh each weight goes; the default device when None.
        progress: Called after every weight with the bytes placed and the bytes in all.

    Returns:
        The decoder and what it was loaded from.

    Raises:
        CheckpointError: If the checkpoint is damaged, incomplete or of an unsupported kind;
            nothing was placed on a device then. Also if int8 is asked of weights that are not
            finite.
    """
    int8 = weights == "int8"
    with open_checkpoint(path) as source:
        config = source.checkpoint.config

        def build() -> Decoder:
            decoder = Decoder(config, dtype=dtype, rngs=None)
            return hold_int8(decoder) if int8 else decoder

        graph, state = nnx.split(nnx.eval_shape(build))
        flat = dict(nnx.to_flat_state(state))
        keys = {".".join(map(str, key)): key for key in flat}
        wanted = [
            (name, flat[keys[name.path]].get_metadata()["out_sharding"])
            for name in tensor_names(config)
        ]
        for path_in_decoder, weight in stream_weights(
            source, wanted, dtype=dtype, placement=placement, progress=progress, int8=int8
        ):
            key = keys.pop(path_in_decoder)
            flat[key] = flat[key].replace(weight)
        assert not keys, f"nothing loaded for {keys}"
        decoder = nnx.merge(graph, nnx.from_flat_state(flat))
    return decoder, source.checkpoint


def load_embedding_and_head(
    path: Path,
    *,
    dtype: DTypeLike,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> tuple[EmbeddingAndHead, Checkpoint]:
    """Load only the embedding and the head of a target.

    Args:
        path: A Hugging Face directory or a `.gguf` file.
        dtype: Of the weights.
        placement: Where on a mesh each weight goes; the default device when None.
        progress: Called after each of the two with the bytes placed and the bytes in all.

    Returns:
        The weights and what they were loaded from.

    Raises:
        CheckpointError: If the checkpoint is damaged, incomplete or of an unsupported kind;
            nothing was placed on a device then.
    """
    with open_checkpoint(path) as source:
        config = source.checkpoint.config
        table, untied = embedding_name(config), head_name(config)
        wanted = [table] if untied is None else [table, untied]
        loaded = dict(
            stream_weights(
                source,
                [(name, (VOCAB, EMBED)) for name in wanted],
                dtype=dtype,
                placement=placement,
                progress=progress,
            )
        )
    head = None if untied is None else loaded[untied.path]
    return EmbeddingAndHead(loaded[table.path], head), source.checkpoint
