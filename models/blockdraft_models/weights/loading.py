"""Loading decoders, or the parts of one a drafter shares, from a checkpoint to the devices.

Each device's part of a weight is read from the mapped files, converted and sent by itself, in the
order of the files; at most two weights are on the host at a time, one on its way to the devices
while the next is read. Weights that become int8 are quantized on the host, part by part.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import project
from blockdraft_models.decoder.sharding import EMBED, VOCAB, Axes, Place, Placement
from blockdraft_models.decoder.stored import Format, ScaledMatrix, row_bytes
from blockdraft_models.families.table import tensor_names
from blockdraft_models.families.tensors import TensorName, embedding_name, head_name
from blockdraft_models.kernels.library import in_kernels
from blockdraft_models.weights.checkpoint import Checkpoint as Checkpoint
from blockdraft_models.weights.checkpoint import OpenCheckpoint, open_checkpoint
from blockdraft_models.weights.huggingface import Index
from blockdraft_models.weights.progress import Progress
from blockdraft_models.weights.quantization import (
    Quantized,
    WeightFormat,
    hold_int8,
    hold_stored,
    input_axis,
    is_quantized,
    quantize,
    scale_path,
)


class EmbeddingAndHead(NamedTuple):
    """The target's weights, [vocab hidden], that a drafter uses as its own; a pytree.

    The head is None when the embedding doubles as head, and scaled where the target's is int8.
    """

    embedding: Array
    head: Array | ScaledMatrix | None

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        """Score every token with the target's head, in float32; a cap changes no order."""
        weight = self.embedding if self.head is None else self.head
        return project(hidden, weight, dtype=jnp.float32)


def load_checkpoint_config(path: Path) -> Checkpoint:
    """Identify a checkpoint of any family.

    All weights are read unless its fingerprint is remembered.
    """
    with open_checkpoint(path, any_family=True) as source:
        return source.checkpoint


