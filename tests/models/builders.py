"""Decoders with every weight random, so that no misplaced norm or bias goes unnoticed."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import load_file, save_file
from tests.models.tiny import decoder_tensors

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder, DecoderOutput
from blockdraft_models.decoder.rope_scaling import RopeScaling
from blockdraft_models.decoder.stored import Format

LLAMA3_SCALING = RopeScaling(8.0, 1.0, 4.0, 64)


def random_decoder(config: DecoderConfig, seed: int = 0, dtype: str = "float32") -> Decoder:
    decoder = Decoder(config, dtype=dtype, rngs=None)
    # By NumPy: to draw by JAX compiles a program for each shape.
    rng = np.random.default_rng(seed)

    def weights(start: jax.Array) -> jax.Array:
        spread = 0.1 if start.ndim == 1 else start.shape[1] ** -0.5
        return jnp.asarray(np.asarray(start) + rng.normal(0, spread, start.shape), start.dtype)

    nnx.update(decoder, jax.tree.map(weights, nnx.state(decoder)))
    return decoder


@partial(jax.jit, static_argnums=(0, 3, 4))
def _run(
    graph: nnx.GraphDef[Decoder],
    state: Any,
    tokens: jax.Array,
    batch: int,
    capture: tuple[int, ...],
    adapters: jax.Array | None,
) -> tuple[jax.Array, DecoderOutput]:
    decoder = nnx.merge(graph, state)
    length = tokens.shape[0] // batch
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), batch)
    caches = [None] * decoder.cache_count
    output = decoder(tokens, positions, caches, DenseAttend(batch, length), capture, adapters)
    return decoder.logits(output.hidden), output


def run_dense(
    decoder: Decoder,
    token_ids: np.ndarray,
    capture: tuple[int, ...] = (),
    adapters: np.ndarray | None = None,
) -> tuple[np.ndarray, DecoderOutput]:
    """Logits and output of whole sequences, [batch, length] -> [batch, length, vocab].

    `adapters` has the number of each token's adapter.
    """
    batch, length = token_ids.shape
    tokens = jnp.asarray(token_ids.reshape(-1), jnp.int32)
    logits, output = _run(*nnx.split(decoder), tokens, batch, capture, adapters)
    return np.asarray(logits).reshape(batch, length, -1), output


def write_gguf(
    decoder: Decoder, path: Path, format: Format | None = None, /, **changes: np.ndarray | None
) -> None:
    """Writes a GGUF as llama.cpp would, matrices in `format`, all else float32.

    `changes` replaces (None: drops) tensors.
    """
    config = decoder.config
    writer = GGUFWriter(path, config.family.replace("_", ""))
    writer.add_name(config.name)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(config.bos_token_id or 0)
    writer.add_eos_token_id(config.eos_token_ids[0])
    if config.num_experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.experts_per_token)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    tensors: dict[str, Any] = {
        name.gguf: permute(weight, name.permuted_heads)
        if name.permuted_heads
        else np.ascontiguousarray(weight.swapaxes(-1, -2) if name.transposed else weight)
        for name, weight in decoder_tensors(decoder)
    }
    for name, weight in {**tensors, **changes}.items():
        if weight is None:
            continue
        if weight.ndim == 2 and format is not None:
            kind = GGMLQuantizationType[format]
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    close_gguf(writer)


def close_gguf(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row order of llama.cpp: of each head, rows 0, half, 1, half + 1, ..."""
    rows = weight.shape[0] // heads
    order = [h * rows + part * (rows // 2) + i
             for h in range(heads) for i in range(rows // 2) for part in (0, 1)]  # fmt: skip
    return np.ascontiguousarray(weight[order])


def shard(directory: Path, count: int) -> None:
    """Divide the weights of a Hugging Face directory among files, beside an index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for index in range(count):
        file = f"model-{index + 1:05}-of-{count:05}.safetensors"
        part = dict(list(tensors.items())[index::count])
        save_file(part, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