def load_decoder(
    path: Path,
    *,
    dtype: DTypeLike,
    weights: WeightFormat = "float",
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> tuple[Decoder, Checkpoint]:
    """Load a decoder from a Hugging Face directory or a `.gguf` file.

    Stored weights are converted to `dtype`, that of activations too. With "stored", matrices in a
    format that the kernels read stay as they are; "int8" quantizes matrices as they are read.
    Without a placement on a mesh, all weights go to the default device. `progress` gets the bytes
    placed and the bytes in all, after every weight. A bad checkpoint is refused before anything is
    placed.
    """
    int8 = weights == "int8"
    with open_checkpoint(path) as source:
        config = source.checkpoint.config
        formats: dict[str, Format] = {}
        if weights == "stored" and placement is None and in_kernels():
            named = ((name.path, source.format(name)) for name in tensor_names(config))
            formats = {name: format for name, format in named if format is not None}

        def build() -> Decoder:
            decoder = Decoder(config, dtype=dtype, rngs=None)
            if placement is not None:
                decoder.divide(placement.mesh)
            hold_stored(decoder, formats)
            return hold_int8(decoder) if int8 else decoder

        graph, state = nnx.split(nnx.eval_shape(build))
        flat = dict(nnx.to_flat_state(state))
        keys = {".".join(map(str, key)): key for key in flat}
        axes_of = {
            name: flat[keys[name.path]].get_metadata()["out_sharding"]
            for name in tensor_names(config)
        }
        for path_in_decoder, weight in _stream_weights(
            source, axes_of, dtype, placement, progress, int8=int8, formats=formats
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
    """Load only the embedding and the head of a target of any family; see `load_decoder`."""
    with open_checkpoint(path, any_family=True) as source:
        config = source.checkpoint.config
        table, untied = embedding_name(config), head_name(config)
        names = [table] if untied is None else [table, untied]
        source.check_names(names)
        loaded = dict(
            _stream_weights(
                source, dict.fromkeys(names, (VOCAB, EMBED)), dtype, placement, progress
            )
        )
    head = None if untied is None else loaded[untied.path]
    return EmbeddingAndHead(loaded[table.path], head), source.checkpoint


def _stream_weights(
    source: OpenCheckpoint,
    axes_of: Mapping[TensorName, Axes],
    dtype: DTypeLike,
    placement: Placement | None,
    progress: Progress | None,
    *,
    int8: bool = False,
    formats: Mapping[str, Format] = MappingProxyType({}),
) -> Iterator[tuple[str, Array]]:
    """Yield weights on their devices by their paths in `Decoder`, in the order of the files.

    With int8 each quantized matrix is followed by its `scale`.
    """
    element = jnp.dtype(dtype)

    def dtype_of(name: TensorName) -> np.dtype[Any]:
        return np.dtype(np.float32) if name.wide else element

    def size(name: TensorName) -> int:
        if format := formats.get(name.path):
            return name.shape[0] * row_bytes(format, name.shape[1])
        if int8 and is_quantized(name):
            scales: int = math.prod(_but_inputs(name, name.shape))
            return math.prod(name.shape) + scales * np.dtype(np.float32).itemsize
        return math.prod(name.shape) * dtype_of(name).itemsize

    finished_bytes, total = 0, sum(map(size, axes_of))
    on_its_way: dict[str, Array] = {}
    for name in source.in_stored_order(axes_of):
        if name.path in formats:
            # A copy: the file may change.
            placed = {name.path: jax.device_put(np.array(source.read_blocks(name)))}
        elif int8 and is_quantized(name):
            placed = _quantized(source, name, axes_of[name], placement)
        else:
            placed = {name.path: _converted(source, name, dtype_of(name), axes_of[name], placement)}
        # Sending is asynchronous and keeps the host's copy until it is through.
        jax.block_until_ready(on_its_way)
        on_its_way = placed
        finished_bytes += size(name)
        if progress is not None:
            progress(finished_bytes, total)
        yield from placed.items()


def _converted(
    source: OpenCheckpoint,
    name: TensorName,
    dtype: np.dtype[Any],
    axes: Axes,
    placement: Placement | None,
) -> Array:
    read = source.part_reader(name)

    def part(index: Index) -> np.ndarray:
        return np.asarray(read(index), dtype, order="C")

    return send(part, name.shape, dtype, _place(source, axes, name.shape, placement))


def _quantized(
    source: OpenCheckpoint, name: TensorName, axes: Axes, placement: Placement | None
) -> dict[str, Array]:
    """Place int8 values and scales; a scale is that of all inputs, also if devices divide them."""
    read, trailing = source.part_reader(name), (slice(None),) * (len(name.shape) - 1)

    @functools.cache
    def rows(start: int, stop: int) -> Quantized:
        weight = np.asarray(read((slice(start, stop), *trailing)), np.float32)
        return quantize(weight, input_axis(name))

    def rows_of(index: Index) -> Quantized:
        start, stop, _ = index[0].indices(name.shape[0])
        return rows(start, stop)

    def values(index: Index) -> np.ndarray:
        return np.ascontiguousarray(rows_of(index).values[:, *index[1:]])

    def scales(index: Index) -> np.ndarray:
        return rows_of(index).scale[:, *index[1:]]

    whole = _place(source, axes, name.shape, placement)
    shape = _but_inputs(name, name.shape)
    of_scales = _place(source, _but_inputs(name, axes), shape, placement)
    return {
        name.path: send(values, name.shape, np.dtype(np.int8), whole),
        scale_path(name): send(scales, shape, np.dtype(np.float32), of_scales),
    }


def _but_inputs(name: TensorName, axes: tuple[Any, ...]) -> tuple[Any, ...]:
    inputs = input_axis(name)
    return (*axes[:inputs], *axes[inputs + 1 :])


def _place(
    source: OpenCheckpoint, axes: Axes, shape: tuple[int, ...], placement: Placement | None
) -> Place | None:
    config = source.checkpoint.config
    return None if placement is None else placement.place(axes, shape, config)


def send(
    part: Callable[[Index], np.ndarray],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    place: Place | None,
) -> Array:
    """Send each device its part; without a place, send all to the default device."""
    everything: Index = (slice(None),) * len(shape)
    if place is None:
        placed: Array = jax.device_put(part(everything))
        return placed
    return jax.make_array_from_callback(
        shape, place, lambda index: part(everything if index is None else index), dtype
    )
